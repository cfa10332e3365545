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
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar, cast

from ridgeline.errors import PlanError
from ridgeline.plan.deployment import Deployment
from ridgeline.seams.graph import GraphRewrite
from ridgeline.seams.registry import listed
from ridgeline.seams.technique import EXACT, Technique, param

if TYPE_CHECKING:
    from ridgeline.facts.engines import EnginePolicy
    from ridgeline.facts.records import Fact
    from ridgeline.graph.model import Model
    from ridgeline.seams.setting import Setting


class Instance(Protocol):
    """One engine of a deployment, as techniques see it (`serving.engine.Engine`)."""

    @property
    def deployment(self) -> Deployment:
        """How it is served."""

    @property
    def policy(self) -> EnginePolicy:
        """Its policy file, with what the deployment says."""

    @property
    def model(self) -> Model:
        """What it serves."""

    @property
    def machine(self) -> Any:
        """What it runs on (`cost.machine.Machine`)."""

    @property
    def formats(self) -> Any:
        """Number formats (`cost.formats.Formats`)."""

    @property
    def steps(self) -> Any:
        """Its iterations (`serving.step.StepModel`)."""

    @property
    def capacity(self) -> Any:
        """How memory is divided (`serving.capacity.Capacity`)."""


@dataclass(frozen=True, kw_only=True)
class ServingTechnique(Technique):
    """What a technique of serving may fill, whatever its family.

    `word` is the field of a deployment that applies it (`--split`): that of a parameter, which leaves it out where it
    is `off`, or one of its own, which `told_by` explains. Where it `forgets_prefixes` none is found again; one that is
    `between` instances sends caches from one to another.
    """

    word: ClassVar[str] = ""
    told_by: ClassVar[str] = ""
    kinds: ClassVar[frozenset[str]] = frozenset({"serving"})
    off: ClassVar[object] = None
    forgets_prefixes: ClassVar[bool] = False
    between: ClassVar[bool] = False

    def applies(self, setting: Setting) -> str:
        """Why it does not apply, in a phrase; '' where it goes with the deployment's degrees, options and techniques.

        What hangs on the engine and its model `unfit` says, when there is one.
        """
        from ridgeline.seams.deployment_slots import check_techniques

        said, one = super().applies(setting), setting.deployment
        if said or one is None:
            return said
        others = tuple(text for text in one.technique if listed(text).family != self.family)
        try:
            check_techniques(replace(one, technique=(*others, self.text)))
        except PlanError as error:
            return str(error).removeprefix("deployment: ").removesuffix("; leave one out")
        return ""

    @property
    def applied(self) -> bool:
        """Whether it is more than the neutral one of its family."""
        return bool(self.key)

    def refusal(self, deployment: Deployment) -> str:
        """Why it does not go with a deployment, in a phrase; '' where it does."""
        return ""

    def unfit(self, instance: Instance) -> str:
        """Why it does not go with an engine and its model, in a phrase; '' where it does."""
        return ""

    def numbers(self, instance: Instance, stride: int) -> Mapping[str, float]:
        """Numbers of the clock's rule (`serving.state.RULE`); instances are `stride` devices apart."""
        return {}

    def hooks(self) -> Mapping[str, Callable[..., Any]]:
        """Hooks of the clock by name, plain functions of fixed signature (`serving.hooks`)."""
        return {}

    def told(self) -> str:
        """The technique in the line that tells a deployment."""
        return self.text


@dataclass(frozen=True, kw_only=True)
class Queue(ServingTechnique):
    """Who is next among those who wait at an instance; neutral: by priority where a trace has any, then by arrival.

    `by_client` says that what each client got is worth telling.
    """

    family: ClassVar[str] = "queues"
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

    def step_seconds(self, served: Any, prices: Any, sequences: Any) -> Any:
        """What a step takes besides attention, of N sequences in all layers, (N,) `Seconds`; None where nothing [s]."""
        return None


def _swaps(instance: Instance) -> str:
    way = instance.deployment.preemption
    found = way.value if way else instance.policy.preemption
    return f"{instance.policy.name} swaps caches to the host; say preemption recompute" if found == "swap" else ""


_ALL = frozenset({"iterations", "cache", "contexts", "stages"})


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
    owns: ClassVar[frozenset[str]] = _ALL | {
        "adapters", "attention ranks", "roles", "host copies", "polling", "urgency", "kernels"
    }  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class NanoBatches(ServingTechnique):
    """Iterations cut in two halves whose kernels overlap; neutral: none is.

    With `links_only` the exchange of one half alone runs beside the other's kernels.
    """

    family: ClassVar[str] = "overlaps"
    owns: ClassVar[frozenset[str]] = _ALL | {"adapters"}
    links_only: ClassVar[bool] = False
    tokens: int = param(
        0, "tokens", "iterations of so many tokens a rank are cut in two nano-batches whose kernels overlap",
        high=10_000_000, word="nano_tokens",
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class RemoteKV(ServingTechnique):
    """A part of a request's cache in the memory of other instances; neutral: all of it is at its own."""

    family: ClassVar[str] = "remote_kv"
    lend_share: float | None = param(
        None, "1", "share of its free blocks that one gives; when absent, half", low=0.01, high=1.0, word="lend_share"
    )
    owe_share: float | None = param(
        None, "1", "blocks that one owes, as a share of its own; any", low=0.01, high=1e4, word="owe_share"
    )
    owns: ClassVar[frozenset[str]] = _ALL | {
        "adapters", "attention ranks", "roles", "host copies", "prefixes", "polling", "urgency"
    }  # fmt: skip
    forgets_prefixes: ClassVar[bool] = True
    between: ClassVar[bool] = True


@dataclass(frozen=True, kw_only=True)
class ElasticParallel(ServingTechnique):
    """Prompts that several instances compute together; neutral: one instance throughout."""

    family: ClassVar[str] = "elastic_parallel"
    owns: ClassVar[frozenset[str]] = _ALL | {"attention ranks", "roles", "prefixes", "polling"}
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
class Speculation(ServingTechnique):
    """Tokens that are drafted for a step and verified in it; neutral: none."""

    family: ClassVar[str] = "speculation"
    owns: ClassVar[frozenset[str]] = frozenset({"iterations", "drafts"})
    quality: ClassVar[Fact | None] = EXACT
    acceptance: float = param(0.0, "1", "probability that a draft is accepted", high=1.0, word="acceptance")
    share: float | None = param(
        None, "1", "time to draft one token, as a share of a step; one layer's when absent", high=1e3,
        word="draft_share",
    )  # fmt: skip
    prompt_share: float | None = param(
        None, "1", "time of a draft's pass over prompts, as a share of the model's; when absent, draft_share",
        high=1e3, word="draft_prompt_share",
    )  # fmt: skip
    held_bytes: float = param(
        0.0, "byte", "weights of a model that drafts, on each device of the last stage", high=1e15, word="draft_bytes"
    )
    token_bytes: float = param(0.0, "byte", "its cache of a token there", high=1e12, word="draft_token_bytes")

    @property
    def drafted(self) -> int:
        """Tokens of a sequence that a step verifies besides its own [token]."""
        return 0

    @property
    def depth(self) -> int:
        """Tokens drafted one after another for a step [token]."""
        return 0

    @property
    def gained(self) -> float:
        """Tokens that a sequence gains in one step on average [token]."""
        return 1.0

    def shares(self, layers: int) -> tuple[float, float]:
        """A draft's passes for a step's sequences and over prompts, as shares of the model's own [1].

        One layer's where nothing is said, as that of a checkpoint's own head of drafts (MTP, EAGLE). Engines run a
        draft over every prompt, whose cache it needs. Source: sglang, python/sglang/srt/speculative/eagle_worker.py:
        forward_draft_extend; vllm, vllm/v1/spec_decode/eagle.py: propose, over all tokens of the iteration.
        """
        if self.drafted == 0:
            return 0.0, 0.0
        share = 1.0 / layers if self.share is None else self.share
        return self.depth * share, share if self.prompt_share is None else self.prompt_share

    def held(self, layers: int, weights: float, cache: float) -> tuple[float, float]:
        """Weights of what drafts on a device of the last stage, and its cache of a token there [byte].

        Those of a named model, or one of the model's `layers`, which take `weights` and `cache` [byte] on a stage of
        all. Engines put all of a draft on the last stage, and send its cache with the model's from pool to pool.
        Source: vllm, vllm/v1/worker/gpu_model_runner.py: "we put the entire draft model on the last PP rank"; sglang,
        python/sglang/srt/disaggregation/prefill.py: "We should also transfer draft model kv cache".
        """
        if self.drafted == 0 or self.share is not None:
            return self.held_bytes, self.token_bytes
        return weights / layers, cache / layers

    def numbers(self, instance: Instance, stride: int) -> Mapping[str, float]:
        """What drafting adds to a step, and to what prompts add to an iteration."""
        step, prompts = self.shares(len(instance.model.graph.layers))
        return {"draft_share": step, "draft_prompt": prompts}


@dataclass(frozen=True, kw_only=True)
class Urgency(ServingTechnique):
    """Whether who waits takes the place of less urgent ones that run; neutral: nobody does.

    `drawn` says that priorities change while requests run.
    """

    family: ClassVar[str] = "urgency"

    @property
    def drawn(self) -> bool:
        """Whether priorities change while requests run."""
        return False


@dataclass(frozen=True, kw_only=True)
class Polling(ServingTechnique):
    """When a scheduler takes new prompts; neutral: before every iteration."""

    family: ClassVar[str] = "polling"


FAMILIES: tuple[type[ServingTechnique], ...] = (
    Speculation,
    Beams,
    Queue,
    Urgency,
    Adapters,
    NanoBatches,
    Partition,
    ElasticParallel,
    RemoteKV,
    KVEviction,
    Polling,
)
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


def step_tokens(deployment: Deployment) -> int:
    """Tokens of one decoding request in a step [token]: its own and drafted ones, or one of each beam."""
    return of(deployment, Beams).width + of(deployment, Speculation).drafted


def graph_texts(deployment: Deployment) -> tuple[str, ...]:
    """The techniques of a deployment that change the model's operators."""
    return tuple(text for text in deployment.technique if isinstance(listed(text), GraphRewrite))


def hooks_of(deployments: Sequence[Deployment]) -> dict[str, Callable[..., Any]]:
    """Hooks of the clock by name; raises `PlanError` where two deployments of a fleet have different ones."""
    found = [_hooks(one.technique) for one in deployments]
    if any(one != found[0] for one in found):
        raise PlanError("deployment: pools of a fleet share the clock's hooks; give all the same queue and eviction")
    return dict(found[0]) if found else {}


@cache
def _hooks(texts: tuple[str, ...]) -> dict[str, Callable[..., Any]]:
    return {name: hook for one in _by_family(texts).values() for name, hook in one.hooks().items()}
