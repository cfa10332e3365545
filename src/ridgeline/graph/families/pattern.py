"""Which layers see a window, a chunk or the whole sequence. Letters: L layers, i index from 0."""

from __future__ import annotations

from dataclasses import dataclass

from ridgeline.graph.config import Fields

_KINDS = ("full_attention", "sliding_attention", "chunked_attention")


@dataclass(frozen=True, kw_only=True)
class Reach:
    """How a family spreads windows over its layers.

    `rule`: 'none'; 'all' layers are windowed; 'late' those from `max_window_layers` on when
    `use_sliding_window` is set (Qwen); 'period' all but every N-th (`period_key`, else `period`);
    'norope' chunked attention with rotary, but every N-th layer full and without (Llama 4).
    A `layer_types` list in the config goes before any rule.
    """

    rule: str = "none"
    period: int = 0
    period_key: str = "sliding_window_pattern"
    full_rotates: bool = True  # Cohere 2 rotates only where a window is


EVERYTHING = Reach()
ALL_WINDOWED = Reach(rule="all")
LATE_WINDOWED = Reach(rule="late")


def reach_of(fields: Fields, reach: Reach, index: int, count: int) -> tuple[int | None, int | None, bool]:
    """Window, chunk and whether q and k rotate, of layer `index` of `count` [token, token]."""
    if reach.rule == "norope":
        return _norope(fields, index, count)
    if reach.rule == "none":
        return None, None, True
    if _kind(fields, reach, index, count) == "sliding_attention":
        window = fields.maybe("sliding_window")
        if window is not None:
            return window, None, True
    return None, None, reach.full_rotates


def _listed(fields: Fields, key: str, index: int, count: int) -> object | None:
    listed = fields.items(key)
    if not listed:
        return None
    if len(listed) != count:
        raise fields.fail(key, listed, f"one entry for each of the {count} layers")
    return listed[index]  # type: ignore[no-any-return]


def _kind(fields: Fields, reach: Reach, index: int, count: int) -> str:
    listed = _listed(fields, "layer_types", index, count)
    if listed is not None:
        if listed not in _KINDS:
            raise fields.fail("layer_types", listed, "entries " + ", ".join(_KINDS))
        return str(listed)
    if reach.rule == "all":
        windowed = True
    elif reach.rule == "late":
        windowed = fields.flag("use_sliding_window") and index >= (fields.maybe("max_window_layers", low=0) or 0)
    else:
        period = fields.maybe(reach.period_key) or reach.period
        windowed = (index + 1) % period != 0
    return "sliding_attention" if windowed else "full_attention"


def _norope(fields: Fields, index: int, count: int) -> tuple[int | None, int | None, bool]:
    listed = _listed(fields, "no_rope_layers", index, count)
    if listed is None:
        interval = fields.maybe("no_rope_layer_interval") or count + 1
        rotates = (index + 1) % interval != 0
    else:
        rotates = bool(fields.whole("no_rope_layers", listed, high=1))
    chunk = fields.maybe("attention_chunk_size")
    kind = _listed(fields, "layer_types", index, count)
    chunked = rotates if kind is None else kind == "chunked_attention"
    return None, chunk if chunked else None, rotates
