"""A calibrated processor's kernels are priced as the calls that were timed there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from ridgeline.cost.answer import interval
from ridgeline.cost.machine import device
from ridgeline.cost.own_host import call_seconds, own_host
from ridgeline.facts.fits import CallFit, register_calls
from ridgeline.facts.records import Accelerator, Evidence, Fact
from ridgeline.lower.work import Attention, Gemm, Layout, Number, Phase, Stream


def here(value: float, unit: str) -> Fact:
    return Fact(value=value, unit=unit, source="here", conditions="", evidence=Evidence.HERE)


PART = Accelerator(
    name="Two cores timed", vendor="AMD", architecture="cpu", year=None, peak_flop_per_s={"fp32": 2e11},
    vector_flop_per_s=2e11, memory_bytes=16e9, memory_bytes_per_s=3e10, l2_bytes=3.2e7, sm_count=2, boost_hz=3e9,
    link_name=None, link_bytes_per_s=None, host_bytes_per_s=None, tdp_w=None,
    sustained={
        "matrix.fp32": here(1.8e11, "FLOP/s"), "hbm": here(2.5e10, "byte/s"), "dispatch": here(3e-6, "s"),
        "dispatch.divided": here(4e-4, "s"), "dispatch.divided.backward": here(9e-4, "s"),
    },
)  # fmt: skip


def fit(call: str, ranks: int = 1, **values: float) -> CallFit:
    return CallFit(
        call=call, form="fp32", ranks=ranks, values=values, rows=20, held_median=0.1, held_p90=0.2, held_bias=0.0,
        low=0.9, high=1.1,
    )  # fmt: skip


FITS = {
    one.call: one
    for one in (
        fit("gemm.forward", start_s_=5e-6, multiply_s_=1e-11, weight_s_=3e-10),
        fit("gemm.input", start_s_=5e-6, multiply_s_=1e-11, weight_s_=3e-10, output_s_=1e-10),
        fit("gemm.weight", start_s_=5e-6, multiply_s_=1e-11, output_s_=2e-10),
        fit("linear.forward", start_s_=1e-5),
        fit("linear.backward", start_s_=2e-5),
        fit("attention.forward", start_s_=1e-5, multiply_s_=2e-11),
        fit("attention.backward", start_s_=2e-5, busiest_s_=6e-11),
        fit("rms_norm.forward", start_s_=1e-5, element_s_=3e-10),
        fit("embedding.backward", start_s_=1e-5, table_s_=1e-10),
        fit("optimizer.adamw", start_s_=1e-5, tensor_s_=6e-6, element_s_=6e-10),
    )
}


@pytest.fixture(autouse=True)
def registered() -> None:
    register_calls(PART.name, tuple(FITS.values()), 1)


def price(work: Gemm | Attention | Stream) -> float:
    found = own_host(device(PART)).cost(work, dtype="fp32", element_bytes=4)
    assert found is not None
    assert found.timed
    return float(np.asarray(found.seconds))


def of(call: str, sizes: Mapping[str, Number]) -> float:
    return float(np.asarray(call_seconds(FITS[call], sizes)))


def test_products_side_by_side_are_calls_of_their_own() -> None:
    """Gate and up of 8 experts: 16 calls. Forward each has half of n, backward half of the inputs' gradient's k."""
    words = {"name": "experts_up", "count": 8.0, "kernels": 2.0, "output_bytes": 4.0}
    weight = {"m": 256.0, "n": 1024.0, "k": 512.0}
    forward = price(Gemm(phase=Phase.FORWARD, m=256, n=2048, k=512, **words))
    back = price(Gemm(phase=Phase.BACKWARD_INPUT, m=256, n=512, k=2048, **words))
    grad = price(Gemm(phase=Phase.BACKWARD_WEIGHT, m=512, n=2048, k=256, **words))
    assert forward == pytest.approx(16 * (of("gemm.forward", weight) + 1e-5))
    assert back == pytest.approx(16 * (of("gemm.input", weight) + 2e-5))
    assert grad == pytest.approx(16 * of("gemm.weight", weight))


def test_with_few_rows_a_products_time_is_its_weights() -> None:
    """16 rows take far more than a sixteenth of 256 rows' time: packing the weight does not shrink with them."""
    few, many = (price(Gemm(name="up", phase=Phase.FORWARD, m=m, n=1024, k=1024)) for m in (16, 256))
    assert few > 0.12 * many
    assert few > 2.5 * 16 * 1024 * 1024 * 1e-11  # more than twice what multiplying takes


def attention(**words: object) -> Attention:
    usual = {
        "name": "attention", "phase": Phase.FORWARD, "sequences": 4.0, "heads": 12.0, "kv_heads": 4.0,
        "q_tokens": 256.0, "kv_tokens": 256.0, "mean_context": 128.5, "qk_dim": 64, "v_dim": 64, "fused": True,
    }  # fmt: skip
    return Attention(**{**usual, **words})  # type: ignore[arg-type]


def test_attention_is_the_timed_prompt_each_way() -> None:
    sizes = {"batch": 4.0, "tokens": 256.0, "kv_heads": 4.0, "group": 3.0, "head_dim": 64.0, "threads": 2.0}
    assert price(attention()) == pytest.approx(of("attention.forward", sizes))
    assert price(attention(phase=Phase.BACKWARD_INPUT)) == pytest.approx(of("attention.backward", sizes))


@pytest.mark.parametrize("words", [{"fused": False}, {"mean_context": 256.0}, {"v_dim": 128}])
def test_attention_that_was_not_timed_is_left_to_the_formula(words: dict[str, object]) -> None:
    assert own_host(device(PART)).cost(attention(**words), dtype="fp32", element_bytes=4) is None


def test_element_wise_operators_are_priced_by_what_they_compute() -> None:
    norm = Stream(name="attention_norm", phase=Phase.FORWARD, bytes=8e5, function="rms_norm", elements=1e5)
    assert price(norm) == pytest.approx(1e-5 + 3e-5)
    unknown = replace(norm, function="")
    assert own_host(device(PART)).cost(unknown, dtype="fp32", element_bytes=4) is None
    lookup = Stream(name="embed", phase=Phase.BACKWARD_WEIGHT, bytes=1e3, function="embedding", elements=1e2, table=1e7)
    assert price(lookup) == pytest.approx(1e-5 + 1e-3)  # the gradient of a table is dense


def test_an_update_takes_time_for_each_number_and_each_tensor() -> None:
    found = own_host(device(PART)).update_s(np.array([1e6, 1e4]), 100.0, dtype="fp32")
    assert np.asarray(found) == pytest.approx([1e-5 + 6e-4 + 6e-4, 1e-5 + 6e-4 + 6e-6])


def test_divided_products_wait_for_the_host_once_each_way() -> None:
    own = own_host(device(PART))
    piece = Gemm(name="qkv", phase=Phase.FORWARD, m=8, n=8, k=8, kernels=3.0)
    found = [
        float(np.asarray(own.divided_s(replace(piece, phase=phase), Layout(tp=tp))))
        for tp, phase in ((1, Phase.FORWARD), (2, Phase.FORWARD), (2, Phase.BACKWARD_INPUT), (2, Phase.BACKWARD_WEIGHT))
    ]
    assert found == pytest.approx([0.0, 3 * 4e-4, 3 * 9e-4, 0.0])


def test_a_part_of_a_processor_has_the_calls_that_were_timed_by_all_parts_at_once() -> None:
    half = replace(PART, name="Two cores timed / 2")
    register_calls(half.name, (*FITS.values(), fit("gemm.forward", 2, multiply_s_=3e-11)), 2)
    calls = own_host(device(half)).calls
    assert {call for call, _ in calls} == {"gemm.forward"}
    assert calls["gemm.forward", "fp32"].values == {"multiply_s_": 3e-11}


def test_neither_a_gpu_nor_a_datasheet_has_calls_that_were_timed() -> None:
    assert own_host(device(PART)).calls
    assert not own_host(device(PART, datasheet_only=True)).calls
    assert not own_host(device(replace(PART, architecture="hopper"))).calls


def test_an_interval_is_that_of_the_processors_own_products_and_of_its_drift() -> None:
    """Residuals of 0.9 and 1.1; a machine that drifted by 10 % is less certain; else the factors of the evidence."""
    still = own_host(device(PART)).interval(2.0, Evidence.HERE, dtype="fp32")
    assert still == pytest.approx((1.8, 2.2))
    drifting = replace(PART, sustained={**PART.sustained, "drift": here(1.1, "1")})
    low, high = own_host(device(drifting)).interval(2.0, Evidence.HERE, dtype="fp32")
    assert low < 1.8 * 0.98
    assert high == pytest.approx(2.0 * np.exp(np.sqrt(2) * np.log(1.1)))
    other = own_host(device(replace(PART, architecture="hopper")))
    assert other.interval(2.0, Evidence.HERE, dtype="fp32") == interval(2.0, Evidence.HERE)
