"""The text model inside a config of several models: pictures or sound are read by others, which are left out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ridgeline.graph.families.registry import FAMILIES, NESTED, TEXTS, WRAPPERS

_KEYS = ("text_config", "llm_config", "language_config", "thinker_config")
"""Where files hold the config of their text model. Source: transformers, get_text_config; InternVL, Ovis: `llm_config`;
DeepSeek-VL2: `language_config`; Qwen-Omni: `thinker_config`, which holds a `text_config`."""


@dataclass(frozen=True, kw_only=True)
class Unwrapped:
    """The config of a text model, the defaults that its own file leaves out, and a word on what is not built."""

    config: Mapping[str, Any]
    defaults: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def unwrapped(config: Mapping[str, Any]) -> Unwrapped:
    """The text model's own config where a config wraps it beside a vision or audio model; else the config as it is.

    Any type is a wrapper whose text model says a known type of its own. A nested config holds only what differs from
    its configuration class, so that the defaults of the class go with it.
    """
    kind = config.get("model_type")
    if not isinstance(kind, str) or kind in FAMILIES:
        return Unwrapped(config=config)
    inner = _inner(config)
    own = None if inner is None else inner.get("model_type")
    if isinstance(own, str):
        known = TEXTS.get(own, own)
        if known not in FAMILIES:
            return Unwrapped(config=config if kind not in WRAPPERS else {**config, "model_type": own})
    elif kind in WRAPPERS:
        known = WRAPPERS[kind]
    else:
        return Unwrapped(config=config)
    fields = config if inner is None else inner  # older files keep the text's fields at the top
    outer = {key: config[key] for key in ("tie_word_embeddings",) if key in config}
    return Unwrapped(
        config={**outer, **fields, "model_type": known},
        defaults=NESTED.get(known, {}) if inner is not None and own in (None, known) else {},
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
