"""A model from the content of a config.json, or from explicit dimensions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ridgeline.errors import ModelError, UnknownNameError
from ridgeline.facts import store
from ridgeline.graph.checkpoint import quantization
from ridgeline.graph.config import Fields
from ridgeline.graph.families.decoder import Stack, Traits
from ridgeline.graph.layers import graph_of
from ridgeline.graph.model import Graph, Model
from ridgeline.graph.spec import AttentionSpec, GatedDelta, LayerSpec, Lightning, Mlp, Moe, StateSpace

if TYPE_CHECKING:
    from typing import Unpack

    from ridgeline.graph.families.explicit import Dimensions


_TABLE = "families.toml"
_BESIDE = ("reader", "defaults", "renamed")  # columns that are no trait


@dataclass(frozen=True, kw_only=True)
class Family:
    """How to read one `model_type`: a reader `module.function`, traits for it, and defaults of its class.

    `renamed` maps a key that the reader asks for to the one that this family's files hold.
    """

    reader: str
    traits: Traits | None
    defaults: Mapping[str, Any] = field(default_factory=dict)
    renamed: Mapping[str, str] = field(default_factory=dict)

    def read(self, fields: Fields) -> Stack:
        """The model's specs; raises `ModelError` for fields that describe none."""
        module, name = self.reader.split(".")
        function = getattr(import_module(f"ridgeline.graph.families.{module}"), name)
        found: Stack = function(fields) if self.traits is None else function(fields, self.traits)
        return found


@cache
def _tables() -> Mapping[str, Mapping[str, Any]]:
    return store.read_toml(_TABLE)


def types() -> tuple[str, ...]:
    """Names of all types."""
    return tuple(_tables()["types"])


@cache
def family(kind: str) -> Family | None:
    """The family of a type; None where it is not known."""
    row = _tables()["types"].get(kind)
    if row is None:
        return None
    traits = {key: value for key, value in row.items() if key not in _BESIDE}
    reader = row.get("reader", "decoder.decoder")
    return Family(
        reader=reader, traits=Traits.of(traits) if traits or "reader" not in row else None,
        defaults=row.get("defaults", {}), renamed=row.get("renamed", {}),
    )  # fmt: skip


def wrappers() -> Mapping[str, str]:
    """Types whose configs hold a text model beside others, and the type of that model when it does not say."""
    return _tables()["wrappers"]


def texts() -> Mapping[str, str]:
    """Types that text models have inside a wrapper, and the type that they are one of."""
    return _tables()["texts"]


def nested(kind: str) -> Mapping[str, int]:
    """Sizes of a configuration class, which a nested config leaves out where it has the same."""
    found: Mapping[str, int] = _tables()["nested"].get(kind, {})
    return found


EXPLICIT = "explicit"
_SHOWN = 60  # characters of an unknown name that an error repeats
_HINT = (
    "to build it anyway give its dimensions: model_type 'explicit' with layers, hidden, heads, vocab and"
    " where they differ kv_heads, head_dim, ffn, gated, activation, norm, bias, positions, tied, experts, top_k"
)


def build(config: Mapping[str, Any], *, name: str, source: str) -> Model:
    """The model that a config.json describes, read by its `model_type`.

    `name` is for people and errors, `source` says where the config comes from. Fields that the
    file leaves out take the default of the family's configuration class, and `notes` says so.
    """
    if not isinstance(config, Mapping):
        raise ModelError(f"{name}: a config is an object of fields, not {type(config).__name__}")
    whole = config
    text = _unwrapped(config)
    kind, found = _family(text.config, name)
    defaults = {**found.defaults, **text.defaults}
    fields = Fields(values=text.config, where=name, family=kind, defaults=defaults, renamed=found.renamed)
    stack = found.read(fields)
    notes = [*text.notes, *stack.notes, *_quantized(whole)]
    if fields.assumed:
        given = ", ".join(f"{key} = {value}" for key, value in sorted(fields.assumed.items()))
        notes.append(f"not given, so the default of model_type '{kind}': {given}")
    graph = graph_of(stack.embedding_head, stack.layers)
    return Model(
        name=name,
        model_type=kind,
        graph=graph,
        max_positions=stack.max_positions,
        source=source,
        dims=_dims(stack, graph),
        notes=tuple(notes),
        config=whole,
    )


def _quantized(config: Mapping[str, Any]) -> list[str]:
    """A word where the checkpoint's weights are quantized: which of the answers take its format."""
    found = quantization(config)
    if not found:
        return []
    method = found.get("quant_method")
    named = f" ({method[:_SHOWN]})" if isinstance(method, str) else ""
    return [f"the checkpoint is quantized{named}: trained in the precision asked for, served in its format where known"]


def _family(config: Mapping[str, Any], name: str) -> tuple[str, Family]:
    kind = config.get("model_type")
    if not isinstance(kind, str):
        known = ", ".join(sorted(types()))
        raise ModelError(f"{name}: no field 'model_type' of text; known: {known}; {_HINT}")
    found = family(kind)
    if found is None:
        known_types = (*types(), *wrappers())
        raise ModelError(f"{name}: {UnknownNameError('model_type', kind[:_SHOWN], known_types, hint=_HINT)}")
    return kind, found


def from_dims(*, name: str = EXPLICIT, source: str = "explicit dimensions", **dims: Unpack[Dimensions]) -> Model:
    """A decoder or encoder from explicit `Dimensions`; defaults are those of a Megatron-LM GPT.

    >>> gpt3 = from_dims(layers=96, hidden=12288, heads=96, vocab=51200, max_positions=2048)
    >>> gpt3.graph.params
    174615846912
    """
    given = {key: value for key, value in dims.items() if value is not None}
    return build({"model_type": EXPLICIT, "bias": True, **given}, name=name, source=source)


_KEYS = ("text_config", "llm_config", "language_config", "thinker_config")
"""Where files hold the config of their text model. Source: transformers, get_text_config; InternVL, Ovis: `llm_config`;
DeepSeek-VL2: `language_config`; Qwen-Omni: `thinker_config`, which holds a `text_config`."""


@dataclass(frozen=True, kw_only=True)
class _Unwrapped:
    """The config of a text model, the defaults that its own file leaves out, and a word on what is not built."""

    config: Mapping[str, Any]
    defaults: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def _unwrapped(config: Mapping[str, Any]) -> _Unwrapped:
    """The text model's own config where a config wraps it beside a vision or audio model; else the config as it is.

    Any type is a wrapper whose text model says a known type of its own. A nested config holds only what differs from
    its configuration class, so that the defaults of the class go with it.
    """
    kind = config.get("model_type")
    if not isinstance(kind, str) or family(kind) is not None:
        return _Unwrapped(config=config)
    inner = _inner(config)
    own = None if inner is None else inner.get("model_type")
    if isinstance(own, str):
        known = texts().get(own, own)
        if family(known) is None:
            return _Unwrapped(config=config if kind not in wrappers() else {**config, "model_type": own})
    elif kind in wrappers():
        known = wrappers()[kind]
    else:
        return _Unwrapped(config=config)
    fields = config if inner is None else inner  # older files keep the text's fields at the top
    embedding_head = {key: config[key] for key in ("tie_word_embeddings",) if key in config}
    return _Unwrapped(
        config={**embedding_head, **fields, "model_type": known},
        defaults=nested(known) if inner is not None and own in (None, known) else {},
        notes=(f"the text model of '{kind}' alone",),
    )


def _inner(config: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The nested config of the text model; None where there is none."""
    for key in _KEYS:
        found = config.get(key)
        if isinstance(found, Mapping) and found:
            deeper = found.get("text_config")
            return deeper if isinstance(deeper, Mapping) and deeper else found
    return None


def _dims(stack: Stack, graph: Graph) -> dict[str, float | int | str | bool | None]:
    """The dimensions that people name, from the first layer that has each."""
    dims: dict[str, float | int | str | bool | None] = {
        "layers": len(stack.layers),
        "hidden": stack.embedding_head.hidden,
        "vocab": stack.embedding_head.vocab,
        "max_positions": stack.max_positions,
        "tied": stack.embedding_head.tied,
    }
    for layer in stack.layers:
        for key, value in _layer_dims(layer).items():
            dims.setdefault(key, value)
    dims |= {"parameters": graph.params, "active_parameters": graph.active_params}
    return dims


def _layer_dims(layer: LayerSpec) -> dict[str, int | bool | str]:
    dims: dict[str, int | bool | str] = {}
    match layer.mixer:
        case AttentionSpec() as mixer:
            dims |= {"heads": mixer.heads, "kv_heads": mixer.kv_heads, "head_dim": mixer.qk_dim}
            dims |= {"window": mixer.window} if mixer.window else {}
            dims |= {"kv_rank": mixer.latent.kv_rank} if mixer.latent else {}
            dims |= {"chosen_keys": mixer.latent.chosen.top} if mixer.latent and mixer.latent.chosen else {}
            dims |= {"chosen_keys": mixer.blocks.top} if mixer.blocks else {}
            if mixer.entries is not None:
                dims |= {"window": mixer.entries.window}
                dims |= {"chosen_entries": mixer.entries.chosen.top} if mixer.entries.chosen else {}
        case Lightning() as mixer:
            dims |= {"linear_heads": mixer.heads}
        case StateSpace() as mixer:
            dims |= {"state_heads": mixer.heads, "state": mixer.state}
        case GatedDelta() as mixer:
            dims |= {"linear_heads": mixer.value_heads}
        case None:
            pass
    match layer.feed:
        case Mlp() as mlp:
            dims |= {"ffn": mlp.ffn, "gated": mlp.gated, "activation": mlp.activation}
        case Moe() as moe:
            dims |= {"experts": moe.experts, "top_k": moe.top_k, "expert_ffn": moe.expert.ffn}
            dims |= {"shared_experts": moe.shared_count} if moe.shared_count else {}
        case None:
            pass
    return dims
