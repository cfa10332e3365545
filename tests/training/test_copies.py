"""Copies around exchanges by hand, and where in a step they show."""

from __future__ import annotations

import numpy as np
import pytest

from ridgeline.cost.machine import machine
from ridgeline.cost.network import collective_seconds
from ridgeline.facts.clusters import cluster
from ridgeline.facts.policies import FRAMEWORKS
from ridgeline.graph.build import from_dims
from ridgeline.graph.workload import Workload
from ridgeline.lower.work import Collective, CollectiveKind, Layout, Phase
from ridgeline.training.exchanges import Sharding, exchange_copies
from ridgeline.training.parts import StageParts
from ridgeline.training.pipeline import pipeline_schedule
from ridgeline.training.stage_times import StageTimes
from ridgeline.training.stages import StageModel

ONE = pipeline_schedule("1f1b")
NODE = machine(cluster("8xA100-SXM-80GB"))
MODEL = from_dims(layers=2, hidden=1024, heads=8, vocab=1024, max_positions=1024)


def copies(**choices: object) -> tuple[float, float]:
    found = exchange_copies(Workload(seq_len=1024, global_batch=8, **choices))  # type: ignore[arg-type]
    return found.gathered, found.reduced


@pytest.mark.parametrize(
    ("framework", "precision", "expected"),
    [
        ("fsdp", "bf16", (4, 6)),  # 2 bytes out of and into the gathered buffer; 2 read, 4 written
        ("fsdp1", "bf16", (0, 18)),  # joined 4, widened 6, divided 8
        ("fsdp1", "bf16-pure", (0, 8)),  # nothing to widen: joined 4, divided 4
        ("deepspeed", "bf16", (0, 12)),
        ("ddp", "fp32", (0, 16)),
        ("megatron", "bf16", (0, 8)),
        ("torch", "bf16", (0, 0)),
    ],
)
def test_bytes_by_program(framework: str, precision: str, expected: tuple[float, float]) -> None:
    assert copies(framework=framework, precision=precision) == expected


def test_a_program_compiled_as_one_graph_copies_nothing() -> None:
    assert {copies(framework=name, execution="graph") for name in FRAMEWORKS.names()} == {(0.0, 0.0)}


def times(framework: str, *, dp: int, zero: int) -> StageTimes:
    stages = StageModel(MODEL, NODE, Workload(seq_len=1024, global_batch=8, framework=framework))
    cost = stages.price(Layout())
    return stages.times(
        stages.held(cost, (2,), pipeline_schedule("1f1b"), 1),
        sharding=Sharding(dp=dp, zero=zero),
        schedule=pipeline_schedule("1f1b"),
    )


def numbers() -> float:
    """All weights of the model on one rank [1]."""
    stages = StageModel(MODEL, NODE, Workload(seq_len=1024, global_batch=8))
    cost = stages.price(Layout())
    block = next(iter(cost.block_params.values()))
    return float(2 * block.dense + cost.embedding_params.dense + cost.head_params.dense)


RATE = NODE.device.memory_bytes_per_s * NODE.device.stream_share


def test_sharded_gradients_are_copied_with_every_micro_batch() -> None:
    alone, shared = times("fsdp", dp=1, zero=3), times("fsdp", dp=8, zero=3)
    assert float((shared.forward_s - alone.forward_s).sum()) == pytest.approx(4 * numbers() / RATE)
    assert float((shared.backward_input_s - alone.backward_input_s).sum()) == pytest.approx(4 * numbers() / RATE)
    assert float((shared.backward_weight_s - alone.backward_weight_s).sum()) == pytest.approx(6 * numbers() / RATE)


def test_whole_gradients_are_copied_once_a_step() -> None:
    ddp, none = times("ddp", dp=8, zero=0), times("torch", dp=8, zero=0)
    assert float(ddp.backward_weight_s.sum()) == float(none.backward_weight_s.sum())
    assert float((ddp.optimizer_s - none.optimizer_s).sum()) == pytest.approx(4 * 4 * numbers() / RATE)


def test_parts_of_a_stage_name_its_copies() -> None:
    stages = StageModel(MODEL, NODE, Workload(seq_len=1024, global_batch=8, framework="fsdp1"))
    held = stages.held(stages.price(Layout()), (2,), pipeline_schedule("1f1b"), 1)
    found = stages.times(held, sharding=Sharding(dp=8, zero=3), schedule=pipeline_schedule("1f1b"))
    tables = StageParts(held=held, times=found, recompute="none", recompute_layers=None).tables()
    assert float(tables["copies"].total_s.sum()) == pytest.approx(18 * numbers() / RATE)
    whole = found.forward_s + found.backward_input_s + found.backward_weight_s
    assert float(sum(table.total_s.sum() for table in tables.values())) == pytest.approx(float(whole.sum()))


@pytest.mark.parametrize(("tied", "dp"), [(True, 1), (True, 2), (False, 2)])
def test_the_first_and_the_last_stage_add_up_a_tied_embeddings_gradients(tied: bool, dp: int) -> None:
    """4 bytes of each of 1,024 x 1,024 numbers over two ranks, once a step, and by no stage between them."""
    model = from_dims(layers=4, hidden=1024, heads=8, vocab=1024, max_positions=1024, tied=tied)
    stages = StageModel(model, NODE, Workload(seq_len=1024, global_batch=8, framework="torch"))
    schedule = pipeline_schedule("1f1b")
    held = stages.held(stages.price(Layout()), (1, 1, 1, 1), schedule, 1)
    found = stages.times(held, sharding=Sharding(dp=dp, pp=4), schedule=schedule)
    moved = Collective(
        name="tied", phase=Phase.FORWARD, kind=CollectiveKind.ALL_REDUCE, bytes=2.0**22, ranks=2, stride=1
    )
    both_s = float(np.asarray(collective_seconds(moved, NODE))) if tied else 0.0
    assert np.broadcast_to(found.exchanged_s, (4,)).tolist() == pytest.approx([both_s, 0.0, 0.0, both_s])
