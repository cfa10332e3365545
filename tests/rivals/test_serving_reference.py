"""A thousand small fleets, drawn at random, end every request as the slow simulator says, to the last digits."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from reference_rank import Asked, Rank
from reference_serving import Fleet, Instance
from reference_split import Answers, Prompts

from ridgeline.cost.seconds import Seconds
from ridgeline.plan.deployment import Deployment, Role
from ridgeline.scenario.serving_words import deployed, replaced
from ridgeline.seams.serving import Adapters, of
from ridgeline.serving import loop, state
from ridgeline.serving import replay as replay_room
from ridgeline.serving.adapters import drawn
from ridgeline.serving.attention_ffn import AttentionFFNTables
from ridgeline.serving.nano import NanoTables
from ridgeline.serving.replay import Replay, replay_tables
from ridgeline.serving.split import SplitTables
from ridgeline.serving.step import StepTables
from ridgeline.serving.traffic.traffic import Traffic, traffic

BATCHES, CASES = 20, 50
ROUTERS = ("round-robin", "least-loaded", "prefix")


def seconds(values: np.ndarray) -> Seconds:
    return Seconds(mid=values, low=values, high=values, compute=values, memory=values)


def rising(draw: np.random.Generator, *shape: int) -> np.ndarray:
    """A table of times that grow along every axis [s]."""
    values = draw.uniform(1e-4, 3e-3, shape)
    for axis in range(len(shape)):
        values = np.cumsum(values, axis=axis)
    return values


def random_tables(draw: np.random.Generator) -> StepTables:
    tokens = np.array([1.0, 2.0, 3.0, 5.0, 8.0, 16.0])
    sequences, contexts = np.array([1.0, 2.0, 4.0]), np.array([1.0, 4.0, 9.0, 20.0])
    chunks, pasts = np.array([1.0, 3.0, 10.0]), np.array([0.0, 5.0, 12.0])
    group = rising(draw, 6)
    return StepTables(
        tokens=tokens, lane=seconds(rising(draw, 6)), group=seconds(group), head=seconds(rising(draw, 3)),
        sequences=sequences, contexts=contexts, decode=seconds(rising(draw, 3, 4)), chunks=chunks, pasts=pasts,
        first=seconds(rising(draw, 3, 3)), each=seconds(rising(draw, 3, 3) * 0.7), kernels=1.0, stage_share=1.0,
        send_s=0.0, send_start_s=0.0, prompt_group=seconds(group * (0.5 + group[0] % 1e-3 * 1e3)),
    )  # fmt: skip


@dataclass
class FakeEngine:
    """What a replay asks of an engine."""

    deployment: Deployment
    values: dict[str, float]
    graphs: tuple[int, ...]
    policy: Any

    def rule(self, table: StepTables, *, prefix_tokens: int = 0, stride: int = 0, takers: object = ()) -> np.ndarray:
        rule = np.zeros((), dtype=state.RULE)
        for name, value in self.values.items():
            rule[name] = value
        return rule


def random_values(draw: np.random.Generator, prefix_blocks: int, block: int) -> dict[str, float]:
    """The numbers of a rule, such that caches are short in most cases."""
    scheduler = int(draw.integers(3))
    gained = float(draw.choice([1.0, 1.0, 1.0, 1.5, 1.75]))
    seed = draw.bit_generator.state["state"]["state"]  # what takes no draw of its own
    drafts_s = seed % 31 / 100  # of prompts
    return {
        "scheduler": scheduler,
        "chunked": int(draw.integers(2)),
        "padded": int(seed % 3 == 0),
        "token_budget": int(draw.integers(4, 65)),
        "max_seqs": int(draw.integers(1, 13)),
        "block_tokens": block,
        "period": max(1, int(block * max(1, -int(-gained // block)) / gained)),
        "growth_blocks": max(1, -int(-gained // block)),
        "capacity": int(draw.integers(1, 4)) + -(-int(draw.integers(30, 56)) // block),
        "kept_free": int(draw.integers(2)),
        "reserve": float(draw.choice([0.0, 0.0, 0.0, 0.0, 0.5, 1.0])),
        "swaps": int(draw.integers(2)),
        "ranks": int(draw.integers(1, 3)),
        "prefix_tokens": prefix_blocks * block,
        "overlapped": int(draw.integers(2)),
        "swap_token_s": draw.uniform(0, 1e-3),
        "move_token_s": draw.uniform(0, 1e-3),
        "move_start_s": draw.uniform(0, 1e-3),
        "eager_s": draw.uniform(0, 0.02),
        "step_host_s": draw.uniform(0, 0.02),
        "seq_host_s": draw.uniform(0, 1e-3),
        "prefill_graphs": float(draw.choice([0.0, 8.0])),
        "balance": float(draw.choice([1.0, 1.25])),
        "hops": float(draw.integers(2)),
        "send_start_s": draw.uniform(0, 1e-3),
        "send_s": draw.uniform(0, 1e-4),
        "drafted": 0.0 if gained == 1.0 else 2.0,
        "gained": gained,
        "draft_share": 0.0 if gained == 1.0 else draw.uniform(0, 0.3),
        "draft_prompt": 0.0 if gained == 1.0 else drafts_s,
        "build_s": max(0.0, seed % 37 / 1000 - 0.018),
        "mask_s": max(0.0, seed % 41 / 1e4 - 0.002),
        "masks_beside": seed % 2,
        "mask_above": seed % 5,
        "mask_threads": seed % 3,
    }


def random_engines(draw: np.random.Generator, prefix_blocks: int, block: int) -> list[FakeEngine]:
    """One kind of instance, two, or a pool for prompts and one for the rest."""
    roles = [(Role.WHOLE,), (Role.WHOLE, Role.WHOLE), (Role.PREFILL, Role.DECODE)][draw.choice(3, p=[0.5, 0.2, 0.3])]
    engines = []
    for role in roles:
        count = int(draw.integers(1, 4 - len(roles) + 1))
        graphs = [(), (2, 4), (1, 3, 8)][int(draw.integers(3))]
        values = random_values(draw, prefix_blocks, block)
        if role is Role.PREFILL:
            values["reserve"] = 0.0
        policy = SimpleNamespace(
            exposed_host_s=draw.uniform(0, 1e-3),
            request_host_s=draw.uniform(0, 1e-2) * (draw.random() < 0.5),
            prompt_token_host_s=0.0,
        )
        engines.append(FakeEngine(deployed(instances=count, role=role), values, graphs, policy))
    return engines


def random_prefixes(draw: np.random.Generator, prompts: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Blocks of prompts that branch like a tree: equal numbers mean equal content in equal place."""
    known: dict[tuple[int, ...], int] = {}
    lists = []
    for prompt in prompts:
        path: tuple[int, ...] = ()
        blocks = []
        for _ in range(int(draw.integers(0, prompt // size + 1))):
            path = (*path, int(draw.random() < 0.3))
            blocks.append(known.setdefault(path, len(known)))
        lists.append(blocks)
    starts = np.cumsum([0, *map(len, lists)])
    return starts.astype(np.int64), np.array([block for blocks in lists for block in blocks], dtype=np.int64)


def random_traffic(draw: np.random.Generator, prefix_tokens: int) -> Traffic:
    count = int(draw.integers(3, 13))
    prompts, outputs = draw.integers(1, 33, count), draw.integers(1, 33, count)
    closed = int(draw.integers(1, 6)) if draw.random() < 0.25 else None
    arrival = np.zeros(count) if closed else np.sort(draw.uniform(0, float(draw.choice([0.01, 0.1, 1.0])), count))
    after = np.full(count, -1)
    if closed is None and draw.random() < 0.4:
        for index in range(1, count):
            if draw.random() < 0.4:
                after[index] = draw.integers(index)
    shares = draw.random() < 0.7
    start, blocks = random_prefixes(draw, prompts, prefix_tokens) if shares else (None, None)
    return traffic(
        arrival, prompts, outputs, after=after, think_s=np.where(after < 0, 0.0, draw.uniform(0, 0.1, count)),
        priority=draw.integers(3, size=count) if draw.random() < 0.3 else None, concurrency=closed,
        prefix_start=start, prefix_blocks=blocks, prefix_block_tokens=prefix_tokens if shares else 0,
    )  # fmt: skip


@dataclass
class Case:
    engines: list[FakeEngine]
    tables: list[StepTables]
    traffic: Traffic
    router: str

    def compiled(self) -> Replay:
        return replay_tables(self.engines, self.tables, self.traffic, router=self.router)  # type: ignore[arg-type]

    def instances(self) -> list[Instance]:
        instances: list[Instance] = []
        for kind, (one, table) in enumerate(zip(self.engines, self.tables, strict=True)):
            record = one.rule(table)
            rule = {name: record[name].item() for name in record.dtype.names}
            for _ in range(one.deployment.instances):
                same = {
                    "kind": kind, "rule": rule, "tables": table, "graphs": one.graphs,
                    "ranks": [Rank(rule=rule) for _ in range(int(rule["ranks"]))],
                    "extra_s": one.policy.exposed_host_s,
                }  # fmt: skip
                if rule["split"]:
                    prompts, answers = Prompts(**same, role="whole"), Answers(**same, role="answers")
                    prompts.peer, answers.peer = answers, prompts
                    instances += [prompts, answers]
                else:
                    instances.append(Instance(**same, role=one.deployment.role.value))
        return instances

    def plain(self) -> Fleet:
        return self.fleet().run()

    def fleet(self) -> Fleet:
        t, one = self.traffic, self.engines[0].deployment
        adapters = drawn(of(one, Adapters), t.requests) if of(one, Adapters).count else np.zeros(t.requests)
        front = self.engines[0].policy
        asked = [
            Asked(
                number=i, prompt=int(t.prompt_tokens[i]), output=int(t.output_tokens[i]), priority=int(t.priority[i]),
                arrival_s=float(t.arrival_s[i]), after=int(t.after[i]), think_s=float(t.think_s[i]),
                blocks=[int(block) for block in t.prefix_blocks[t.prefix_start[i] : t.prefix_start[i + 1]]],
                needed=int(t.prompt_tokens[i]), client=int(t.client[i]), adapter=int(adapters[i]),
                front_s=front.request_host_s * (0.5 + i * (5**0.5 - 1) / 2 % 1),
            )
            for i in range(t.requests)
        ]  # fmt: skip
        return Fleet(
            instances=self.instances(), asked=asked, router=self.router, concurrency=t.concurrency,
            by_priority=len(set(t.priority)) > 1 or any(one.values.get("redraws") for one in self.engines),
        )  # fmt: skip


def random_case(seed: int) -> Case:
    draw = np.random.default_rng(seed)
    block, prefix_blocks = int(draw.integers(1, 17)), int(draw.integers(1, 3))
    engines = random_engines(draw, prefix_blocks, block)
    tables = [random_tables(draw) for _ in engines]
    asked = shared(np.random.default_rng((seed, 1)), engines, random_traffic(draw, prefix_blocks * block))
    laden(np.random.default_rng((seed, 3)), engines)
    thinned(np.random.default_rng((seed, 4)), engines)
    tables = halved(np.random.default_rng((seed, 2)), engines, tables)
    restless(np.random.default_rng((seed, 7)), engines)
    prepared(np.random.default_rng((seed, 8)), engines)
    patient(np.random.default_rng((seed, 9)), engines)
    standing(np.random.default_rng((seed, 10)), engines)
    tables = parted(np.random.default_rng((seed, 6)), engines, tables)
    tables = divided(np.random.default_rng((seed, 5)), engines, tables)
    launched(engines)
    return Case(engines=engines, tables=tables, traffic=asked, router=ROUTERS[int(draw.integers(3))])


def laden(draw: np.random.Generator, engines: list[FakeEngine]) -> None:
    """Some fleets serve adapters, of which few are held at once."""
    if draw.random() < 0.35:
        count, slots = int(draw.integers(2, 5)), int(draw.integers(1, 3))
        load_s = draw.uniform(0.0, 0.02)
        for one in engines:
            one.deployment = replaced(one.deployment, adapters=count, adapter_slots=slots, adapter_skew=0.5)
            one.values |= {"slots": slots, "load_s": load_s}


def thinned(draw: np.random.Generator, engines: list[FakeEngine]) -> None:
    """Some fleets without pools cut caches when prompts are done, and fetch from host memory."""
    if draw.random() < 0.3 and all(one.deployment.role is Role.WHOLE for one in engines):
        kept, fetched = int(draw.integers(1, 12)), int(draw.integers(0, 3)) * 3
        for one in engines:
            one.values |= {"kept": kept, "swaps": 0, "prefix_tokens": 0}
            one.values["early"] = int(not fetched and one.values["chunked"])
            if fetched:
                one.values |= {
                    "fetched": fetched, "held_share": draw.uniform(0, 0.5), "read_share": draw.uniform(0, 0.2),
                    "fetch_s": draw.uniform(0, 0.01), "store_s": draw.uniform(0, 0.01),
                    "host_tokens": int(draw.integers(0, 2)) * int(draw.integers(60, 200)),
                }  # fmt: skip


def waits(draw: np.random.Generator) -> Seconds:
    """Times of a rank, and of experts in steps and in iterations with prompts."""
    return seconds(np.stack([rising(draw, 6) for _ in range(3)]))


def shared_device(seed: int) -> dict[str, float]:
    """Two nano-batches, or in other cases replicas with hosts of their own, or weights and caches of the host."""
    draw = np.random.default_rng(seed)
    two = {"chain": 0.5, "attention_memory": 1.0}
    replicas = {**two, "chain": float(draw.choice([0.5, 0.25])), "chain_step_s": draw.uniform(0, 0.01)}
    replicas["chain_seq_s"] = draw.uniform(0, 1e-3)
    streamed = {"nano_tokens": 1.0, "chain": 0.0, "memory_sms": draw.uniform(0, 0.2)}
    streamed |= {"attention_memory": draw.uniform(), "attention_link": draw.uniform(0, 2.0)}
    return (two, replicas, streamed)[draw.integers(3)]


def halved(draw: np.random.Generator, engines: list[FakeEngine], tables: list[StepTables]) -> list[StepTables]:
    """Some engines without drafts cut their larger iterations in two nano-batches."""
    found = []
    for one, table in zip(engines, tables, strict=True):
        if one.values["gained"] == 1.0 and draw.random() < 0.5:
            sms = {"memory_sms": draw.uniform(0.1, 0.9), "link_sms": draw.uniform(0.0, 0.3)}
            one.values |= sms | {"nano_tokens": int(draw.integers(2, 6)), "hops": 0.0, "balance": 1.0}
            one.values |= shared_device(int(1e6 * sms["link_sms"]))
            one.values["exposed_s"] = one.policy.exposed_host_s
            nano = NanoTables(
                compute=waits(draw), memory=waits(draw), network=waits(draw),
                head_compute=seconds(rising(draw, 3)), head_memory=seconds(rising(draw, 3)),
                head_network=seconds(rising(draw, 3)),
                decode=seconds(rising(draw, 3, 4) * draw.uniform(0.5, 4.0)),
            )  # fmt: skip
            found.append(replace(table, nano=nano))
        else:
            found.append(table)
    return found


def prepared(draw: np.random.Generator, engines: list[FakeEngine]) -> None:
    """Some engines prepare each iteration while the one before it runs."""
    for one in engines:
        one.values["ahead"] = int(draw.random() < 0.5)
        whole = one.deployment.role is Role.WHOLE
        one.values["late_results"] = int(whole and one.values["ahead"] and one.values["eager_s"] < 0.015)


def standing(draw: np.random.Generator, engines: list[FakeEngine]) -> None:
    """Some engines' ranks compute nothing in the iteration in which they take sequences in."""
    for one in engines:
        one.values["stands"] = int(draw.random() < 0.5)


def launched(engines: list[FakeEngine]) -> None:
    """Some engines take as long to launch an iteration as to run it, so that its result is looked at late."""
    for one in engines:
        if one.values["late_results"] and not one.values.get("split"):
            one.values["eager_s"] *= 10.0


def patient(draw: np.random.Generator, engines: list[FakeEngine]) -> None:
    """Some engines take prompts at looks only, or hold them back until there are enough."""
    for one in engines:
        if draw.random() < 0.4:
            one.values |= {
                "receive_steps": int(draw.integers(2, 9)), "holds": int(draw.integers(3)),
                "enough": draw.uniform(0.2, 1.0) * one.values["token_budget"],
            }  # fmt: skip


def restless(draw: np.random.Generator, engines: list[FakeEngine]) -> None:
    """Some fleets change who is urgent every few iterations."""
    if draw.random() < 0.4 and not any(one.values["fair"] or one.values["shortest"] for one in engines):
        for one in engines:
            one.values |= {"displaces": 1, "redraws": int(draw.integers(1, 7)), "levels": int(draw.integers(2, 5))}


def parted(draw: np.random.Generator, engines: list[FakeEngine], tables: list[StepTables]) -> list[StepTables]:
    """Some engines without drafts send micro-batches to experts on devices of their own."""
    found = []
    for one, table in zip(engines, tables, strict=True):
        if one.values["gained"] == 1.0 and not one.values.get("nano_tokens") and draw.random() < 0.45:
            one.values |= {
                "micro_batches": int(draw.integers(1, 5)), "expert_layers": int(draw.integers(1, 5)), "hops": 0.0,
                "balance": 1.0, "exposed_s": one.policy.exposed_host_s,
            }  # fmt: skip
            found.append(
                replace(table, attention_ffn=AttentionFFNTables(send=seconds(rising(draw, 6) * draw.uniform(0.1, 2.0))))
            )
        else:
            found.append(table)
    return found


def divided(draw: np.random.Generator, engines: list[FakeEngine], tables: list[StepTables]) -> list[StepTables]:
    """Some fleets without pools, nano-batches and displacing compute prompts beside decode steps."""
    others = any(one.values.get("nano_tokens") or one.values["displaces"] for one in engines)
    if draw.random() > 0.35 or others or any(one.deployment.role is not Role.WHOLE for one in engines):
        return tables
    found = []
    for one, table in zip(engines, tables, strict=True):
        block = one.values["block_tokens"]
        one.deployment = replaced(one.deployment, adapters=None)
        for name in (
            "redraws",
            "micro_batches",
            "nano_tokens",
            "slots",
            "swaps",
            "displaces",
            "kept",
            "early",
            "fetched",
            "host_tokens",
            "ahead",
            "receive_steps",
            "stands",
            "mask_s",
        ):
            one.values[name] = 0
        one.values |= {
            "scheduler": state.PREFILL_FIRST, "ranks": 1, "gained": 1.0, "drafted": 0.0, "draft_share": 0.0,
            "draft_prompt": 0.0,
            "period": block, "growth_blocks": 1, "hops": 0.0, "balance": 1.0, "split": 1, "padded": 0,
            "split_share": float(draw.choice([0.0, 0.3, 0.75])), "memory_sms": draw.uniform(0.1, 0.9),
            "link_sms": draw.uniform(0.0, 0.3), "exposed_s": one.policy.exposed_host_s, "store_s": 0.0,
        }  # fmt: skip
        sides = np.random.default_rng((int(1e9 * one.values["memory_sms"]), 9))
        if sides.random() < 0.5:
            one.values |= {"split_slack": sides.uniform(1.0, 3.0), "split_fill": sides.uniform(0.0, 1.0)}
        split = SplitTables(
            compute=waits(draw), memory=waits(draw), network=waits(draw),
            head_compute=seconds(rising(draw, 3)), head_memory=seconds(rising(draw, 3)),
            head_network=seconds(rising(draw, 3)), busy=waits(draw),
            head_busy=seconds(rising(draw, 3)),
        )  # fmt: skip
        found.append(replace(table, nano=None, attention_ffn=None, split=split))
    return found


def shared(draw: np.random.Generator, engines: list[FakeEngine], asked: Traffic) -> Traffic:
    """The traffic as that of some clients, and engines that are fair to them or to the urgent in some cases."""
    fair, beside = draw.random() < 0.4, draw.random() < 0.5
    displaces = draw.random() < 0.5 and np.ptp(asked.priority) > 0
    shortest = not fair and draw.random() < 0.4
    for one in engines:
        one.values |= {"fair": int(fair), "displaces": int(displaces), "beside": int(beside)}
        one.values |= {"shortest": int(shortest), "patience": float(draw.choice([0.0, 3.0, 500.0]))}
    if not fair:
        return asked
    clients = int(draw.integers(1, 4))
    owner = draw.integers(-1, clients, asked.requests)
    owner[0] = 0
    return replace(asked, client=owner, client_names=tuple("abc"[:clients]))


def differences(case: Case) -> tuple[list[str], Fleet]:
    """What the two simulators answer differently."""
    fast, slow = case.compiled(), case.plain()
    wrong = []
    for name in ("came_s", "first_s", "end_s"):
        theirs = np.array([getattr(one, name) for one in slow.asked])
        if not np.allclose(getattr(fast, name), theirs, rtol=1e-9, atol=0.0, equal_nan=True):
            wrong.append(name)
    wholes = {
        "preempted": [one.preempted for one in slow.asked],
        "hit_tokens": [one.hit for one in slow.asked],
        "refused": [one.stage == "refused" for one in slow.asked],
        "done": [one.stage == "ended" for one in slow.asked],
        "iterations": slow.iterations,
        "moves": slow.moves,
        "loads": sum(rank.loads for instance in slow.instances for rank in instance.ranks),
    }
    wrong += [name for name, theirs in wholes.items() if not np.array_equal(getattr(fast, name), theirs)]
    return wrong, slow


@cache
def compared(batch: int) -> tuple[list[str], Counter[str]]:
    """What differs in one batch of cases, and in how many of them what happened."""
    wrong, seen = [], Counter[str]()
    for seed in range(batch * CASES, (batch + 1) * CASES):
        case = random_case(seed)
        names, slow = differences(case)
        wrong += [f"case {seed}: {', '.join(names)}"] if names else []
        preempted = any(one.preempted for one in slow.asked)
        gains = any(one.values["gained"] > 1 for one in case.engines)
        happened = {
            "preempted": preempted,
            "swapped": preempted and any(one.values["swaps"] for one in case.engines),
            "hit": any(one.hit for one in slow.asked),
            "moved": slow.moves > 0,
            "refused": any(one.stage == "refused" for one in slow.asked),
            "drafted": gains,
            "closed": case.traffic.concurrency is not None,
            "sessions": bool((case.traffic.after >= 0).any()),
            "priorities": bool(np.ptp(case.traffic.priority)),
            "several ranks": any(one.values["ranks"] > 1 for one in case.engines),
            "several instances": len(slow.instances) > 1,
            "compiled anew": any(len(each.built) > 1 and each.rule["build_s"] > 0 for each in slow.instances),
            "late": any(one.passed for one in slow.asked),
            "cache full": slow.peak_share == 1.0,
            "halved": any(one.values.get("nano_tokens") for one in case.engines),
            "halved ranks": any(one.values.get("nano_tokens") and one.values["ranks"] > 1 for one in case.engines),
            "laden": any(rank.loads > 1 for instance in slow.instances for rank in instance.ranks),
            "thinned": any(one.values.get("kept") for one in case.engines),
            "early": any(one.values.get("early") for one in case.engines),
            "stood": any(instance.stood for instance in slow.instances),
            "fetched": any(one.values.get("fetched") for one in case.engines),
            "split": any(one.values.get("split") for one in case.engines),
            "sided": any(one.values.get("split_slack") for one in case.engines),
            "split and full": preempted and any(one.values.get("split") for one in case.engines),
            "restless": preempted and any(one.values.get("redraws") for one in case.engines),
            "apart": any(one.values.get("micro_batches") for one in case.engines),
            "patient": any(one.values.get("receive_steps") for one in case.engines),
            "fair": len(set(case.traffic.client)) > 1,
            "shortest": bool(case.engines[0].values["shortest"]) and case.traffic.requests > 3,
            "displaced": preempted and bool(case.engines[0].values["displaces"]),
            "beside": preempted and any(one.values["swaps"] * one.values["beside"] for one in case.engines),
        }
        seen.update(name for name, true in happened.items() if true)
    return wrong, seen


@pytest.mark.parametrize("batch", range(BATCHES))
def test_every_request_ends_as_the_slow_simulator_says(batch: int) -> None:
    wrong, _ = compared(batch)
    assert not wrong


def test_the_cases_are_not_vacuous() -> None:
    seen = sum((compared(batch)[1] for batch in range(BATCHES)), Counter[str]())
    least = {
        "preempted": 200, "swapped": 100, "hit": 200, "moved": 200, "refused": 50, "drafted": 100, "closed": 150,
        "sessions": 200, "priorities": 200, "several ranks": 400, "several instances": 400, "cache full": 100,
        "laden": 150, "thinned": 150, "fetched": 80, "late": 20,
        "restless": 40, "apart": 150, "patient": 300, "split": 120, "sided": 50, "split and full": 20, "early": 20,
        "compiled anew": 150, "halved": 200, "halved ranks": 150, "fair": 200, "shortest": 150, "displaced": 40,
        "beside": 50, "stood": 40,
    }  # fmt: skip
    assert {name: seen[name] for name in least if seen[name] < least[name]} == {}


@pytest.mark.parametrize("batch", range(6))
def test_a_router_by_blocks_sees_the_steps_that_have_ended(batch: int) -> None:
    """Cases of several instances whose requests go where the smallest share of blocks is in use."""
    wrong, routed = [], 0
    for seed in range(batch * CASES, (batch + 1) * CASES):
        case = random_case(seed)
        if sum(one.deployment.instances for one in case.engines) < 2:
            continue
        routed += 1
        names, _ = differences(replace(case, router="kv-usage"))
        wrong += [f"case {seed}: {', '.join(names)}"] if names else []
    assert not wrong
    assert routed > 15


def flat_table() -> StepTables:
    """Times that depend on nothing: 1 s of lane, 2 s of attention to decode, 4 s to a prompt."""
    flat = np.ones((2, 2))
    grid, none = np.array([1.0, 2.0]), seconds(np.zeros(2))
    return StepTables(
        tokens=grid, lane=seconds(flat[0]), group=none, prompt_group=none, head=none, sequences=grid, contexts=grid,
        decode=seconds(2 * flat), chunks=grid, pasts=grid - 1, first=seconds(4 * flat), each=seconds(4 * flat),
        kernels=1.0, stage_share=1.0, send_s=0.0, send_start_s=0.0,
    )  # fmt: skip


def test_the_slow_simulator_itself_by_hand() -> None:
    """Two requests, every part of an iteration known: 1 s of lane, 2 s of attention to decode, 4 s to a prompt.

    A: prompt 0 to 5, first token at 5; B comes at 6, in the step from 5 to 8; its prompt then rides with A's third
    token: 1 + 2 + 4 = 7 s, to 15; both decode to 18, when A has its four tokens; B's third comes at 21.
    """
    table = flat_table()
    values = {
        "scheduler": state.MIXED_BATCHES, "chunked": 1, "token_budget": 64, "max_seqs": 8, "block_tokens": 4,
        "period": 4, "growth_blocks": 1, "capacity": 10, "ranks": 1, "balance": 1.0, "gained": 1.0,
    }  # fmt: skip
    policy = SimpleNamespace(exposed_host_s=0.0, request_host_s=0.0, prompt_token_host_s=0.0)
    engine = FakeEngine(deployed(), values, (), policy)
    case = Case([engine], [table], traffic([0.0, 6.0], [3, 3], [4, 3]), "round-robin")
    slow = case.plain()
    assert [(one.came_s, one.first_s, one.end_s) for one in slow.asked] == [(0.0, 5.0, 18.0), (6.0, 15.0, 21.0)]
    assert slow.iterations == 5
    assert differences(case)[0] == []


def test_kernels_are_compiled_once_for_a_number_of_tokens() -> None:
    """Prompts of 3, 3 and 2 tokens, each alone, 5 s without compiling and 1/2 s of it: 5.5, 5 and 5.5 s."""
    table = flat_table()
    values = {
        "scheduler": state.PREFILL_FIRST, "chunked": 1, "token_budget": 8, "max_seqs": 1, "block_tokens": 4,
        "period": 4, "growth_blocks": 1, "capacity": 10, "ranks": 1, "balance": 1.0, "gained": 1.0, "build_s": 0.5,
    }  # fmt: skip
    policy = SimpleNamespace(exposed_host_s=0.0, request_host_s=0.0, prompt_token_host_s=0.0)
    engine = FakeEngine(deployed(), values, (), policy)
    case = Case([engine], [table], traffic([0.0, 10.0, 20.0], [3, 3, 2], [1, 1, 1]), "round-robin")
    assert [one.first_s for one in case.plain().asked] == [5.5, 15.0, 25.5]
    assert differences(case)[0] == []


def test_first_tokens_wait_for_the_launch_of_the_next_prompts() -> None:
    """Three prompts, one an iteration of 5 s that is launched in as many: 0 to 5, 5 to 10, 10 to 15.

    The second is launched from 5 to 10, when the first one's token is passed on, and that once; the third's comes at
    its iteration's end, as none follows.
    """
    values = {
        "scheduler": state.PREFILL_FIRST, "chunked": 1, "token_budget": 3, "max_seqs": 3, "block_tokens": 4,
        "period": 4, "growth_blocks": 1, "capacity": 10, "ranks": 1, "balance": 1.0, "gained": 1.0, "eager_s": 5.0,
        "overlapped": 1, "ahead": 1, "late_results": 1,
    }  # fmt: skip
    policy = SimpleNamespace(exposed_host_s=0.0, request_host_s=0.0, prompt_token_host_s=0.0)
    engine = FakeEngine(deployed(), values, (4,), policy)
    case = Case([engine], [flat_table()], traffic([0.0] * 3, [3] * 3, [2] * 3), "round-robin")
    assert [one.first_s for one in case.plain().asked] == [10.0, 15.0, 15.0]
    assert differences(case)[0] == []


def test_a_first_token_is_passed_on_before_the_iteration_that_follows_has_ended() -> None:
    """Launching takes 8 s of which captured iterations of 5 s wait for none: tokens come by their ends, not at 13 s.

    Mixed batches end the first request, of two tokens, with the second prompt's iteration at 10 s.
    """
    values = {
        "scheduler": state.MIXED_BATCHES, "chunked": 1, "token_budget": 4, "max_seqs": 3, "block_tokens": 4,
        "period": 4, "growth_blocks": 1, "capacity": 10, "ranks": 1, "balance": 1.0, "gained": 1.0, "eager_s": 8.0,
        "overlapped": 1, "ahead": 1, "late_results": 1, "prefill_graphs": 64,
    }  # fmt: skip
    policy = SimpleNamespace(exposed_host_s=0.0, request_host_s=0.0, prompt_token_host_s=0.0)
    engine = FakeEngine(deployed(), values, (4,), policy)
    case = Case([engine], [flat_table()], traffic([0.0] * 2, [4] * 2, [2] * 2), "round-robin")
    slow = case.plain()
    assert all(one.first_s <= one.end_s for one in slow.asked)
    assert slow.asked[0].first_s > 5.0
    assert differences(case)[0] == []


@pytest.mark.parametrize("batch", range(3))
def test_the_clock_compiled_is_the_clock_in_plain_python(batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same functions run by Python over records of NumPy, to the last bit."""

    def plain(clock: state.Clock, arrivals: np.ndarray, most_s: float) -> float:
        return loop.replay(state.plain(clock), arrivals, most_s)

    for seed in range(30 * batch, 30 * batch + 30):
        case = random_case(seed)
        compiled = case.compiled()
        with monkeypatch.context() as patch:
            patch.setattr(replay_room, "_run", plain)
            for name, value in vars(case.compiled()).items():
                assert np.array_equal(value, getattr(compiled, name), equal_nan=True), f"case {seed}: {name}"
