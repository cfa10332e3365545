"""What a training framework's policy file may say: one dataclass, whose fields are the keys and their limits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from ridgeline.facts.framework_memory import MemoryKeys
from ridgeline.facts.policy_schema import count as _count
from ridgeline.facts.policy_schema import flag as _flag
from ridgeline.facts.policy_schema import key as _key
from ridgeline.facts.policy_schema import keys_of
from ridgeline.facts.policy_schema import rows as _rows
from ridgeline.facts.policy_schema import word as _word
from ridgeline.facts.policy_schema import words as _words
from ridgeline.facts.records import Fact

SHARDINGS = ("none", "optimizer", "gradients", "weights")
"""What data-parallel ranks may divide, as ZeRO stages 0 to 3: nothing, and each time more."""
_RECOMPUTES = ("none", "selective", "full")
_OFFLOADS = ("optimizer", "activations", "weights")
_SPLITS = ("equal", "even", "ends", "any")
_SPLITS_SAY = (
    "equal: all the same number; even: they differ by one at most; ends: all but the first and the last the same; any"
)
_PRECISIONS = (
    *("fp32", "tf32", "fp16", "bf16", "bf16-pure", "fp16-amp", "bf16-amp"),
    *("fp8", "mxfp8", "int8", "nvfp4"),
)
_HOST_PARTS = (
    *("layer", "route", "sinkhorn", "alltoall", "allgather", "expert", "latent", "turn", "embedding", "loss"),
    *("checkpoint", "step", "held", "owned"),
    *(f"sharded.{part}" for part in ("forward", "forward.tensor", "backward", "backward.tensor")),
    *(f"sharded.{part}" for part in ("step", "step.tensor", "turn")),
)
_CHAINS = (
    *("route", "dispatch", "combine", "sinkhorn", "allgather", "allgather.calls", "expert", "grouped", "biased"),
    *("attention", "cross_entropy"),
)
_COUNTS = (
    *(f"{chain}.{way}" for chain in _CHAINS for way in ("forward", "backward")),
    *("attention.modules", "embed_tokens.forward", "embed_tokens.calls", "cross_entropy.calls"),
    *("weight", "message", "step", "step.calls", "zeros"),
)


def _number(default: float, about: str) -> Any:
    return _key(default, about, unit="1", kind=float, low=0.0, high=100.0)


@dataclass(frozen=True, kw_only=True)
class FrameworkKeys(MemoryKeys):
    """The keys of a policy. Their metadata is the schema: unit, limits, meaning."""

    tasks: tuple[str, ...] = _words((), "what is trained", "pretrain", "full", "lora", "qlora")
    precisions: tuple[str, ...] = _words((), "training recipes", *_PRECISIONS)
    data_parallel: bool = _flag(True, "several ranks share a model and divide the batch")
    sharding: tuple[str, ...] = _words(("none",), "what data-parallel ranks may divide (ZeRO 0 to 3)", *SHARDINGS)
    sharding_in_pipelines: tuple[str, ...] = _words((), "and that of pipelines", *SHARDINGS)
    sharding_with_experts: tuple[str, ...] = _words((), "and that with expert parallelism", *SHARDINGS)
    sharding_in_groups: tuple[str, ...] = _words(
        (), "what may be divided over a part of the data-parallel ranks, and copied over the rest", *SHARDINGS
    )
    replicas_alone: bool = _flag(False, "undivided copies exclude tensor, pipeline and context parallelism")
    tensor_parallel: bool = _flag(False, "layers are divided over tensor-parallel ranks")
    sequence_parallel: bool = _flag(False, "norms and residuals are divided over tensor-parallel ranks")
    tensor_overlap: bool = _flag(False, "collectives of tensor parallelism are pipelined with their products")
    schedules: tuple[str, ...] = _words((), "pipeline schedules, as plans call them; none: no pipeline parallelism")
    most_chunks: int = _count(1, "model chunks of a pipeline stage at most (virtual stages)", "chunk", 1)
    layer_splits: str = _word("equal", f"layers of pipeline stages; {_SPLITS_SAY}", *_SPLITS)
    chunk_splits: str = _word("equal", "and of the chunks of stages", *_SPLITS)
    context_styles: tuple[str, ...] = _words(
        (), "how context-parallel ranks exchange keys and values; none: no context parallelism",
        *("ring", "ulysses", "allgather"),
    )  # fmt: skip
    expert_parallel: bool = _flag(False, "ranks hold different experts")
    expert_tensor: tuple[str, ...] = _words(
        ("one",), "tensor parallelism inside an expert: none of it, that of the rest, or any degree",
        *("one", "tp", "any"),
    )  # fmt: skip
    dispatchers: tuple[str, ...] = _words(
        (), "how tokens reach experts of other ranks", "alltoall", "allgather", "deepep", "hybridep"
    )
    recompute: tuple[str, ...] = _words(("none",), "what backward may compute again", *_RECOMPUTES)
    recompute_some_layers: bool = _flag(False, "some layers of a stage may be recomputed whole and others not")
    offload: tuple[str, ...] = _words(
        (), "what host memory may hold; weights take gradients and optimizer states along", *_OFFLOADS
    )
    offload_in_pipelines: tuple[str, ...] = _words((), "and in pipelines", *_OFFLOADS)
    optimizer_offload_sharding: tuple[str, ...] = _words(
        SHARDINGS, "what ranks divide where optimizer states are in host memory", *SHARDINGS
    )
    activation_offload_recompute: tuple[str, ...] = _words(
        _RECOMPUTES, "recompute with which activations may be in host memory", *_RECOMPUTES
    )
    optimizer_in_backward: bool = _flag(False, "a weight may be updated as soon as its gradient is there")
    losses: tuple[str, ...] = _words(("whole",), "how the loss may hold logits", "whole", "chunked", "fused")
    adapters_divided: bool = _flag(False, "adapters train with tensor, pipeline and context parallelism too")
    quantized_base_alone: bool = _flag(False, "a base in few bits trains on one device alone")
    default_precision: str = _word("", "recipe where none is asked; '' bf16, or what the device has", "", *_PRECISIONS)
    default_execution: str = _word(
        "", "how kernels are launched where nothing is asked; '' compiled", "", "eager", "compiled", "graph"
    )
    expert_tensor_default: str = _word(
        "one", "tensor parallelism inside divided experts where none is said: none of it, or that of the rest",
        *("one", "tp"),
    )  # fmt: skip
    merged_adapters: str = _word(
        "none", "merged linear layers that carry one adapter, not one for each", "none", "qkv", "all"
    )
    hand_fused: bool = _flag(
        False, "elementwise operators are fused by hand, so that whether a program is compiled changes nothing"
    )
    chained_loss: bool = _flag(False, "the loss is a chain of operators even where the rest is compiled")
    host_modules: bool = _flag(False, "the host calls a Python module around each product and attention")
    gathered_activation_copies: float = _number(
        0.0, "copies of a gathered weight, reads and writes, in widths of activations"
    )
    reduced_activation_copies: float = _number(0.0, "copies of a gradient that is reduced, in widths of activations")
    reduced_gradient_copies: float = _number(0.0, "and in widths of gradients")
    copies_widened: bool = _flag(False, "and once more where gradients are wider than activations: read and written")
    copies_each_micro_batch: bool = _flag(
        False, "gradients that are divided are copied with every micro-batch, not once a step"
    )
    host_s: Mapping[str, float] = _rows(
        "Python beside modules and operators, on a DGX H100's host: of a layer's forward and what experts and latent "
        "attention add, of a micro-batch's turn, embedding, loss, a recomputed layer, a step, each tensor held or "
        "owned by the optimizer, and around sharded weights",
        "s", 1.0, *_HOST_PARTS,
    )  # fmt: skip
    launches: Mapping[str, float] = _rows(
        "operators, or calls of collectives, that the program's source was counted to issue", "1", 1e4, *_COUNTS
    )


KEYS = keys_of(fields(FrameworkKeys))


@dataclass(frozen=True, kw_only=True)
class FrameworkPolicy(FrameworkKeys):
    """What one version of a training framework can run and how it does; `facts` tell how each key is known."""

    name: str
    version: str
    facts: Mapping[str, Fact] = field(compare=False, repr=False)

    @property
    def key(self) -> str:
        """What `framework_policy` finds a shipped policy by: NAME or NAME@VERSION."""
        return f"{self.name}@{self.version}" if self.version else self.name

    @property
    def label(self) -> str:
        """Name and version in one phrase for people."""
        return f"{self.name} {self.version}".rstrip()

    @property
    def sources(self) -> tuple[str, ...]:
        """The sources of all keys that the file sets, each once."""
        return tuple(dict.fromkeys(fact.source for fact in self.facts.values()))
