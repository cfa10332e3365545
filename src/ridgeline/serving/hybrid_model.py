"""A model larger than its devices: what lies where, and what either side holds.

Shape letters: E experts, k experts that a token takes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ridgeline.cost.formats import form
from ridgeline.cost.host import Processors, experts_touched
from ridgeline.cost.machine import Machine
from ridgeline.cost.served import ServedPrices
from ridgeline.errors import NoPlanError, PlanError
from ridgeline.facts.cpus import NeuronLaw, cpu_constant, neuron_law
from ridgeline.facts.engines import EngineUse, engine_policy
from ridgeline.facts.readings import reading
from ridgeline.graph.model import Model
from ridgeline.lower.inference import serve
from ridgeline.lower.pieces import Experts, LayerKind, Piece, Product, Served
from ridgeline.plan.deployment import Deployment
from ridgeline.seams.serving import HostExperts, instance_devices, of
from ridgeline.serving.capacity import piece_bytes, token_bytes
from ridgeline.serving.engine import formats_of
from ridgeline.serving.hybrid_placement import Habits, HostPlacement, OffloadMethod, use_share
from ridgeline.serving.two_sides import expert_params as expert_params
from ridgeline.units import bytes_text

_ANY_BYTES = 16e9  # assumed, of a device that is not there: engines choose batches by it, one loop does not


class Hybrid:
    """One model on devices (or none) and processors: formats of both sides, where weights lie, the engine's habits."""

    def __init__(
        self,
        model: Model,
        machine: Machine | None,
        host: Processors | None,
        placement: HostPlacement,
        *,
        deployment: Deployment,
        habits: Habits,
        host_bytes: float | None = None,
        top_k: int | None = None,
    ) -> None:
        self.model, self.machine, self.placement = model, machine, placement
        self.deployment, self.formats, self.habits = deployment, formats_of(deployment), habits
        self.ranked = of(deployment, HostExperts) if of(deployment, HostExperts).in_blocks else None
        host_bytes = host_bytes if self.ranked is None else self.ranked.element_bytes
        self.weight_bytes = host_bytes if host_bytes is not None else form(self.formats.feed).weight_bytes
        self.device_served = _taking(serve(model, deployment), top_k)
        self.whole = _taking(serve(model, replace(deployment, tp=1, pp=1, dp=1, ep=1)), top_k)
        wide = replace(deployment, weights="bf16") if habits.widened_bytes else deployment
        self.prices = None if machine is None else ServedPrices(machine, formats_of(wide), engine=habits.kernels)
        self.devices = 0 if machine is None else instance_devices(deployment)
        spread = habits.numa == "spread"
        self.host = None if host is None else replace(host, numa_aware=self._local(host), spread=spread)
        if host is None and placement.technique in (OffloadMethod.LAYERS, OffloadMethod.HOST, OffloadMethod.DISK):
            raise PlanError("products run on the host, and no processor is named: give one")
        if machine is None and placement.technique not in (
            OffloadMethod.LAYERS,
            OffloadMethod.HOST,
            OffloadMethod.DISK,
        ):
            raise PlanError(f"'{placement.technique.value}' needs an accelerator beside the host, and none is named")

    # sizes ------------------------------------------------------------------------------------

    def layer_bytes(self, kind: LayerKind, *, experts: bool) -> float:
        """Weights of one layer as the host keeps them, routed experts or the rest [byte]."""
        return sum(self._host_bytes(piece) for piece in kind.pieces if isinstance(piece, Experts) is experts)

    def held_bytes_of(self, pieces: Iterable[Piece]) -> float:
        """Weights of pieces in host memory [byte]."""
        return sum(map(self._host_bytes, pieces))

    def _host_bytes(self, piece: Piece) -> float:
        if isinstance(piece, Experts):
            return piece.count * expert_params(piece) * self.weight_bytes
        if isinstance(piece, Product):
            return piece.n * piece.k * piece.count * self.weight_bytes
        return 0.0

    @property
    def neurons(self) -> NeuronLaw:
        """How often the model's neurons fire, and what predicts it."""
        law, placement = neuron_law(self.model.name), self.placement
        if placement.hot_neurons is not None:  # of all layers' as many fewer as of such models
            hot = placement.hot_neurons
            law = replace(law, hot=hot, hot_model=hot * law.hot_model / law.hot)
        return law if placement.active_neurons is None else replace(law, active=placement.active_neurons)

    @cached_property
    def latent_prices(self) -> ServedPrices | None:
        """The device's prices of attention to latent caches: by kernels that are as the engine's own."""
        if self.machine is None or not self.habits.latent:
            return self.prices
        return ServedPrices(self.machine, self.formats, engine=self.habits.latent)

    @property
    def ends_bytes(self) -> float:
        """Weights of the head [byte]."""
        return sum(self._host_bytes(piece) for piece in self.whole.head)

    @property
    def expert_bytes(self) -> float:
        """Routed experts of all layers as the host keeps them [byte]."""
        return sum(kind.count * self.layer_bytes(kind, experts=True) for kind in self.whole.kinds)

    @property
    def total_bytes(self) -> float:
        """All weights as the host would keep them; the embedding counts once where it is also the head [byte]."""
        rest = sum(kind.count * self.layer_bytes(kind, experts=False) for kind in self.whole.kinds)
        table = 0.0 if self.model.graph.tied_embeddings else self.ends_bytes
        return self.expert_bytes + rest + self.ends_bytes + table

    def share(self, cached_tokens: float) -> float:
        """Share of experts, layers or neurons on the devices: stated, or what fits beside cache and the rest [1]."""
        placement = self.placement
        if placement.technique in (OffloadMethod.HOST, OffloadMethod.DISK) or self.machine is None:
            return 0.0
        if placement.share is not None:
            return placement.share
        part = self.machine.cluster.accelerator
        rest, cache = self._device_bytes(experts=False), self.cache_bytes(cached_tokens)
        room = self.room_bytes
        pool = rest + self._device_bytes(experts=True)
        if placement.technique is OffloadMethod.LAYERS:  # each layer brings its cache along
            pool += cache
        elif not placement.cache_on_host and self.cache_fits(cached_tokens):
            room -= cache
        if placement.technique in (OffloadMethod.COMPUTED, OffloadMethod.FETCHED):
            pool, room = pool - rest, room - rest
            if room < 0:
                raise NoPlanError(
                    f"{self.model.name}: what is no expert takes {bytes_text(rest)} a device, {part.name} has"
                    f" {bytes_text(part.memory_bytes)}: more devices or smaller weights"
                )
        if placement.technique is OffloadMethod.NEURONS:
            room -= self.neurons.predictor * pool
        return min(1.0, max(0.0, room / pool)) if pool > 0 else 1.0

    @property
    def room_bytes(self) -> float:
        """Memory of one device without its context and workspace [byte]."""
        assert self.machine is not None
        return self.machine.cluster.accelerator.memory_bytes - cpu_constant("device.context_bytes")

    def held_bytes(self, share: float) -> tuple[float, float]:
        """Weights on one device, and elsewhere, where devices hold that share of what may move [byte]."""
        technique = self.placement.technique
        if technique in (OffloadMethod.HOST, OffloadMethod.DISK) or self.machine is None:
            return 0.0, self.total_bytes
        rest, experts = self._device_bytes(experts=False), self._device_bytes(experts=True)
        if technique in (OffloadMethod.COMPUTED, OffloadMethod.FETCHED):
            return rest + share * experts, (1.0 - share) * self.expert_bytes
        beside = self.neurons.predictor * rest if technique is OffloadMethod.NEURONS else 0.0
        return share * (rest + experts) + beside, (1.0 - share) * self.total_bytes

    def cache_bytes(self, tokens: float) -> float:
        """Cache of so many tokens on one device if it held its whole part [byte]."""
        return token_bytes(self.device_served.kinds, self.formats)[0] * tokens / self.deployment.pp

    @property
    def heads_a_key(self) -> float:
        """Query heads that share a key, 1 where every head has its own or the model has none of these [1]."""
        heads, keys = (float(self.model.dims.get(name) or 0) for name in ("heads", "kv_heads"))
        return heads / keys if heads and keys else 1.0

    def cache_fits(self, tokens: float) -> bool:
        """Whether the devices hold the cache beside weights that cannot lie elsewhere; if not it is the host's."""
        if self.machine is None:
            return True
        experts = self.placement.technique in (OffloadMethod.COMPUTED, OffloadMethod.FETCHED)
        kept = self._device_bytes(experts=False) if experts else 0.0
        room = self.room_bytes - kept
        return self.cache_bytes(tokens) <= room

    def _device_bytes(self, *, experts: bool) -> float:
        """Weights on one device if it held its whole part [byte]."""
        size = 0.0
        for count, pieces in self._all(self.device_served):
            size += count * sum(piece_bytes(p, self.formats) for p in pieces if isinstance(p, Experts) is experts)
        return size / self.deployment.pp

    def _local(self, host: Processors) -> bool:
        """Whether every socket reads its own memory only."""
        if host.sockets == 1 or self.habits.numa == "split":
            return True
        copies = host.sockets * self.total_bytes
        return self.habits.numa in ("copies", "spread") and (host.memory_bytes is None or copies <= host.memory_bytes)

    def check_memory(self, share: float) -> None:
        """Refuses weights that host memory does not hold; raises `NoPlanError`."""
        placement, host = self.placement, self.host
        if host is None or host.memory_bytes is None or placement.technique is OffloadMethod.DISK:
            return
        kept = self.kept_bytes(share)
        if self._exceeds(kept, host) and not self.habits.pages:
            raise NoPlanError(
                f"{self.model.name}: {bytes_text(kept)} of weights do not fit in {bytes_text(host.memory_bytes)} of"
                " host memory: a smaller format, more memory, or weights on disk"
            )

    def kept_bytes(self, share: float) -> float:
        """Weights in host memory where the devices hold `share` of what may move [byte]."""
        experts = self.placement.technique in (OffloadMethod.COMPUTED, OffloadMethod.FETCHED)
        return (self.expert_bytes if experts else self.total_bytes) * (1.0 - share)

    def resident_bytes(self, share: float) -> float | None:
        """What host memory may hold of the weights [byte]: stated, or all of it where a mapped file is larger."""
        host = self.host
        if self.placement.resident_bytes is not None or host is None or host.memory_bytes is None:
            return self.placement.resident_bytes
        paged = self.habits.pages and self._exceeds(self.kept_bytes(share), host)
        return host.memory_bytes if paged else None

    @staticmethod
    def _exceeds(size: float, host: Processors) -> bool:
        """Whether a file needs more than the host has, by more than files of one format differ."""
        return size > cpu_constant("file.spread") * (host.memory_bytes or size)

    @property
    def workspace_bytes(self) -> float:
        """Logits of a pass over a prompt in 32 bits, which engines without a device keep room for [byte]."""
        return 4.0 * min(self.habits.chunk, 512) * self.model.graph.vocab

    @cached_property
    def loop_s(self) -> float:
        """Time of one iteration in which the engine's own loop keeps everything waiting [s]."""
        part = None if self.machine is None else self.machine.cluster.accelerator
        use = EngineUse(
            memory_bytes=_ANY_BYTES if part is None else part.memory_bytes, offline=True,
            context_tokens=self.model.max_positions or 0, ranks=max(1, self.devices),
            device="" if part is None else part.name,
        )  # fmt: skip
        policy = engine_policy(self.habits.loop, "", use)
        waits = 0.0 if policy.overlapped_host else policy.step_host_s
        return waits + policy.exposed_host_s + (policy.group_host_s if self.devices > 1 else 0.0)

    def touched(self, piece: Experts, tokens: NDArray[np.float64], *, prompt: bool) -> NDArray[np.float64]:
        """Distinct experts of a layer that an iteration takes [1], a prompt of those that one subject calls."""
        known = reading("prompt_experts", model=self.model.name) if prompt else None
        called = max(piece.top_k, piece.count * (known.number if known else 1.0))
        return np.asarray(experts_touched(called, piece.top_k, tokens))

    def uses(self, piece: Experts, share: float) -> float:
        """Share of the uses of a layer's experts that meet the device [1]."""
        placement = self.placement
        return use_share(piece.count, share, placement.order, placement.popularity_skew)

    @staticmethod
    def _all(served: Served) -> Iterator[tuple[int, tuple[Piece, ...]]]:
        for kind in served.kinds:
            yield kind.count, kind.pieces
        yield 1, served.head


def _taking(served: Served, top_k: int | None) -> Served:
    """The same where a token takes `top_k` experts."""
    if top_k is None:
        return served
    kinds = tuple(
        replace(kind, pieces=tuple(replace(p, top_k=top_k) if isinstance(p, Experts) else p for p in kind.pieces))
        for kind in served.kinds
    )
    return replace(served, kinds=kinds)
