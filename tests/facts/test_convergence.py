"""Sequences until a benchmark's target, by hand from the reference runs."""

from __future__ import annotations

import pytest

from ridgeline.facts import store
from ridgeline.facts.benchmarks import convergence

LORA = "Llama2-70B LoRA r16"


def test_between_two_batches_sequences_are_interpolated() -> None:
    found = convergence(LORA, batch=12, mlperf_round=(5, 0))
    assert found is not None
    assert found.sequences == pytest.approx((3179 + 4032) / 2)
    assert found.evaluated == pytest.approx((3605.5 / 384 - 3) * 173)  # the first floor(2 + 12 / 8) are left out


def test_a_smaller_batch_takes_what_the_smallest_does() -> None:
    found = convergence("Llama 3.1 405B", batch=448, mlperf_round=(5, 1))
    assert found is not None
    assert (found.sequences, found.evaluated) == (324576, 324576 / 8)  # 5760 are evaluated after every 46080


def test_each_round_has_its_own_runs() -> None:
    early, late = (convergence("Stable Diffusion v2", batch=256, mlperf_round=round_) for round_ in ((4, 1), (5, 0)))
    assert early is not None
    assert late is not None
    assert early.sequences == 2048000
    assert late.sequences == pytest.approx((12 * 1536000 + 6 * 2048000) / 18, abs=1)  # a higher rate: most after three


def test_runs_before_the_clipping_of_gradients_was_mended_are_not_those_of_round_4() -> None:
    found = convergence(LORA, batch=8, mlperf_round=(4, 0))
    assert found is not None
    assert found.sequences == pytest.approx((2 * 2688 + 9 * 3072 + 7 * 3456) / 18, abs=1)


def test_tokens_of_the_reference_runs_become_sequences() -> None:
    found = convergence("GPT-3 175B", batch=2048, mlperf_round=(3, 0))
    assert found is not None
    assert found.sequences == (1157627904 + 1207959552) / 2 / 2048  # the four middle runs: two of each
    assert found.low <= found.sequences <= found.high


@pytest.mark.parametrize(
    ("model", "batch", "mlperf_round"),
    [("Llama 3 8B", 8, (5, 0)), (LORA, 129, (5, 0)), (LORA, 8, (3, 1))],
)
def test_nothing_is_said_without_reference_runs(model: str, batch: int, mlperf_round: tuple[int, int]) -> None:
    assert convergence(model, batch=batch, mlperf_round=mlperf_round) is None


def test_checkpoints_of_diffusion_are_judged_outside_of_the_time() -> None:
    found = convergence("Stable Diffusion v2", batch=256, mlperf_round=(4, 1))
    assert found is not None
    assert found.sequences == (16 * 2048000 + 1536000 + 2560000) / 18  # one of the two lowest and highest each
    assert (found.low, found.high, found.evaluated) == (1996800, 2099200, 0)


def test_the_largest_batch_of_the_reference_runs_is_answered_and_none_beyond() -> None:
    batch = 1.0
    while convergence(LORA, batch=batch + 1, mlperf_round=(5, 0)) is not None:
        batch += 1
    largest = convergence(LORA, batch=batch, mlperf_round=(5, 0))
    assert largest is not None
    assert any(row["batch"] == f"{batch:g}" for row in store.read_tsv("convergence.tsv"))
