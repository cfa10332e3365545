"""The words of serving: each is read as people write it, and refused with a sentence."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.errors import InputError, UnitError
from ridgeline.plan.deployment import Deployment
from ridgeline.scenario.fields import Field, read_fields
from ridgeline.scenario.serving_fields import BATCH_FIELDS, DEPLOYMENT_FIELDS, TRAFFIC_FIELDS, Pool
from ridgeline.scenario.serving_words import said

FIELDS = {field.name: field for field in (*TRAFFIC_FIELDS, *DEPLOYMENT_FIELDS, *BATCH_FIELDS)}


def read(name: str, value: object) -> Any:
    return FIELDS[name].read(value)


@pytest.mark.parametrize(
    ("name", "written", "value"),
    [
        ("prompt", "1024", (1024, 1024)),
        ("prompt", 1024, (1024, 1024)),
        ("prompt", "800-1200", (800, 1200)),
        ("prompt", " 800 - 1200 ", (800, 1200)),
        ("output", "4k", (4000, 4000)),
        ("rate", "0.5", 0.5),
        ("rate", 20, 20.0),
        ("duration", "10min", 600.0),
        ("duration", 30, 30.0),
        ("duration", "250ms", 0.25),
        ("slo", "ttft=1s,tpot=50ms", {"ttft_s": 1.0, "tpot_s": 0.05}),
        ("slo", "ttft.p99=1s,itl.mean=2s", {"percentiles": (("ttft", "p99", 1.0), ("itl", "mean", 2.0))}),
        ("slo", "tpot=50ms,kept=90%,goodput=4", {"tpot_s": 0.05, "least_share": 0.9, "least_goodput_rps": 4.0}),
        ("slo", " TTFT = 200 ms , latency=20s", {"ttft_s": 0.2, "latency_s": 20.0}),
        ("prefill", "2xtp4", Pool(instances=2, degrees={"tp": 4})),
        ("decode", "1 x tp1, dp8, ep8", Pool(instances=1, degrees={"tp": 1, "dp": 8, "ep": 8})),
        ("decode", "1xtp8,kv8", Pool(instances=1, degrees={"tp": 8, "kv_ranks": 8})),
        ("decode", "1xtp1,dp4,experts4", Pool(instances=1, degrees={"tp": 1, "dp": 4, "expert_devices": 4})),
        ("split", True, True),
        ("split_share", 0.3, 0.3),
        ("expert_devices", 4, 4),
        ("engine", " vllm 0.11 ", "vllm 0.11"),
        ("chunked", "no", False),
        ("mixed", "yes", True),
        ("memory_fraction", "90%", 0.9),
        ("draft_tokens", 0, 0),
        ("beam_width", 4, 4),
        ("acceptance", 1, (1.0,)),
        ("acceptance", "0.6, 15%", (0.6, 0.15)),
        ("draft_tree", "4x2x1", (4, 2, 1)),
    ],
)
def test_a_word_is_read_as_written(name: str, written: object, value: object) -> None:
    assert read(name, written) == value


@pytest.mark.parametrize(
    ("name", "written", "told"),
    [
        ("prompt", "1200-800", "ends before it begins"),
        ("prompt", "1-2-3", "'1-2-3' is no length in tokens; write 1024, or 800-1200"),
        ("prompt", "-5", "'-5' is no length in tokens"),
        ("prompt", 0, "'0' is out of range; needs 1 to 10,000,000"),
        ("prompt", [1, 2], "is not a count"),
        ("prompt", True, "is not a count"),
        ("rate", "0", "out of range"),
        ("rate", "nan", "'nan' is not a number"),
        ("arrivals", "poison", "nearest: poisson"),
        ("duration", "5kg", "unknown unit 'kg'; wanted s"),
        ("duration", "-1s", "needs 0 s to 1e9 s"),
        ("duration", None, "'None' is not a time"),
        ("slo", "soon", "'soon' is no bound; write ttft=1s, tpot.p90=50ms, itl.p99=80ms, latency.mean=20s, kept=95%"),
        ("slo", "ttft=", "'ttft=' is no bound"),
        ("slo", "itl=3ms", "ITL is of tokens, so say of which: itl.p99=80ms"),
        ("slo", "ttft.p100=1s", "'ttft.p100=1s' is no bound"),
        ("slo", "ttft.p99=1", "'ttft.p99=1' has no unit; write ttft.p99=1s"),
        ("slo", "ttft.p99=1s,ttft.p99=2s", "bounds ttft.p99 twice"),
        ("slo", "kept=95%", "no bound of every request; add ttft=1s"),
        ("slo", "ttft=1s,kept=101%", "out of range"),
        ("slo", "ttft=1", "'ttft=1' has no unit; write ttft=1s or ttft=1ms"),
        ("slo", "ttft=1s,tpot=5e-2", "'tpot=5e-2' has no unit"),
        ("slo", "ttft=fast", "'fast' is not a quantity in s"),
        ("slo", "ttft=0s", "'0s' is out of range"),
        ("slo", "ttft=1s,ttft=2s", "bounds ttft twice"),
        ("slo", {"ttft": 1}, "is no bound"),
        ("prefill", "tp4", "'tp4' is no pool; write a count and degrees such as 2xtp4"),
        ("prefill", "0xtp4", "is no pool"),
        ("decode", "2xtp4q", "is no pool"),
        ("engine", "", "'' is not a text"),
        ("engine", 3, "'3' is not a text"),
        ("router", "best", "valid: round-robin, least-loaded, kv-usage, prompt-length, prefix"),
        ("preemption", "swop", "nearest: swap"),
        ("tp", 1.5, "'1.5'"),
        ("draft_tokens", 65, "needs 0 to 64"),
        ("memory_fraction", 2, "out of range"),
        ("chunked", "perhaps", "'perhaps' is not true or false"),
    ],
)
def test_a_word_is_refused_with_its_value_and_what_is_meant(name: str, written: object, told: str) -> None:
    with pytest.raises((ValueError, UnitError)) as refused:
        read(name, written)
    assert told in str(refused.value)


@given(name=st.sampled_from(sorted(FIELDS)), value=st.one_of(st.text(), st.floats(), st.integers(), st.booleans()))
def test_nothing_that_is_written_ends_in_a_traceback(name: str, value: object) -> None:
    def fail(field: str, message: str) -> InputError:
        assert (field, bool(message)) == (name, True)
        return InputError(message, field=field)

    with suppress(InputError):
        read_fields({name: value}, (FIELDS[name],), fail)


@given(low=st.integers(1, 10**6), more=st.integers(0, 10**6))
def test_a_range_is_read_back(low: int, more: int) -> None:
    assert read("prompt", f"{low}-{low + more}") == (low, low + more)


@pytest.mark.parametrize("fields", [TRAFFIC_FIELDS, DEPLOYMENT_FIELDS], ids=["traffic", "deployment"])
def test_words_are_told_apart_and_explained(fields: tuple[Field, ...]) -> None:
    names = [field.name for field in fields]
    assert len(names) == len(set(names))
    assert all(field.help for field in fields)


def test_no_word_belongs_to_traffic_and_deployment() -> None:
    """One flag has one meaning."""
    assert not {field.name for field in TRAFFIC_FIELDS} & {field.name for field in DEPLOYMENT_FIELDS}


def test_words_of_a_deployment_are_its_fields() -> None:
    """But for those that stand for several fields or for none."""
    own = {
        "engine_file",
        "recipe",
        "attention_weights",
        "prefill",
        "decode",
        "fleet",
        "autoscale",
        "failures",
        "apart",
        "expert_loads",
        "expert_placement",
        "beside",
        "expert_traffic",
        "fronts",
        "draft_model",
    }
    known = Deployment().said.keys() | said(Deployment()).keys()
    assert {field.name for field in DEPLOYMENT_FIELDS} - own <= known
