"""The seam of experts in host memory: who computes each expert of a layer, and what crosses the link for it.

Shape letters: T tokens of an iteration, E experts, k that a token takes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from ridgeline.seams.serving_technique import Instance, ServingTechnique
from ridgeline.seams.technique import EXACT, param

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ridgeline.facts.records import Fact
    from ridgeline.plan.deployment import Deployment
    from ridgeline.seams.setting import Setting

    Array = NDArray[np.float64]

_SHARES = (0.0, 0.25, 0.5, 0.75)


@dataclass(frozen=True, kw_only=True)
class HostedLayer:
    """One of `layers` alike, of E experts of which a token takes k, over T tokens of an iteration (T,).

    `expert_bytes` of an expert as the host keeps it [byte], `row_flop` of one of its rows [FLOP]; `device_s` what the
    device takes for all experts, `other_s` for the rest of the layer [s], both (T,); `start_s` (T,) what a call of the
    processors and the copies of activations take [s]. Rates are those reached in practice.
    """

    experts: int
    top_k: int
    expert_bytes: float
    row_flop: float
    tokens: Array
    device_s: Array
    other_s: Array
    start_s: Array
    link_bytes_per_s: float
    read_bytes_per_s: float
    host_flop_per_s: float
    layers: int = 1

    @property
    def touched(self) -> Array:
        """Expected number of distinct experts that T tokens take at random [1]: E (1 - (1 - k / E)^T)."""
        import numpy as np

        return np.asarray(self.experts * (1.0 - (1.0 - min(1.0, self.top_k / self.experts)) ** self.tokens))

    @property
    def fetch_s(self) -> float:
        """One expert over the link [s]."""
        return self.expert_bytes / self.link_bytes_per_s

    def host_s(self, rows: Array) -> Array:
        """The processors' time for an expert of so many rows: its weights once, or its products [s]."""
        import numpy as np

        return np.maximum(self.expert_bytes / self.read_bytes_per_s, self.row_flop * rows / self.host_flop_per_s)


@dataclass(frozen=True, kw_only=True)
class HostedSeconds:
    """What one layer's experts take, by who is busy, and until all are done, (T,) each [s]."""

    device: Array
    host: Array
    link: Array
    total: Array


@dataclass(frozen=True, kw_only=True)
class HostedCache:
    """What a step's weights and a full cache of the host take, each alone [s].

    `weights_s` the weights over the link, `link_s` the cache over it, `host_s` attention to all of the cache by the
    processors, and `device_s` by the device, once it is there.
    """

    weights_s: float
    link_s: float
    host_s: float
    device_s: float


@dataclass(frozen=True, kw_only=True)
class StreamedBlocks:
    """The blocks of one rank in the order of an iteration, each read from the rank's drive before it is computed.

    `file_bytes` (B,) on the drive and `held_bytes` (B,) in memory [byte], `load_s` (B,) to read and widen one,
    `compute_s` (B, I) of I iterations, exchanges among the ranks included [s].
    """

    file_bytes: Array
    held_bytes: Array
    load_s: Array
    compute_s: Array


@dataclass(frozen=True, kw_only=True)
class HostExperts(ServingTechnique):
    """Experts in host memory under continuous batching; neutral: the device holds all.

    The device holds a `share` of each layer's experts; a technique says by `layer` what the others take. One that
    `streams` keeps a share of whole layers, and all caches, in host memory: the others' weights cross the link in every
    iteration, beside the device and the processors, which attend to the share `attended` of the cache; one that
    `keeps_cache` leaves caches to the device, and its weights `elsewhere`. One `in_blocks` is of hosts without devices,
    a rank of tensor parallelism each: `window_s` says how drives and processors alternate, `window_bytes` what memory
    holds, `exchange_s` how ranks add up what they computed; weights are `element_bytes` wide in memory.
    """

    family: ClassVar[str] = "host_experts"
    quality: ClassVar[Fact | None] = EXACT
    owns: ClassVar[frozenset[str]] = frozenset({"iterations", "stages", "attention ranks", "expert ranks"})
    in_words: ClassVar[bool] = False
    streams: ClassVar[bool] = False
    in_blocks: ClassVar[bool] = False
    keeps_cache: ClassVar[bool] = False
    elsewhere: ClassVar[str] = "host memory"
    element_bytes: ClassVar[float | None] = None
    share: float = param(0.25, "1", "share of each layer's experts that the device holds", high=1.0)
    dram_gb: float | None = param(
        None, "1e9 byte", "host memory; when absent, that of the machine's host", low=1.0, high=1e6
    )
    cores: int = param(32, "cores", "cores of the host that compute", low=1, high=4096)
    clock_ghz: float = param(2.5, "1e9 Hz", "their clock", low=0.1, high=10.0)
    memory_gbs: float | None = param(
        None, "1e9 byte/s", "the host's memory rate; when absent, that of the machine's host", low=1.0, high=20_000.0
    )
    instructions: str = param(
        "avx2", "", "widest instructions of the host", choices=("amx", "avx512", "avx2", "avx", "neon", "sve")
    )

    def applies(self, setting: Setting) -> str:
        """Models without experts."""
        return super().applies(setting) or ("" if setting.experts else "is about experts, of which the model has none")

    def axes(self, setting: Setting) -> tuple[str, ...]:
        """Quarters of the experts on the device."""
        return tuple(replace(self, share=share).text for share in _SHARES)

    def refusal(self, deployment: Deployment) -> str:
        """Experts divided over ranks."""
        return f"is modelled on one device, not on tp {deployment.tp}; say tp 1" if deployment.tp > 1 else ""

    def unfit(self, instance: Instance) -> str:
        """Models without experts."""
        return "" if instance.model.dims.get("experts") else "is about experts, of which the model has none"

    def layer(self, one: HostedLayer) -> HostedSeconds:
        """What one layer's experts take [s]."""
        return HostedSeconds(device=one.device_s, host=0.0 * one.tokens, link=0.0 * one.tokens, total=one.device_s)

    def computed(self, piece: Any, prices: Any, rows: Array) -> Any:
        """What the device takes for experts (`lower.pieces.Experts`) over `rows` (T,) of tokens, `Seconds`.

        None where the engine's kernels take all experts at once, priced by `prices` (`cost.served.ServedPrices`).
        """
        return None

    def attended(self, full: HostedCache) -> float:
        """Share of the cache to which the processors attend, of one that streams [1]."""
        return 1.0

    def buffer_bytes(self, dense_bytes: float, experts_bytes: float, experts: int) -> float:
        """Device memory in which weights of layers arrive, of one that streams [byte]."""
        return 2.0 * (dense_bytes + experts_bytes)

    def link_bytes_per_s(self, machine: Any, host: float) -> float:
        """Link over which weights come [byte/s]: the host's, given what it reaches."""
        return host

    def room_bytes(self, machine: Any) -> float:
        """Memory for weights beside the device [byte]: the host's."""
        return self.dram_gb * 1e9 if self.dram_gb else float(machine.cluster.host.dram_bytes)

    def cache_bytes(self, left_bytes: float) -> float:
        """Host memory for caches, of one that streams: what is left beside the weights [byte]."""
        return left_bytes

    def resident_tokens(self, tokens: int) -> int:
        """Tokens of an iteration that are on the device at once [token]."""
        return tokens

    def sharing(self, instance: Instance) -> Mapping[str, float]:
        """How device, processors and link are busy side by side, of one that streams: numbers of the clock's rule."""
        return {}

    def window_s(self, one: StreamedBlocks) -> Array:
        """An iteration of a rank in blocks, in the steady state, (I,) [s]: read, then computed."""
        total: Array = one.load_s.sum() + one.compute_s.sum(axis=0)
        return total

    def window_bytes(self, one: StreamedBlocks) -> float:
        """The most that a rank's memory holds of its blocks at once [byte]."""
        return float(one.held_bytes.sum())

    def exchange_s(self, size_bytes: Array, ranks: int, hop_s: float, bytes_per_s: float) -> Array:
        """An all-reduce of so many bytes over a network on which a message takes `hop_s` [s], as a ring."""
        return 2.0 * (ranks - 1) * (hop_s + size_bytes / ranks / bytes_per_s)

    def told_of(self, deployment: Deployment) -> str:
        """The technique and the share of experts, or of layers, on the device."""
        held = "weights on the device, caches in host memory" if self.streams else "experts on the device"
        return f"{self.key}: {self.share:.0%} of the {held}"
