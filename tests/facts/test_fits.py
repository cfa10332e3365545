"""Tables of fits: what they hold, bounds, sources, versions in order, and who lends to whom."""

from __future__ import annotations

from dataclasses import replace
from datetime import date
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.cost.families.registry import FAMILIES, mechanism
from ridgeline.cost.formats import form
from ridgeline.cost.readers import READERS
from ridgeline.facts.accelerators import accelerator, accelerator_names
from ridgeline.facts.fits import (
    ENGINES,
    Fit,
    borrowed_fits,
    common_fits,
    families,
    fits,
    for_any,
    nearest_version,
    own_fits,
    preferred_engine,
    release_key,
    rung_interval,
)
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


@pytest.mark.parametrize("family", FAMILIES)
def test_borrowed_answers_have_an_interval_that_holds_them(family: str) -> None:
    known = rung_interval(family, "borrowed")
    assert known.rows > (200 if family == "hyper_connection" else 1000)  # whose tables hold 3,035 rows in all
    assert known.median < known.p90
    assert max(known.low) <= 1 <= min(known.high)


def test_a_rung_that_nobody_judged_is_wide() -> None:
    found = rung_interval("frobnicate", "table")
    assert (found.rows, found.low, found.high) == (0, (0.5,) * 3, (2.0,) * 3)


@pytest.mark.parametrize(
    ("older", "newer"),
    [
        ("0.5.9", "0.5.14"),
        ("1.3.0rc20", "1.3.0"),
        ("1.3.0rc9", "1.3.0rc20"),
        ("1.2.9", "1.3.0rc1"),
        ("2.27", "2.27.3"),
        ("0.5.6.post2", "0.5.7"),
    ],
)
def test_versions_are_in_the_order_that_their_writers_meant(older: str, newer: str) -> None:
    assert release_key(older) < release_key(newer)
    assert nearest_version({newer, older}, "") == newer
    assert nearest_version({newer, older}, older) == older


@given(st.lists(st.from_regex(r"\d{1,2}(\.\d{1,3}){0,3}((rc|post)\d{1,2})?", fullmatch=True), min_size=1, max_size=6))
def test_any_versions_can_be_ordered(versions: list[str]) -> None:
    newest = nearest_version(versions, "")
    assert all(release_key(version) <= release_key(newest) for version in versions)
    assert nearest_version(versions, newest) in versions
    assert release_key(nearest_version(versions, versions[0])) <= release_key(versions[0])


def test_a_version_older_than_all_takes_the_oldest() -> None:
    assert nearest_version(("2.27", "2.29"), "2.1") == "2.27"
    assert nearest_version((), "1") == ""


def test_kernels_for_one_tool_s_checkpoints_stand_back() -> None:
    """vLLM 0.24 was measured in per-tensor fp8 with ModelOpt's checkpoints alone, 0.19 on an H200 with any."""

    def versions(device: str, **how: Any) -> set[str]:
        return {fit.version for fit in own_fits("experts", device, engine="vllm", form="fp8", **how)}

    assert (versions("H200-SXM"), versions("H200-SXM", one_tool=False)) == ({"0.24.0"}, {"0.19.0"})
    assert (versions("H100-SXM"), versions("H100-SXM", one_tool=False)) == ({"0.24.0"}, set())
    assert for_any(own_fits("experts", "H100-SXM", engine="vllm", form="fp8")) == ()


def test_engines_stand_in_for_any_in_order() -> None:
    assert preferred_engine({"trtllm", "sglang"}) == "sglang"
    assert preferred_engine({"zebra", "apple"}) == "apple"
    assert preferred_engine(()) == ""
    assert own_fits("gemm", "H100-SXM", form="bf16")[0].engine == "vllm"
    assert own_fits("gemm", "H100-SXM", engine="llama.cpp", form="bf16") == ()
    assert own_fits("frobnicate", "H100-SXM", form="bf16") == ()


def lenders(family: str, device: str, name: str = "bf16") -> set[str]:
    found: tuple[Fit, ...] = borrowed_fits(family, accelerator(device), form=name)
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
    assert lenders("decode", "RTX-PRO-6000") == set()
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
    assert far.low == pytest.approx([end / 1.44 for end in near.low])
    assert far.high == pytest.approx([end * 1.44 for end in near.high])


def test_the_engine_asked_for_lends_what_is_common() -> None:
    for engine in ("vllm", "sglang", "trtllm"):
        (found,) = common_fits("gemm", accelerator("V100-SXM2-16GB"), form="bf16", engine=engine)
        assert found.engine == engine


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
    for fit in borrowed_fits("prefill", accelerator("H800-SXM"), form="bf16"):
        assert fit.device == "H800-SXM"
        assert fit.kernel_device in ("H100-SXM", "H200-SXM")
    assert replace(fits("gemm")[0], source="a/b").kernel_device == fits("gemm")[0].device
