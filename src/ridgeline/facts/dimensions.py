"""Dimensions that makers published and how layers of families look, as words of `from_dims`: `data/dimensions.toml`."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from ridgeline.facts import store


@dataclass(frozen=True, kw_only=True)
class PublishedDimensions:
    """Dimensions of a known architecture, as keyword arguments of `from_dims`; `source` says where."""

    dims: Mapping[str, object]
    source: str


@cache
def _table() -> Mapping[str, Any]:
    return tomllib.loads(store.read_text("dimensions.toml"))


def style(name: str) -> Mapping[str, object]:
    """How the layers of a style look, as keyword arguments of `from_dims`: 'llama', 'mpt', 'bert', 'megatron-bert'."""
    found: Mapping[str, object] = _table()["styles"][name]
    return found


def style_of(name: str) -> Mapping[str, object]:
    """How the layers of the family that a model's name belongs to look; those of `from_dims` itself, GPT's, if unknown.

    >>> style_of("Mistral 7B")["norm"], style_of("GPT-3")
    ('rms', {})
    """
    for family in _table()["family"]:
        if re.search(family["pattern"], name, re.IGNORECASE):
            return style(family["style"])
    return {}


def published_dimensions(name: str) -> PublishedDimensions | None:
    """The published dimensions of a plain model name, None when the table has none."""
    for model in _table()["model"]:
        if re.search(model["pattern"], name.strip(), re.IGNORECASE):
            shared = style(model["style"]) if "style" in model else {}
            return PublishedDimensions(dims={**shared, **model["dims"]}, source=model["source"])
    return None
