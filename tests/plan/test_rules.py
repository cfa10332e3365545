"""Each rule of a legal plan: what keeps it, what breaks it, and what the message says."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.errors import PlanError
from ridgeline.graph.build import from_dims
from ridgeline.graph.workload import Workload
from ridgeline.plan.plan import Plan
from ridgeline.plan.rules import ModelLimits, check, columns, explain, model_limits, nearest_divisor, rules
from ridgeline.seams.context import context_style
from ridgeline.seams.registry import names

LIMITS = ModelLimits(layers=12, heads=12, kv_heads=4, tensor_width=96, experts=0)
SPARSE = ModelLimits(layers=12, heads=12, kv_heads=4, tensor_width=96, experts=8)
JOB = Workload(seq_len=1024, global_batch=24)

BROKEN: list[tuple[str, Plan, ModelLimits, Workload, str]] = [
    ("devices", Plan(tp=2, dp=12), LIMITS, JOB,
     "tp 2 x pp 1 x cp 1 x dp 12 = 24 devices, the cluster has 16; nearest: dp 8"),
    ("heads", Plan(tp=8), LIMITS, JOB, "tp 8 does not divide 12 heads; nearest: tp 6"),
    ("kv_heads", Plan(tp=3), LIMITS, JOB, "tp 3 neither divides nor is a multiple of 4 kv heads; nearest: tp 2"),
    ("width", Plan(tp=4), ModelLimits(layers=12, heads=12, kv_heads=4, tensor_width=90, experts=0), JOB,
     "tp 4 does not divide the widths' common divisor 90; nearest: tp 3"),
    ("layers", Plan(pp=5, chunks=3, schedule="interleaved"), LIMITS, JOB,
     "pp 5 x chunks 3 = 15 pipeline places for 12 layers; nearest: pp 4"),
    ("context", Plan(cp=3), LIMITS, JOB,
     "sequence 1024 is not a multiple of 6 (cp 3, two halves per rank for causal attention); nearest: cp 2"),
    ("context", Plan(cp=3, context_style="ulysses"), LIMITS, JOB,
     "sequence 1024 is not a multiple of 3 (cp 3); nearest: cp 2"),
    ("context", Plan(cp=3, context_style="allgather"), LIMITS, JOB,
     "sequence 1024 is not a multiple of 6 (cp 3, two halves per rank for causal attention); nearest: cp 2"),
    ("context_heads", Plan(tp=2, cp=4, context_style="ulysses"), LIMITS, JOB,
     "tp 2 x cp 4 does not divide 12 heads, as all-to-all context parallelism must; use a ring"),
    ("sequence", Plan(tp=4, sequence_parallel=True), LIMITS, Workload(seq_len=1022, global_batch=24),
     "sequence parallelism needs sequence 1022 / cp 1 to be a multiple of tp 4; nearest: tp 2"),
    ("batch", Plan(dp=5, micro_batch=2), LIMITS, JOB,
     "global batch 24 is not a multiple of dp 5 x micro-batch 2; nearest: dp 4, or global batch 20"),
    ("timeline", Plan(pp=4, dp=2), LIMITS, replace(JOB, global_batch=700_000),
     "a step of 350,000 micro-batches on 4 pipeline places is beyond the 2,000,000 tasks that a timeline holds;"
     " nearest: micro-batch 4"),
    ("experts", Plan(dp=6, ep=3), SPARSE, JOB, "ep 3, etp 1 for 8 experts; nearest: ep 2"),
    ("experts", Plan(dp=2, ep=2), LIMITS, JOB, "ep 2, etp 1 for 0 experts; nearest: ep 1, etp 1"),
    ("folding", Plan(tp=2, dp=3, ep=4), SPARSE, JOB, "ep 4 x etp 1 does not divide tp x cp x dp = 6; nearest: ep 2"),
    ("zero_group", Plan(dp=8, zero=1, zero_group=3), LIMITS, JOB,
     "zero_group 3 does not divide dp x cp = 8; nearest: zero_group 2"),
    ("offload_weights", Plan(dp=8, zero=2, offload_weights=True), LIMITS, JOB,
     "offload_weights needs zero 3, which gathers each layer as it is needed; zero is 2; nearest: zero 3"),
    ("optimizer_in_backward", Plan(dp=8, optimizer_in_backward=True), LIMITS, JOB,
     "optimizer_in_backward needs one micro-batch a step and pp 1, so that a gradient is whole when it is made; there"
     " are 3 micro-batches and pp 1; nearest: global batch 8 with pp 1"),
]  # fmt: skip


def table_of(plan: Plan) -> dict[str, np.ndarray]:
    return columns(plan, context_style(plan.context_style))


def checked(plan: Plan, limits: ModelLimits, workload: Workload, devices: int) -> None:
    check(plan, context_style(plan.context_style), limits, workload, devices)


def explained(rule: str, plan: Plan, limits: ModelLimits, workload: Workload, devices: int) -> str:
    return explain(rule, plan, context_style(plan.context_style), limits, workload, devices)


def first_broken(plan: Plan, limits: ModelLimits, workload: Workload) -> str | None:
    return next((name for name, kept in rules(limits, workload, 16, table_of(plan)) if not kept[0]), None)


@pytest.mark.parametrize(("rule", "plan", "limits", "workload", "text"), BROKEN, ids=lambda value: str(value)[:24])
def test_a_broken_rule_names_value_limit_and_nearest(
    rule: str, plan: Plan, limits: ModelLimits, workload: Workload, text: str
) -> None:
    assert first_broken(plan, limits, workload) == rule
    with pytest.raises(PlanError) as error:
        checked(plan, limits, workload, 16)
    assert str(error.value) == f"plan: {text}"


def test_every_rule_has_a_plan_that_breaks_it() -> None:
    names = {name for limits in (LIMITS, SPARSE) for name, _ in rules(limits, JOB, 16, table_of(Plan()))}
    assert {rule for rule, *_ in BROKEN} == names


@pytest.mark.parametrize(
    "plan",
    [
        Plan(),
        Plan(tp=4, pp=2, dp=2, sequence_parallel=True),
        Plan(tp=12),  # a multiple of the kv heads
        Plan(cp=4, dp=2, micro_batch=3),
        Plan(cp=2, tp=2, context_style="ulysses"),
        Plan(pp=4, chunks=3, schedule="interleaved"),
        Plan(dp=8, zero=3, zero_group=4),
    ],
)
def test_legal_plans_break_nothing(plan: Plan) -> None:
    checked(plan, LIMITS, JOB, 16)


def test_experts_fold_over_the_devices() -> None:
    checked(Plan(tp=2, dp=4, ep=8), SPARSE, JOB, 16)
    checked(Plan(tp=2, dp=4, ep=4, etp=2), SPARSE, JOB, 16)


def test_nearest_choices_of_broken_rules_keep_them() -> None:
    assert first_broken(Plan(tp=6), LIMITS, JOB) == "kv_heads"  # 6 divides the heads, but not the 4 kv heads
    assert first_broken(Plan(tp=2), LIMITS, JOB) is None
    assert first_broken(Plan(dp=4, micro_batch=2), LIMITS, JOB) is None
    assert first_broken(Plan(dp=6, ep=2), SPARSE, JOB) is None


@given(
    plan=st.builds(
        Plan,
        **dict.fromkeys(("tp", "pp", "cp", "dp", "ep", "etp", "micro_batch"), st.integers(1, 24)),
        context_style=st.sampled_from(names("contexts")),
        sequence_parallel=st.booleans(),
        zero_group=st.none() | st.integers(1, 24),
    ),
    batch=st.integers(1, 100) | st.integers(1, 10_000_000),
    seq_len=st.integers(1, 2048),
    limits=st.sampled_from((LIMITS, SPARSE)),
)
def test_what_a_broken_rule_calls_nearest_keeps_it(plan: Plan, batch: int, seq_len: int, limits: ModelLimits) -> None:
    job = Workload(seq_len=seq_len, global_batch=batch)
    for rule, kept in rules(limits, job, 16, table_of(plan)):
        said = explained(rule, plan, limits, job, 16)
        if kept[0] or "nearest: " not in said or said.endswith(f"nearest: {plan.devices} devices"):
            continue
        for words in said.partition("nearest: ")[2].split(", or "):
            changed, asked = {}, job
            for word in words.split(", "):
                name, _, value = word.rpartition(" ")
                if name == "global batch":
                    asked = replace(job, global_batch=int(value))
                else:
                    changed[name.replace("-", "_")] = int(value)
            told = dict(rules(limits, asked, 16, table_of(replace(plan, **changed))))
            assert told[rule][0], said


def test_the_word_at_fault_is_the_one_that_is_mended() -> None:
    job = Workload(seq_len=1024, global_batch=64)
    said = explained("batch", Plan(micro_batch=7), LIMITS, job, 16)
    assert said.endswith("nearest: micro-batch 8, or global batch 63")


@pytest.mark.parametrize("split", [(6, 5), (12,), (13, -1)])
def test_a_layer_split_must_cover_the_layers(split: tuple[int, ...]) -> None:
    with pytest.raises(PlanError, match=r"layer_split .* needs 2 parts \(pp 2 x chunks 1\) that sum to 12 layers"):
        checked(Plan(pp=2, layer_split=split), LIMITS, JOB, 16)


def test_a_stated_layer_split_that_covers_them_is_kept() -> None:
    checked(Plan(pp=2, layer_split=(7, 5)), LIMITS, JOB, 16)


@pytest.mark.parametrize(("number", "wanted", "found"), [(12, 8, 6), (12, 5, 4), (12, 100, 12), (7, 3, 1), (1, 4, 1)])
def test_nearest_divisor_prefers_the_smaller_on_a_tie(number: int, wanted: int, found: int) -> None:
    assert nearest_divisor(number, wanted) == found


def test_limits_of_a_dense_and_a_sparse_model() -> None:
    dense = from_dims(layers=6, hidden=64, heads=4, kv_heads=2, head_dim=16, ffn=176, vocab=100, max_positions=64)
    # widths that are divided: 64 of the output projection, 176 up and down
    assert model_limits(dense.graph) == ModelLimits(layers=6, heads=4, kv_heads=2, tensor_width=16, experts=0)
    sparse = from_dims(layers=6, hidden=64, heads=4, vocab=100, max_positions=64, experts=8, top_k=2)
    assert model_limits(sparse.graph).experts == 8


def test_a_table_of_plans_is_judged_as_each_plan() -> None:
    plans = [plan for _, plan, limits, job, _ in BROKEN if limits is LIMITS and job is JOB] + [Plan(), Plan(tp=4)]
    table = {name: np.concatenate([table_of(plan)[name] for plan in plans]) for name in table_of(plans[0])}
    together = dict(rules(LIMITS, JOB, 16, table))
    for index, plan in enumerate(plans):
        alone = dict(rules(LIMITS, JOB, 16, table_of(plan)))
        for name, kept in together.items():
            assert np.broadcast_to(kept, (len(plans),))[index] == alone[name][0], (name, plan)


def test_the_ends_of_a_pipeline_may_hold_no_layer() -> None:
    """Meta ran 126 layers on 16 stages of 8 chunks: the embedding alone on the first, the head alone on the last."""
    whole = ModelLimits(layers=126, heads=128, kv_heads=8, tensor_width=128, experts=0)
    checked(Plan(pp=16, chunks=8, schedule="interleaved"), whole, JOB, 16)
    with pytest.raises(PlanError, match="pp 16 x chunks 9 = 144 pipeline places for 126 layers; nearest: pp 14"):
        checked(Plan(pp=16, chunks=9, schedule="interleaved"), whole, JOB, 16)
