"""The ladder: which rung answers, which kernel, whose values are borrowed, and how wide the interval is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.cost import fitted, measured, questions
from ridgeline.cost.answer import Cost, Question, Rung, held_by_host
from ridgeline.cost.families.registry import FAMILIES, mechanism
from ridgeline.cost.fit_choice import find_fits
from ridgeline.cost.fitted import from_fits, own_rates
from ridgeline.cost.ladder import price
from ridgeline.errors import DomainError
from ridgeline.facts.accelerators import accelerator
from ridgeline.facts.fits import Fit, fits, named_kernels, own_fits
from ridgeline.facts.records import Evidence

COMPILED = settings(deadline=None)  # the first example compiles the formula
H100 = accelerator("H100-SXM")
GEMM = questions.gemm(4096, 4096, 4096).question


def answer(**changes: Any) -> Cost:
    base = {"low_s": 0.8, "high_s": 1.5, "compute_s": 0.0, "memory_s": 0.0, "library": "", "source": ""}
    base["evidence"] = Evidence.MEASURED
    return Cost(**({"seconds": 1.0, "rung": Rung.TABLE} | base | changes))


def made(kernel: str, start_s: float, **changes: Any) -> Fit:
    """A fit of H100's products with another start, for the sizes of `domain`."""
    (fit,) = own_fits("gemm", "H100-SXM", engine="vllm", form="bf16")
    changed = {"kernel": kernel, "values": {**fit.values, "start_s_": start_s}, "span": {}}
    return replace(fit, **(changed | changes))


def test_the_best_rung_that_may_answer_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measured, "measured", lambda question, part: answer())
    assert price(GEMM, H100).rung is Rung.TABLE
    assert price(GEMM, H100, rungs=(Rung.FITTED, Rung.BORROWED)).rung is Rung.FITTED
    assert price(GEMM, H100, rungs=(Rung.BORROWED,)).rung is Rung.BORROWED
    monkeypatch.setattr(measured, "measured", lambda question, part: None)
    assert price(GEMM, H100).rung is Rung.FITTED
    assert price(GEMM, accelerator("RTX-4090")).rung is Rung.BORROWED


def test_answers_tell_how_they_are_known() -> None:
    """Measured on the device, derived from its vendor's others, or assumed: a TPU's product by NVIDIA's fits."""
    assert price(GEMM, H100, rungs=(Rung.FITTED,)).evidence is Evidence.MEASURED
    assert price(GEMM, accelerator("RTX-4090")).evidence is Evidence.DERIVED
    decode = questions.decode(64, 4096, 32, 8, 128).question
    for stranger in ("TPU-v5e", "MI300X"):
        found = price(decode, accelerator(stranger))
        assert (found.rung, found.evidence) == (Rung.COMMON, Evidence.ASSUMED)


def test_what_all_devices_have_in_common_answers_last_and_widest() -> None:
    part = accelerator("MI300X")
    found = price(questions.decode(64, 4096, 32, 8, 128).question, part)
    assert found.rung is Rung.COMMON
    assert float(found.high_s / found.low_s) >= 3.0
    assert float(np.asarray(found.seconds)) > 2 * 64 * 4096 * 8 * 128 * 2 / part.memory_bytes_per_s


def test_a_measured_rate_of_the_device_outranks_what_others_have_in_common() -> None:
    part = accelerator("MI355X")  # the one of its kin that somebody measured
    assert part.sustained["matrix.bf16"].evidence >= Evidence.MEASURED
    with pytest.raises(DomainError, match="no gemm in bf16 was measured on it or its relatives"):
        price(GEMM, part)
    assert price(GEMM, replace(part, sustained={})).rung is Rung.COMMON


def test_what_nobody_measured_is_refused_with_a_next_step() -> None:
    a100 = accelerator("A100-SXM-80GB")  # multiplies in no fp8
    assert price(replace(GEMM, form="int8"), a100).rung is Rung.FITTED
    for part, what in ((a100, replace(GEMM, form="fp8")), (H100, replace(GEMM, form="fp64"))):
        with pytest.raises(
            DomainError, match="ask for another format or library, or for a device that was: A100-SXM-80GB, "
        ) as refused:
            price(what, part)
        assert f"{part.name}: no gemm in {what.form} was measured on it or its relatives" in str(refused.value)
    with pytest.raises(DomainError, match=r"'posit' is no number format; known: fp64, .*nvfp4"):
        price(replace(GEMM, form="posit"), H100)
    with pytest.raises(DomainError, match=r"gemm needs the size 'k'; it takes m, n, k"):
        price(replace(GEMM, sizes={"m": 1, "n": 1}), H100)


def test_an_engine_is_asked_for_its_own_kernels_first() -> None:
    for engine in ("vllm", "sglang", "trtllm"):
        assert price(replace(GEMM, engine=engine), H100).library.startswith(engine)
    assert price(replace(GEMM, engine="llama.cpp"), H100) == price(GEMM, H100)  # nobody measured it: any engine
    older = price(replace(GEMM, engine="sglang", form="fp8", version="0.5.7"), H100)
    assert older.library == "sglang 0.5.6.post2"


def test_sixteen_bits_stand_for_each_other() -> None:
    assert price(replace(GEMM, form="fp16"), H100).source == price(GEMM, H100).source


def test_a_size_takes_the_narrowest_kernel_whose_domain_it_lies_in() -> None:
    wide = made("wide", 1e-3, domain={"m": (1.0, 1e6, 1.0)})
    small = made("small", 2e-3, domain={"m": (1.0, 64.0, 1.0)})
    even = made("even", 3e-3, domain={"m": (1.0, 1e6, 128.0)})
    question = replace(GEMM, sizes={"m": np.array([1, 64, 65, 128, 2e6]), "n": 64, "k": 64})
    starts = np.asarray(from_fits(question, H100, (wide, even, small), Rung.FITTED).seconds)
    assert np.round(starts * 1e3).tolist() == [2, 2, 1, 3, 1]  # beyond every domain the widest answers


def test_sizes_that_are_not_whole_take_the_kernel_of_their_neighbours() -> None:
    wide = made("wide", 1e-3, domain={"m": (1.0, 1e6, 1.0)})
    small = made("small", 2e-3, domain={"m": (1.0, 64.0, 1.0)})
    even = made("even", 3e-3, domain={"m": (1.0, 1e6, 128.0)})
    question = replace(GEMM, sizes={"m": np.array([63.5, 127.5]), "n": 64, "k": 64})
    starts = np.asarray(from_fits(question, H100, (wide, even, small), Rung.FITTED).seconds)
    assert np.round(starts * 1e3).tolist() == [2, 1]


def test_text_that_names_a_kernel_s_source_chooses_it() -> None:
    both = (made("cutlass a", 1e-3), made("deepgemm", 1e-3))
    assert named_kernels(both, "vLLM 0.24 deepgemm") == both[1:]
    assert named_kernels(both, "vLLM 0.24") == both


@COMPILED
@given(st.floats(1e-7, 1e-2), st.floats(0, 1e-2))
def test_the_host_holds_a_call_that_it_issues_slowly(seconds: float, issue_s: float) -> None:
    held = held_by_host(answer(seconds=seconds, low_s=0.9 * seconds, high_s=1.2 * seconds), issue_s, (1e-5, 4e-5))
    assert held.seconds == max(seconds, issue_s)
    assert held.low_s <= held.seconds <= held.high_s
    if issue_s > 0:  # which host it is nobody told
        assert held.low_s == max(0.9 * seconds, min(issue_s, 1e-5))
        assert held.high_s == max(1.2 * seconds, issue_s, 4e-5)


def test_a_call_that_is_waited_for_takes_its_issue_as_well() -> None:
    kernel = answer(seconds=17e-6, low_s=15e-6, high_s=20e-6)
    alone = held_by_host(kernel, 21e-6, (20e-6, 47e-6), alone=True)
    assert (alone.seconds, alone.low_s, alone.high_s) == pytest.approx((38e-6, 35e-6, 67e-6))
    assert held_by_host(kernel, 0.0, (20e-6, 47e-6), alone=True) is kernel  # replayed from a graph


@pytest.mark.parametrize("family", FAMILIES)
def test_borrowed_answers_leave_the_device_itself_out(family: str) -> None:
    for device in {fit.device for fit in fits(family)}:
        for fit in find_fits(
            Question(family=family, sizes={}, form=fits(family)[0].form), accelerator(device), Rung.BORROWED
        ):
            assert fit.device == device
            assert device not in fit.source.removeprefix("borrowed from ").split(", ")


def test_borrowed_values_are_the_geometric_mean_of_the_relatives() -> None:
    first, second = (own_fits("gemm", name, engine="vllm", form="bf16")[0] for name in ("H100-SXM", "H200-SXM"))
    (found,) = find_fits(replace(GEMM, engine="vllm"), accelerator("H800-SXM"), Rung.BORROWED)
    assert found.source == "borrowed from H100-SXM, H200-SXM"
    for name, value in found.values.items():
        assert value == pytest.approx((first.values[name] * second.values[name]) ** 0.5)


def test_a_borrowed_rate_follows_the_cube_root_of_watts_a_flop() -> None:
    watts = H100.tdp_w or 0.0
    large = replace(GEMM, sizes={"m": 8192, "n": 8192, "k": 8192}, engine="vllm")

    def share(name: str, rated_w: float) -> float:  # matrix_share_ is the second parameter
        part = replace(H100, name=name, sustained={}, tdp_w=rated_w)
        return float(fitted.fitted_model(large, part, Rung.BORROWED).kernels[0].values[1])

    as_lenders = share("same", watts)
    assert 0.5 < as_lenders < 0.95
    assert share("cool", 1.1 * watts) == pytest.approx(1.1 ** (1 / 3) * as_lenders)
    assert share("held", 0.5 * watts) == pytest.approx(0.5 ** (1 / 3) * as_lenders)
    assert share("cold", 8.0 * watts) == 1.0
    unknown = fitted.fitted_model(large, replace(H100, name="dark", sustained={}, tdp_w=None), Rung.BORROWED)
    relatives = [own_fits("gemm", name, engine="vllm", form="bf16")[0] for name in ("H100-SXM", "H200-SXM")]
    plain = float(np.exp(np.mean([np.log(fit.values["matrix_share_"]) for fit in relatives])))
    assert unknown.kernels[0].values[1] == pytest.approx(plain)


def test_rates_measured_on_the_device_replace_what_is_common_but_not_what_relatives_lend() -> None:
    """A best shape's rate holds its edges and waves; a relative's share is of the loop between them."""
    part = accelerator("MI300X")
    found = own_rates(part, "bf16")
    share = part.sustained["matrix.bf16"].value / part.peak_flop_per_s["bf16"]
    assert found["matrix_share_"] == pytest.approx(min(1.0, share))
    decode = questions.decode(8, 4096, 32, 8, 128).question
    common = fitted.fitted_model(decode, part, Rung.COMMON).kernels[0].values  # its second parameter is the share
    assert common[1] == pytest.approx(found["matrix_share_"])
    lent = fitted.fitted_model(GEMM, accelerator("H800-SXM"), Rung.BORROWED)
    bare = fitted.fitted_model(GEMM, replace(accelerator("H800-SXM"), sustained={}), Rung.BORROWED)
    assert lent.kernels[0].values == pytest.approx(bare.kernels[0].values)


def test_what_feeds_an_sm_of_another_architecture_keeps_pace_with_what_it_computes() -> None:
    """Of two unknown devices with as many SMs, the one of twice the 16-bit rate brings twice the bytes to each."""
    part = replace(accelerator("MI300X"), sustained={})
    rates = {name: 2 * rate for name, rate in part.peak_flop_per_s.items()}
    names = [parameter.name for parameter in mechanism("gemm").parameters]
    slow, fast = (
        dict(zip(names, fitted.fitted_model(GEMM, one, Rung.COMMON).kernels[0].values, strict=True))
        for one in (part, replace(part, peak_flop_per_s=rates))
    )
    for name in names:
        more = 2.0 if name in ("sm_bytes_per_s_", "sm_l2_bytes_per_s_") else 1.0
        assert fast[name] == pytest.approx(more * slow[name]), name


def test_a_datasheet_s_device_is_one_that_nobody_measured() -> None:
    """Its price is the same whatever was measured on it, and is its relatives'."""
    for device in ("H100-SXM", "V100-SXM2-32GB"):
        part = accelerator(device)
        found = price(GEMM, part, rungs=(Rung.DATASHEET,))
        other = price(GEMM, replace(part, sustained={}), rungs=(Rung.DATASHEET,))
        assert (found.seconds, found.rung) == (other.seconds, other.rung)
        assert found.evidence is Evidence.DERIVED
    assert "H100-SXM" not in price(GEMM, H100, rungs=(Rung.DATASHEET,)).source


def test_products_and_prompts_of_a_vendor_that_nobody_measured_are_the_mechanism_s() -> None:
    prompt = questions.prefill(1, 4096, 32, 8, 128).question
    for asked, device in ((GEMM, "V100-SXM2-32GB"), (prompt, "RTX-3090")):
        with pytest.raises(DomainError):  # somebody measured the rate, and the kernels are AMD's own
            price(asked, accelerator("MI300X"), rungs=(Rung.BORROWED, Rung.COMMON))
        assert price(asked, accelerator(device), rungs=(Rung.BORROWED, Rung.COMMON)).rung is Rung.COMMON


def test_a_part_that_nobody_measured_is_no_quicker_than_the_greater_one_of_its_kin() -> None:
    decode = questions.decode(64, 4096, 64, 8, 128).question
    older, newer = (accelerator(name) for name in ("MI350X", "MI355X"))
    assert float(np.asarray(price(decode, older).seconds)) >= float(np.asarray(price(decode, newer).seconds))
    for name in ("bf16", "fp16", "fp8"):
        with pytest.raises(DomainError):
            price(replace(GEMM, form=name), older)  # as of the greater one, its kernels are AMD's own
        shares = [own_rates(part, name)["matrix_share_"] * part.peak_flop_per_s[name] for part in (older, newer)]
        assert shares[0] < shares[1]


def test_a_rate_measured_in_bf16_is_the_devices_own_in_fp16() -> None:
    """MI300X: 668.4 TFLOP/s of 1307 were measured in bf16 and nothing in fp16; fp32 has no such neighbour."""
    part = accelerator("MI300X")
    assert "matrix.fp16" not in part.sustained
    assert own_rates(part, "fp16")["matrix_share_"] == pytest.approx(668.4 / 1307, rel=1e-3)
    assert own_rates(part, "fp16") == own_rates(part, "bf16")
    assert "matrix_share_" not in own_rates(part, "fp32")


@COMPILED
@given(st.floats(1, 30000), st.floats(1, 30000), st.floats(1, 30000), st.sampled_from(("H100-SXM", "RTX-4090")))
def test_the_answer_lies_in_its_interval(m: float, n: float, k: float, device: str) -> None:
    found = price(questions.gemm(m, n, k).question, accelerator(device))
    assert 0 < found.low_s <= found.seconds * (1 + 1e-9)
    assert found.seconds <= found.high_s * (1 + 1e-9)


def test_the_interval_widens_outside_the_sizes_measured() -> None:
    fit = made("k", 1e-6, span={"m": (16.0, 64.0)}, low=(0.8,) * 3, high=(1.25,) * 3)
    sizes = {"m": np.array([32, 64, 64 * np.e, 16 / np.e, 1.0]), "n": 64, "k": 64}
    found = from_fits(replace(GEMM, sizes=sizes), H100, (fit,), Rung.FITTED)
    widths = (np.asarray(found.high_s) / np.asarray(found.seconds)).tolist()
    assert widths == pytest.approx([1.25, 1.25, 1.25 * 1.3, 1.25 * 1.3, 1.25 * 1.3 ** np.log(16)])


def test_keys_before_a_prompt_widen_its_interval_by_their_ratio_to_queries_where_none_were_measured() -> None:
    (fit,) = find_fits(questions.prefill(1, 8192, 32, 8, 128).question, H100, Rung.FITTED)[:1]
    assert fit.span["cached"] == (0.0, 0.0)
    sizes = np.array([0.0, 4096.0, 8192.0, 3 * 8192.0])
    asked = questions.prefill(1, 8192, 32, 8, 128, cached=sizes).question
    found = from_fits(asked, H100, (fit,), Rung.FITTED)
    spread = np.log(np.asarray(found.high_s) / np.asarray(found.low_s))
    assert (spread - spread[0]).tolist() == pytest.approx((2 * np.log(1.3) * np.log([1.0, 1.5, 2.0, 4.0])).tolist())


def test_a_module_takes_what_its_engine_runs_in_another_narrow_format_before_another_engine_s() -> None:
    """Products are a library's: there another engine's kernels in the same format stand first."""
    h100 = accelerator("H100-SXM")

    def lent(family: str, engine: str, form: str) -> set[tuple[str, str]]:
        asked = Question(family=family, sizes={}, form=form, engine=engine)
        return {(fit.engine, fit.form) for fit in fitted.find_fits(asked, h100, Rung.COMMON, apart=True)}

    assert lent("wide_experts", "trtllm", "fp8_block") == {("trtllm", "nvfp4")}
    assert lent("wide_experts", "sglang", "fp8_block") == {("sglang", "fp8_block")}
    assert lent("gemm", "sglang", "int8_wo") == {("trtllm", "int8_wo")}
