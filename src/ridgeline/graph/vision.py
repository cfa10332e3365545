"""Residual convolutional networks that classify images; an image counts as one token.

Letters: C channels in, K filters, R x R the filter, P x P the output, all of one image.
Sources: He et al. 2016 (arXiv:1512.03385), table 1; Xie et al. 2017 (arXiv:1611.05431); Hu et al. 2018
(arXiv:1709.01507); Zagoruyko and Komodakis 2016 (arXiv:1605.07146). Strides lie on the 3 x 3 filters ("v1.5").
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from math import ceil

from ridgeline.errors import UnknownNameError
from ridgeline.facts.store import toml_records
from ridgeline.graph.model import Block, Model, network_of
from ridgeline.graph.ops import CrossEntropyOp, Op, Region, Split, elementwise
from ridgeline.graph.parts import linear
from ridgeline.graph.pixels import kept, product

IMAGE, CLASSES = 224, 1000  # pixels of a side and classes of ImageNet
STEM, EXPANSION, SQUEEZE = 64, 4, 16  # filters of the stem; widening of a bottleneck; narrowing of a squeeze


class Turned(Enum):
    """Which tensors change their layout around convolutions: none, what they read, or what they write as well.

    NONE holds channels last, FIRST channels first, as vector units read them.
    """

    NONE = "none"
    FIRST = "first"
    INPUTS = "inputs"
    BOTH = "both"


GROUP_WIDTHS = (1, 4, 8, 16, 32)
"""Channels of a group that cuDNN has matrix kernels for where channels come last: those of ResNeXt, which is quick in
that layout where groups of other widths are not (assumed; pytorch/pytorch, issue 70954). Others run in its
conv2d_grouped_direct_kernel and wgrad2d_grouped_direct_kernel (issue 34977)."""

FIRST_LOADS = 2.0
"""Loads for a multiplication where each channel has a filter and channels come first: PyTorch's own kernels read the
filter's point and the input's each time (aten/src/ATen/native/cuda/DepthwiseConv2d.cu, forward and both gradients)."""


@dataclass(frozen=True, kw_only=True)
class Residual:
    """Blocks of each of four stages; bottlenecks or pairs of 3 x 3; groups and their width; squeeze and excitation."""

    depths: tuple[int, int, int, int]
    bottleneck: bool = True
    groups: int = 1
    width: int = 64  # filters of one group of the first stage
    squeeze: bool = False


RESIDUAL = toml_records("networks.toml", "residual", Residual)


def residual(name: str, *, turned: Turned = Turned.NONE, fused: bool = False, counted: bool = False) -> Model:
    """A residual network by name.

    Tensors that hold channels first are `turned` to channels last, as matrix units read them, at every convolution.
    With `fused` one kernel norms the last convolution of a block, adds the shortcut and rectifies; norms whose
    statistics are `counted` get them from the convolution before.

    >>> residual("resnet-50").graph.params
    25557032
    """
    net = Layers(turned=turned, fused=fused, counted=counted)
    stages = net.stages(name, IMAGE)
    last = stages[-1]
    return network_of(
        name, "residual", [block for stage in stages for block in stage.blocks], hidden=last.channels * last.side**2,
        vocab=CLASSES, source="table 1 of the paper", embedding=net.stem(IMAGE),
        head=head_ops(last.channels, last.side), dims={"classes": CLASSES, "image": IMAGE},
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class VisionStage:
    """Blocks of one stage in order, and the channels and side of what it gives."""

    blocks: tuple[Block, ...]
    channels: int
    side: int


@dataclass(frozen=True, kw_only=True)
class Layers:
    """Makes operators; `turned` and `fused` as in `residual`.

    With `frozen` norms are a scale and a shift that are not trained; fused, they ride in the convolution's epilogue.
    Under `autocast` layer norms, softmax and the sums between layers are in fp32, products in 16 bits. With `curved`
    activations other than ReLU, whose gradients need their input, each keeps it, unless fused. Statistics of a norm
    may be `counted` in the epilogue of the convolution before it, where its results are written.
    """

    turned: Turned
    fused: bool
    frozen: bool = False
    autocast: bool = False
    curved: bool = False
    counted: bool = False

    def stages(
        self, name: str, image: int, *, strides: tuple[int, ...] = (1, 2, 2, 2), untrained: int = 0
    ) -> list[VisionStage]:
        """Stages of a residual network on images of `image` pixels a side, the first `untrained` forward alone.

        Each stage divides the side by its stride; fewer strides give fewer stages.
        """
        if name not in RESIDUAL:
            raise UnknownNameError("residual network", name, RESIDUAL)
        spec, found = RESIDUAL[name], []
        channels, side = STEM, ceil(image / 4)
        for stage, stride in enumerate(strides):
            filters = STEM * 2**stage * (EXPANSION if spec.bottleneck else 1)
            made = []
            for place in range(spec.depths[stage]):
                title = f"stage-{stage + 1}" + ("" if place else "-first")
                ops = self.block(spec, stage, channels, filters, side, 1 if place else stride)
                if stage < untrained:
                    ops = [replace(op, frozen=True, saved=()) for op in ops]
                made.append(Block(name=title, ops=tuple(ops)))
                channels, side = filters, side if place else ceil(side / stride)
            found.append(VisionStage(blocks=tuple(made), channels=channels, side=side))
        return found

    def convolution(
        self,
        name: str,
        channels: int,
        filters: int,
        size: int,
        side: int,
        *,
        stride: int = 1,
        groups: int = 1,
        bias: bool = False,
        across: int | None = None,
        out: int | None = None,
    ) -> list[Op]:
        """A convolution from `side` pixels to `out` (side / stride), as an implicit product.

        Its filter has `size` x `size` points, or `size` x `across`.
        """
        out = ceil(side / stride) if out is None else out
        taps = size * (size if across is None else across)
        plain = self.turned is Turned.NONE
        op = product(
            name, channels // groups, filters // groups, out * out, taps=taps, stride=stride, groups=groups,
            loads=1.0 if plain else FIRST_LOADS, leaf=channels == 3, saved=(kept(channels * side * side),),
            direct=plain and groups > 1 and filters // groups not in GROUP_WIDTHS,
            params=channels // groups * taps * filters + filters * bias,
        )  # fmt: skip
        if groups == channels:
            return [op]  # a depthwise convolution is no product: its kernels read either layout
        return [op, *self.turn(f"{name}.layout", channels * side * side, filters * out * out)]

    def turn(self, name: str, entering: int, leaving: int) -> list[Op]:
        """The input turned in forward, and it and the output's gradient in backward; with both, results turned back."""
        if self.turned in (Turned.NONE, Turned.FIRST):
            return []
        back = self.turned is Turned.BOTH
        moved, again = entering + leaving * back, entering + leaving + entering * back
        return [elementwise(name, moved, moved, again, again)]

    def norm(self, name: str, channels: int, side: int, *, active: bool, joined: bool = False) -> Op:
        """A batch norm, or the scale and shift that a frozen one is, with its ReLU."""
        if not self.frozen:
            return normalise(
                name, channels, side, active=active, joined=joined, curved=self.curved and not self.fused,
                counted=self.counted,
            )  # fmt: skip
        elements = channels * side**2
        forward = 0 if self.fused else elements
        return elementwise(
            name, forward + joined * elements, forward, (1 + active) * elements, elements, kernels=2 + active
        )

    def stem(self, image: int) -> list[Op]:
        """A 7 x 7 convolution of the image at stride 2, its norm, and the largest of 3 x 3 at stride 2."""
        side = ceil(image / 2)
        elements, pooled = STEM * side**2, STEM * ceil(side / 2) ** 2
        return [
            *self.convolution("stem", 3, STEM, 7, image, stride=2),
            self.norm("stem_norm", STEM, side, active=True),
            elementwise("stem_pool", elements, pooled),
        ]

    def block(self, spec: Residual, stage: int, channels: int, filters: int, side: int, stride: int) -> list[Op]:
        """Convolutions and norms of one residual block, its shortcut, and their sum."""
        out, width = ceil(side / stride), spec.width * spec.groups * 2**stage
        steps: tuple[tuple[int, int, int, int, int, int], ...] = (
            (channels, filters, 3, side, stride, 1),
            (filters, filters, 3, out, 1, 1),
        )
        if spec.bottleneck:
            steps = (
                (channels, width, 1, side, 1, 1),
                (width, width, 3, side, stride, spec.groups),
                (width, filters, 1, out, 1, 1),
            )
        ops: list[Op] = []
        for number, (c, k, size, at, step, groups) in enumerate(steps, start=1):
            ops += self.convolution(f"conv{number}", c, k, size, at, stride=step, groups=groups)
            joined = self.fused and number == len(steps) and not spec.squeeze
            ops.append(self.norm(f"norm{number}", k, ceil(at / step), active=number < len(steps), joined=joined))
        if spec.squeeze:
            ops += squeeze_ops(filters, out, filters // SQUEEZE, fused=self.fused)
        if stride > 1 or channels != filters:
            ops += self.convolution("shortcut", channels, filters, 1, side, stride=stride)
            ops.append(self.norm("shortcut_norm", filters, out, active=False))
        return ops if self.fused and not spec.squeeze else [*ops, _sum(filters * out**2)]


def normalise(
    name: str, channels: int, side: int, *, active: bool, joined: bool = False, curved: bool = False,
    counted: bool = False,
) -> Op:  # fmt: skip
    """A batch norm, with its ReLU: statistics and result read the input; backward reads input and gradient twice.

    Unfused, statistics, norm and ReLU are three passes; statistics that were `counted` take none. A norm `joined` with
    the shortcut reads that as well, and hands back its gradient. It keeps its input, and that of a `curved` function; a
    ReLU's output is kept by its reader.
    """
    elements = channels * side**2
    return elementwise(
        name, (2 + joined - counted) * elements, elements, 4 * elements, (1 + joined) * elements,
        kept=elements * (1 + (curved and active)), kernels=3 if active else 1, params=2 * channels,
    )  # fmt: skip


def _sum(elements: int) -> Op:
    """The shortcut added and ReLU; backward masks one gradient and adds those of both ways."""
    return elementwise(
        "residual", 2 * elements, elements, 2 * elements, elements, kept=elements, element_bytes=1, kernels=2
    )


def squeeze_ops(channels: int, side: int, narrow: int, *, fused: bool = False) -> list[Op]:
    """Means of all channels, two linear layers over a `narrow` width, and the product with their sigmoid.

    Backward of the product makes two gradients: one kernel each, and the sum of one over pixels, where it is not
    `fused`; that of the mean is spread over the pixels and then added to the other.
    """
    elements, more = channels * side**2, 0 if fused else 1
    return [
        elementwise("squeeze", elements, channels, channels + 2 * more * elements, (1 + more) * elements),
        linear("excite_down", channels, narrow, split=Split.NONE, bias=True),
        linear("excite_up", narrow, channels, split=Split.NONE, bias=True),
        elementwise("excite", elements, elements, (2 + 2 * more) * elements, (1 + more) * elements, kept=elements),
    ]  # fmt: skip


def head_ops(channels: int, side: int) -> list[Op]:
    """Mean over pixels, classes, loss."""
    elements = channels * side**2
    return [
        elementwise("mean", elements, channels),
        linear("classes", channels, CLASSES, split=Split.NONE, bias=True),
        CrossEntropyOp(name="cross_entropy", region=Region.VOCAB, n=CLASSES),
    ]
