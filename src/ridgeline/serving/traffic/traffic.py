"""Requests in time: when each may arrive, how long its prompt and its answer are, what it shares and waits for.

Letters: N requests, M prefix blocks of all prompts, K different ones.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ridgeline.errors import PlanError, WorkloadError
from ridgeline.facts.trace_file import dense, take_runs
from ridgeline.facts.trace_text import Dropped

__all__ = ["Dropped", "Traffic", "traffic"]

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, eq=False)
class Traffic:
    """N requests, sorted by the earliest time at which they may arrive.

    arrival_s : (N,) [s]
        Non-decreasing, from 0. Where `after` names a request, the earliest arrival.
    prompt_tokens, output_tokens : (N,) [token]
        At least 1 each.
    prefix_start : (N+1,), prefix_blocks : (M,)
        The prompt of request i begins with prefix_blocks[prefix_start[i]:prefix_start[i+1]], ids 0..K-1 of equal
        content in equal place, and may go on over its output, which is found again once it has ended; what they do not
        cover is the request's own. Empty where unknown.
    prefix_block_tokens : int [token]
        Size of one block; the last of a prompt may be partial. 0 without prefixes.
    session, client : (N,)
        -1 for none; `client_names` names the clients.
    priority : (N,)
        Smaller is more urgent.
    after : (N,), think_s : (N,) [s]
        The earlier request that must end first, -1 for none, and the wait after its end.
    concurrency : int | None
        Closed loop: at most so many requests in flight, the next starts when one ends; all arrival_s are 0.
    dropped, notes
        Rows of a file that were not used, and what else was done to it.
    """

    arrival_s: Floats
    prompt_tokens: Ints
    output_tokens: Ints
    prefix_start: Ints
    prefix_blocks: Ints
    prefix_block_tokens: int
    session: Ints
    client: Ints
    client_names: tuple[str, ...] = field(repr=False)
    priority: Ints
    after: Ints
    think_s: Floats
    concurrency: int | None
    dropped: tuple[Dropped, ...] = field(repr=False)
    notes: tuple[str, ...]
    name: str
    source: str

    def __post_init__(self) -> None:
        count = len(self.arrival_s)
        if not count:
            raise WorkloadError(f"traffic '{self.name}' has no request; needs at least 1")
        for name in ("prompt_tokens", "output_tokens", "session", "client", "priority", "after", "think_s"):
            if len(getattr(self, name)) != count:
                raise WorkloadError(f"traffic '{self.name}': {len(getattr(self, name))} {name} for {count} requests")
        fault = self._fault()
        if fault:
            raise WorkloadError(f"traffic '{self.name}': {fault}")

    def _fault(self) -> str | None:
        arrival, count = self.arrival_s, len(self.arrival_s)
        length = np.diff(self.prefix_start)
        room = -(-(self.prompt_tokens + self.output_tokens) // max(self.prefix_block_tokens, 1))
        checks = (
            (~np.isfinite(arrival) | (arrival < 0), "arrival_s must be finite and >= 0"),
            (np.diff(arrival, prepend=arrival[0]) < 0, "arrival_s must not decrease"),
            (self.prompt_tokens < 1, "prompt_tokens must be >= 1"),
            (self.output_tokens < 1, "output_tokens must be >= 1"),
            ((self.after >= np.arange(count)) | (self.after < -1), "after must name an earlier request, or -1"),
            (~np.isfinite(self.think_s) | (self.think_s < 0), "think_s must be finite and >= 0"),
            (self.client >= max(len(self.client_names), 1), "client has no name"),
        )
        for wrong, rule in checks:
            if wrong.any():
                return f"request {int(np.flatnonzero(wrong)[0])}: {rule}"
        if len(self.prefix_start) != count + 1 or self.prefix_start[-1] != len(self.prefix_blocks):
            return f"prefix_start must have {count + 1} entries and end at {len(self.prefix_blocks)}"
        if (length < 0).any() or (length > room).any() or (len(self.prefix_blocks) and not self.prefix_block_tokens):
            return "a request names more prefix blocks than it has tokens for"
        place = np.arange(len(self.prefix_blocks)) - np.repeat(self.prefix_start[:-1], length)
        places = np.zeros(int(np.max(self.prefix_blocks, initial=0)) + 1, dtype=np.int64)
        places[self.prefix_blocks] = place
        if (places[self.prefix_blocks] != place).any():
            return "a prefix block stands in two places; ids are of equal content in equal place (`in_place`)"
        if self.concurrency is not None and (self.concurrency < 1 or arrival[-1] > 0):
            return f"concurrency = {self.concurrency}; a closed loop needs >= 1, and every arrival_s at 0"
        return None

    @property
    def requests(self) -> int:
        """Number of requests [1]."""
        return len(self.arrival_s)

    def take(self, chosen: ArrayLike) -> Traffic:
        """The requests at increasing indices; one whose predecessor is left out waits for none."""
        index = np.asarray(chosen, dtype=np.int64)
        start, blocks = take_runs(self.prefix_start, self.prefix_blocks, index)
        place = np.full(self.requests + 1, -1, dtype=np.int64)  # the last entry is where -1 points
        place[index] = np.arange(len(index))
        after = place[self.after[index]]
        return replace(
            self,
            arrival_s=self.arrival_s[index],
            prompt_tokens=self.prompt_tokens[index],
            output_tokens=self.output_tokens[index],
            prefix_start=start,
            prefix_blocks=dense(blocks),
            session=self.session[index],
            client=self.client[index],
            priority=self.priority[index],
            after=after,
            think_s=np.where(after < 0, 0.0, self.think_s[index]),
        )

    def first(self, requests: int) -> Traffic:
        """The first requests, all where there are fewer."""
        if requests < 1:
            raise WorkloadError(f"the first {requests} requests were asked for; needs >= 1")
        return self.take(np.arange(min(requests, self.requests)))

    def between(self, start_s: float, end_s: float) -> Traffic:
        """Requests with start_s <= arrival_s < end_s; time 0 is then start_s."""
        index = np.flatnonzero((self.arrival_s >= start_s) & (self.arrival_s < end_s))
        if not len(index):
            last = float(self.arrival_s[-1])
            where = f"between {start_s:g} and {end_s:g} s"
            raise WorkloadError(f"no request of '{self.name}' {where}; the last is at {last:g} s")
        part = self.take(index)
        return replace(part, arrival_s=part.arrival_s - start_s)

    def scaled(self, rate_factor: float) -> Traffic:
        """The same requests at `rate_factor` times the rate: times of arrival are divided by it.

        Waits of people between turns (`think_s`) stay as they are.
        """
        if not (math.isfinite(rate_factor) and rate_factor > 0):
            raise WorkloadError(f"rate factor {rate_factor}; needs a finite number > 0")
        return replace(self, arrival_s=self.arrival_s / rate_factor)

    def closed(self, concurrency: int) -> Traffic:
        """The same requests in the same order, with at most `concurrency` of them in flight."""
        return replace(self, arrival_s=np.zeros(self.requests), concurrency=concurrency)


def traffic(
    arrival_s: ArrayLike,
    prompt_tokens: ArrayLike,
    output_tokens: ArrayLike,
    *,
    prefix_start: Ints | None = None,
    prefix_blocks: Ints | None = None,
    prefix_block_tokens: int = 0,
    session: Ints | None = None,
    client: Ints | None = None,
    client_names: tuple[str, ...] = (),
    priority: Ints | None = None,
    after: Ints | None = None,
    think_s: Floats | None = None,
    concurrency: int | None = None,
    dropped: tuple[Dropped, ...] = (),
    notes: tuple[str, ...] = (),
    name: str = "traffic",
    source: str = "",
) -> Traffic:
    """Requests of which only times and lengths need to be said.

    >>> traffic([0.0, 1.5], [100, 200], [10, 20]).requests
    2
    """
    arrival = np.asarray(arrival_s, dtype=np.float64)
    count = len(arrival)
    none = np.full(count, -1, dtype=np.int64)
    return Traffic(
        arrival_s=arrival,
        prompt_tokens=np.asarray(prompt_tokens, dtype=np.int64),
        output_tokens=np.asarray(output_tokens, dtype=np.int64),
        prefix_start=np.zeros(count + 1, dtype=np.int64) if prefix_start is None else prefix_start,
        prefix_blocks=np.zeros(0, dtype=np.int64) if prefix_blocks is None else prefix_blocks,
        prefix_block_tokens=prefix_block_tokens,
        session=none if session is None else session,
        client=none if client is None else client,
        client_names=client_names,
        priority=np.zeros(count, dtype=np.int64) if priority is None else priority,
        after=none if after is None else after,
        think_s=np.zeros(count) if think_s is None else think_s,
        concurrency=concurrency,
        dropped=dropped,
        notes=notes,
        name=name,
        source=source,
    )


def clients_of(traffic: Traffic) -> Ints:
    """Whose each request is, numbers from 0: of its client, or else of its session; those of nobody are one client's.

    Raises `PlanError` where the traffic names neither.
    """
    for owner in (traffic.client, traffic.session):
        if (owner >= 0).any():
            return np.unique(owner, return_inverse=True)[1].astype(np.int64)
    raise PlanError(
        f"deployment: queue = fair is fair among clients, and '{traffic.name}' names none;"
        " give a trace with a column client or session, or leave the queue in order of arrival"
    )
