"""What changes of a fit between its lenders and the device that borrows it."""

from __future__ import annotations

import pytest

from ridgeline.cost.answer import Question, Rung
from ridgeline.cost.fit_choice import find_fits
from ridgeline.cost.fitted import fitted_model, slower_host
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
