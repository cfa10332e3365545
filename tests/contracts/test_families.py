"""Every family's mechanism, with values of real fits, keeps the contract of cost models."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from itertools import product
from typing import Any

import numpy as np
import pytest
from check_cost_model import Mechanism, Sizes, check_cost_model

from ridgeline.cost import questions
from ridgeline.cost.answer import Question, Rung
from ridgeline.cost.families.registry import FAMILIES, mechanism
from ridgeline.cost.formats import form
from ridgeline.cost.ladder import price
from ridgeline.cost.machine import Machine, machine
from ridgeline.cost.mechanism import device_vector, form_sizes
from ridgeline.cost.network import group_sizes
from ridgeline.errors import DomainError
from ridgeline.facts.clusters import cluster
from ridgeline.facts.engine_kernels import NEVER_BYTES
from ridgeline.facts.fits import Fit, fits
from ridgeline.facts.mechanisms import kernel_traits

SEVERAL = 8  # fits of each family, spread over its table
LINKED = ("collective", "exchange", "engine_exchange", "custom_all_reduce")


def grid(**sizes: tuple[float, ...]) -> tuple[dict[str, float], ...]:
    return tuple(dict(zip(sizes, map(float, row), strict=True)) for row in product(*sizes.values()))


HEADS = {"kv_heads": (1, 8), "group": (1, 5), "head_dim": (64, 192), "window": (0, 512)}
LAYER = {"cached": (7, 3000), "heads": (16, 128), "cache_bytes": (1, 2)}
COMPRESSED = {"cached": (7, 3000, 40_000), "heads": (16, 128)}
WIDTHS = {
    "csa": {"head_dim": 512.0, "hidden": 7168.0, "index_heads": 64.0, "ratio": 4.0, "window": 128.0, "top": 1024.0,
            "entry_bytes": 584.0},
    "hca": {"head_dim": 512.0, "hidden": 7168.0, "ratio": 128.0, "window": 128.0, "entry_bytes": 584.0},
    "msa": {"head_dim": 128.0, "hidden": 6144.0, "index_heads": 1.0, "top": 2048.0, "entry_bytes": 512.0},
}  # fmt: skip
DELTA = {"heads": (8, 48), "key_heads": (4,), "key_dim": (128,), "value_dim": (128,)}
SPARSE = {"index_heads": 64.0, "top": 2048.0, "absorbed": 1.0}
EXPERTS = grid(tokens=(1, 48, 4096), hidden=(4096,), inner=(1536,), top_k=(2, 8), experts=(64,), ranks=(1, 4))
EXCHANGED = grid(
    quick=(0, 1), combine=(0, 1), tokens=(1, 128, 4096), row_bytes=(7392,), top_k=(8,), experts=(256,), ranks=(8, 16)
)  # fmt: skip
SHAPES: Mapping[str, tuple[dict[str, float], ...]] = {
    "gemm": grid(m=(1, 130, 8192), n=(64, 4096), k=(128, 7168), count=(1, 3)),
    "prefill": grid(batch=(1, 3), tokens=(1, 200, 4096), cached=(0, 1000), **HEADS),
    "decode": grid(batch=(1, 7, 128), context=(1, 900, 20000), **HEADS),
    "mla_prefill": grid(batch=(1, 3), tokens=(16, 4096), cached=(0, 1000), kv_heads=(8, 128), head_dim=(160,)),
    "mla_decode": grid(batch=(1, 7, 128), context=(1, 900, 20000), kv_heads=(1,), group=(8, 128), head_dim=(544,)),
    "experts": tuple(s | {"skew": skew, "gated": 1.0} for s, skew in product(EXPERTS, (0.0, 1.2))),
    "collective": grid(operation=range(5), bytes=(512, 3e5, 2e9), ranks=(1, 2, 8, 16), in_place=(0, 1)),
    "exchange": EXCHANGED,
    "engine_exchange": EXCHANGED,
    "custom_all_reduce": grid(
        bytes=(512, 2e5, 5e7), ranks=(1, 2, 8), two_shot_from_bytes=(3e5, NEVER_BYTES),
        symmetric_from_bytes=(1, NEVER_BYTES), issue_s=(0, 2e-5)
    ),
    "quantize": grid(rows=(1, 300, 9e5), width=(100, 7168, 9e4), dynamic=(0, 1)),
    "encoder": grid(batch=(1, 9, 300), tokens=(1, 200, 4096), heads=(1, 16), head_dim=(64, 72)),
    "mla_bmm": grid(m=(1, 130, 9e5), n=(512,), k=(128,), count=(16, 128)),
    "mla_layer_prefill": grid(batch=(1, 3), tokens=(16, 4096), **LAYER),
    "mla_layer_decode": tuple(s | {"absorbed": 1.0} for s in grid(batch=(1, 7, 128), tokens=(1,), **LAYER)),
    "dsa_layer_prefill": tuple(s | SPARSE for s in grid(batch=(1, 3), tokens=(16, 4096), **LAYER)),
    "dsa_layer_decode": tuple(s | SPARSE for s in grid(batch=(1, 7, 128), tokens=(1,), **LAYER)),
    **{
        f"{kind}_layer_{phase}": tuple(
            {**s, **widths, "elements": 1e6 * s["heads"] + 2e7}
            for s in grid(batch=(1, 7), tokens=(1,) if phase == "decode" else (16, 4096), **COMPRESSED)
        )
        for kind, widths in WIDTHS.items()
        for phase in ("prefill", "decode")
    },
    "hyper_connection": grid(rows=(1, 300, 9e5), width=(100, 7168), before=(0, 1)),
    "delta_prefill": grid(batch=(1, 5), tokens=(1, 300, 9e5), **DELTA),
    "delta_decode": grid(batch=(1, 50, 9000), **DELTA),
    "convolution": grid(batch=(1, 50), tokens=(1, 300, 9e5), channels=(1000, 8192), window=(4,), stepwise=(0, 1)),
    "wide_experts": tuple(s | {"skew": skew, "gated": 1.0} for s, skew in product(EXPERTS, (0.0, 1.2))),
    "wide_experts_decode": tuple(s | {"skew": skew, "gated": 1.0} for s, skew in product(EXPERTS, (0.0, 1.2))),
}  # fmt: skip
# Rows and columns of small products are left out: more of them keep more SMs busy, and that is priced faster.
GROWS = {
    "gemm": ("k", "count"),
    "prefill": ("batch", "tokens", "cached", "kv_heads"),
    "decode": ("batch", "context", "kv_heads", "group"),
    "mla_prefill": ("batch", "tokens", "cached", "kv_heads"),
    "mla_decode": ("batch", "context", "group"),
    "experts": ("hidden", "inner"),
    "collective": ("bytes",),
    "exchange": ("tokens", "row_bytes", "experts"),
    "engine_exchange": ("tokens", "row_bytes", "experts"),
    "custom_all_reduce": ("bytes",),
    "quantize": ("rows", "width"),
    "encoder": ("batch", "tokens", "heads"),
    "mla_bmm": ("k", "count"),
    "mla_layer_prefill": ("batch", "tokens", "cached", "heads"),
    "mla_layer_decode": ("batch", "cached", "heads"),
    "dsa_layer_prefill": ("batch", "tokens", "cached", "heads"),
    "dsa_layer_decode": ("batch", "cached", "heads"),
    **{
        f"{kind}_layer_{phase}": ("batch", "cached", "heads") if phase == "decode" else ("batch", "tokens", "heads")
        for kind in WIDTHS
        for phase in ("prefill", "decode")
    },
    "hyper_connection": ("rows", "width"),
    "delta_prefill": ("batch", "tokens", "heads"),
    "delta_decode": ("batch", "heads"),
    "convolution": ("batch", "tokens", "channels"),
    "wide_experts": ("hidden", "inner"),
    "wide_experts_decode": ("hidden", "inner"),
}
UNTOLD = {"l2_bytes": 2.0**26, "boost_hz": 1.5e9}  # assumed where no datasheet tells
LARGE = grid(m=(4096, 9000), n=(4096, 11008), k=(512, 4096), count=(1, 2))  # tiles for every SM


@cache
def chosen(family: str) -> tuple[Fit, ...]:
    every = fits(family)
    return tuple(every[index] for index in np.linspace(0, len(every) - 1, min(SEVERAL, len(every))).astype(int))


@cache
def on(device: str) -> Machine:
    return machine(cluster(f"16x{device}"))


def whole(fit: Fit, s: Sizes, m: Machine) -> dict[str, Any]:
    """The sizes with those that the format, the kernel and the network decide."""
    traits = kernel_traits(fit.family, fit.kernel_device, fit.engine, fit.kernel, fit.form)
    where = group_sizes(m, s["ranks"], 1) if fit.family in LINKED else {}
    known = {name: where[name] for name in where.keys() & set(mechanism(fit.family).sizes)}
    return {**form_sizes(mechanism(fit.family), form(fit.form)), **traits, **known, **s}


def seconds(fit: Fit, s: Sizes, m: Machine) -> Any:
    model = mechanism(fit.family)
    device = device_vector(m.cluster.accelerator, form(fit.form).matrix)
    return model.seconds(whole(fit, s, m), device, model.vector(fit.values))


def roofline_s(fit: Fit, s: Sizes, m: Machine) -> float:
    """FLOP at the peak; bytes beyond L2 at the memory's or the link's bandwidth, all of the datasheet [s]."""
    part, family = m.cluster.accelerator, fit.family
    if family in LINKED:
        return link_s(family, s, whole(fit, s, m))
    dtype, cache_dtype = ("bf16", "fp8") if fit.form == "bf16_kv8" else (fit.form, "")
    if family in AROUND:
        return around_s(fit, s, m)
    if (
        family.endswith("experts") or family == "wide_experts_decode"
    ):  # of the mean rank, which routing never undercuts; of the experts of one token
        balanced = s["ranks"] > 1 and s["skew"] == 0  # rank 0 may get less than the mean of few rows
        rows = 0 if balanced else s["tokens"] * s["top_k"] / s["ranks"]
        flop = 2 * rows * s["hidden"] * s["inner"] * 3
        moved = 3 * s["hidden"] * s["inner"] * form(fit.form).weight_bytes * (s["top_k"] if s["ranks"] == 1 else 0)
    else:
        build: Callable[..., questions.Asked] = getattr(questions, family.removeprefix("mla_"))
        named = {"heads": s["kv_heads"] * s.get("group", 1), "cache_dtype": cache_dtype} if "kv_heads" in s else {}
        sizes = {name: value for name, value in s.items() if name != "group"}
        asked = build(**sizes, **named, dtype=dtype)
        flop, moved = asked.flop, asked.bytes
        if family == "mla_decode":  # values are part of the keys, which are read once
            moved = s["batch"] * s["context"] * 576 * form(fit.form).weight_bytes
    peak = device_vector(part, form(fit.form).matrix)[1]
    return max(float(flop) / peak, (float(moved) - (part.l2_bytes or UNTOLD["l2_bytes"])) / part.memory_bytes_per_s)


def around_s(fit: Fit, s: Sizes, m: Machine) -> float:
    """FLOP of products alone, and what must be read or written once beyond L2, of the operators around them [s]."""
    part, what = m.cluster.accelerator, form(fit.form)
    flop, moved, kept = AROUND[fit.family](s, what.weight_bytes, what.input_bytes)
    l2 = kept * (part.l2_bytes or UNTOLD["l2_bytes"])
    return max(flop / device_vector(part, what.matrix)[1], (moved - l2) / part.memory_bytes_per_s)


def layer(s: Sizes, weight_bytes: float, input_bytes: float) -> tuple[float, float, float]:
    elements = 7168 * (1536 + 576) + 1536 * s["heads"] * 192 + s["heads"] * (512 * 256 + 128 * 7168)
    return 2 * s["batch"] * s["tokens"] * elements, elements * weight_bytes, 0.0


def compressed(s: Sizes, weight_bytes: float, input_bytes: float) -> tuple[float, float, float]:
    return 2 * s["batch"] * s["tokens"] * s["elements"], s["elements"] * weight_bytes, 0.0


def states(s: Sizes, weight_bytes: float, input_bytes: float) -> tuple[float, float, float]:
    return 0.0, 8 * s["batch"] * s["heads"] * s["key_dim"] * s["value_dim"], 2.0  # read and written in place


def rows(s: Sizes, weight_bytes: float, input_bytes: float) -> tuple[float, float, float]:
    total = s["batch"] * s["tokens"]
    return 0.0, total * 4 * (s["key_heads"] * s["key_dim"] + s["heads"] * s["value_dim"]), 1.0


AROUND: Mapping[str, Callable[[Sizes, float, float], tuple[float, float, float]]] = {
    "quantize": lambda s, weight, narrow: (0.0, s["rows"] * s["width"] * (2 + narrow), 1.0),
    "encoder": lambda s, weight, narrow: (
        4 * s["batch"] * s["tokens"] ** 2 * s["heads"] * s["head_dim"],
        8 * s["batch"] * s["tokens"] * s["heads"] * s["head_dim"],
        1.0,
    ),
    "mla_bmm": lambda s, weight, narrow: (
        2 * s["m"] * s["n"] * s["k"] * s["count"],
        (s["m"] * (s["k"] * narrow + 2 * s["n"]) + s["n"] * s["k"] * weight) * s["count"],
        1.0,
    ),
    "mla_layer_prefill": layer,
    "mla_layer_decode": layer,
    "dsa_layer_prefill": layer,
    "dsa_layer_decode": layer,
    **{f"{kind}_layer_{phase}": compressed for kind in WIDTHS for phase in ("prefill", "decode")},
    "hyper_connection": lambda s, weight, narrow: (0.0, s["rows"] * s["width"] * 2 * (5 if s["before"] else 9), 1.0),
    "delta_prefill": rows,
    "delta_decode": states,
    "convolution": lambda s, weight, narrow: (0.0, 4 * s["batch"] * s["tokens"] * s["channels"], 1.0),
}


def link_s(family: str, s: Sizes, where: Mapping[str, Any]) -> float:
    """What one rank sends at least, over its link inside the node and its node's interfaces beyond it [s]."""
    if family == "custom_all_reduce":  # two shots, unless the switch adds up
        moved = min(1 + 1 / s["ranks"] if s["symmetric_from_bytes"] == 1 else 2, 2 * (1 - 1 / s["ranks"]))
        return s["bytes"] * moved / float(where["link_bytes_per_s"])
    ranks, nodes = s["ranks"], float(where["nodes"])
    node, link, nic = ranks / nodes, float(where["link_bytes_per_s"]), float(where["nic_bytes_per_s"])
    if ranks == 1:
        return 0.0
    if family in ("exchange", "engine_exchange"):  # a token reaches the other ranks of its node once on average
        reached = ranks * (1 - (1 - 1 / ranks) ** s["top_k"])
        return s["tokens"] * reached * (node - 1) / ranks * s["row_bytes"] / link
    if s["operation"] == 4:
        return s["bytes"] / (link if nodes == 1 else nic)
    if s["operation"] == 3:
        return max((node - 1) / link, (ranks - node) / nic) * s["bytes"] / ranks
    inside = s["bytes"] / link * (node - 1) / ranks
    return max(inside, (ranks - node) / ranks * s["bytes"] / (node * nic) if nodes > 1 else 0.0)


def better(**factors: float) -> Callable[[Machine], Machine]:
    """The machine with better facts of its accelerator."""

    def improve(m: Machine) -> Machine:
        part = m.cluster.accelerator
        facts = factors.keys() - {"peak"}
        changed: dict[str, Any] = {name: (getattr(part, name) or UNTOLD[name]) * factors[name] for name in facts}
        if "peak" in factors:
            changed["peak_flop_per_s"] = {k: factors["peak"] * v for k, v in part.peak_flop_per_s.items()}
        return replace(m, cluster=replace(m.cluster, accelerator=replace(part, **changed)))

    return improve


def faster_links(m: Machine) -> Machine:
    return replace(m, tiers=tuple(replace(tier, bytes_per_s=1.3 * tier.bytes_per_s) for tier in m.tiers))


BETTER: Mapping[str, Callable[[Machine], Machine]] = {
    "a faster matrix rate": better(peak=1.3, vector_flop_per_s=1.3),
    "a faster memory": better(memory_bytes_per_s=1.3),
    "a larger L2": better(l2_bytes=1.3),
    "a faster clock": better(boost_hz=1.3),
    "faster links": faster_links,
}


def asked(fit: Fit, s: Sizes, m: Machine, number_format: str) -> Question:
    return Question(family=fit.family, sizes=whole(fit, s, m), form=number_format, engine=fit.engine)


def fitted(fit: Fit, sizes: tuple[dict[str, float], ...], grows: tuple[str, ...]) -> Mechanism:
    return Mechanism(
        name=f"{fit.family} of {fit.library} {fit.kernel} {fit.form}",
        seconds=lambda s, m: seconds(fit, s, m),
        sizes=sizes,
        roofline_s=lambda s, m: roofline_s(fit, s, m),
        grows_with=grows,
        better=BETTER,
        outside=(lambda m: price(asked(fit, sizes[0], m, "fp64"), m.cluster.accelerator, rungs=(Rung.FITTED,)),),
        evidence=lambda m: [price(asked(fit, sizes[0], m, fit.form), m.cluster.accelerator).evidence],
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_keeps_the_contract_with_real_fits(family: str) -> None:
    assert len(chosen(family)) == SEVERAL
    for fit in chosen(family):
        check_cost_model(fitted(fit, SHAPES[family], GROWS[family]), on(fit.device))


def test_large_products_grow_with_each_of_their_sizes() -> None:
    for fit in chosen("gemm"):
        check_cost_model(fitted(fit, LARGE, ("m", "n", "k", "count")), on(fit.device))


@pytest.mark.parametrize("name", ["tokens", "top_k"])
def test_more_rows_of_experts_are_never_much_faster(name: str) -> None:
    """Up to 15 % faster is excused: tiles are padded, and the fullest rank's share moves in steps."""
    for fit, s in product(chosen("experts"), SHAPES["experts"]):
        base, more = (float(seconds(fit, {**s, name: scale * s[name]}, on(fit.device))) for scale in (1, 2))
        assert more > 0.85 * base, f"{fit.device} {fit.library} {fit.kernel}: {s}"


@pytest.mark.parametrize("family", FAMILIES)
def test_a_missing_size_and_a_missing_format_are_refused(family: str) -> None:
    model = mechanism(family)
    needed = next(name for name in model.sizes if name not in model.defaults)
    with pytest.raises(DomainError, match=f"{model.family} needs the size '{needed}'; it takes"):
        model.columns({})
    part = on(chosen(family)[0].device).cluster.accelerator
    with pytest.raises(DomainError, match="'bf17' is no number format; nearest: bf16, "):
        price(Question(family=family, sizes=SHAPES[family][0], form="bf17"), part)


@pytest.mark.parametrize("family", FAMILIES)
def test_an_answer_names_library_source_and_rung(family: str) -> None:
    for fit in chosen(family):
        m = on(fit.device)
        answer = price(asked(fit, SHAPES[family][-1], m, fit.form), m.cluster.accelerator)
        assert answer.rung is Rung.FITTED
        assert answer.library.startswith(f"{fit.engine} ")
        assert answer.source.endswith(".parquet")
