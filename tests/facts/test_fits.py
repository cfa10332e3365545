"""Tables of fits: what they hold, bounds, sources, and which of a device's own answer."""

from __future__ import annotations

from datetime import date
from typing import Any

import pytest

from ridgeline.cost.families.registry import FAMILIES, mechanism
from ridgeline.cost.formats import form
from ridgeline.cost.readers import READERS
from ridgeline.facts.accelerators import accelerator_names
from ridgeline.facts.fits import ENGINES, families, fits, in_use, issued_eagerly, own_fits, preferred_engine
from ridgeline.facts.opdata import systems

# Fits of a family, kernels that they were fitted to, and the mean error on shapes that no fit saw, all within a fifth.
PINNED = {
    "gemm": (107, 1_800_532, 0.069),
    "prefill": (148, 785_781, 0.137),
    "decode": (168, 851_484, 0.079),
    "mla_prefill": (32, 24_040, 0.062),
    "mla_decode": (32, 34_755, 0.082),
    "experts": (249, 2_154_624, 0.098),
    "collective": (21, 8_412, 0.046),
    "exchange": (16, 21_434, 0.052),
    "engine_exchange": (26, 4_017, 0.072),
    "custom_all_reduce": (61, 2_250, 0.041),
    "quantize": (48, 47_088, 0.042),
    "encoder": (24, 102_312, 0.115),
    "mla_bmm": (43, 13_927, 0.052),
    "mla_layer_prefill": (80, 69_174, 0.052),
    "mla_layer_decode": (61, 86_159, 0.063),
    "dsa_layer_prefill": (144, 456_774, 0.097),
    "dsa_layer_decode": (77, 90_326, 0.060),
    "csa_layer_prefill": (22, 308_292, 0.088),
    "csa_layer_decode": (23, 21_824, 0.073),
    "hca_layer_prefill": (24, 229_353, 0.060),
    "hca_layer_decode": (22, 19_472, 0.037),
    "msa_layer_prefill": (52, 137_708, 0.070),
    "msa_layer_decode": (56, 43_593, 0.051),
    "hyper_connection": (50, 1_685, 0.074),
    "delta_prefill": (41, 46_128, 0.080),
    "delta_decode": (49, 4_533, 0.109),
    "convolution": (72, 49_583, 0.071),
    "wide_experts": (15, 18_528, 0.072),
    "wide_experts_decode": (15, 17_554, 0.071),
}


def test_every_family_has_a_table() -> None:
    assert set(families()) == set(FAMILIES) == set(PINNED)


@pytest.mark.parametrize("family", FAMILIES)
def test_tables_hold_what_they_held(family: str) -> None:
    found = fits(family)
    totals = (len(found), sum(fit.rows for fit in found), sum(fit.held_median for fit in found) / len(found))
    assert totals == pytest.approx(PINNED[family], rel=0.2)
    assert {fit.device for fit in found} >= {"H100-SXM", "H200-SXM", "B200-SXM", "GB200"}


@pytest.mark.parametrize("family", FAMILIES)
def test_every_value_lies_within_its_bounds(family: str) -> None:
    parameters = {parameter.name: parameter for parameter in mechanism(family).parameters}
    for fit in fits(family):
        assert fit.values.keys() == parameters.keys()
        for name, value in fit.values.items():
            low, high = parameters[name].low, parameters[name].high
            assert low * 0.9999 <= value <= high * 1.0001, f"{fit.device} {fit.library} {fit.kernel}: {name} {value}"


@pytest.mark.parametrize("family", FAMILIES)
def test_every_fit_says_where_it_comes_from(family: str) -> None:
    places = {name: folder for folder, name in systems().items()}
    for fit in fits(family):
        assert fit.device in accelerator_names()
        assert form(fit.form).name == fit.form
        assert fit.engine in ENGINES
        assert fit.source.startswith(f"{places[fit.device]}/")
        assert f"/{fit.engine}/{fit.version}/" in fit.source
        assert date(2026, 1, 1) <= date.fromisoformat(fit.date)
        assert fit.rows >= READERS[family].fewest
        assert 0 <= fit.held_median <= fit.held_p90


@pytest.mark.parametrize("family", FAMILIES)
def test_no_fit_is_there_twice_and_domains_are_sizes(family: str) -> None:
    keys = [(fit.device, fit.engine, fit.version, fit.form, fit.kernel, fit.source) for fit in fits(family)]
    assert len(set(keys)) == len(keys)
    sizes = set(mechanism(family).sizes)
    for fit in fits(family):
        assert fit.domain.keys() <= sizes
        assert all(low <= high and step >= 1 for low, high, step in fit.domain.values())
        assert all(low <= high for low, high in fit.span.values())
        assert len(fit.low) == len(fit.high) == 3
        assert all(0 < low <= high for low, high in zip(fit.low, fit.high, strict=True))


@pytest.mark.parametrize("family", ["gemm", "mla_prefill", "mla_decode", "collective", "exchange"])
def test_an_answer_lies_in_its_own_interval(family: str) -> None:
    for fit in fits(family):
        assert max(fit.low) <= 1 <= min(fit.high), f"{fit.device} {fit.library} {fit.form} {fit.kernel}"


def test_kernels_for_one_tool_s_checkpoints_stand_aside() -> None:
    """vLLM 0.24 was measured in per-tensor fp8 with ModelOpt's checkpoints alone, 0.19 on an H200 with any."""

    def versions(device: str, **how: Any) -> set[str]:
        return {fit.version for fit in own_fits("experts", device, engine="vllm", form="fp8", **how)}

    assert (versions("H200-SXM"), versions("H200-SXM", aside=False)) == ({"0.24.0"}, {"0.19.0"})
    assert (versions("H100-SXM"), versions("H100-SXM", aside=False)) == ({"0.24.0"}, set())
    assert in_use(own_fits("experts", "H100-SXM", engine="vllm", form="fp8")) == ()


def test_layers_whose_norms_no_engine_runs_stand_aside() -> None:
    """GB300's latent layers of vLLM were timed with PyTorch's norms in 0.24, with vLLM's own in 0.27; B200's again."""

    def kernels(device: str, version: str, **how: Any) -> set[tuple[str, bool]]:
        found = own_fits("mla_layer_prefill", device, engine="vllm", version=version, form="bf16", **how)
        return {(fit.version, "/native" in fit.kernel) for fit in found}

    assert kernels("GB300", "0.24.0") == {("0.24.0", True)}
    assert kernels("GB300", "0.24.0", aside=False) == {("0.27.0", False)}
    assert kernels("B200-SXM", "0.24.0") == {("0.24.0", False)}
    assert kernels("GB200", "0.24.0", aside=False) == set()


def test_whose_kernels_no_graph_replayed() -> None:
    """vLLM's products of block-scaled fp8 and SGLang's prompts of sparse layers, not what is captured."""
    for family, engine, name, eagerly in (
        ("gemm", "vllm", "fp8_block", True),
        ("gemm", "sglang", "fp8_block", False),
        ("gemm", "vllm", "bf16", False),
        ("dsa_layer_prefill", "sglang", "bf16", True),
        ("dsa_layer_decode", "sglang", "bf16", False),
        ("dsa_layer_prefill", "trtllm", "bf16", False),
    ):
        found = own_fits(family, "B200-SXM", engine=engine, form=name)
        assert found
        assert {issued_eagerly(fit) for fit in found} == {eagerly}, (family, engine, name)


def test_engines_stand_in_in_use_in_order() -> None:
    assert preferred_engine({"trtllm", "sglang"}) == "sglang"
    assert preferred_engine({"zebra", "apple"}) == "apple"
    assert preferred_engine(()) == ""
    assert own_fits("gemm", "H100-SXM", form="bf16")[0].engine == "vllm"
    assert own_fits("gemm", "H100-SXM", engine="llama.cpp", form="bf16") == ()
    assert own_fits("frobnicate", "H100-SXM", form="bf16") == ()
