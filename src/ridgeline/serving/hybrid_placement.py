"""Where the weights of a model lie that is larger than its devices, how often a use finds them, what engines do.

Shape letters: E experts, k experts that a token takes; L layers, B batches of neurons of a layer.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from enum import Enum
from functools import cache, lru_cache
from typing import Any

import numpy as np

from ridgeline.cost.host import Kernel
from ridgeline.errors import InputError, PlanError
from ridgeline.facts import store
from ridgeline.facts.cpus import NeuronLaw, cpu_constant
from ridgeline.programs import Draft

NEURON_BATCHES = 64  # of a layer, placed together


class OffloadMethod(Enum):
    """What happens to weights that no device holds."""

    COMPUTED = "experts computed on the host"
    FETCHED = "experts fetched over the host link"
    STREAMED = "layers streamed over the host link"
    LAYERS = "layers computed on the host"
    NEURONS = "rarely used neurons computed on the host"
    HOST = "everything computed on the host"
    DISK = "everything computed on the host, weights on disk"


class DeviceOrder(Enum):
    """Which experts the device holds."""

    UNIFORM = "the same number in every layer"
    FRONT = "all of the first layers"
    FREQUENT = "the most used ones"
    RECENT = "the last used ones"


@dataclass(frozen=True, kw_only=True)
class HostPlacement:
    """`share` of the experts, layers or neurons [1] that devices hold, None where memory decides; in which `order`.

    `skew` is the power by which experts' popularity falls with their rank, None the usual one. `resident_bytes` is what
    the host may keep in memory (None all), the rest being read from `storage`: 'nvme', 'sata', 'ufs', 'emmc' or 'card';
    weights that are streamed may come from there (`from_disk`). `layerwise` says that long prompts run on the device,
    one layer's weights copied at a time. `read_bytes_per_s` is the sequential rate of the storage where it is stated,
    `disk_share` [1] what of the streamed weights lies there; `cache_on_host` where the cache lies, None as it fits.
    Of neurons `hot_neurons` of a layer make up 80 % of its activations and a token uses `active_neurons` of them [1],
    None as of such models. `network` is what a message between hosts that are ranks waits [s], and the rate of one's
    link [byte/s].
    """

    technique: OffloadMethod
    share: float | None = None
    order: DeviceOrder = DeviceOrder.UNIFORM
    skew: float | None = None
    resident_bytes: float | None = None
    storage: str = "nvme"
    from_disk: bool = False
    layerwise: bool = False
    read_bytes_per_s: float | None = None
    disk_share: float = 1.0
    cache_on_host: bool | None = None
    network: tuple[float, float] = (0.0, 1.0)
    hot_neurons: float | None = None
    active_neurons: float | None = None

    def __post_init__(self) -> None:
        if self.share is not None and not 0.0 <= self.share <= 1.0:
            raise PlanError(f"placement: share = {self.share}, needs 0 <= share <= 1")
        if self.resident_bytes is not None and self.resident_bytes <= 0:
            raise PlanError(f"placement: resident_bytes = {self.resident_bytes}, needs more than 0")

    @property
    def popularity_skew(self) -> float:
        """Power by which the popularity of experts falls with their rank [1]."""
        return cpu_constant("experts.skew") if self.skew is None else self.skew


def popularity(experts: int, skew: float) -> np.ndarray:
    """Share of uses of each expert, the most used first [1]: rank^-skew over its sum."""
    weights = np.arange(1, experts + 1, dtype=float) ** -skew
    return np.asarray(weights / weights.sum())


def use_share(experts: int, share: float, order: DeviceOrder, skew: float) -> float:
    """Share of expert uses that meet an expert on the device [1].

    UNIFORM and FRONT meet by chance, FREQUENT the sum of the most popular, RECENT by Che's approximation of a cache
    that drops the expert not used for longest (Che et al. 2002, 10.1109/JSAC.2002.801752).
    """
    held = share * experts
    if order in (DeviceOrder.UNIFORM, DeviceOrder.FRONT) or held <= 0 or share >= 1:
        return min(max(share, 0.0), 1.0)
    uses = popularity(experts, skew)
    if order is DeviceOrder.FREQUENT:
        whole = int(held)
        return float(uses[:whole].sum() + (held - whole) * uses[min(whole, experts - 1)])
    return float((uses * (1.0 - np.exp(-uses * _characteristic(uses, held)))).sum())


def _characteristic(uses: np.ndarray, held: float) -> float:
    """Uses after which an expert has left the cache: sum of 1 - exp(-p t) over experts = held."""
    low, high = 0.0, 1.0
    while float((1.0 - np.exp(-uses * high)).sum()) < held and high < 1e12:
        high *= 2.0
    for _ in range(80):
        middle = 0.5 * (low + high)
        if float((1.0 - np.exp(-uses * middle)).sum()) < held:
            low = middle
        else:
            high = middle
    return 0.5 * (low + high)


def placed_neurons(uses: np.ndarray, room: int, least: int) -> np.ndarray:
    """Batches of each layer on the device, (L,) [1]: the most uses (L, B) met in `room` batches, proven best.

    maximise  sum a_lb u_lb,   sum a <= room,   least y_l <= sum_b a_lb,   a_lb <= y_l,   y whole

    A layer has none there, or `least` and more, from which sending its sums is worth it. Batches fill in the order of
    their uses, so that for given y the program is solved by whole numbers, and only y need be. Source: PowerInfer,
    section 6.3, and powerinfer-py/powerinfer/solver.py.

    >>> placed_neurons(np.array([[5.0, 1.0], [4.0, 3.0]]), 3, 2).tolist()  # 7 of the second layer; 5 is less than 2
    [0.0, 2.0]
    """
    layers, batches = uses.shape
    draft = Draft()
    there = draft.variable((layers, batches), cost=-uses, high=1.0)
    any_ = draft.variable(layers, high=1.0, whole=True)
    draft.row((there.ravel(), np.ones(there.size)), high=float(room))
    for layer in range(layers):
        draft.row((there[layer], np.ones(batches)), (any_[layer], -float(least)), low=0.0)
        draft.row((there[layer], np.ones(batches)), (any_[layer], -float(batches)), high=0.0)
    found = draft.solve(time_limit_s=30.0)
    assert found is not None, "nothing on the device satisfies the rows"
    return np.asarray(np.round(found.values[there].sum(axis=1)))


@lru_cache(maxsize=256)
def neurons_met(law: NeuronLaw, layers: int, share: float, least: float) -> tuple[np.ndarray, np.ndarray]:
    """Activations of each layer over the mean layer's, and the share of them that meets the device, (L,) [1].

    The device has room for `share` of all neurons, in `NEURON_BATCHES` batches a layer, and a layer none or `least` of
    its own. Within a block a share x of the neurons makes up x^p of its activations, 0.8 at `hot`; later layers fire
    more, by a factor e^(k l) that makes `hot_model` of all neurons 80 % of all activations.
    """
    within = np.diff(np.linspace(0.0, 1.0, NEURON_BATCHES + 1) ** (math.log(0.8) / math.log(law.hot)))

    def activity(slope: float) -> np.ndarray:
        found = np.exp(slope * (np.arange(layers) + 0.5) / layers)
        return np.asarray(found / found.mean())

    def hot(slope: float) -> float:
        falling = np.sort(np.outer(activity(slope), within).ravel())[::-1]
        return float(np.searchsorted(np.cumsum(falling), 0.8 * layers) / falling.size)

    low, high = 0.0, 20.0
    for _ in range(40):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if hot(middle) > law.hot_model else (low, middle)
    active = activity(low)
    uses = np.outer(active, within)
    count = placed_neurons(uses, int(share * uses.size), math.ceil(least * NEURON_BATCHES)).astype(int)
    return active, np.concatenate([[0.0], np.cumsum(within)])[count]


@dataclass(frozen=True, kw_only=True)
class Habits:
    """Choices of one engine.

    `loop` names the engine whose host time an iteration takes, `kernel` is that of the processor's products. Sockets
    read weights where they fell (`numa` 'none'), each its own part ('split') or its own copy of all where memory holds
    so many ('copies'), else from the memory of all, over which threads that wrote them spread them ('spread').
    Launches come from a captured 'graph', from 'native' code, or from 'python'. Copies are `pinned` or pageable,
    `modules` says that Python finds each tensor, `prefetch` that they run ahead. `touched` says that only experts that
    tokens take cross the link, `fetches` that experts are fetched where that is sooner than computing them. `streams`
    is the most tokens [token] of a prompt whose host layers stay there (0 all), `chunk` the most of one pass over a
    prompt. With `lends` products of so many tokens run on the device even of experts that are placed on the host, whose
    weights are copied there; with `counts_uses` an expert's own tokens are counted. `widened_bytes` [byte] is what
    memory of the device moves to widen a packed weight to 16 bits before a product of 16 bits. A cache beside the
    device is copied to pinned memory on its way (`relay`), or attended by the processors in 32 bits (`attends`);
    processors attend to a quantised cache one query at a time with `attends_rows`. Weights on disk are `mapped` files
    or read ahead; with `pages` those in host memory are pages of the mapped file, read again where memory is smaller.
    `blocks` says that a block of batches passes through each layer before the next one's weights come,
    `kernels` whose measured kernels stand for the engine's own on the device, `latent` for its latent attention.
    """

    loop: str = "transformers"
    kernel: Kernel = Kernel.LLAMA_CPP
    numa: str = "none"
    launches: str = "python"
    pinned: bool = True
    modules: bool = False
    prefetch: bool = False
    touched: bool = True
    fetches: bool = False
    streams: int = 0
    chunk: int = 8192
    lends: bool = False
    counts_uses: bool = False
    widened_bytes: float = 0.0
    relay: bool = False
    attends: bool = False
    attends_rows: bool = False
    mapped: bool = False
    pages: bool = False
    blocks: bool = False
    kernels: str = "TensorRT-LLM"  # measured without the host; starts of others hold launches of Python
    latent: str = ""


TABLE = "offloading.toml"


@dataclass(frozen=True, kw_only=True)
class HabitChange:
    """What a program does otherwise since a `release`, `build`, `pull` request or `date`, whichever a version tells."""

    habits: Mapping[str, Any]
    release: str = ""
    build: int = 0
    pull: int = 0
    date: str = ""

    def holds(self, version: str) -> bool:
        """Whether a version has the change; a version of which nothing is told is the newest."""
        told = {
            "build": re.search(r"\((\d{4,5})\)", version), "pull": re.search(r"\b(?:pull|PR) #?(\d{1,6})", version),
            "date": re.search(r"\b(20\d\d-\d\d-\d\d)", version), "release": re.search(r"\b(\d{1,4}\.\d{1,4})", version),
        }  # fmt: skip
        for name in ("build", "date", "release", "pull"):
            since, match = getattr(self, name), told[name]
            if since and match:
                return bool(
                    match[1] >= since if name == "date"
                    else _release(match[1]) >= _release(since) if name == "release"
                    else int(match[1]) >= since
                )  # fmt: skip
        return not any(told.values())


@dataclass(frozen=True, kw_only=True)
class OffloadProgram:
    """Habits of the programs whose name holds `pattern`; `tiles_from` and `since` change them by release."""

    pattern: str
    habits: Habits
    tiles_from: str = ""
    since: tuple[HabitChange, ...] = ()


@cache
def offload_programs() -> tuple[OffloadProgram, ...]:
    """The programs of `data/offloading.toml` in its order; raises `InputError` for an unknown field."""
    found = []
    for row in store.read_toml(TABLE)["program"]:
        dated = {"release", "build", "pull", "date"}
        since = tuple(HabitChange(**_split(each, dated)) for each in row.pop("since", []))
        found.append(OffloadProgram(**{**_split(row, {"pattern", "tiles_from"}, whole=True), "since": since}))
    return tuple(found)


def _split(row: dict[str, Any], own: set[str], *, whole: bool = False) -> dict[str, Any]:
    """A table's `own` fields, and its habits apart: those of a program as a `whole`, else what changes."""
    known = {one.name for one in fields(Habits)}
    if unknown := row.keys() - known - own - {"source"}:
        raise InputError(f"'{min(unknown)}' is no habit of offloading", file=TABLE, field=min(unknown))
    said: dict[str, Any] = {
        name: Kernel(value) if name == "kernel" else value for name, value in row.items() if name in known
    }
    return {**{name: row[name] for name in own if name in row}, "habits": Habits(**said) if whole else said}


def offload_program(engine: str) -> OffloadProgram | None:
    """The program that the words of an engine name, None where none is known."""
    return next((one for one in offload_programs() if re.search(one.pattern, engine, re.IGNORECASE)), None)


def habits_of(engine: str, *, version: str = "", weights: str = "", matrix_units: bool = False) -> Habits:
    """The habits of an engine, by the words of its name.

    `weights` is the format that the processor multiplies: releases before a program's own kernels and formats that
    these take as they are ('fp8', 'native') use vectors, its own int8, int4 and bf16 layouts use tiles where the
    processor has them. Threads of all sockets write these layouts, each into memory beside it (KTransformers'
    operators/amx/moe.hpp, load_weights).
    """
    program = offload_program(engine)
    if program is None:
        return Habits()
    found = program.habits
    for change in program.since:
        if change.holds(version):
            found = replace(found, **change.habits)
    if not (program.tiles_from and matrix_units) or _release(version) < _release(program.tiles_from):
        return found
    found = replace(found, pages=False)  # these layouts are copies, not pages of the file
    numa = "spread" if found.numa == "copies" else found.numa
    if weights.startswith("int8") or (weights.startswith("int4") and found.numa == "split"):
        return replace(found, kernel=Kernel.AMX_INT8, numa=numa)
    return replace(found, kernel=Kernel.AMX_BF16, numa=numa) if weights.startswith("bf16") else found


def _release(version: str) -> tuple[int, int]:
    match = re.search(r"(\d{1,4})\.(\d{1,4})", version)
    return (int(match[1]), int(match[2])) if match else (9, 9)
