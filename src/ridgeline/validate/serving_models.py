"""The model of a serving row."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from ridgeline.errors import InputError
from ridgeline.facts.readings import reading
from ridgeline.graph import load as catalog
from ridgeline.graph.build import from_dims
from ridgeline.graph.model import Model
from ridgeline.validate.likeness import SAME_SIZE, alike_in_name
from ridgeline.validate.models import HEAD_DIM, read_model
from ridgeline.validate.notes import Notes, as_attention, catalog_spelling, plain_name, refuse_unsupported
from ridgeline.validate.rows import Row
from ridgeline.validate.serving_words import number, whole

USUAL_HEADS = 8
"""Derived heads are a multiple of it, whatever the row's degree, so that one model keeps its shape over several
(assumed: those of most published models are)."""

_TOP, _APART, _VOCAB, _EXPERT_ASPECT = 8, 0.25, 151936, 64
"""Of mixtures known by their parameters alone: experts that a token meets, least share of its parameters outside them,
words, and width over layers. Those of Qwen3, GLM-4.5, MiniMax M2 and DeepSeek-V3 (assumed)."""

_DENSE_ASPECT, _DENSE_FFN, _TIED_BELOW = 128, 3.5, 4e9
"""Of dense models known by their parameters alone: width over layers, feed-forward over width, parameters up to which
embedding and head are one. Those of Llama 3 and Qwen 2.5 (assumed)."""


def model_of(row: Row) -> tuple[Model, tuple[str, ...]]:
    """The model of a serving row with what was assumed; raises a Ridgeline error when it cannot be built."""
    name = row.text("model").strip()
    refuse_unsupported(name)
    if name.startswith("("):
        raise InputError(f"'{name[:60]}' is not one model", field="model")
    params, active = number(row, "params_b"), number(row, "active_params_b")
    model, said = _known(name, row.source)
    alike = alike_in_name(plain_name(name), None if params is None else params * 1e9) if model is None else None
    if alike is not None:
        model, said = catalog.load(alike), (f"'{plain_name(name)[:40]}' taken for {alike}, which it is like",)
    if model is None:
        if active is not None and params is not None and active < 0.9 * params:
            return routed(name, Mixture(params=params * 1e9, active=active * 1e9), whole(row, "tp") or 1)
        if params is None and not re.search(r"\d\s?[mb]\b", name, re.IGNORECASE):
            raise InputError(f"'{name[:60]}' is not in the catalog; give its params_b", field="model")
        if params is not None and reading("early_family", model=name) is None:
            return _dense(name, params * 1e9, whole(row, "tp") or 1)
        notes = Notes(text="", pairs={}, switches=frozenset())
        plain = Row(line=row.line, id=row.id, cells={each: row.text(each) for each in ("model", "params_b", "source")})
        fitted = read_model(plain, notes, seq_len=None, stages=1, width=math.lcm(whole(row, "tp") or 1, USUAL_HEADS))
        return fitted.model, fitted.assumptions
    counted = model.graph.params
    if params is not None and abs(counted - params * 1e9) > SAME_SIZE * params * 1e9:
        said = (*said, f"{counted / 1e9:.3g}e9 parameters counted, the row states {params:g}e9")
    return model, said


def _built(name: str, width: int, beside: str, layers_of: Callable[[int], float], aspect: float) -> tuple[int, int]:
    """Layers and width of a model of so many parameters [1]: the multiple of the shards' heads nearest to an aspect.

    `layers_of` gives the layers that a width leaves room for, `aspect` is the usual width over layers,
    `beside` what is too large for smaller ones.
    """
    unit, found = HEAD_DIM * math.lcm(width, USUAL_HEADS), []
    for hidden in range(unit, 64 * 1024, unit):
        layers = layers_of(hidden)
        if layers >= 1:
            found.append((abs(math.log(hidden / layers / aspect)), hidden, round(layers)))
    if not found:
        raise InputError(f"'{name[:60]}' is not in the catalog and too small for {beside}", field="model")
    _, hidden, layers = min(found)
    return layers, hidden


def _gated(name: str, layers: int, hidden: int, **more: Any) -> Model:
    """A gated model with eight heads of keys and values, rotated."""
    return from_dims(
        layers=layers, hidden=hidden, heads=hidden // HEAD_DIM, kv_heads=USUAL_HEADS, vocab=_VOCAB, gated=True,
        activation="silu", norm="rms", bias=False, positions="rope", name=plain_name(name),
        source="parameters stated in the row", **more,
    )  # fmt: skip


@lru_cache(maxsize=512)
def _dense(name: str, params: float, width: int) -> tuple[Model, tuple[str, ...]]:
    """A dense model of which only the parameters are known [1]: params = L (2 D^2 + 2 D 8 128 + 3 D 3.5 D) + ends."""
    ends = 1.0 if params < _TIED_BELOW else 2.0

    def layers_of(hidden: int) -> float:
        each = (2.0 + 3.0 * _DENSE_FFN) * hidden**2 + 2.0 * hidden * HEAD_DIM * USUAL_HEADS
        return (params - ends * _VOCAB * hidden) / each

    layers, hidden = _built(name, width, f"{_VOCAB} words", layers_of, _DENSE_ASPECT)
    model = _gated(name, layers, hidden, ffn=round(_DENSE_FFN * hidden), tied=params < _TIED_BELOW)
    said = (
        f"'{name[:40]}' is not in the catalog: {layers} layers of {hidden} with {USUAL_HEADS} heads of keys and values"
        f" (assumed from {params / 1e9:g}e9 parameters)"
    )
    return model, (said, *as_attention(name))


@dataclass(frozen=True, kw_only=True)
class Mixture:
    """What is known of a mixture of experts: parameters, those that a token meets [1], and perhaps its dimensions.

    `count` experts of which `top` are met, in `layers` layers of width `hidden` [1].
    """

    params: float
    active: float
    layers: int | None = None
    hidden: int | None = None
    count: int | None = None
    top: int | None = None


@lru_cache(maxsize=512)
def routed(name: str, known: Mixture, width: int) -> tuple[Model, tuple[str, ...]]:
    """A mixture of experts of which little but the parameters is known, all of them and those that a token meets [1].

    With E experts of which k are met, one over all layers holds (params - active) / (E - k); what is left of `active`
    is attention and the ends, of which width and layers follow by D = 64 L. So both counts hold whatever E is.
    """
    top = known.top or _TOP
    counts = (128, 256, 512) if known.count is None else (known.count,)
    sizes = ((count, (known.params - known.active) / (count - top)) for count in counts if count > top)
    usual = (each for each in sizes if known.count or known.active - top * each[1] >= _APART * known.active)
    count, expert = next(usual, (0, 0.0))
    always = known.active - top * expert
    if not count or always <= 0.0:
        raise InputError(f"'{name[:60]}' is not in the catalog and its experts are not stated", field="model")

    def layers_of(hidden: int) -> float:
        return (always - 2.0 * _VOCAB * hidden) / (2.0 * hidden**2 + 2.0 * hidden * HEAD_DIM * USUAL_HEADS)

    layers, hidden = known.layers, known.hidden
    if layers is None or hidden is None:
        fitted = _built(name, width, f"{count} experts", layers_of, _EXPERT_ASPECT)
        layers, hidden = layers or fitted[0], hidden or fitted[1]
    ffn = max(16, round(expert / (3 * layers * hidden) / 16) * 16)
    model = _gated(name, layers, hidden, tied=False, experts=count, top_k=top, expert_ffn=ffn)
    return model, (
        f"'{name[:40]}' is not in the catalog: {count} experts of which {top} are met, {layers} layers of {hidden} "
        f"(assumed from {known.params / 1e9:g}e9 parameters, {known.active / 1e9:g}e9 active)",
    )


@lru_cache(maxsize=512)
def _known(name: str, source: str) -> tuple[Model | None, tuple[str, ...]]:
    plain = plain_name(name).casefold()
    guide = reading("guide_dimensions", runs=source, model=plain)
    if guide is not None:
        layers, hidden, heads = map(int, guide.text.split())
        words = {"layers": layers, "hidden": hidden, "heads": heads, "vocab": 51200, "max_positions": 2048}
        return from_dims(**words, name=plain, source=guide.source), (guide.told,)  # type: ignore[arg-type]
    alike = reading("same_dimensions", model=plain)
    if alike is not None and catalog.find(alike.text):
        said = () if alike.text == plain else (f"dimensions of {alike.text}",)
        return catalog.load(str(catalog.find(alike.text))), said
    found = catalog.find(catalog_spelling(plain)) or catalog.find(plain)
    return (None, ()) if found is None else (catalog.load(found), ())
