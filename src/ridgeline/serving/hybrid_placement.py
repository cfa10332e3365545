"""Where the weights of a model lie that is larger than its devices, how often a use finds them, what engines do.

Shape letters: E experts, k experts that a token takes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from enum import Enum

import numpy as np

from ridgeline.cost.host import Kernel
from ridgeline.errors import PlanError
from ridgeline.facts.cpus import cpu_constant


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
    one layer's weights copied at a time.
    """

    technique: OffloadMethod
    share: float | None = None
    order: DeviceOrder = DeviceOrder.UNIFORM
    skew: float | None = None
    resident_bytes: float | None = None
    storage: str = "nvme"
    from_disk: bool = False
    layerwise: bool = False

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
    prompt.
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


_LLAMA_CPP = Habits(loop="llama.cpp", launches="native", streams=32, chunk=512)

HABITS: tuple[tuple[str, Habits], ...] = (
    (
        r"kt-?kernel|sglang",
        Habits(loop="SGLang", kernel=Kernel.VECTOR, numa="split", launches="graph", streams=4096, chunk=65_536),
    ),
    (r"ktransformers", Habits(kernel=Kernel.LLAMAFILE, numa="copies", launches="graph", chunk=1024)),
    (r"fiddler", Habits(kernel=Kernel.VECTOR, fetches=True, pinned=False)),
    (r"moe-?infinity", Habits(prefetch=True)),
    (r"mixtral", Habits(prefetch=True)),
    (r"accelerate|transformers", Habits(pinned=False, modules=True)),
    (r"deepspeed|zero", Habits(loop="deepspeed-inference", prefetch=True, touched=False)),
    (r"flexgen", Habits(prefetch=True, touched=False)),
    (r"vllm", Habits(loop="vLLM", touched=False, launches="graph")),
    (r"powerinfer|llama|ollama", _LLAMA_CPP),
)
"""Habits by the words of an engine. Sources: kt-kernel python/cli/commands/run.py (threshold 4096 tokens) and
doc/en/kt-kernel/Kimi-K2-Thinking-Native.md (prompts in one pass); KTransformers doc/en/AMX.md (llamafile before 0.3)
and its operators/llamafile/moe.cpp (groups of 1024 tokens), doc/en/install.md (USE_NUMA copies weights);
ggml/src/ggml-cuda (batches of 32 tokens and more go to the device), llama.cpp n_ubatch 512; accelerate hooks.py;
DeepSpeed ZeRO-3 (experts of a layer are fetched together); FlexGen (arXiv:2303.06865) section 4; MoE-Infinity
(arXiv:2401.14361); Fiddler (arXiv:2402.07033)."""

_PLAIN = Habits()
_FIRST_AMX = (0, 3)  # KTransformers 0.3 brought its own kernels


def habits_of(engine: str, *, version: str = "", weights: str = "", matrix_units: bool = False) -> Habits:
    """The habits of an engine, by the words of its name.

    `weights` is the format that the processor multiplies: KTransformers before 0.3 and formats that it takes as they
    are ('fp8', 'native') use vectors, its own int8, int4 and bf16 layouts use tiles where the processor has them.
    Threads of all sockets write these layouts, each into memory beside it (its operators/amx/moe.hpp, load_weights).
    """
    found = next((habits for pattern, habits in HABITS if re.search(pattern, engine, re.IGNORECASE)), _PLAIN)
    kt = re.search(r"ktransformers|kt-?kernel", engine, re.IGNORECASE) is not None
    if not (kt and matrix_units) or _release(version) < _FIRST_AMX:
        return found
    numa = "spread" if found.numa == "copies" else found.numa
    if weights.startswith("int8") or (weights.startswith("int4") and found.numa == "split"):
        return replace(found, kernel=Kernel.AMX_INT8, numa=numa)
    return replace(found, kernel=Kernel.AMX_BF16, numa=numa) if weights.startswith("bf16") else found


def _release(version: str) -> tuple[int, int]:
    match = re.search(r"(\d{1,4})\.(\d{1,4})", version)
    return (int(match[1]), int(match[2])) if match else (9, 9)
