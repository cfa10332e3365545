"""Sessions: turns of one conversation or agent, each of which goes on with all that was read and written before it.

Between two turns a tool runs or a person thinks. Letters: R requests, S sessions, U users.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from ridgeline.errors import WorkloadError
from ridgeline.facts.trace_file import LARGEST_TOKENS
from ridgeline.serving.traffic.lengths import LengthLaw
from ridgeline.serving.traffic.traffic import Floats, Ints, Traffic, traffic

SESSIONS = ("written", "chained", "growing", "matched")
_BLOCK_TOKENS = 64  # assumed: a multiple of engines' blocks of 16, 32 and 64 tokens
_MOST_BLOCKS = 4_000_000  # assumed: of all contexts together; beyond them blocks are larger
_MOST_TURNS = 10_000_000  # assumed: a bound on nonsense, that of requests


class TimeLaw(Protocol):
    """A law of times [s] from a generator."""

    def draw_s(self, rng: np.random.Generator, count: int) -> Floats:
        """Independent times [s]."""
        ...


@dataclass(frozen=True, kw_only=True)
class Spans:
    """Times evenly between two ends [s], or lognormal of a mean [s] and a coefficient of variation."""

    low: float = 0.0
    high: float = 0.0
    mean: float = 0.0
    cv: float = 0.0

    def draw_s(self, rng: np.random.Generator, count: int) -> Floats:
        """Independent times [s]."""
        if not self.mean:
            return rng.uniform(self.low, self.high, count) if self.high > self.low else np.full(count, self.low)
        variance = math.log1p(self.cv**2)
        return rng.lognormal(math.log(self.mean) - variance / 2, math.sqrt(variance), count)


@dataclass(frozen=True, kw_only=True)
class Agents:
    """Sessions of `turns`: a prompt of `shared_tokens` that all begin with and its own, then what tools answer.

    A tool's answer of `tool` tokens comes `waits` after the turn that called it.
    """

    turns: LengthLaw
    prompt: LengthLaw
    output: LengthLaw
    tool: LengthLaw
    waits: TimeLaw
    shared_tokens: int = 0

    def drawn(self, arrival_s: Floats, draws: list[np.random.Generator], name: str) -> Traffic:
        """Sessions that begin at times of arrival (S,) [s]; each turn waits for the one before it."""
        turns = self.turns.draw(draws[0], len(arrival_s))
        count = int(turns.sum())
        if count > _MOST_TURNS:
            raise WorkloadError(f"{len(turns):,} sessions have {count:,} turns, at most {_MOST_TURNS:,}; ask for fewer")
        session = np.repeat(np.arange(len(turns)), turns)
        first = np.concatenate([[True], session[1:] != session[:-1]])
        outputs = self.output.draw(draws[1], count)
        added = self.tool.draw(draws[2], count)
        added[first] = self.shared_tokens + self.prompt.draw(draws[3], len(turns))
        grown = np.cumsum(added + outputs)
        before = np.repeat((grown - added - outputs)[first], turns)
        prompts = grown - outputs - before
        if prompts.max() > LARGEST_TOKENS:
            raise WorkloadError(f"a prompt grows to {prompts.max():,} tokens, at most {LARGEST_TOKENS:,}; fewer turns")
        after = np.where(first, -1, np.arange(count) - 1)
        asked = traffic(
            np.repeat(arrival_s, turns), prompts, outputs, session=session, after=after,
            think_s=np.where(first, 0.0, self.waits.draw_s(draws[4], count)), name=name,
        )  # fmt: skip
        return grown_from(asked, shared_tokens=self.shared_tokens)


def as_asked(found: Traffic, sessions: str, think_s: float) -> Traffic:
    """The turns of a trace as `sessions` says: arrivals as written, or each after the one before and `think_s` [s].

    'growing' takes each prompt to begin with the context so far; 'matched' finds sessions by their prefix blocks.
    """
    if sessions not in SESSIONS:
        raise WorkloadError(f"sessions '{sessions}'; needs one of {', '.join(SESSIONS)}")
    if sessions == "written":
        return replace(found, think_s=np.zeros(found.requests))
    if sessions == "matched":
        found = matched(found)
    if sessions == "growing" and len(found.prefix_blocks):
        raise WorkloadError(f"'{found.name}' names prefix blocks, which tell what its prompts share; say chained")
    found = chained(found, think_s=think_s)
    return grown_from(found) if sessions == "growing" else with_outputs(found)


def chained(found: Traffic, *, think_s: float = 0.0) -> Traffic:
    """The same requests, each waiting for the end of its session's previous one and then `think_s` [s].

    The written arrival stays as the earliest: a turn comes at max(arrival_s, end of the turn before + think_s). Where a
    trace says for itself how long a turn waits, that holds.
    """
    if not (math.isfinite(think_s) and think_s >= 0):
        raise WorkloadError(f"think_s = {think_s} s; needs a finite number >= 0")
    if not (found.session >= 0).any():
        raise WorkloadError(f"'{found.name}' names no session, so no request follows another; add a session column")
    order = np.argsort(found.session, kind="stable")
    session = found.session[order]
    follows = (session[1:] == session[:-1]) & (session[1:] >= 0)
    after = np.full(found.requests, -1, dtype=np.int64)
    after[order[1:][follows]] = order[:-1][follows]
    waits = np.where(found.think_s > 0, found.think_s, think_s)
    return replace(found, after=after, think_s=np.where(after >= 0, waits, 0.0))


def grown_from(found: Traffic, *, shared_tokens: int = 0) -> Traffic:
    """The same turns with prefix blocks: each begins with what the turn before read and wrote, all with the shared one.

    A prompt that is shorter than the context before it is a context anew.
    """
    context = found.prompt_tokens + found.output_tokens
    before = np.where(found.after >= 0, context[found.after], 0)
    goes_on = (found.after >= 0) & (found.prompt_tokens >= before)
    size = _BLOCK_TOKENS
    while int((context // size).sum()) > _MOST_BLOCKS:
        size *= 2
    counts = context // size
    head = np.minimum(shared_tokens // size, counts)
    lists: list[Ints] = []
    known = shared_tokens // size
    for i in range(found.requests):
        old = lists[found.after[i]] if goes_on[i] else np.arange(head[i])
        new = max(int(counts[i]) - len(old), 0)
        lists.append(np.concatenate([old, np.arange(known, known + new)]))
        known += new
    start = np.concatenate([[0], np.cumsum([len(one) for one in lists])]).astype(np.int64)
    blocks = np.concatenate(lists).astype(np.int64)
    if not len(blocks):
        return found
    return replace(found, prefix_start=start, prefix_blocks=blocks, prefix_block_tokens=size)


def matched(found: Traffic) -> Traffic:
    """The same requests in sessions: a prompt goes on with the longest earlier one that it begins with, output and all.

    One that introduced its last whole block, which beginnings that many share do not, and that nobody went on with.
    """
    size, start = found.prefix_block_tokens, found.prefix_start
    if not len(found.prefix_blocks):
        raise WorkloadError(f"'{found.name}' names no prefix blocks to match turns by; give a trace with hash_ids")
    session = np.arange(found.requests)
    seen: set[int] = set()
    open_: dict[int, int] = {}
    whole = np.minimum(np.diff(start), found.prompt_tokens // size)
    for i in range(found.requests):
        blocks = found.prefix_blocks[start[i] : start[i] + whole[i]].tolist()
        for block in reversed(blocks):
            one = open_.get(block)
            if one is not None and found.prompt_tokens[i] >= found.prompt_tokens[one] + found.output_tokens[one]:
                session[i] = session[one]
                del open_[block]
                break
        if blocks and blocks[-1] not in seen:
            open_[blocks[-1]] = i
        seen.update(blocks)
    return replace(found, session=session)


def with_outputs(found: Traffic) -> Traffic:
    """The same turns, whose prefix blocks go on over their outputs as far as their next turns' prompts tell them."""
    size, start = found.prefix_block_tokens, found.prefix_start
    if not len(found.prefix_blocks):
        return found
    lists = [found.prefix_blocks[start[i] : start[i + 1]] for i in range(found.requests)]
    for i in np.flatnonzero(found.after >= 0):
        one = int(found.after[i])
        mine, whole = lists[i], int(found.prompt_tokens[one]) // size
        told = min(int(found.prompt_tokens[one] + found.output_tokens[one]), int(found.prompt_tokens[i])) // size
        if len(mine) >= whole and np.array_equal(mine[:whole], lists[one][:whole]):
            lists[one] = mine[: max(told, whole)]
    counts = np.array([len(one) for one in lists])
    starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    return replace(found, prefix_start=starts, prefix_blocks=_dense(np.concatenate(lists)))


def _dense(blocks: Ints) -> Ints:
    return np.unique(blocks, return_inverse=True)[1].astype(np.int64)


def at_once(found: Traffic, users: int) -> Traffic:
    """The same sessions with at most `users` of them under way: each user begins the next one when one has ended.

    Session k is that of user k modulo U; who belongs to no session is one.
    """
    lone = found.session < 0
    session = np.where(lone, found.session.max(initial=-1) + 1 + np.cumsum(lone), found.session)
    names, first = np.unique(session, return_index=True)
    order = np.argsort(first, kind="stable")
    rank = np.empty(len(names), dtype=np.int64)
    rank[order] = np.arange(len(names))
    turn_of = rank[np.searchsorted(names, session)]
    again = np.argsort(turn_of, kind="stable")
    placed = _reordered(found, again)
    turn_of = turn_of[again]
    heads = np.concatenate([[0], np.flatnonzero(np.diff(turn_of)) + 1])
    ends = np.concatenate([heads[1:], [found.requests]]) - 1
    after = placed.after.copy()
    after[heads[users:]] = ends[:-users] if users < len(ends) else []
    return replace(placed, after=after, arrival_s=np.zeros(found.requests))


def _reordered(found: Traffic, order: Ints) -> Traffic:
    """The same requests in an order in which none comes before one that it waits for."""
    place = np.empty(found.requests + 1, dtype=np.int64)
    place[order], place[-1] = np.arange(found.requests), -1
    flat = replace(found, arrival_s=np.zeros(found.requests), after=np.full(found.requests, -1), think_s=found.think_s)
    taken = flat.take(order)
    return replace(taken, after=place[found.after[order]], think_s=found.think_s[order])
