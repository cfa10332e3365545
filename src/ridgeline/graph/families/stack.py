"""What every family returns, and the small steps that families share. Letters: D hidden, L layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ridgeline.graph.config import Fields
from ridgeline.graph.spec import Ends, Layer


@dataclass(frozen=True, kw_only=True)
class Stack:
    """A whole model as specs: its ends, its layers in order, and what should be said of it."""

    ends: Ends
    layers: tuple[Layer, ...]
    max_positions: int | None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Family:
    """How to read one `model_type`: a reader, and the defaults of its configuration class.

    `renamed` maps a key that the reader asks for to the one that this family's files hold.
    """

    read: Callable[[Fields], Stack]
    defaults: Mapping[str, Any] = field(default_factory=dict)
    renamed: Mapping[str, str] = field(default_factory=dict)
