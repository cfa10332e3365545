"""Every kernel and collective on machines of every kind keeps the contract of cost models."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from itertools import count, product

import numpy as np
import pytest
from check_cost_model import CHECKS, Mechanism, Sizes, check_cost_model
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.cost.answer import Cost
from ridgeline.cost.attention import attention_cost
from ridgeline.cost.compute import gemm_cost, stream_cost
from ridgeline.cost.formats import FORMS
from ridgeline.cost.machine import Machine, machine
from ridgeline.cost.network import collective_seconds
from ridgeline.facts.clusters import cluster
from ridgeline.facts.mechanisms import constant
from ridgeline.facts.records import Evidence
from ridgeline.graph.workload import Workload
from ridgeline.lower.work import Attention, Collective, CollectiveKind, Gemm, Phase, Stream
from ridgeline.training.optimizer import RankUpdate, optimizer_seconds

# switched and meshed nodes, rings and host bridges, one and several tiers, one core and hundreds
NAMES = ("64xH100-SXM", "16xA100-SXM-80GB", "16xV100-SXM2-32GB", "4xRTX-4090", "16xMI300X", "72xGB200", "8xTPU-v4")


@cache
def found(name: str) -> Machine:
    return machine(cluster(name))


def dtype_of(m: Machine) -> str:
    return "bf16" if "bf16" in m.device.matrix else "fp16"


# better machines -----------------------------------------------------------------------------------


def with_device(m: Machine, **factors: float) -> Machine:
    changes = {name: getattr(m.device, name) * factor for name, factor in factors.items()}
    return replace(m, device=replace(m.device, **changes))


def faster_matrix(m: Machine) -> Machine:
    return replace(m, device=replace(m.device, matrix={k: 1.3 * v for k, v in m.device.matrix.items()}))


def faster_tiers(m: Machine) -> Machine:
    return replace(m, tiers=tuple(replace(tier, bytes_per_s=1.3 * tier.bytes_per_s) for tier in m.tiers))


def faster_last_tier(m: Machine) -> Machine:
    return replace(m, tiers=(*m.tiers[:-1], replace(m.tiers[-1], bytes_per_s=1.3 * m.tiers[-1].bytes_per_s)))


def nearer_tiers(m: Machine) -> Machine:
    return replace(m, tiers=tuple(replace(tier, latency_s=0.7 * tier.latency_s) for tier in m.tiers))


BETTER_DEVICE: Mapping[str, Callable[[Machine], Machine]] = {
    "a faster matrix rate": faster_matrix,
    "a faster memory": lambda m: with_device(m, memory_bytes_per_s=1.3),
    "faster vector units": lambda m: with_device(m, vector_flop_per_s=1.3),
    "a faster clock": lambda m: with_device(m, clock_hz=1.3),
}
BETTER_NETWORK: Mapping[str, Callable[[Machine], Machine]] = {
    "faster links": faster_tiers,
    "a faster last tier": faster_last_tier,
    "shorter latencies": nearer_tiers,
}


# kernels -------------------------------------------------------------------------------------------


def sheet_s(m: Machine, flop: float, size: float, dtype: str | None) -> float:
    """The datasheet's roofline: the longer of FLOP at the peak and bytes at the bandwidth [s]."""
    accelerator = m.device.accelerator
    peak = accelerator.vector_flop_per_s if dtype is None else accelerator.peak_flop_per_s[dtype]
    return max(flop / peak, size / accelerator.memory_bytes_per_s)


def gemm(s: Sizes, m: Machine, dtype: str | None = None) -> Cost:
    work = Gemm(name="g", phase=Phase.FORWARD, m=s["m"], n=s["n"], k=s["k"], count=s["count"])
    return gemm_cost(work, m.device, replace(FORMS["bf16"], matrix=dtype or dtype_of(m)))


def gemm_roofline_s(s: Sizes, m: Machine) -> float:
    moved = 2 * (s["m"] * s["k"] + s["k"] * s["n"] + s["m"] * s["n"]) * s["count"]
    return sheet_s(m, 2 * s["m"] * s["n"] * s["k"] * s["count"], moved, dtype_of(m))


def attention(phase: Phase, fused: bool) -> Callable[..., Cost]:
    def price(s: Sizes, m: Machine, dtype: str | None = None) -> Cost:
        work = Attention(
            name="a",
            phase=phase,
            sequences=s["sequences"],
            heads=s["heads"],
            kv_heads=np.maximum(1, np.asarray(s["heads"]) / 4),
            q_tokens=s["q"],
            kv_tokens=s["kv"],
            mean_context=np.asarray(s["kv"]) / 2,
            qk_dim=128,
            v_dim=128,
            fused=fused,
        )
        return attention_cost(work, m.device, dtype=dtype or dtype_of(m))

    return price


def attention_roofline_s(s: Sizes, m: Machine, *, products: int) -> float:
    scores = s["sequences"] * s["heads"] * s["q"] * s["kv"] / 2
    moved = 2 * s["sequences"] * 256 * (s["heads"] * s["q"] + max(1, s["heads"] / 4) * s["kv"])
    return sheet_s(m, 2 * scores * 128 * products, moved, dtype_of(m))


def stream(s: Sizes, m: Machine, dtype: str | None = None) -> Cost:
    work = Stream(name="s", phase=Phase.FORWARD, bytes=s["bytes"], flop=s["flop"], matrix=dtype is not None)
    return stream_cost(work, m.device, dtype=dtype or dtype_of(m))


def update_s(s: Sizes, m: Machine) -> object:
    workload = Workload(seq_len=1024, global_batch=1, optimizer="muon")
    moved, flop = 8 * s["numbers"], s["flop"]
    update = RankUpdate(numbers=s["numbers"], moved_bytes=moved, flop=flop)
    return optimizer_seconds(update, workload=workload, machine=m)


def kernel_evidence(m: Machine) -> list[Evidence]:
    return [m.device.evidence[f"matrix.{dtype_of(m)}"], m.device.evidence["hbm"]]


SHAPES = tuple(
    {"m": float(m), "n": float(n), "k": float(k), "count": float(c)}
    for m, n, k, c in product((1, 130, 8192), (64, 1000, 4096), (128, 512, 4096), (1, 8))
)
SCORE_SHAPES = tuple(
    {"sequences": float(b), "heads": float(h), "q": float(q), "kv": float(kv)}
    for b, h, (q, kv) in product((1, 4), (1, 8, 32), ((1, 4096), (512, 512), (4096, 4096)))
)
STREAMS = tuple({"bytes": float(b), "flop": float(f)} for b, f in product((0, 1e3, 1e8), (0, 1e6, 1e11)))
UPDATES = tuple({"numbers": float(n), "flop": float(f)} for n, f in product((0, 1e6, 1e9), (0, 1e12)))


def kernel(name: str, price: Callable[..., Cost], **others: object) -> Mechanism:
    return Mechanism(
        name=name,
        seconds=lambda s, m: price(s, m).seconds,
        better=BETTER_DEVICE,
        outside=(lambda m: price(others["sizes"][0], m, "int1"),),  # type: ignore[index]
        evidence=kernel_evidence,
        **others,  # type: ignore[arg-type]
    )


KERNELS = (
    kernel("product", gemm, sizes=SHAPES, roofline_s=gemm_roofline_s, grows_with=("m", "n", "k", "count")),
    *(
        kernel(
            f"{'fused' if fused else 'unfused'} attention, {phase.value}",
            attention(phase, fused),
            sizes=SCORE_SHAPES,
            roofline_s=lambda s, m, products=products: attention_roofline_s(s, m, products=products),
            grows_with=("sequences", "heads", "q", "kv"),
        )
        # two products forward; five backward, of which unfused kernels keep the scores and make four
        for phase, fused, products in (
            (Phase.FORWARD, True, 2),
            (Phase.BACKWARD_INPUT, True, 5),
            (Phase.FORWARD, False, 2),
            (Phase.BACKWARD_INPUT, False, 4),
        )
    ),
    kernel(
        "stream",
        stream,
        sizes=STREAMS,
        roofline_s=lambda s, m: sheet_s(m, s["flop"], s["bytes"], None),
        grows_with=("bytes", "flop"),
    ),
    Mechanism(
        name="update",
        seconds=update_s,
        sizes=UPDATES,
        # gradient, states and master copy at least once: 4 + 4 + 4 bytes a number
        roofline_s=lambda s, m: s["numbers"] * 12 / m.device.accelerator.memory_bytes_per_s,
        grows_with=("numbers", "flop"),
        better=BETTER_DEVICE,
        evidence=lambda m: [m.device.evidence["hbm"]],
        exempt={"refuses_outside_its_domain": "falls back to fp32, which every device has"},
    ),
)


# collectives ---------------------------------------------------------------------------------------


def group_roofline_s(kind: CollectiveKind, s: Sizes, m: Machine) -> float:
    """What a rank must move inside the first tier, and a node over all its interfaces, at datasheet bandwidth [s]."""
    ranks, size, stride = s["ranks"], s["bytes"], s["stride"]
    inner = min(max(m.tiers[0].size // stride, 1), ranks)
    outside = m.tiers[1].bytes_per_s if len(m.tiers) > 1 else np.inf
    if kind is CollectiveKind.SEND:
        return size / (m.tiers[0].bytes_per_s if stride < m.tiers[0].size else outside)
    if ranks == 1:
        return 0.0
    if kind is CollectiveKind.ALL_TO_ALL:
        return max((inner - 1) / ranks * size / m.tiers[0].bytes_per_s, (ranks - inner) / ranks * size / outside)
    passes = 2 if kind is CollectiveKind.ALL_REDUCE else 1
    if kind is CollectiveKind.ALL_REDUCE and m.tiers[0].in_network_reduction and inner == ranks:
        return size / m.tiers[0].bytes_per_s  # the switch adds: each byte goes up once
    moved = passes * (ranks - 1) / ranks * size
    return max(
        moved / m.tiers[0].bytes_per_s if inner > 1 else 0.0,
        passes * (ranks - inner) / ranks * size / (inner * outside),
    )


def collective(kind: CollectiveKind) -> Mechanism:
    def seconds(s: Sizes, m: Machine) -> object:
        work = Collective(
            name="c", phase=Phase.FORWARD, kind=kind, bytes=s["bytes"], ranks=s["ranks"], stride=s["stride"]
        )
        return collective_seconds(work, m)

    return Mechanism(
        name=kind.value,
        seconds=seconds,
        sizes=(),
        roofline_s=lambda s, m: group_roofline_s(kind, s, m),
        grows_with=("bytes",),
        better=BETTER_NETWORK,
        evidence=lambda m: [m.link_evidence],
        exempt={"refuses_outside_its_domain": "no number format enters; groups larger than the machine break a rule"},
    )


def on(mechanism: Mechanism, m: Machine) -> Mechanism:
    """Collectives get the groups that the machine has."""
    if mechanism.sizes:
        return mechanism
    degrees = [d for d in (1, 2, 4, 8, 16, 64) if d <= m.cluster.count]
    groups = [(r, s) for r, s in product(degrees, degrees) if r * s <= m.cluster.count]
    sizes = tuple(
        {"bytes": size, "ranks": float(r), "stride": float(s)} for size, (r, s) in product((1e3, 1e6, 1e9), groups)
    )
    return replace(mechanism, sizes=sizes)


COLLECTIVES = tuple(collective(kind) for kind in CollectiveKind)
MECHANISMS = {mechanism.name: mechanism for mechanism in (*KERNELS, *COLLECTIVES)}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("mechanism", list(MECHANISMS))
def test_mechanism_keeps_the_contract(mechanism: str, name: str) -> None:
    m = found(name)
    check_cost_model(on(MECHANISMS[mechanism], m), m)


@settings(deadline=None, max_examples=200)
@given(
    sizes=st.fixed_dictionaries(
        {
            "m": st.integers(1, 20000),
            "n": st.integers(1, 20000),
            "k": st.integers(1, 20000),
            "count": st.integers(1, 64),
        }
    ),
    name=st.sampled_from(NAMES),
)
def test_any_product_keeps_the_contract(sizes: dict[str, int], name: str) -> None:
    m = found(name)
    check_cost_model(replace(MECHANISMS["product"], sizes=(sizes,)), m)


# the contract itself -------------------------------------------------------------------------------


def broken(**changes: object) -> Mechanism:
    """A stream priced at the datasheet's bandwidth, then spoiled."""
    honest = Mechanism(
        name="spoiled",
        seconds=lambda s, m: np.asarray(s["bytes"]) / m.device.memory_bytes_per_s,
        sizes=({"bytes": 1e6}, {"bytes": 3e6}),
        roofline_s=lambda s, m: s["bytes"] / m.device.accelerator.memory_bytes_per_s,
        grows_with=("bytes",),
        better={"a faster memory": BETTER_DEVICE["a faster memory"]},
        outside=(lambda m: m.device.matrix_rate("int1"),),
        evidence=kernel_evidence,
    )
    return replace(honest, **changes)  # type: ignore[arg-type]


def test_an_honest_model_passes() -> None:
    check_cost_model(broken(), found(NAMES[0]))


CALLS = count()
SPOILED: dict[str, dict[str, object]] = {
    "is_deterministic": {"seconds": lambda s, m: s["bytes"] + next(CALLS)},
    "broadcasts": {"seconds": lambda s, m: float(np.max(s["bytes"]))},
    "is_finite": {"seconds": lambda s, m: -np.asarray(s["bytes"])},
    "respects_the_roofline": {"seconds": lambda s, m: np.asarray(s["bytes"]) * 1e-18},
    "grows_with_work": {"seconds": lambda s, m: 1e6 / np.asarray(s["bytes"])},
    "profits_from_better_machines": {"seconds": lambda s, m: np.asarray(s["bytes"]) * m.device.memory_bytes_per_s},
    "refuses_outside_its_domain": {"outside": (lambda m: 1.0,)},
    "names_its_evidence": {"evidence": lambda m: ()},
}


def test_every_check_has_a_model_that_breaks_it() -> None:
    assert list(SPOILED) == [check.__name__ for check in CHECKS]


@pytest.mark.parametrize("check", list(SPOILED))
def test_a_spoiled_model_is_caught_by_name(check: str) -> None:
    with pytest.raises(AssertionError, match=rf"spoiled on {NAMES[0]}.*, {check}: "):
        check_cost_model(broken(**SPOILED[check]), found(NAMES[0]))


def test_an_excuse_needs_a_reason_and_a_check() -> None:
    with pytest.raises(AssertionError, match="no reason for is_finite"):
        check_cost_model(broken(exempt={"is_finite": ""}), found(NAMES[0]))
    with pytest.raises(AssertionError, match="do not exist"):
        check_cost_model(broken(exempt={"is_pretty": "it is not"}), found(NAMES[0]))


def test_constants_are_what_they_must_be() -> None:
    for name in ("nvlink4", "nvlink3", "nvlink5", "nvlink", "xgmi", "ib", "roce", "ethernet", "pcie", "ici", "other"):
        assert 0 < constant(f"efficiency.{name}.ring") <= 1
