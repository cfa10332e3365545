"""A calibrated processor's kernels are priced as the calls that were timed there."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ridgeline.cost.answer import Rung
from ridgeline.cost.families.registry import mechanism
from ridgeline.cost.fitted import model_of
from ridgeline.cost.interval import interval
from ridgeline.cost.machine import device
from ridgeline.cost.own_host import own_host
from ridgeline.facts.fits import Fit, register_own
from ridgeline.facts.records import Accelerator, Evidence, Fact
from ridgeline.lower.work import Attention, Gemm, Layout, Phase


def here(value: float, unit: str) -> Fact:
    return Fact(value=value, unit=unit, source="here", conditions="", evidence=Evidence.HERE)


PART = Accelerator(
    name="Two cores timed", vendor="AMD", architecture="cpu", year=None, peak_flop_per_s={"fp32": 2e11},
    vector_flop_per_s=2e11, memory_bytes=16e9, memory_bytes_per_s=3e10, l2_bytes=3.2e7, sm_count=2, boost_hz=3e9,
    link_name=None, link_bytes_per_s=None, host_bytes_per_s=None, tdp_w=None,
    sustained={
        "matrix.fp32": here(1.8e11, "FLOP/s"), "hbm": here(2.5e10, "byte/s"),
        "attention.backward.fp32": here(2.5, "1"), "dispatch": here(3e-6, "s"),
        "dispatch.divided": here(4e-4, "s"), "dispatch.divided.backward": here(9e-4, "s"),
    },
)  # fmt: skip


def fit(family: str, **values: float) -> Fit:
    usual = {p.name: p.start for p in mechanism(family).parameters}
    return Fit(
        family=family, device=PART.name, engine="torch", version="2.9", form="fp32", kernel="cpu",
        values={**usual, **values}, rows=20, held_median=0.1, held_p90=0.2, held_bias=0.0, low=(0.9,) * 3,
        high=(1.1,) * 3, domain={}, span={}, source="here", date="2026-01-01",
    )  # fmt: skip


FITS = (fit("gemm", matrix_share_=0.6), fit("prefill"))


@pytest.fixture(autouse=True)
def registered() -> None:
    register_own(PART.name, FITS, dict.fromkeys(("gemm", "prefill"), Evidence.HERE))


def of(family: str, **sizes: float) -> float:
    (known,) = [one for one in FITS if one.family == family]
    model = model_of(family, "fp32", PART, [known], Rung.FITTED, hosted=False)
    return float(np.asarray(model.seconds(sizes)))


def test_products_side_by_side_are_calls_of_their_own() -> None:
    """Gate and up of 8 experts: 16 calls. Forward each has half of n, backward half of the inputs' gradient's k."""
    own = own_host(device(PART))
    words = {"name": "experts_up", "count": 8.0, "kernels": 2.0, "output_bytes": 4.0}
    forward = own.gemm(Gemm(phase=Phase.FORWARD, m=256, n=2048, k=512, **words), dtype="fp32", element_bytes=4)
    back = own.gemm(Gemm(phase=Phase.BACKWARD_INPUT, m=256, n=512, k=2048, **words), dtype="fp32", element_bytes=4)
    assert forward is not None
    assert back is not None
    assert float(np.asarray(forward.seconds)) == pytest.approx(16 * of("gemm", m=256.0, n=1024.0, k=512.0))
    assert float(np.asarray(back.seconds)) == pytest.approx(16 * of("gemm", m=256.0, n=512.0, k=1024.0))
    assert float(np.asarray(forward.flop)) == pytest.approx(2.0 * 256 * 2048 * 512 * 8)
    assert forward.kernels == 16.0


def attention(**words: object) -> Attention:
    usual = {
        "name": "attention", "phase": Phase.FORWARD, "sequences": 4.0, "heads": 12.0, "kv_heads": 4.0,
        "q_tokens": 256.0, "kv_tokens": 256.0, "mean_context": 128.5, "qk_dim": 64, "v_dim": 64, "fused": True,
    }  # fmt: skip
    return Attention(**{**usual, **words})  # type: ignore[arg-type]


def test_attention_is_the_timed_prompt_and_its_backward_a_measured_multiple() -> None:
    own = own_host(device(PART))
    alone = of("prefill", batch=4.0, tokens=256.0, kv_heads=4.0, group=3.0, head_dim=64.0, cached=0.0)
    forward, back = (own.attention(attention(phase=one), dtype="fp32") for one in (Phase.FORWARD, Phase.BACKWARD_INPUT))
    assert forward is not None
    assert back is not None
    assert float(np.asarray(forward.seconds)) == pytest.approx(alone)
    assert float(np.asarray(back.seconds)) == pytest.approx(2.5 * alone)


@pytest.mark.parametrize("words", [{"fused": False}, {"mean_context": 256.0}, {"v_dim": 128}])
def test_attention_that_was_not_timed_is_left_to_the_formula(words: dict[str, object]) -> None:
    assert own_host(device(PART)).attention(attention(**words), dtype="fp32") is None


def test_divided_products_wait_for_the_host_once_each_way() -> None:
    own = own_host(device(PART))
    piece = Gemm(name="qkv", phase=Phase.FORWARD, m=8, n=8, k=8, kernels=3.0)
    found = [
        float(np.asarray(own.divided_s(replace(piece, phase=phase), Layout(tp=tp))))
        for tp, phase in ((1, Phase.FORWARD), (2, Phase.FORWARD), (2, Phase.BACKWARD_INPUT), (2, Phase.BACKWARD_WEIGHT))
    ]
    assert found == pytest.approx([0.0, 3 * 4e-4, 3 * 9e-4, 0.0])


def test_neither_a_gpu_nor_a_datasheet_has_calls_that_were_timed() -> None:
    assert own_host(device(PART)).fits
    assert not own_host(device(PART, datasheet_only=True)).fits
    assert not own_host(device(replace(PART, architecture="hopper"))).fits


def test_an_interval_is_that_of_the_processors_own_products() -> None:
    """Residuals of 0.9 and 1.1; without fits the factors of the evidence."""
    assert own_host(device(PART)).interval(2.0, Evidence.HERE, dtype="fp32") == pytest.approx((1.8, 2.2))
    other = own_host(device(replace(PART, architecture="hopper")))
    assert other.interval(2.0, Evidence.HERE, dtype="fp32") == interval(2.0, Evidence.HERE)
