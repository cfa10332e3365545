"""A strategy for each layer, written as runs of neighbouring layers."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from ridgeline.errors import PlanError
from ridgeline.seams.layers import LayerStrategies, LayerStrategy
from ridgeline.seams.recompute import SELECTIVE
from ridgeline.seams.registry import names
from ridgeline.seams.setting import Setting
from ridgeline.seams.technique import param

AS_PLANNED = "plan"


@dataclass(frozen=True, kw_only=True)
class LayerRuns(LayerStrategies):
    """Tensor parallelism, ZeRO stage, sequence parallelism and recompute of each layer, not one for all.

    Galvatron's idea: a stage of the pipeline mixes strategies, since the last layer that still fits with a quicker one
    is worth having. `runs` lists neighbouring layers in order: `8*tp4.zero3.full+24*sp` are 8 layers of tensor
    parallelism over 4 ranks, ZeRO-3 and full recompute, then 24 with sequence parallelism; what a run leaves out is the
    plan's (`plan` where it leaves out all). Data parallelism fills the ranks of a stage: tp x dp is the same for all
    layers, as are the sequences in a pipeline slot, pipeline, context and expert parallelism. The embedding, the head
    and what stages hand on are in the plan's own strategy; where two neighbours' differ in tensor or sequence
    parallelism, activations are laid out anew, forward and backward, which nothing hides.

    `ridgeline plan --layerwise` finds the runs by dynamic programming under the memory limit (`search.layerwise`).
    Checked against exhaustive search, against plans of one strategy, and beside Hetu-Galvatron's own search on the same
    profile (`benchmarks/layerwise.md`). Left out: a strategy of its own for embedding and head, and for the attention
    and the feed-forward of one layer; exchanges of a stage are cut into as many equal pieces as it has layers.
    """

    key: ClassVar[str] = "layer-strategies"
    source: ClassVar[tuple[str, ...]] = ("galvatron2022", "galvatron2025")
    claims: ClassVar[tuple[str, ...]] = ()
    runs: str = param(
        "", "1", "runs of layers, COUNT*WORD.WORD+..., of the words tpN, zeroN, sp, nosp and rules of recompute"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self._read  # noqa: B018  a bad text is refused where it is written

    def axes(self, setting: Setting) -> tuple[str, ...]:
        """None: runs are found by a search of their own, `ridgeline plan --layerwise`."""
        return ()

    def by_layer(self, layers: int) -> Sequence[LayerStrategy]:
        """The strategy of each layer; raises `PlanError` where the runs are of another number of layers."""
        if not self.runs:
            return (LayerStrategy(),) * layers
        found = [strategy for count, strategy in self._read for _ in range(count)]
        if len(found) != layers:
            raise PlanError(f"layer-strategies: runs of {len(found)} layers, the model has {layers}")
        return found

    @cached_property
    def _read(self) -> list[tuple[int, LayerStrategy]]:
        return [_run(text.strip()) for text in self.runs.split("+")] if self.runs else []


def _run(text: str) -> tuple[int, LayerStrategy]:
    found = re.fullmatch(r"(\d{1,5})\*([\w.-]+)", text)
    if found is None or not int(found[1]):
        raise PlanError(
            f"layer-strategies: '{text[:40]}' is no run of layers; write it as 8*tp4.zero3.full, joined by +"
        )
    given: dict[str, int | bool | str] = {}
    for word in found[2].split("."):
        name, value = _word(word)
        if name in given:
            raise PlanError(f"layer-strategies: '{text[:40]}' says {name} twice; leave one of them out")
        if name:
            given[name] = value
    return int(found[1]), LayerStrategy(**given)  # type: ignore[arg-type]


def _word(word: str) -> tuple[str, int | bool | str]:
    number = re.fullmatch(r"(tp|zero)(\d{1,5})", word)
    if number and ((number[1] == "tp" and int(number[2])) or (number[1] == "zero" and int(number[2]) <= 3)):
        return number[1], int(number[2])
    if word in ("sp", "nosp"):
        return "sequence_parallel", word == "sp"
    rules = (SELECTIVE, *names("recompute"))
    if word in rules:
        return "recompute", word
    if word == AS_PLANNED:
        return "", ""
    raise PlanError(
        f"layer-strategies: '{word[:40]}' is unknown; it has tpN, zero0 to zero3, sp, nosp, plan, {', '.join(rules)}"
    )


def runs_text(strategies: Sequence[LayerStrategy]) -> str:
    """Strategies of layers in order as `runs`."""
    texts: list[list[str | int]] = []
    for one in strategies:
        words = [] if one.tp is None else [f"tp{one.tp}"]
        words += [] if one.zero is None else [f"zero{one.zero}"]
        words += [] if one.sequence_parallel is None else ["sp" if one.sequence_parallel else "nosp"]
        words += [] if one.recompute is None else [one.recompute]
        text = ".".join(words) or AS_PLANNED
        if texts and texts[-1][1] == text:
            texts[-1][0] = int(texts[-1][0]) + 1
        else:
            texts.append([1, text])
    return "+".join(f"{count}*{text}" for count, text in texts)
