"""The seams of serving: what a technique changes of an engine's iterations, cache and queue.

Each family is one class whose methods are neutral: what a deployment applies nothing of is as the engine does it
(`of`). Incompatibility is derived: two techniques, or a technique and a degree, that own one slot are refused.

Slots: `iterations` what an iteration is made of, `cache` what is held of a context, `contexts` its division over ranks,
`stages` and `attention ranks` the degrees pp and dp, `roles` prefill and decode pools, `host copies` of caches,
`prefixes` that requests share, `polling` when prompts are taken, `urgency` who gives way, `drafts`, `adapters`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, cast

from ridgeline.errors import PlanError
from ridgeline.plan.deployment import Deployment
from ridgeline.seams.disaggregation import Disaggregation as Disaggregation
from ridgeline.seams.disaggregation import SentActivations as SentActivations
from ridgeline.seams.graph import GraphRewrite
from ridgeline.seams.host_experts import HostExperts as HostExperts
from ridgeline.seams.nano_batches import NanoBatches as NanoBatches
from ridgeline.seams.prefixes import KVRetention as KVRetention
from ridgeline.seams.prefixes import PrefixTier as PrefixTier
from ridgeline.seams.registry import listed
from ridgeline.seams.router import Router as Router
from ridgeline.seams.serving_technique import WHOLE_STEP
from ridgeline.seams.serving_technique import Instance as Instance
from ridgeline.seams.serving_technique import ServingTechnique as ServingTechnique
from ridgeline.seams.speculation import Speculation as Speculation
from ridgeline.seams.structured import StructuredOutput as StructuredOutput
from ridgeline.seams.technique import EXACT, param

if TYPE_CHECKING:
    from ridgeline.facts.engines import EnginePolicy
    from ridgeline.facts.records import Fact
    from ridgeline.seams.setting import Setting


@dataclass(frozen=True, kw_only=True)
class Queue(ServingTechnique):
    """Who is next among those who wait at an instance; neutral: by priority where a trace has any, then by arrival.

    `by_client` says that what each client got is worth telling.
    """

    family: ClassVar[str] = "queues"
    quality: ClassVar[Fact | None] = EXACT
    by_client: ClassVar[bool] = False

    def told(self) -> str:
        """The queue by its name, where it is not by arrival."""
        return f"{self.text} queue" if self.key not in ("", "arrival") else ""


@dataclass(frozen=True, kw_only=True)
class KVEviction(ServingTechnique):
    """What stays of a context's keys and values on the device when its prompt is done; neutral: all of it."""

    family: ClassVar[str] = "evictions"
    forgets_prefixes: ClassVar[bool] = True
    owns: ClassVar[frozenset[str]] = frozenset({"cache", "contexts", "roles", "host copies", "prefixes"})

    def unfit(self, instance: Instance) -> str:
        """Windows, latent vectors and recurrent states, and engines that swap."""
        return instance.steps.uncut or _swaps(instance)

    def held_tokens(self, instance: Instance, prompt: float) -> float:
        """Tokens' worth of cache that a prompt holds on the device once it is done [token]."""
        return prompt

    def fetch_seconds(self, instance: Instance, context: float) -> float:
        """What a sequence's step takes from host memory over the link [s]."""
        return 0.0


def _swaps(instance: Instance) -> str:
    found = preemption_of(instance.deployment, instance.policy)
    return f"{instance.policy.name} swaps caches to the host; say preemption recompute" if found == "swap" else ""


@dataclass(frozen=True, kw_only=True)
class Preemption(ServingTechnique):
    """What happens to a request whose cache must give way; neutral: what the engine does."""

    family: ClassVar[str] = "preemption"
    said_as: ClassVar[str] = "preemption"
    quality: ClassVar[Fact | None] = EXACT


@dataclass(frozen=True, kw_only=True)
class Adapters(ServingTechnique):
    """Adapters of a model that requests ask for; neutral: none."""

    family: ClassVar[str] = "adapters"
    owns: ClassVar[frozenset[str]] = frozenset({"adapters"})
    forgets_prefixes: ClassVar[bool] = True
    count: int = param(0, "adapters", "LoRA adapters that are served together", high=100_000, word="adapters")
    rank: int = param(16, "1", "their rank; 16 when absent", low=1, high=128, word="adapter_rank")
    on_device: int | None = param(
        None, "adapters", "adapters on the device at once; others are loaded from the host; when absent, all", low=1,
        high=100_000, whole=True, word="adapter_slots",
    )  # fmt: skip
    skew: float = param(0.0, "1", "power law of adapters' shares of requests: 0 even", high=4.0, word="adapter_skew")
    on: str = param(
        "attention", "", "products that adapters change: attention's, or feed-forwards' too", word="adapter_on",
        choices=("attention", "all"),
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Partition(ServingTechnique):
    """A device divided between prompts and decode steps; neutral: it is whole."""

    family: ClassVar[str] = "partitions"
    quality: ClassVar[Fact | None] = EXACT
    owns: ClassVar[frozenset[str]] = WHOLE_STEP | {
        "adapters", "attention ranks", "roles", "host copies", "polling", "urgency", "kernels", "masks"
    }  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Placement(ServingTechnique):
    """On which ranks the experts of a layer lie; neutral: each on one, with the loads that models showed.

    With an `imbalance` the fullest rank has so many times the rows of the mean one; without it `redundant` replicas are
    placed for even loads. Where tokens `stay` with their experts from layer to layer, every rank holds all caches.
    """

    family: ClassVar[str] = "placement"
    quality: ClassVar[Fact | None] = EXACT
    stay: ClassVar[bool] = False
    redundant: int = param(0, "replicas", "replicas of experts in each layer", high=4096, word="expert_redundant")
    imbalance: float | None = param(
        None, "1", "rows of the fullest rank of experts over those of the mean one", low=1.0, high=1e6,
        word="expert_imbalance",
    )  # fmt: skip

    @property
    def rows(self) -> tuple[float | None, float | None]:
        """Rows that the busiest rank sends of each token of the mean rank, in its node and beyond [1].

        None where they are those of ranks that are alike.
        """
        return None, None

    def computed(self, piece: Any, prices: Any, rows: Any, sources: int) -> Any:
        """What a rank's experts (`lower.pieces.Experts`) take for `rows` (T,) that `sources` ranks bring, `Seconds`.

        None where kernels take each expert's rows as they are, priced by `prices` (`cost.served.ServedPrices`).
        """
        return None

    def applies(self, setting: Setting) -> str:
        """Models without experts, and experts that are not divided."""
        said, one = super().applies(setting), setting.deployment
        if said or not setting.experts:
            return said or "is about experts, of which the model has none"
        return "is about experts on several ranks, which are on one" if one and expert_ranks(one) == 1 else ""

    def refusal(self, deployment: Deployment) -> str:
        """More imbalance than ranks."""
        ranks = expert_ranks(deployment)
        if self.imbalance is not None and self.imbalance > ranks:
            return f"with expert_imbalance = {self.imbalance:g} of {ranks} ranks; needs 1 to the ranks"
        return ""


@dataclass(frozen=True, kw_only=True)
class RemoteKV(ServingTechnique):
    """A part of a request's cache in the memory of other instances; neutral: all of it is at its own.

    Hook `lends` moves caches of who decodes there too, every `rearranges` iterations (a number of the clock's rule).
    """

    family: ClassVar[str] = "remote_kv"
    quality: ClassVar[Fact | None] = EXACT
    lend_share: float | None = param(
        None, "1", "share of its free blocks that one gives; when absent, half", low=0.01, high=1.0, word="lend_share"
    )
    owe_share: float | None = param(
        None, "1", "blocks that one owes, as a share of its own; any", low=0.01, high=1e4, word="owe_share"
    )
    owns: ClassVar[frozenset[str]] = WHOLE_STEP | {
        "adapters", "attention ranks", "roles", "host copies", "prefixes", "polling", "urgency"
    }  # fmt: skip
    forgets_prefixes: ClassVar[bool] = True
    between: ClassVar[bool] = True


@dataclass(frozen=True, kw_only=True)
class ElasticParallel(ServingTechnique):
    """Prompts that several instances compute together; neutral: one instance throughout."""

    family: ClassVar[str] = "elastic_parallel"
    quality: ClassVar[Fact | None] = EXACT
    owns: ClassVar[frozenset[str]] = WHOLE_STEP | {"attention ranks", "roles", "prefixes", "polling"}
    forgets_prefixes: ClassVar[bool] = True
    between: ClassVar[bool] = True


@dataclass(frozen=True, kw_only=True)
class Beams(ServingTechnique):
    """Continuations of every prompt that a search keeps; neutral: one."""

    family: ClassVar[str] = "beams"
    owns: ClassVar[frozenset[str]] = frozenset({"iterations", "cache", "roles"})
    width: int = param(
        1, "beams", "continuations of each prompt that a beam search keeps", low=1, high=64, word="beam_width"
    )


@dataclass(frozen=True, kw_only=True)
class Urgency(ServingTechnique):
    """Whether who waits takes the place of less urgent ones that run; neutral: nobody does.

    `drawn` says that priorities change while requests run.
    """

    family: ClassVar[str] = "urgency"
    quality: ClassVar[Fact | None] = EXACT

    @property
    def drawn(self) -> bool:
        """Whether priorities change while requests run."""
        return False


@dataclass(frozen=True, kw_only=True)
class Polling(ServingTechnique):
    """When a scheduler takes new prompts; neutral: before every iteration."""

    family: ClassVar[str] = "polling"
    quality: ClassVar[Fact | None] = EXACT


@dataclass(frozen=True, kw_only=True)
class PromptDevice(ServingTechnique):
    """A processor beside the device that takes a part of prompts; neutral: the device computes all of them.

    Prompts are taken whole, in iterations without decoding; `retimed` says how long these take.
    """

    family: ClassVar[str] = "prompt_devices"
    owns: ClassVar[frozenset[str]] = WHOLE_STEP | {
        "adapters",
        "attention ranks",
        "roles",
        "polling",
        "urgency",
        "drafts",
    }

    def refusal(self, deployment: Deployment) -> str:
        """More than one device, and prompts in parts."""
        ranks, said = instance_devices(deployment), deployment.options
        if ranks > 1:
            return f"is of one device, not of {ranks}; say tp 1"
        return (
            "takes whole prompts, before what runs; leave chunked and mixed out" if said.chunked or said.mixed else ""
        )


FAMILIES: tuple[type[ServingTechnique], ...] = (
    Speculation, Beams, Queue, Preemption, Urgency, Adapters, NanoBatches, Disaggregation, HostExperts, Placement,
    Partition, ElasticParallel, RemoteKV, KVEviction, KVRetention, PrefixTier,
    StructuredOutput, Polling, PromptDevice, Router,
)  # fmt: skip
"""Families of serving, in the order in which a deployment's line tells them."""

_Family = TypeVar("_Family", bound=ServingTechnique)


@cache
def _by_family(texts: tuple[str, ...]) -> Mapping[str, ServingTechnique]:
    return {one.family: one for one in map(listed, texts) if isinstance(one, ServingTechnique)}


_NEUTRAL = {family.family: family() for family in FAMILIES}


def of(deployment: Deployment, family: type[_Family]) -> _Family:
    """The technique of a family that a deployment applies, or the neutral one."""
    return cast(_Family, _by_family(deployment.technique).get(family.family) or _NEUTRAL[family.family])


def applied(deployment: Deployment) -> Iterator[ServingTechnique]:
    """The serving techniques that a deployment applies, in the order of families."""
    found = _by_family(deployment.technique)
    return (found[family.family] for family in FAMILIES if family.family in found)


def overlapping(deployment: Deployment) -> NanoBatches | HostExperts:
    """What says how parts of a deployment's iterations run side by side: nano-batches, or weights that are streamed."""
    hosted = of(deployment, HostExperts)
    return hosted if hosted.streams else of(deployment, NanoBatches)


def expert_devices(deployment: Deployment) -> int:
    """Devices of one instance that hold its experts alone [1]; 0 where every device computes all of a layer."""
    return of(deployment, Disaggregation).devices


def expert_ranks(deployment: Deployment) -> int:
    """Devices over which the experts of an instance are divided [1]."""
    return expert_devices(deployment) or deployment.ep


def instance_devices(deployment: Deployment) -> int:
    """Devices of one instance [1], those of its experts among them."""
    return deployment.tp * deployment.pp * deployment.dp + expert_devices(deployment)


def all_devices(deployment: Deployment) -> int:
    """Devices of all instances [1]."""
    return instance_devices(deployment) * deployment.instances


def own_devices(deployment: Deployment) -> int:
    """Devices of one instance that are of its own kind [1]."""
    return instance_devices(deployment) - other_devices(deployment)


def other_devices(deployment: Deployment) -> int:
    """Devices of one instance that are of the other kind [1]."""
    return expert_devices(deployment) if deployment.expert_kind else 0


def step_tokens(deployment: Deployment) -> int:
    """Tokens of one decoding request in a step [token]: its own and drafted ones, or one of each beam."""
    return of(deployment, Beams).width + of(deployment, Speculation).drafted


def preemption_of(deployment: Deployment, policy: EnginePolicy) -> str:
    """What happens to a cache that must give way, as the deployment or else the engine says."""
    return of(deployment, Preemption).key or policy.preemption


def router_of(deployments: Sequence[Deployment], text: str = "") -> Router:
    """The router of a fleet: that of a text, or of its first deployment; raises `PlanError` for what is none."""
    found = listed(text) if text else of(deployments[0], Router)
    if not isinstance(found, Router):
        raise PlanError(f"router {text}: is one of the {found.family}; give a router")
    return found


def graph_texts(deployment: Deployment) -> tuple[str, ...]:
    """The techniques of a deployment that change the model's operators."""
    return tuple(text for text in deployment.technique if isinstance(listed(text), GraphRewrite))


def with_inputs(traffic: Any, deployments: Sequence[Deployment]) -> Any:
    """A traffic (`serving.traffic.Traffic`) whose prompts have the tokens of images and the like beside their words."""
    tokens = traffic.prompt_tokens
    for text in graph_texts(deployments[0]) if deployments else ():
        tokens = cast(GraphRewrite, listed(text)).prompt_tokens(tokens)
    return traffic if tokens is traffic.prompt_tokens else replace(traffic, prompt_tokens=tokens)


def hooks_of(deployments: Sequence[Deployment]) -> dict[str, Callable[..., Any]]:
    """Hooks of the clock by name; raises `PlanError` where two deployments of a fleet have different ones."""
    found = [_hooks(one.technique) for one in deployments]
    if any(one != found[0] for one in found):
        raise PlanError("deployment: pools of a fleet share the clock's hooks; give all the same queue and eviction")
    return dict(found[0]) if found else {}


@cache
def _hooks(texts: tuple[str, ...]) -> dict[str, Callable[..., Any]]:
    known = (one for one in _by_family(texts).values() if not isinstance(one, Router))
    return {name: hook for one in known for name, hook in one.hooks().items()}
