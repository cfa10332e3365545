"""Every technique of the registry, alone and with those of other families, keeps the contract of its seams.

With another package installed its techniques are checked too: `pytest tests/contracts/test_techniques.py -k KEY`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.rivals.held_chunks import held_chunks

from ridgeline.cost.machine import Machine, machine
from ridgeline.errors import PlanError, RidgelineError
from ridgeline.facts.clusters import cluster
from ridgeline.graph.ops import LinearOp
from ridgeline.plan.deployment import Deployment
from ridgeline.plan.plan import Plan
from ridgeline.predict import Evaluation, Predictor
from ridgeline.scenario.fields import MACHINE_FAMILIES, WORDS
from ridgeline.scenario.serving import ServingScenario, serving_from_words
from ridgeline.scenario.serving_words import replaced
from ridgeline.scenario.training import Scenario, read_scenario, scenario_from_words, write_scenario
from ridgeline.seams.data_exchange import DataExchange
from ridgeline.seams.deployment_slots import check_techniques
from ridgeline.seams.experts import ExpertExchange
from ridgeline.seams.graph import GraphRewrite
from ridgeline.seams.loss import CrossEntropy, Logits
from ridgeline.seams.offload import TierOffload
from ridgeline.seams.recompute import RESULTS, WORK, RecomputeRule
from ridgeline.seams.registry import families, listed, made, names, technique
from ridgeline.seams.resolve import rewritten, together
from ridgeline.seams.schedule import BACKWARD, BACKWARD_INPUT, BACKWARD_WEIGHT, FORWARD, Order, PipelineSchedule, Shape
from ridgeline.seams.serving import ServingTechnique
from ridgeline.seams.states import OptimizerStates, Tensor
from ridgeline.seams.technique import Technique
from ridgeline.serving.engine import engine
from ridgeline.serving.replay import Replay, replay
from ridgeline.serving.traffic.traffic import Traffic, traffic
from ridgeline.timeline.simulate import Timeline, simulate
from ridgeline.training.pipeline import durations_of, order, pipeline_tasks

EVERY = {key: technique(family, key) for family in families() for key in names(family)}
SERVED = {key: one for key, one in EVERY.items() if isinstance(one, ServingTechnique)}
ALL = {key: one for key, one in EVERY.items() if key not in SERVED and "training" in one.kinds}
SCHEDULES = {key: one for key, one in ALL.items() if isinstance(one, PipelineSchedule)}
LOSSES = {key: one for key, one in ALL.items() if isinstance(one, CrossEntropy)}
RULES = {key: one for key, one in ALL.items() if isinstance(one, RecomputeRule)}
OPTIMIZERS = {key: one for key, one in ALL.items() if isinstance(one, OptimizerStates)}
NUMBERS = [
    (key, name) for key, one in EVERY.items() for name, each in one.parameters().items()
    if not isinstance(each.default, bool | str)
]  # fmt: skip
MODEL = {"layers": 8, "hidden": 1024, "heads": 8, "vocab": 32_000, "positions": "rope", "tied": False}
MIXTURE = {**MODEL, "experts": 8, "top_k": 2, "expert_ffn": 2048}
BATCH, MACHINE = 16, "8xH100-SXM"
ROUNDING = 1 + 1e-12


def go_together(*chosen: Technique) -> bool:
    try:
        return bool(together(chosen))
    except PlanError:
        return False


def one_kind_of_step(one: Technique, other: Technique) -> bool:
    """An offload that is made for steps of forwards alone goes with optimizers of such steps, others with others."""
    both = {type(each): each for each in (one, other)}
    offloads = [each.forwards for each in both.values() if isinstance(each, TierOffload)]
    optimizers = [bool(each.forwards()) for each in both.values() if isinstance(each, OptimizerStates)]
    return not optimizers or all(each == optimizers[0] for each in offloads)


def pairs(known: Mapping[str, Technique]) -> list[tuple[str, str]]:
    both = combinations(known.values(), 2)
    return [
        (one.key, other.key)
        for one, other in both
        if one.family != other.family and go_together(one, other) and one_kind_of_step(one, other)
    ]


PAIRS = pairs(ALL)


DENSE = scenario_from_words(
    {"model": MODEL, "cluster": {"name": MACHINE}, "workload": {"seq_len": 1024, "global_batch": BATCH}}
).model


def shapes(schedule: PipelineSchedule, most: int = 4) -> Iterator[tuple[int, int, int]]:
    """Stages, chunks and micro-batches that a schedule is defined for."""
    for stages in range(1, most + 1):
        for chunks in schedule.chunk_counts(stages, 3):
            for micro_batches in (1, 2, stages, 2 * stages, 2 * stages + 1, 3 * stages):
                if not schedule.refusal(Shape(stages=stages, chunks=chunks, micro_batches=micro_batches)):
                    yield stages, chunks, micro_batches


def adapts(one: Technique) -> bool:
    """Whether it puts adapters in a graph, which a fine-tune of frozen weights alone trains."""
    if not isinstance(one, GraphRewrite) or one.refusal(DENSE.graph):
        return False
    graph = one.rewrite(DENSE.graph)
    ops = (*graph.embedding, *(op for block in graph.blocks.values() for op in block.ops))
    return any(isinstance(op, LinearOp) and op.adapter for op in ops)


def scenario(*chosen: Technique) -> Scenario:
    """Four stages that train a small model, with some techniques by the words that name them."""
    words: dict[str, dict[str, object]] = {
        "workload": {"seq_len": 1024, "global_batch": BATCH},
        "plan": {"pp": 4, "micro_batch": 1},
    }
    where = {"name": MACHINE}
    for one in chosen:
        if one.family in MACHINE_FAMILIES:
            where[MACHINE_FAMILIES[one.family]] = one.text
            continue
        name = WORDS.get(one.family, "technique")
        needed = [next(iter(names(slot))) for slot in sorted(one.needs & set(families()))]
        told = one.text if one.family in WORDS else [*needed, one.text]
        words["workload" if name == "optimizer" else "plan"][name] = told
        if one.family == "length_balance":
            words["workload"]["lengths"] = "lognormal(median=300,sigma=1)"
        if isinstance(one, TierOffload):
            words["plan"]["zero"] = "3"
            if one.forwards:
                words["workload"].setdefault(
                    "optimizer", next(key for key, each in OPTIMIZERS.items() if each.forwards())
                )
        if isinstance(one, DataExchange) and one.runs(0, None):
            words["plan"]["zero"] = "3"
        if isinstance(one, PipelineSchedule):
            words["plan"]["chunks"] = next(iter(one.chunk_counts(4, 2)))
    if any(adapts(one) for one in chosen):
        words["workload"]["task"] = "lora"
    model = MODEL
    if any(isinstance(one, GraphRewrite | ExpertExchange) and one.refusal(DENSE.graph) for one in chosen):
        model, words["plan"]["ep"] = MIXTURE, 2
    return scenario_from_words({"model": model, "cluster": where, **words})


@cache
def found_machine() -> Machine:
    return machine(cluster(MACHINE))


def predictor(asked: Scenario, on: Machine | None = None) -> tuple[Predictor, Plan]:
    assert asked.plan is not None
    model = rewritten(asked.model, asked.plan.technique)
    return Predictor(model, asked.cluster, asked.workload, resolved=on or found_machine()), asked.plan


@cache
def evaluated(*keys: str) -> tuple[Predictor, Evaluation]:
    one, plan = predictor(scenario(*(ALL[key] for key in keys)))
    return one, one.evaluate(plan)


# alone and in pairs --------------------------------------------------------------------------------


@pytest.mark.parametrize("keys", [*((key,) for key in ALL), *PAIRS], ids="+".join)
def test_the_bound_is_never_above_the_simulation_and_memory_is_no_less_than_nothing(keys: tuple[str, ...]) -> None:
    one, found = evaluated(*keys)
    assert 0.0 < found.bound_s <= found.timeline.makespan_s * ROUNDING
    held = one.memory(found.plan)
    assert all((np.asarray(each) >= 0.0).all() for each in held.values())


KEPT = [pair for pair in PAIRS if OPTIMIZERS.keys() & {*pair} and SCHEDULES.keys() & {*pair}]


@pytest.mark.parametrize("keys", KEPT, ids="+".join)
def test_what_an_optimizer_keeps_does_not_hang_on_the_order_of_tasks(keys: tuple[str, str]) -> None:
    """Over all stages: the optimizer's own, once for each copy of the weights that the schedule keeps."""
    optimizer, schedule = sorted(keys, key=lambda key: key in SCHEDULES)
    totals = [one.memory(found.plan)["optimizer"].sum() for one, found in (evaluated(*keys), evaluated(optimizer))]
    assert totals[0] == pytest.approx(SCHEDULES[schedule].copies * totals[1], rel=1e-9)


FASTER = ("tiers", "memory", "matrix")


def faster(what: str, by: float) -> Machine:
    """The machine with links, memory or matrix units that much faster."""
    one = found_machine()
    if what == "tiers":
        return replace(one, tiers=tuple(replace(tier, bytes_per_s=by * tier.bytes_per_s) for tier in one.tiers))
    if what == "matrix":
        return replace(one, device=replace(one.device, matrix={k: by * v for k, v in one.device.matrix.items()}))
    return replace(one, device=replace(one.device, memory_bytes_per_s=by * one.device.memory_bytes_per_s))


@pytest.mark.parametrize("what", FASTER)
@pytest.mark.parametrize("key", ALL)
def test_a_faster_machine_is_never_slower(key: str, what: str) -> None:
    _, usual = evaluated(key)
    one, plan = predictor(scenario(ALL[key]), faster(what, 1.5))
    better = one.evaluate(plan)
    assert better.bound_s <= usual.bound_s * ROUNDING
    assert better.timeline.makespan_s <= usual.timeline.makespan_s * ROUNDING


# parameters and text -------------------------------------------------------------------------------


def refusal(one: Technique, given_: dict[str, object]) -> str:
    """Why a small scenario cannot be answered with these parameters; '' where it is."""
    try:
        if one.key in SERVED:
            return "" if replayed(made(one.family, one.key, given_).text).span_s > 0.0 else f"{one.key} takes no time"
        asked, plan = predictor(scenario(made(one.family, one.key, given_)))
        return "" if asked.evaluate(plan).timeline.makespan_s > 0.0 else f"{one.key} takes no time"
    except RidgelineError as error:
        return str(error)


@pytest.mark.parametrize(("key", "name"), NUMBERS)
def test_a_parameter_works_or_is_refused_at_its_bounds_and_is_refused_beyond(key: str, name: str) -> None:
    one = EVERY[key]
    field = one.parameters()[name]
    whole = field.metadata["whole"]
    for bound, away in ((field.metadata["low"], -1), (field.metadata["high"], 1)):
        if np.isinf(bound):
            continue
        at = int(bound) if whole else float(bound)
        several = isinstance(field.default, tuple)
        told = refusal(one, {name: (at,) if several else at})
        known = (key, SERVED[key].word if key in SERVED else key, "will not start", "matrix rate")
        assert not told or any(word in told for word in known)
        with pytest.raises(PlanError, match=f"{key}: {name} = .*, needs"):
            made(one.family, key, {name: (at + away,) if several else at + away})


def values(key: str) -> st.SearchStrategy[dict[str, object]]:
    """Parameters of a technique, each within its range."""
    drawn: dict[str, st.SearchStrategy[object]] = {}
    for name, field in EVERY[key].parameters().items():
        low, high = field.metadata["low"], min(field.metadata["high"], 1e12)
        if isinstance(field.default, tuple):
            each = st.integers(int(low), int(high)) if field.metadata["whole"] else st.floats(low, high)
            drawn[name] = st.lists(each, max_size=4).map(tuple)
        elif isinstance(field.default, bool):
            drawn[name] = st.booleans()
        elif field.metadata["whole"]:
            drawn[name] = st.integers(int(low), int(high))
        elif not isinstance(field.default, str):
            drawn[name] = st.floats(low, high)
        else:
            drawn[name] = st.just(field.default)
    return st.fixed_dictionaries({}, optional=drawn)


@settings(max_examples=20)
@given(data=st.data())
@pytest.mark.parametrize("key", EVERY)
def test_its_text_is_read_back_as_it_is(key: str, data: st.DataObject) -> None:
    one = EVERY[key]
    try:
        mine = made(one.family, key, data.draw(values(key)))
    except PlanError:  # a technique may refuse some values together
        return
    assert technique(one.family, mine.text) == mine
    assert hash(technique(one.family, mine.text)) == hash(mine)


@pytest.mark.parametrize("key", ALL)
def test_a_scenario_that_names_it_is_written_and_read_back(key: str, tmp_path: Path) -> None:
    one = ALL[key]
    other = {
        name: field.metadata["low"]
        for name, field in one.parameters().items()
        if isinstance(field.default, int) and not isinstance(field.default, bool)
    }
    for given_ in ({}, dict(list(other.items())[:1])):
        asked = scenario(made(one.family, key, given_))
        file = tmp_path / "a.toml"
        file.write_text(write_scenario(asked), encoding="utf-8")
        again = read_scenario(file)
        assert (again.workload, again.plan) == (asked.workload, asked.plan)
        assert made(one.family, key, given_).text in file.read_text(encoding="utf-8")


# schedules -----------------------------------------------------------------------------------------


def random_order(one: PipelineSchedule, shape: tuple[int, int, int]) -> tuple[Order, Timeline, Any]:
    """The order of a schedule under uneven times, with one byte of activations for each chunk."""
    stages, chunks, micro_batches = shape
    draw = np.random.default_rng(sum(shape))
    parts = ("forward_s", "backward_input_s", "backward_weight_s")
    times: dict[str, Any] = {name: draw.uniform(0.1, 2.0, (stages, chunks)) for name in parts}
    send_s = float(draw.choice([0.0, 0.3]))
    asked = order(one, stages, micro_batches, chunks, durations=durations_of((stages, chunks), send_s=send_s, **times))
    tasks = pipeline_tasks(asked, send_forward_s=send_s, send_backward_s=send_s, **times)
    return asked, simulate(tasks), tasks


@pytest.mark.parametrize("key", SCHEDULES)
def test_every_micro_batch_passes_every_place_once_forward_and_once_backward(key: str) -> None:
    one = SCHEDULES[key]
    for shape in shapes(one):
        asked, timeline, _ = random_order(one, shape)
        length = asked.places.size // asked.chains
        place = np.take_along_axis(asked.places, asked.chunk.astype(np.int64), axis=1).ravel()
        end_s = timeline.end_s[: place.size]
        for batch in range(shape[2]):
            mine = asked.micro_batch.ravel() == batch
            seen = {part: mine & (asked.kind.ravel() == part) for part in range(4)}
            whole = seen[BACKWARD] | seen[BACKWARD_INPUT]
            ways = {"forward": seen[FORWARD], "backward": whole, "weights": seen[BACKWARD] | seen[BACKWARD_WEIGHT]}
            passed = {name: sorted(place[way].tolist()) for name, way in ways.items()}
            chain = passed["forward"][0] // length if passed["forward"] else -1
            every = list(range(chain * length, (chain + 1) * length))
            assert all(places == every for places in passed.values()), shape
            for name, turn in (("forward", 1), ("backward", -1)):
                along = end_s[ways[name]][np.argsort(place[ways[name]])][::turn]
                assert (np.diff(along) > 0.0).all(), shape  # each after the one before it


@pytest.mark.parametrize("key", SCHEDULES)
def test_activations_are_freed_and_never_more_than_are_told(key: str) -> None:
    one = SCHEDULES[key]
    for shape in shapes(one):
        stages, chunks, micro_batches = shape
        _, timeline, tasks = random_order(one, shape)
        assert int((tasks.kind == FORWARD).sum()) == stages * chunks * micro_batches / one.copies
        profile = held_chunks(tasks, timeline)
        told = one.in_flight(stages, micro_batches, chunks, np.arange(stages))
        assert (profile.peak <= told).all(), shape
        assert all(held[-1] == 0.0 and held.min() >= 0.0 for _, held in profile.steps)


# losses --------------------------------------------------------------------------------------------


@settings(max_examples=50)
@given(st.integers(1, 10**6), st.integers(0, 10**6), st.integers(1_000, 300_000), st.integers(64, 20_000))
@pytest.mark.parametrize("key", LOSSES)
def test_a_loss_holds_no_more_than_whole_logits(key: str, tokens: int, more: int, vocab: int, hidden: int) -> None:
    small, large = (
        Logits(
            tokens=np.array(float(count)), vocab=vocab, share=np.array(1.0), hidden=hidden, element_bytes=2.0,
            waiting=np.array(0.0), copies=1.0, fp32_copies=1.0, eager=True,
        )
        for count in (tokens, tokens + more)
    )  # fmt: skip
    one = LOSSES[key]
    assert 0.0 <= float(np.asarray(one.backward_bytes(small))) <= float(np.asarray(one.backward_bytes(large)))
    most = max(float(small.whole_bytes), 16.0 * (tokens + vocab))
    if one.early_gradient:  # the head's fp32 copy and gradient, hidden states in order, and a chunk made again
        most += 10.0 * vocab * hidden + 4.0 * tokens * hidden + 20.0 * min(tokens, 256) * vocab
    assert 0.0 <= float(np.asarray(one.held_bytes(small))) <= most
    assert one.gradient_copies() >= 0.0
    assert one.logits_again() >= 0.0


# recompute ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", RULES)
def test_a_rule_of_recompute_keeps_shares_and_takes_no_less_time_than_none(key: str) -> None:
    one = RULES[key]
    shares = [*map(one.stays, ("", "input", "core", "mlp", "norm", *RESULTS)), *map(one.again, WORK)]
    assert all(0.0 <= share <= 1.0 for share in shares)
    (kept, plain), (ours, usual) = evaluated(key), evaluated("none")
    assert plain.timeline.makespan_s >= usual.timeline.makespan_s / ROUNDING
    if not one.repeats(fused=True):
        assert kept.memory(plain.plan)["activations"].sum() == ours.memory(usual.plan)["activations"].sum()


# optimizers ----------------------------------------------------------------------------------------


@settings(max_examples=50)
@given(
    st.integers(1, 20_000), st.integers(1, 20_000), st.integers(1, 64), st.booleans(), st.integers(0, 5_000),
    st.integers(0, 5_000), st.integers(0, 64),
)  # fmt: skip
@pytest.mark.parametrize("key", OPTIMIZERS)
def test_an_optimizers_states_traffic_and_work_grow_with_the_tensor(
    key: str, rows: int, columns: int, depth: int, hidden: bool, taller: int, wider: int, deeper: int
) -> None:
    one = OPTIMIZERS[key]
    deep = 1 if hidden else depth
    small = Tensor(count=float(rows * columns * deep), rows=rows, columns=columns, hidden=hidden)
    high, wide, more = rows + taller, columns + wider, deep if hidden else deep + deeper
    large = Tensor(count=float(high * wide * more), rows=high, columns=wide, hidden=hidden)
    for told in (one.state_bytes, one.moved_bytes, one.update_flop):
        assert 0.0 <= told(small) <= told(large) * ROUNDING
    flat, longer = (Tensor(count=float(rows)), Tensor(count=float(high)))
    assert 0.0 <= one.state_bytes(flat) <= one.state_bytes(longer)


# serving -------------------------------------------------------------------------------------------


@cache
def served_scenario(*texts: str) -> ServingScenario:
    plan = {"technique": list(texts), "max_seqs": 16, "instances": 2}
    experts = any(listed(text).family in ("disaggregation", "host_experts", "placement") for text in texts)
    model, devices = ("olmoe-1b-7b", 4) if experts else ("qwen2.5-0.5b", 2)
    cluster = {"name": f"{devices}xA100-80GB-SXM"}
    return serving_from_words({"model": {"name": model}, "cluster": cluster, "plan": plan})


@cache
def served_traffic() -> Traffic:
    """Requests of few clients that need more than is there, some of them long and some urgent."""
    draw = np.random.default_rng(7)
    count = 80
    asked = traffic(np.sort(draw.uniform(0.0, 2.0, count)), draw.integers(1, 3000, count), draw.integers(1, 60, count))
    return replace(asked, priority=draw.integers(0, 3, count), session=draw.integers(0, 4, count))


@cache
def replayed(*texts: str) -> Replay:
    asked = served_scenario(*texts)
    engines = [engine(asked.model, found_machine(), replaced(one, cache_tokens=8192)) for one in asked.deployments]
    return replay(engines, served_traffic())


def may_serve(*keys: str) -> bool:
    try:
        check_techniques(Deployment(technique=tuple(SERVED[key].text for key in keys), tp=1, instances=2))
    except PlanError:
        return False
    return True


SERVED_PAIRS = [pair for pair in pairs(SERVED) if may_serve(*pair)]


@pytest.mark.parametrize("keys", [*((key,) for key in SERVED if may_serve(key)), *SERVED_PAIRS], ids="+".join)
def test_every_request_ends_with_its_tokens_or_is_refused(keys: tuple[str, ...]) -> None:
    """No token is lost or made twice, no time goes backward, and the same question has the same answer."""
    try:
        found = replayed(*(SERVED[key].text for key in keys))
    except PlanError as error:  # the model or engine has nothing that it is about
        assert any(key in str(error) or SERVED[key].word in str(error) for key in keys)  # noqa: PT017
        return
    asked = served_traffic()
    assert (found.done | found.refused).all()
    assert found.output[found.done].sum() == asked.output_tokens[found.done].sum()
    assert found.prompt.sum() == asked.prompt_tokens.sum()
    assert (found.first_s[found.done] >= found.came_s[found.done]).all()
    assert (found.end_s[found.done] >= found.first_s[found.done]).all()
    assert found.busy_s.max() <= found.span_s * ROUNDING


@pytest.mark.parametrize(("one", "other"), [pair for pair in combinations(SERVED, 2) if pair not in SERVED_PAIRS])
def test_two_that_fill_one_slot_are_refused(one: str, other: str) -> None:
    with pytest.raises(PlanError):
        check_techniques(Deployment(technique=(SERVED[one].text, SERVED[other].text), tp=1, instances=2))
