"""Every `model_type` that can be built: `data/families.toml`, and the readers of this folder, loaded when asked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from typing import Any

from ridgeline.facts import store
from ridgeline.graph.config import Fields
from ridgeline.graph.families.decoder import Stack, Traits

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
