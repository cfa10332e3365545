"""What a training framework's policy file may say: one dataclass, whose fields are the keys and their limits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from ridgeline.facts.policy_schema import count as _count
from ridgeline.facts.policy_schema import flag as _flag
from ridgeline.facts.policy_schema import keys_of
from ridgeline.facts.policy_schema import word as _word
from ridgeline.facts.policy_schema import words as _words
from ridgeline.facts.records import Fact

SHARDINGS = ("none", "optimizer", "gradients", "weights")
"""What data-parallel ranks may divide, as ZeRO stages 0 to 3: nothing, and each time more."""
_SCHEDULES = ("gpipe", "1f1b", "interleaved", "zb-h1", "zb-h2", "zb-v", "v-half", "v-min")
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


@dataclass(frozen=True, kw_only=True)
class FrameworkKeys:
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
    schedules: tuple[str, ...] = _words((), "pipeline schedules; none: no pipeline parallelism", *_SCHEDULES)
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
    default_precision: str = _word("", "recipe where none is asked; '' bf16, or what the device has", "", *_PRECISIONS)
    default_execution: str = _word(
        "", "how kernels are launched where nothing is asked; '' compiled", "", "eager", "compiled", "graph"
    )


KEYS = keys_of(fields(FrameworkKeys))


@dataclass(frozen=True, kw_only=True)
class FrameworkPolicy(FrameworkKeys):
    """What one version of a training framework can run and how it does; `facts` tell how each key is known."""

    name: str
    version: str
    facts: Mapping[str, Fact] = field(compare=False, repr=False)

    @property
    def label(self) -> str:
        """Name and version in one phrase for people."""
        return f"{self.name} {self.version}".rstrip()

    @property
    def sources(self) -> tuple[str, ...]:
        """The sources of all keys that the file sets, each once."""
        return tuple(dict.fromkeys(fact.source for fact in self.facts.values()))
