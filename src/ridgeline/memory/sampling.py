"""What a diffusion pipeline holds on a device: the weights of its parts, and the widest product of each part's forward.

diffusers keeps every part on the device (`pipe.to("cuda")`), one part at a time (`enable_model_cpu_offload`) or one
layer at a time (`enable_sequential_cpu_offload`). Source: diffusers, docs/source/en/optimization/memory.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ridgeline.facts.mechanisms import constant
from ridgeline.graph.model import Graph, op_params
from ridgeline.graph.ops import AttentionOp, ConvolutionOp, GemmOp, Op

_LAYOUTS = 2  # of a convolution's tensors: as they are stored, and channels last


@dataclass(frozen=True, kw_only=True)
class PipelineModelMemory:
    """One model of a pipeline on one device [byte]: its weights, its largest layer's, and what its forward holds."""

    weights_bytes: float
    layer_bytes: float
    working_bytes: float


@dataclass(frozen=True, kw_only=True)
class SamplingMemory:
    """The least that a device holds of a pipeline [byte], and what it has; `parts` are its models by name.

    A floor: of what lies between operators only the widest product's operands are counted, no kernel's workspace.
    """

    parts: Mapping[str, PipelineModelMemory]
    offload: str
    capacity_bytes: float

    @property
    def peak_bytes(self) -> float:
        """The least held at the fullest moment, with this pipeline's offload [byte]."""
        return self.with_offload(self.offload)

    @property
    def interval_bytes(self) -> tuple[float, float]:
        """The 80 % interval of what is held [byte]: weights are known, what lies between operators is not."""
        working = max(part.working_bytes for part in self.parts.values())
        low, high = (constant(f"interval.sampling.{end}") for end in ("low", "high"))
        return self.peak_bytes + (low - 1.0) * working, self.peak_bytes + (high - 1.0) * working

    @property
    def fits(self) -> bool:
        """Whether that much is there."""
        return self.peak_bytes <= self.capacity_bytes

    @property
    def moved_bytes(self) -> float:
        """What one forward of all parts copies to the device [byte]: nothing where all stay there."""
        return 0.0 if self.offload == "none" else sum(part.weights_bytes for part in self.parts.values())

    def with_offload(self, offload: str) -> float:
        """The least held at the fullest moment where parts leave the device so [byte]."""
        working = max(part.working_bytes for part in self.parts.values())
        if offload == "none":
            return sum(part.weights_bytes for part in self.parts.values()) + working
        return max(
            part.working_bytes + (part.weights_bytes if offload == "model" else part.layer_bytes)
            for part in self.parts.values()
        )


def part_of(
    graph: Graph, *, element_bytes: float, weight_bytes: float, copies: float = 1.0, share: float = 1.0
) -> PipelineModelMemory:
    """A model's weights, `share` of its layers' on a device, and its forward's widest product on `copies` inputs.

    Convolutions hold their input and output twice: tensor cores take channels last, and cuDNN copies tensors that are
    not (NVIDIA, Convolutional Layers User's Guide, Tensor Layouts In Memory).
    """
    ends = [*graph.embedding, *graph.head]
    layers = [list(graph.blocks[name].ops) for name in graph.layers]
    sizes = [sum(op_params(op, 1) for op in ops) for ops in layers]
    widest = max(map(_operands, [*ends, *(op for block in graph.blocks.values() for op in block.ops)]), default=0.0)
    return PipelineModelMemory(
        weights_bytes=weight_bytes * (sum(op_params(op, 1) for op in ends) + share * sum(sizes)),
        layer_bytes=weight_bytes * max(sizes, default=0),
        working_bytes=element_bytes * copies * widest,
    )


def kept_elements(graph: Graph) -> float:
    """Keys and values of one input at all layers whose patches attend to each other [1]: 2 T D a layer."""
    layers = [graph.blocks[name] for name in graph.layers]
    seen = [op for block in layers for op in block.ops if isinstance(op, AttentionOp) and op.positions >= op.rows]
    return sum(op.positions * op.kv_heads * (op.qk_dim + op.v_dim) for op in seen)


def clip_params(hidden: int, layers: int) -> int:
    """Parameters of a text encoder of CLIP [1]: 49,408 words at 77 places, feed-forwards of four times its width.

    >>> clip_params(768, 12)  # openai/clip-vit-large-patch14
    123060480
    """
    attention, feed, norms = 4 * hidden * (hidden + 1), hidden * (8 * hidden + 5), 4 * hidden
    return (49_408 + 77) * hidden + layers * (attention + feed + norms) + 2 * hidden


def _operands(op: Op) -> float:
    """Elements that a product or an attention reads and writes, its weight left out, for one input [1]."""
    if isinstance(op, ConvolutionOp):
        return _LAYOUTS * op.rows * (op.k * op.groups / op.taps + op.n * op.groups)
    if isinstance(op, GemmOp):
        return float(op.k + op.n)
    if isinstance(op, AttentionOp):
        return (op.rows * op.heads + op.positions * op.kv_heads) * (op.qk_dim + op.v_dim)
    return 0.0
