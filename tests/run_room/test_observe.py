"""The profiler's count of bytes against tensors of known size; spans of a step."""

from __future__ import annotations

from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch")

from ridgeline.facts.clusters import cluster  # noqa: E402
from ridgeline.graph.build import from_dims  # noqa: E402
from ridgeline.graph.workload import Workload  # noqa: E402
from ridgeline.plan.plan import Plan  # noqa: E402
from ridgeline.predict import Predictor  # noqa: E402
from ridgeline.run.gap import compare_plan, predicted_idle_share  # noqa: E402
from ridgeline.run.rank import observe  # noqa: E402


def test_peak_is_of_all_tensors_alive_at_once() -> None:
    held = []

    def begin() -> Callable[[int], object]:
        held.append(torch.zeros(1000, dtype=torch.float32))  # 4000 bytes stay

        def step(number: int) -> object:
            first = torch.zeros(250_000)  # 1 MB, twice alive with its double
            return (first * 2).sum()

        return step

    found = observe(begin, kind="cpu", steps=3)
    assert found["tensor_bytes"] == pytest.approx(4000 + 2e6, rel=0.01)
    assert found["spans"] == [[], [], []]


MODEL = from_dims(
    layers=4, hidden=256, heads=4, vocab=1024, ffn=768, gated=True, activation="silu", norm="rms", bias=False,
    tied=False, positions="rope",
)  # fmt: skip
WORK = Workload(seq_len=128, global_batch=4, precision="fp32", execution="eager")


@pytest.mark.parametrize(
    "words",
    [
        {"micro_batch": 4},
        {"micro_batch": 1},
        {"dp": 2, "micro_batch": 2},
        {"pp": 2},
        {"tp": 2, "micro_batch": 4},
    ],
    ids=lambda words: " ".join(f"{name}={value}" for name, value in words.items()),
)
def test_predicted_memory_is_what_the_allocator_counts(words: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    found = compare_plan(
        MODEL,
        cluster("2xH100-SXM"),
        WORK,
        Plan(schedule="1f1b", **words),
        repeats=1,
        device="cpu",
        limit_s=120,
    )
    row = found.phase("peak memory")
    scratch = max(one.categories["workspace"] for one in found.report.memory)  # of a GPU's library, which is not here
    waits = 0.2 if words.get("tp", words.get("dp", 1)) > 1 else 0.0  # ranks that wait hold more meanwhile
    assert 0.9 - waits <= (row.predicted - scratch) / row.measured <= 1.1


def test_idle_share_of_an_even_1f1b_is_that_of_its_shape() -> None:
    shape = from_dims(layers=8, hidden=512, heads=8, vocab=32, tied=False, positions="rope")
    work = Workload(seq_len=2048, global_batch=8, framework="torch")
    evaluation = Predictor(shape, cluster("2xH100-SXM"), work).evaluate(Plan(pp=2))
    assert predicted_idle_share(evaluation) == pytest.approx(1 / 9, abs=0.02)
