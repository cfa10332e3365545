"""From a model cell and stated dimensions to a `Model`: the catalog first, the row's dimensions win.

Letters: L layers, D hidden, H heads, F ffn, V vocabulary.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ridgeline.errors import InputError, RidgelineError
from ridgeline.facts.benchmarks import published_dimensions, style, style_of
from ridgeline.facts.readings import reading
from ridgeline.graph import load as catalog
from ridgeline.graph.build import build, from_dims
from ridgeline.graph.model import Model
from ridgeline.validate.likeness import SAME_SIZE, alike_in_dimensions, alike_in_name
from ridgeline.validate.notes import (
    Notes,
    TrainingRow,
    as_attention,
    catalog_spelling,
    meant_by,
    named_params,
    plain_name,
    refuse_unsupported,
)
from ridgeline.validate.rows import Row

HEAD_DIM = 128  # width of one head in GPT-3 6.7B and above, Llama and Megatron-LM (arXiv:2005.14165, table 2.1)
ASPECT = 128  # D / L of GPT-3 6.7B, 13B and 175B (arXiv:2005.14165, table 2.1)
MEGATRON_VOCAB = 50257  # GPT-2's vocabulary, Megatron-LM's default tokenizer
LLAMA_VOCAB = 32000
_LAYER_KEYS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers", "layers")
_VOCAB_KEYS = ("vocab_size", "padded_vocab_size", "vocab")
_EXPERT_KEYS = ("num_experts", "n_routed_experts", "num_local_experts")


@dataclass(frozen=True, kw_only=True)
class ModelReading:
    """A model with what was assumed about it; `derived` when its dimensions come from a parameter count alone."""

    model: Model
    key: str
    assumptions: tuple[str, ...]
    derived: bool = False


@dataclass(frozen=True, kw_only=True)
class Stated:
    """The dimensions a row states; None where blank. `params` [1]."""

    layers: int | None
    hidden: int | None
    heads: int | None
    vocab: int | None
    params: float | None
    experts: int | None = None


@dataclass(frozen=True, kw_only=True)
class _ModelAsked:
    """What is asked of a row's model: its name, what is stated of it, keyword arguments of `from_dims`, positions.

    Derived dimensions must be multiples of `stages` and `width`, pipeline stages and tensor-parallel width [1].
    """

    name: str
    stated: Stated
    flags: Mapping[str, object]
    seq_len: int | None
    stages: int
    width: int


_BUILT: dict[str, ModelReading] = {}


def program_flags(told: TrainingRow, *, width: int) -> dict[str, object]:
    """Keyword arguments of `from_dims` that a row's program gives by its switches and defaults, for `width` shards.

    A padded vocabulary is a multiple of the program's unit times `width`, a gated feed-forward that is not stated two
    thirds of 4 D.
    """
    row, notes = told.row, told.notes
    flags: dict[str, object] = dict(told.settings("flag"))
    padding, gated, hidden = told.reading("vocab_padding"), told.reading("gated_ffn"), row.count("hidden")
    if padding is not None:
        usual = reading("test_vocab", words=row.text("source_where"))
        vocab = row.count("vocab") or notes.count("vocab-size") or (0 if usual is None else int(usual.number))
        unit = int(padding.number) * width
        flags["vocab"] = math.ceil(vocab / unit) * unit
    if gated is not None and hidden and notes.count("ffn-hidden-size") is None:
        unit = int(gated.number)
        flags["ffn"] = max(unit, int(4 * hidden * 2 / 3 / unit) * unit)
    return flags


def read_model(
    row: Row, notes: Notes, *, seq_len: int | None, stages: int, width: int, known: Mapping[str, object] | None = None
) -> ModelReading:
    """The model of a row, built once for each combination of name, dimensions and flags.

    `seq_len` sizes learned positions; `stages` and `width` are the pipeline and tensor-parallel
    degrees that derived layers and heads must be multiples of. `known` are keyword arguments of
    `from_dims` that the program's habits give.
    """
    name = meant_by(row.text("source"), row.text("model"))
    refuse_unsupported(name)
    known = known or {}
    vocab = known.get("vocab")
    cut = re.search(r"(?:truncated|cut|reduced) to (\d+) layers(?:, (\d+) experts)?", name)
    stated = Stated(
        experts=int(cut[2]) if cut and cut[2] else None,
        layers=row.count("layers") or (int(cut[1]) if cut else None),
        hidden=row.count("hidden"),
        heads=row.count("heads"),
        vocab=vocab if isinstance(vocab, int) else row.count("vocab") or notes.count("vocab-size"),
        params=None if row.number("params_b") is None else (row.number("params_b") or 0.0) * 1e9,
    )
    flags = {**_flags(row, notes), **{field: value for field, value in known.items() if field != "vocab"}}
    asked = _ModelAsked(name=name, stated=stated, flags=flags, seq_len=seq_len, stages=stages, width=width)
    if repr(asked) not in _BUILT:
        _BUILT[repr(asked)] = _read(asked)
    return _BUILT[repr(asked)]


def _read(asked: _ModelAsked) -> ModelReading:
    plain, stated = plain_name(asked.name), asked.stated
    found = None if asked.flags else _from_catalog(plain, stated, asked.seq_len)
    if found is not None:
        return _checked(asked, *found)
    entry = published_dimensions(plain)
    given = _given(stated)
    agrees = entry is not None and all(entry.dims.get(one) == given[one] for one in ("hidden", "heads") if one in given)
    if entry is not None and agrees and not asked.flags:
        model = _explicit({**entry.dims, **_given(stated)}, plain, entry.source, asked.seq_len)
        return _checked(asked, model, (f"dimensions of {plain}: {entry.source}",))
    alike = None if asked.flags else _alike(plain, stated)
    like = None if alike is None else _from_catalog(alike, stated, asked.seq_len)
    if like is not None:
        return _checked(asked, like[0], (f"'{plain}' taken for {alike}, which it is like", *like[1]))
    return _from_numbers(asked, plain)


def _alike(plain: str, stated: Stated) -> str | None:
    """The catalog's model of the dimensions that a row states, or, where it states no width, of its name's family."""
    given = _given(stated)
    if "hidden" in given:
        return alike_in_dimensions(plain, given, stated.params)
    return alike_in_name(plain, stated.params)


def _given(stated: Stated) -> dict[str, object]:
    pairs = {"layers": stated.layers, "hidden": stated.hidden, "heads": stated.heads, "vocab": stated.vocab}
    return {field: value for field, value in pairs.items() if value is not None}


def _from_catalog(plain: str, stated: Stated, seq_len: int | None) -> tuple[Model, tuple[str, ...]] | None:
    """The catalog's model of that name, with the row's layers and vocabulary; None when width or heads differ.

    Also None when the sequence is longer than a learned table of positions: the row's has more rows.
    """
    known = catalog.find(catalog_spelling(plain)) or catalog.find(plain)
    if known is None:
        return None
    model = catalog.load(known)
    dims = model.dims
    learned = "positions" not in style_of(plain)
    if learned and model.max_positions is not None and (seq_len or 0) > model.max_positions:
        return None
    if any(stated_value not in (None, dims.get(field)) for field, stated_value in
           (("hidden", stated.hidden), ("heads", stated.heads))):  # fmt: skip
        return None
    wanted = {"layers": stated.layers, "vocab": stated.vocab, "experts": stated.experts}
    changes = {field: value for field, value in wanted.items() if value is not None and value != dims.get(field)}
    if not changes:
        return model, ()
    if set(changes) == {"vocab"} and _padded(changes["vocab"], dims.get("vocab")):
        return model, (f"vocabulary {changes['vocab']} as {dims['vocab']} of the catalog (padding)",)
    try:
        changed = build(_with(catalog.catalog_config(known), changes), name=known, source=f"catalog {known}, changed")
    except RidgelineError:
        return None
    return changed, (
        f"{known} with " + ", ".join(f"{field} = {value}" for field, value in changes.items()) + " as stated",
    )


def _padded(one: int, other: object) -> bool:
    return isinstance(other, int) and abs(one - other) <= 0.02 * max(one, other)


def _with(config: Mapping[str, object], changes: Mapping[str, int]) -> dict[str, object]:
    """A config with layers, vocabulary or experts changed, per-layer lists cut to the new length."""
    new = dict(config)
    for field, keys in (("layers", _LAYER_KEYS), ("vocab", _VOCAB_KEYS), ("experts", _EXPERT_KEYS)):
        if field not in changes:
            continue
        for key in keys:
            if key in new:
                new[key] = changes[field]
        if field == "layers":
            new |= {k: v[: changes[field]] for k, v in new.items() if isinstance(v, list) and len(v) > changes[field]}
    return new


def _flags(row: Row, notes: Notes) -> dict[str, object]:
    """Architecture flags of Megatron-LM and kin in notes and test names, as keyword arguments of `from_dims`."""
    flags: dict[str, object] = {}
    where = row.text("source_where")
    ffn, groups = notes.count("ffn-hidden-size"), notes.count("num-query-groups")
    experts, top_k = notes.count("num-experts"), notes.count("moe-router-topk")
    experts = experts or notes.found(r"(?<![\w.])(\d+) experts top-?\d")
    top_k = top_k or notes.found(r"experts top-?(\d+)")
    width = notes.count("moe-ffn-hidden-size") or notes.found(r"\bmlp (\d{3,})")
    for field, value in (("ffn", ffn), ("kv_heads", groups), ("experts", experts), ("top_k", top_k)):
        if value is not None:
            flags[field] = value
    if experts is not None and width is not None:
        flags["expert_ffn"] = width
    if "swiglu" in notes.switches or re.search(r"swiglu", where):
        flags |= {"gated": True, "activation": "silu"}
    if "untie-embeddings-and-output-weights" in notes.switches:
        flags["tied"] = False
    if re.search(r"rope_embeddings|_rope_", where):
        flags["positions"] = "rope"
    if "multi-latent-attention" in notes.switches:
        flags["latent"] = True
    return flags


def _from_numbers(asked: _ModelAsked, plain: str) -> ModelReading:
    """A model from stated numbers: dimensions where given, else fitted to the parameter count."""
    name, stated = asked.name, asked.stated
    if re.search(r"\b(?:truncated|cut|reduced) to \d+ layers", name):
        raise InputError(f"'{name}': the dimensions of {plain} are not in the catalog", field="model")
    look = dict(style_of(name))
    said: list[str] = []
    params = stated.params or named_params(plain)
    active = re.search(r"(?<![\w.])A(\d+(?:\.\d+)?)B\b|(\d+(?:\.\d+)?)B active", name)
    if active and params is not None and not asked.flags:
        from ridgeline.validate.serving_models import Mixture, routed

        picked = re.search(r"top[- ]?(?P<top>\d+) of (?P<count>\d+)|(?P<all>\d+) experts,? top[- ]?(?P<met>\d+)", name)
        mixture = Mixture(
            params=params, active=float(active[1] or active[2]) * 1e9, layers=stated.layers, hidden=stated.hidden,
            count=int(picked["count"] or picked["all"]) if picked else None,
            top=int(picked["top"] or picked["met"]) if picked else None,
        )  # fmt: skip
        model, told = routed(plain, mixture, asked.width)
        return _checked(asked, model, list(told), derived=True)
    vocab = stated.vocab or look.pop("vocab", None) or (LLAMA_VOCAB if look.get("gated") else MEGATRON_VOCAB)
    assert isinstance(vocab, int)
    if stated.vocab is None:
        said.append(f"vocabulary not stated: {vocab} assumed")
    layers, hidden = _shape(asked, params, vocab, 16 if look.get("gated") else 12, said)
    heads = stated.heads or _heads(hidden, said)
    dims: dict[str, object] = {**look, "layers": layers, "hidden": hidden, "heads": heads, "vocab": vocab}
    dims |= asked.flags
    if stated.params is not None and stated.hidden is not None and "ffn" not in dims and "experts" not in dims:
        _fit_ffn(dims, stated.params, asked.seq_len, said)
    if dims.get("experts") and dims.get("gated") is None and re.search(r"mixtral", name, re.IGNORECASE):
        dims |= style("llama")
    if dims.pop("latent", False):
        model = _latent(dims, plain)
        ranks = f"kv {dims.get('kv_lora_rank', 32)}, query {dims.get('q_lora_rank', 'none')}"
        said.append(f"latent attention with ranks {ranks} and 128 + 64 per head")
    else:
        said.append(
            "built from dimensions as a " + ("Llama-like" if dims.get("gated") else "Megatron-style") + " model"
        )
        model = _explicit(dims, plain, "dimensions stated in the row", asked.seq_len)
    said.extend(as_attention(name))
    return _checked(asked, model, said, derived=stated.hidden is None)


def _shape(asked: _ModelAsked, params: float | None, vocab: int, squares: int, said: list[str]) -> tuple[int, int]:
    """Layers and width, stated or fitted to the parameters by c L D^2 + V D with D = 128 L.

    c = `squares`: 4 of attention and 8 of a plain or 12 of a gated feed-forward of F = 4 D.
    """
    stated = asked.stated
    if stated.layers is not None and stated.hidden is not None:
        return stated.layers, stated.hidden
    if params is None:
        raise InputError(f"'{asked.name}' states neither dimensions nor parameters", field="model")
    if stated.hidden is not None:
        layers = max(1, round((params - vocab * stated.hidden) / (squares * stated.hidden**2)))
        said.append(f"layers not stated: {layers} fits the parameters")
        return layers, stated.hidden
    layers = stated.layers or max(1, round((params / (squares * ASPECT**2)) ** (1 / 3)))
    if stated.layers is None and asked.stages > 1:
        layers = max(asked.stages, round(layers / asked.stages) * asked.stages)
    width = (-vocab + math.sqrt(vocab**2 + 4.0 * squares * layers * params)) / (2.0 * squares * layers)
    unit = HEAD_DIM * (asked.width if HEAD_DIM * asked.width <= width / 2 else 1)
    hidden = max(HEAD_DIM, round(width / unit) * unit)
    said.append(f"dimensions derived from {params / 1e9:g}e9 parameters: {layers} layers of {hidden} (D = {ASPECT} L)")
    return layers, hidden


def _heads(hidden: int, said: list[str]) -> int:
    heads = (
        max(1, hidden // HEAD_DIM) if hidden % HEAD_DIM == 0 else next(h for h in (16, 8, 4, 2, 1) if hidden % h == 0)
    )
    said.append(f"heads not stated: {heads} assumed (width {hidden // heads} each)")
    return heads


def _fit_ffn(dims: dict[str, object], params: float, seq_len: int | None, said: list[str]) -> None:
    """Unties the embeddings or sets F where the style's parameters are off by more than `SAME_SIZE`."""
    hidden, layers = int(str(dims["hidden"])), int(str(dims["layers"]))
    counted = _explicit(dims, "fit", "fit", seq_len).graph.params
    if abs(counted - params) <= SAME_SIZE * params:
        return
    if dims.get("tied", True):
        untied = _explicit({**dims, "tied": False}, "fit", "fit", seq_len).graph.params
        if abs(untied - params) <= SAME_SIZE * params:
            dims["tied"] = False
            said.append(f"output embedding of its own: fits the {params / 1e9:g}e9 parameters")
            return
    products = 3 if dims.get("gated") else 2
    ffn = 4 * hidden + (params - counted) / (layers * products * hidden)
    rounded = round(ffn / HEAD_DIM) * HEAD_DIM
    if rounded >= HEAD_DIM:
        dims["ffn"] = rounded
        said.append(f"ffn not stated: {rounded} fits the {params / 1e9:g}e9 parameters")


def _explicit(dims: Mapping[str, object], name: str, source: str, seq_len: int | None) -> Model:
    given = dict(dims)
    learned = given.get("positions", "learned") == "learned"
    rows = given.get("max_positions")
    if learned and (not isinstance(rows, int) or rows < (seq_len or 1)):
        given["max_positions"] = seq_len or 2048
    return from_dims(name=name, source=source, **given)  # type: ignore[arg-type]


def _latent(dims: Mapping[str, object], name: str) -> Model:
    """A model with multi-head latent attention, ranks and widths those of Megatron-LM's arguments.

    Source: Megatron-LM megatron/training/arguments.py, '--kv-lora-rank' and neighbours.
    """
    hidden = int(str(dims["hidden"]))
    config: dict[str, object] = {
        "model_type": "deepseek_v3", "hidden_size": hidden, "num_hidden_layers": dims["layers"],
        "num_attention_heads": dims["heads"], "num_key_value_heads": dims["heads"], "vocab_size": dims["vocab"],
        "intermediate_size": dims.get("ffn", 4 * hidden), "q_lora_rank": dims.get("q_lora_rank"),
        "kv_lora_rank": dims.get("kv_lora_rank", 32),
        "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "max_position_embeddings": 4096,
        "tie_word_embeddings": dims.get("tied", True),
    }  # fmt: skip
    experts = dims.get("experts")
    config |= {
        "n_routed_experts": experts or 8, "num_experts_per_tok": dims.get("top_k", 1), "n_shared_experts": 0,
        "moe_intermediate_size": dims.get("expert_ffn", dims.get("ffn", 4 * hidden)),
        "first_k_dense_replace": 0 if experts else dims["layers"], "n_group": 1, "topk_group": 1,
    }  # fmt: skip
    return build(config, name=name, source="dimensions stated in the row")


def _checked(asked: _ModelAsked, model: Model, said: Sequence[str], *, derived: bool = False) -> ModelReading:
    """The model with what was assumed, and a word when its parameters are not those that the row states."""
    stated, counted = asked.stated.params, model.graph.params
    if stated is not None and abs(counted - stated) > SAME_SIZE * stated:
        said = (*said, f"{counted / 1e9:.3g}e9 parameters counted, the row states {stated / 1e9:g}e9")
    return ModelReading(model=model, key=repr(asked), assumptions=tuple(said), derived=derived)
