"""Who lends fits to whom."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ridgeline.facts.accelerators import accelerator
from ridgeline.facts.fits import Fit, fits, own_fits
from ridgeline.facts.transfer import common_fits, rung_interval, transferred_fits


def lenders(family: str, device: str, name: str = "bf16") -> set[str]:
    found: tuple[Fit, ...] = transferred_fits(family, accelerator(device), form=name)
    return {word for fit in found for word in fit.source.removeprefix("borrowed from ").split(", ")}


def test_kernels_are_borrowed_from_the_architecture_and_collectives_from_the_link() -> None:
    assert lenders("gemm", "H100-SXM") == {"H200-SXM"}
    assert lenders("gemm", "RTX-4090") == {"L40S"}
    assert lenders("gemm", "MI300X") == lenders("collective", "MI300X", "any") == set()
    assert "A100-SXM-80GB" not in lenders("collective", "A100-SXM-80GB", "any")
    assert lenders("collective", "H100-SXM", "any") == {"H200-SXM"}
    assert lenders("collective", "RTX-4090", "any") == set()  # host bridges differ from box to box


def test_attention_is_borrowed_from_devices_with_the_same_kind_of_memory() -> None:
    assert [accelerator(name).graphics for name in ("RTX-PRO-6000", "GB10")] == [True, True]
    assert [accelerator(name).graphics for name in ("B200-SXM", "H100-PCIe")] == [False, False]
    assert lenders("gemm", "RTX-5090") == lenders("decode", "RTX-5090") == {"RTX-PRO-6000"}
    assert "B200-SXM" in lenders("gemm", "RTX-PRO-6000")
    assert lenders("decode", "RTX-PRO-6000") == lenders("mla_layer_prefill", "RTX-PRO-6000") == set()
    assert lenders("decode", "H100-PCIe") == {"H100-SXM", "H200-SXM"}  # it has no links, but stacked memory


def common_lenders(family: str, device: str, **asked: str) -> set[str]:
    found = common_fits(family, accelerator(device), form="bf16", **asked)
    return {word for fit in found for word in fit.source.removeprefix("borrowed from ").split(", ")}


def test_what_is_common_is_lent_by_the_devices_most_alike() -> None:
    assert common_lenders("decode", "RTX-A6000") <= {"L40S", "RTX-PRO-6000"}
    assert "L40S" not in common_lenders("decode", "V100-SXM2-16GB")
    assert common_lenders("decode", "A100-SXM-80GB").isdisjoint({"A100-SXM-80GB", "L40S", "Arc-Pro-B60"})
    assert common_lenders("decode", "H100-SXM", apart_from="hopper").isdisjoint({"H100-SXM", "H200-SXM"})
    assert "Arc-Pro-B60" not in common_lenders("decode", "T4")
    assert "H100-SXM" in common_lenders("decode", "MI300X")  # a vendor that nobody measured takes the others'
    assert "Arc-Pro-B60" not in common_lenders("decode", "Gaudi2")  # of its vendor, but a graphics card


def test_what_another_vendor_lends_has_a_wider_interval() -> None:
    (near,) = common_fits("decode", accelerator("V100-SXM2-16GB"), form="bf16")
    (far,) = common_fits("decode", accelerator("MI300X"), form="bf16")
    assert far.low == pytest.approx([end / 3.12 for end in near.low])
    assert far.high == pytest.approx([end * 3.12 for end in near.high])
    assert max(far.shared) < min(near.shared)  # what is added is each shape's own
    (other,) = common_fits("mla_decode", accelerator("MI300X"), form="bf16")  # a family without a factor of its own
    assert other.high[2] == pytest.approx(1.66 * rung_interval("mla_decode", "common", "bf16").high[2])


def test_a_format_that_many_were_judged_in_has_its_own_interval() -> None:
    """Products in 16 bits lie nearer together than those whose weights are widened on the way."""
    plain, few = (rung_interval("gemm", "common", form) for form in ("bf16", "int4_wo"))
    assert few == rung_interval("gemm", "common")
    assert few.low[2] < plain.low[2]
    assert few.high[2] > plain.high[2]
    (found,) = common_fits("gemm", accelerator("V100-SXM2-16GB"), form="bf16", asked="int4_wo")  # lent
    assert found.low == few.low


def test_the_engine_asked_for_lends_what_is_common() -> None:
    for engine in ("vllm", "sglang", "trtllm"):
        (found,) = common_fits("gemm", accelerator("V100-SXM2-16GB"), form="bf16", engine=engine)
        assert found.engine == engine


def test_alone_an_engine_lends_its_own_or_nothing() -> None:
    """TensorRT-LLM's wide experts in block-scaled fp8 were timed on Hopper only; of others SGLang's stand for them."""
    asked = {"form": "fp8_block", "engine": "trtllm", "apart_from": "hopper"}
    (found,) = common_fits("wide_experts", accelerator("H100-SXM"), **asked)
    assert found.engine == "sglang"
    assert common_fits("wide_experts", accelerator("H100-SXM"), **asked, alone=True) == ()


def test_a_kernel_that_its_formula_misses_lends_nothing() -> None:
    """vLLM's experts on A100 are off by a fifth; on Hopper and Blackwell by a fifteenth."""
    (found,) = common_fits("experts", accelerator("V100-SXM2-16GB"), form="bf16", engine="vllm")
    poor, good = (
        max(own_fits("experts", name, engine="vllm", form="bf16"), key=lambda fit: fit.width)
        for name in ("A100-SXM-80GB", "H100-SXM")
    )
    assert poor.held_median > 2 * good.held_median
    assert "A100-SXM-80GB" not in found.source
    assert "H100-SXM" in found.source


def test_a_kernel_that_does_what_it_does_on_no_other_device_lends_nothing() -> None:
    """TensorRT-LLM's absorbed attention does not split contexts on A100, on Hopper and Blackwell it does."""
    (found,) = common_fits("mla_decode", accelerator("V100-SXM2-16GB"), form="bf16", engine="trtllm")
    assert "A100-SXM-80GB" not in found.source
    assert "H100-SXM" in found.source


def test_a_borrowed_fit_names_the_kernel_s_device() -> None:
    for fit in transferred_fits("prefill", accelerator("H800-SXM"), form="bf16"):
        assert fit.device == "H800-SXM"
        assert fit.kernel_device in ("H100-SXM", "H200-SXM")
    assert replace(fits("gemm")[0], source="a/b").kernel_device == fits("gemm")[0].device


def test_lenders_lend_the_release_and_the_kernels_asked_for() -> None:
    """H200 holds experts in fp8 of vLLM 0.19 and, for ModelOpt's checkpoints alone, of 0.24: H100 takes the former."""

    def lent(**how: Any) -> set[str]:
        found = transferred_fits("experts", accelerator("H100-SXM"), engine="vllm", form="fp8", **how)
        return {fit.version for fit in found}

    assert lent() == {"0.24.0"}
    assert lent(version="0.20.0") == lent(aside=False) == {"0.19.0"}
    (named,) = transferred_fits(
        "mla_layer_prefill", accelerator("B200-SXM"), engine="vllm", form="bf16", kernels="FLASH_ATTN/native"
    )
    assert named.kernel == "FLASH_ATTN/native mla"
