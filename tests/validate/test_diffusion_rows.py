"""Rows of diffusion: read as samplings, answered in their own unit, refused with a reason."""

from __future__ import annotations

from typing import Any

import pytest

from ridgeline.errors import InputError
from ridgeline.plan.sampling import Division, Sampling
from ridgeline.predict.sampling import sample
from ridgeline.validate.diffusion import DiffusionRows
from ridgeline.validate.machines import machines
from ridgeline.validate.rows import Row

BASIC = {
    "model": "FLUX.1-dev", "resolution": "1024x1024", "steps": "28", "batch": "1", "hardware": "H100", "n_devices": "1",
    "technique": "single GPU", "compile": "no", "engine": "xDiT", "metric": "latency_s", "value": "6.7", "unit": "s",
}  # fmt: skip
ROWS = DiffusionRows()


def answer(**cells: str) -> dict[str, Any]:
    return ROWS.answer(Row(line=2, id="dif1", cells={**BASIC, **cells}))


def test_a_row_is_what_the_predictor_says_of_its_sampling() -> None:
    found = answer()
    cluster = machines().cluster("1xH100-SXM")
    cost = sample("flux.1-dev", cluster, Sampling(width=1024, height=1024, steps=28))
    assert found["predicted"] == pytest.approx(cost.seconds)
    assert found["low"] < found["predicted"] < found["high"]
    assert (found["status"], found["model"]) == ("scored", "flux.1-dev")


def test_fusing_and_dividing_make_it_quicker() -> None:
    one, fused, two = answer(), answer(compile="torch.compile"), answer(technique="ulysses 2", n_devices="2")
    assert fused["predicted"] < one["predicted"]
    assert one["predicted"] / 2 < two["predicted"] < one["predicted"]


@pytest.mark.parametrize(
    ("cell", "name"),
    [
        ("FLUX.1 [dev]", "flux.1-dev"),
        ("FLUX.1-schnell", "flux.1-schnell"),
        ("stable-diffusion-xl-base-1.0", "stable-diffusion-xl"),
        ("SD3-medium", "sd3-medium"),
        ("Playground v2.5", "stable-diffusion-xl"),
        ("FLUX.1 Krea", "flux.1-dev"),
    ],
)
def test_models_have_several_names(cell: str, name: str) -> None:
    assert answer(model=cell)["model"] == name


def test_steps_alone_and_pictures_a_second() -> None:
    video = {"model": "CogVideoX-2B", "resolution": "720x480", "frames": "49", "steps": "50", "hardware": "A100"}
    step = answer(**video, metric="latency_per_step_s")
    whole = answer(**video)
    steps = 50 * step["predicted"]
    assert 1.02 * steps < whole["predicted"] < 1.06 * steps  # words are a hundredth, the frames' pixels a few
    assert any("decoded at once" in text for text in whole["assumptions"])
    engine = {"model": "SDXL", "steps": "20", "engine": "TensorRT 10.2.0", "technique": "independent replicas"}
    one = answer(**engine, metric="images_per_s", unit="images/s")
    eight = answer(**engine, metric="images_per_s", unit="images/s", n_devices="8")
    assert eight["predicted"] == pytest.approx(8 * one["predicted"])
    assert one["low"] < one["predicted"] < one["high"]
    assert any("8 bits" in text for text in one["assumptions"])


def test_a_pipeline_waits_in_its_first_steps_and_never_halves_the_rest() -> None:
    cluster, asked = machines().cluster("2xA100-SXM"), Sampling(width=1024, height=1024, steps=20, decoded=False)
    whole = sample("pixart-alpha", cluster, asked)
    one, all_ = (sample("pixart-alpha", cluster, asked, Division(pipeline=2, warm=warm)) for warm in (1, 20))
    assert all_.seconds == pytest.approx(whole.seconds)
    step = sum(one.parts.values())  # all layers on half of the patches: as many kernels, so more than half of the time
    assert whole.step_s / 2 < step < whole.step_s
    assert one.seconds == pytest.approx(whole.step_s + 19 * step)


@pytest.mark.parametrize(
    ("cells", "reason"),
    [
        ({"metric": "latency_p99_s"}, "waits for others"),
        ({"metric": "memory_gb_per_gpu", "unit": "s"}, "no unit of memory_gb_per_gpu; known: GB, GiB, MiB"),
        ({"metric": "beauty"}, "known: latency_s"),
        ({"model": "Step-Video-T2V"}, "no diffusion model that is predicted"),
        ({"resolution": ""}, "size of the picture is not stated"),
        ({"steps": ""}, "number of steps is not stated"),
        ({"steps": "many"}, "not a whole number"),
        ({"technique": "DistriFusion 8", "n_devices": "8"}, "not predicted"),
        ({"technique": "magic"}, "names no division"),
        ({"technique": "ulysses 4", "n_devices": "6"}, "takes 4 devices, the row has 6"),
        ({"value": "0"}, "not a positive number"),
        ({"hardware": "abacus"}, "no accelerator"),
    ],
)
def test_refusals_say_why(cells: dict[str, str], reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        answer(**cells)


def test_metrics_and_units_by_other_words_are_the_same_numbers() -> None:
    seconds, step = answer()["predicted"], answer(metric="latency_per_step_s")["predicted"]
    assert answer(metric="latency_ms", unit="ms")["predicted"] == pytest.approx(1e3 * seconds)
    assert answer(metric="throughput", unit="images/s")["predicted"] == pytest.approx(1 / seconds)
    assert answer(metric="images_per_min", unit="images/min")["predicted"] == pytest.approx(60 / seconds)
    assert answer(metric="step_latency_ms", unit="ms")["predicted"] == pytest.approx(1e3 * step)
    rate = answer(metric="it_s", unit="it/s")
    assert rate["predicted"] == pytest.approx(1 / step)
    assert rate["low"] < rate["predicted"] < rate["high"]
    with pytest.raises(InputError, match="'images/s' is no unit of latency_s; known: s, ms, min"):
        answer(unit="images/s")


@pytest.mark.parametrize(
    ("one", "other", "devices"),
    [("tp 4", "tensor parallel 4", "4"), ("USP 4", "ulysses 4", "4"), ("data parallel 2", "independent replicas", "2")],
)
def test_divisions_by_other_words_are_the_same(one: str, other: str, devices: str) -> None:
    cells = {"n_devices": devices, "metric": "images_per_s", "unit": "images/s"}
    assert answer(technique=one, **cells)["predicted"] == answer(technique=other, **cells)["predicted"]


@pytest.mark.parametrize("cell", ["1024", "1024*1024", "1024 X 1024"])
def test_sizes_by_other_spellings_are_the_same(cell: str) -> None:
    assert answer(resolution=cell)["predicted"] == answer()["predicted"]


def test_memory_is_what_the_pipeline_holds() -> None:
    """SD 2.1 at 512 in fp16: 866 M, 340 M and 50 M numbers of 2 bytes, and the widest convolution's 256 channels in and
    out of 512 x 512 pixels, each as stored and channels last: 4 x 128 MiB."""
    cells = {"metric": "memory_gb_per_gpu", "unit": "GiB", "precision": "fp16", "technique": "single GPU"}
    small = answer(model="Stable Diffusion 2.1", resolution="512x512", **cells)
    assert small["predicted"] == pytest.approx((866 + 340 + 50) * 2e6 / 2**30 + 0.5, rel=0.01)
    assert small["low"] < small["predicted"] < small["high"]
    wide = answer(model="Stable Diffusion 2.1", resolution="768x768", **cells)
    assert wide["predicted"] - small["predicted"] == pytest.approx(0.5 * (768**2 / 512**2 - 1), rel=0.01)
    assert answer(model="SDXL", **cells, steps="")["predicted"] > 10.0  # its decoder is upcast: 4 GiB in place of 2


def test_t5_keeps_a_product_in_fp32_where_the_pipeline_is_in_fp16() -> None:
    """24 layers of 10,240 x 4,096 numbers, two bytes more each."""
    cells = {"model": "Stable Diffusion 3 medium", "metric": "memory_gb_per_gpu", "unit": "GiB"}
    half, brain = (answer(**cells, precision=each)["predicted"] for each in ("fp16", "bf16"))
    assert half - brain == pytest.approx(24 * 10_240 * 4_096 * 2 / 2**30)
