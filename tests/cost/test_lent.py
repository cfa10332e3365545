"""What changes of a fit between its lenders and the device that borrows it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ridgeline.cost.answer import Question, Rung
from ridgeline.cost.fit_choice import find_fits
from ridgeline.cost.fitted import fitted_model
from ridgeline.cost.lent import memory_scaled, slower_host
from ridgeline.facts.accelerators import accelerator
from ridgeline.facts.transfer import transferred_fits


def test_a_host_of_grace_issues_what_x86_hosts_lend_more_slowly() -> None:
    """B200 borrows from B300 (0.90 of a DGX H100's host) and GB200, GB300 (1.55): a mean of (0.9 x 1.55^2)^(1/3)."""
    lent = transferred_fits("dsa_layer_prefill", accelerator("B200-SXM"), engine="vllm", form="bf16")[0]
    assert lent.source == "borrowed from B300-SXM, GB200, GB300"
    mean = (0.90 * 1.55 * 1.55) ** (1 / 3)
    assert slower_host(lent, accelerator("B200-SXM")) == pytest.approx(0.90 / mean)
    assert slower_host(lent, accelerator("GB200")) == pytest.approx(1.55 / mean)


@pytest.mark.parametrize(("family", "scaled"), [("dsa_layer_prefill", True), ("dsa_layer_decode", False)])
def test_only_what_a_host_issues_follows_the_host(family: str, scaled: bool) -> None:
    part = accelerator("GB200")
    question = Question(family=family, sizes={}, form="bf16", engine="vllm")
    fits = {fit.kernel: fit for fit in find_fits(question, part, Rung.BORROWED)}
    model = fitted_model(question, part, Rung.BORROWED)
    place = [parameter.name for parameter in model.mechanism.parameters].index("issue_s_")
    for kernel in model.kernels:
        plain = fits[kernel.fit.kernel].values["issue_s_"]
        ratio = slower_host(kernel.fit, part) if scaled else 1.0
        assert kernel.values[place] == pytest.approx(plain * ratio)
        assert not scaled or ratio > 1.1


@pytest.mark.parametrize(
    ("device", "cells", "bytes_per_s"), [("RTX-4090", 5624, 1010e9), ("RTX-6000-Ada", 4997, 960e9)]
)
def test_memory_without_ecc_gives_more_of_its_datasheet_than_that_of_a_data_centre(
    device: str, cells: float, bytes_per_s: float
) -> None:
    """One program moves 153 bytes a cell: 3,788 million cells/s on L40S are 0.671 of 864 GB/s."""
    lent = transferred_fits("gemm", accelerator(device), engine="vllm", form="bf16")[0]
    assert lent.source == "borrowed from L40S"
    here, there = cells * 153e6 / bytes_per_s, 3788 * 153e6 / 864e9
    ours = memory_scaled(lent, accelerator(device), 0.5)
    assert ours == pytest.approx(lent.values["memory_share_"] * here / there, rel=1e-3)
    assert ours > 1.15 * lent.values["memory_share_"]


def test_memory_is_compared_within_a_vendor_and_never_above_its_datasheet() -> None:
    lent = transferred_fits("gemm", accelerator("RTX-4090"), engine="vllm", form="bf16")[0]
    assert memory_scaled(lent, accelerator("MI300X"), 0.5) == 0.5
    whole = replace(lent, values={**lent.values, "memory_share_": 0.95})
    assert memory_scaled(whole, accelerator("RTX-4090"), 0.5) == 1.0
