"""Kernels of attention before those of the tables: FlashAttention-2 on devices that were measured with the next one."""

from __future__ import annotations

import numpy as np
import pytest

from ridgeline.cost.engine_kernels import OwnKernels
from ridgeline.cost.fit_choice import earlier_fits
from ridgeline.cost.formats import Formats
from ridgeline.cost.machine import machine
from ridgeline.cost.served import ServedPrices
from ridgeline.facts.accelerators import accelerator
from ridgeline.facts.clusters import cluster
from ridgeline.facts.engines import EngineUse, engine_policy
from ridgeline.facts.fits import own_fits
from ridgeline.lower.pieces import Core

EARLIER = "vllm_flash_attn"
CORE = Core(heads=32.0, kv_heads=8.0, qk_dim=128, v_dim=128)


def prices(device: str, earlier: str) -> ServedPrices:
    return ServedPrices(machine(cluster(f"1x{device}")), Formats(), engine="vLLM", own=OwnKernels(earlier=earlier))


@pytest.mark.parametrize("family", ["decode", "prefill"])
def test_an_h100_borrows_what_an_a100_was_measured_with(family: str) -> None:
    (lent,) = earlier_fits(family, accelerator("H100-SXM"), engine="vllm", kernel=EARLIER, form="bf16")
    (lender,) = own_fits(family, "A100-SXM-80GB", engine="vllm", form="bf16")
    assert lent.values["memory_share_"] == pytest.approx(lender.values["memory_share_"])
    assert lent.values["matrix_share_"] == pytest.approx(lender.values["matrix_share_"] * 0.531 / 0.943)


@pytest.mark.parametrize(("device", "form"), [("A100-SXM-80GB", "bf16"), ("H100-SXM", "bf16_kv8")])
def test_nothing_is_lent_to_its_owner_nor_in_formats_that_it_was_not_measured_in(device: str, form: str) -> None:
    assert earlier_fits("decode", accelerator(device), engine="vllm", kernel=EARLIER, form=form) == ()


def test_long_caches_are_read_at_the_lender_s_share_of_memory() -> None:
    """0.97 of an H100's memory rate by its own kernels, 0.79 by the earlier ones."""
    new, old = (
        float(prices("H100-SXM", name).decode(CORE, np.array([128.0]), np.array([8192.0])).mid.item())
        for name in ("", EARLIER)
    )
    assert old / new == pytest.approx(0.97089 / 0.78569, rel=0.05)


def test_vllm_has_the_later_kernels_on_hopper_from_0_7() -> None:
    def kernels(version: str, architecture: str = "NVIDIA hopper") -> str:
        return engine_policy("vllm", version, EngineUse(memory_bytes=80e9, architecture=architecture)).earlier_attention

    assert [kernels(version) for version in ("0.5.5", "0.6.6", "0.7", "0.11")] == [EARLIER, EARLIER, "", ""]
    assert kernels("0.5.5", "NVIDIA ampere") == ""
