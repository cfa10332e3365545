"""Checked reading of a config: every field is a whole number, flag or word in range, or a ModelError.

Nothing else may escape from here, whatever the file holds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ridgeline.errors import ModelError, UnknownNameError

LIMIT = 2**40  # above any width, vocabulary or position count; keeps products inside float64
LAYER_LIMIT = 2**14
_SHOWN = 60  # characters of a bad value that an error repeats


def shown(value: object) -> str:
    """A bad value as an error repeats it: short, whatever it is."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # an integer of thousands of digits, a list nested as deep
        text = f"{type(value).__name__} too long to print"
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."


@dataclass(kw_only=True)
class Fields:
    """The fields of one config, the family's defaults under them, and which defaults were used.

    `where` names the config in errors. A field given as null is none where that has a meaning
    (`maybe`), else it takes its default. `renamed` maps a key that the code asks for to the one
    that this family writes.
    """

    values: Mapping[str, Any]
    where: str
    family: str
    defaults: Mapping[str, Any] = field(default_factory=dict)
    renamed: Mapping[str, str] = field(default_factory=dict)
    assumed: dict[str, Any] = field(default_factory=dict)
    index_sets: dict[str, frozenset[int] | None] = field(default_factory=dict)

    def _get(self, keys: Sequence[str]) -> tuple[str, Any]:
        for key in keys:
            for name in (self.renamed.get(key, key), key):
                if self.values.get(name) is not None:
                    return name, self.values[name]
        for key in keys:
            if self.defaults.get(key) is not None:
                self.assumed[key] = self.defaults[key]
                return key, self.defaults[key]
        return keys[0], None

    def fail(self, key: str, value: object, need: str) -> ModelError:
        """The error for a bad value of `key`."""
        error = ModelError(f"{self.where}: {key} = {shown(value)}, needs {need}")
        error.value = value
        return error

    def count(self, *keys: str, low: int = 1, high: int = LIMIT) -> int:
        """A whole number in low..high [1] under the first of `keys` that is given."""
        key, value = self._get(keys)
        if value is None:
            names = " or ".join(f"'{self.renamed.get(name, name)}'" for name in keys)
            raise ModelError(f"{self.where}: no field {names}; model_type '{self.family}' needs it")
        return self._whole(key, value, low, high)

    def maybe(self, *keys: str, low: int = 1, high: int = LIMIT) -> int | None:
        """A whole number, or None where the field is null or absent without a default."""
        if any(key in self.values and self.values[key] is None for key in keys[:1]):
            return None
        key, value = self._get(keys)
        return None if value is None else self._whole(key, value, low, high)

    def _whole(self, key: str, value: object, low: int, high: int) -> int:
        whole = isinstance(value, int) or (isinstance(value, float) and math.isfinite(value) and value == int(value))
        if isinstance(value, bool) or not whole:
            raise self.fail(key, value, "a whole number")
        assert isinstance(value, int | float)
        if not low <= value <= high:
            raise self.fail(key, value, f"a whole number from {low} to {high}")
        return int(value)

    def flag(self, *keys: str, default: bool = False) -> bool:
        """A true or false field."""
        key, value = self._get(keys)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.fail(key, value, "true or false")
        return value

    def word(self, *keys: str, choices: Sequence[str] = (), default: str = "") -> str:
        """A text field, one of `choices` if any are given."""
        key, value = self._get(keys)
        if value is None:
            return default
        if not isinstance(value, str):
            raise self.fail(key, value, "a text")
        if choices and value not in choices:
            text = UnknownNameError(key, value[:_SHOWN], choices, hint="known: " + ", ".join(choices))
            raise ModelError(f"{self.where}: {text}")
        return value

    def share(self, *keys: str, default: float) -> float:
        """A number from 0 to 1 [1]."""
        key, value = self._get(keys)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0.0 <= value <= 1.0:
            raise self.fail(key, value, "a number from 0 to 1")
        return float(value)

    def items(self, key: str) -> Sequence[Any] | None:
        """A list field of at most `LAYER_LIMIT` entries; None when absent."""
        key, value = self._get((key,))
        if value is None:
            return None
        if not isinstance(value, list | tuple) or len(value) > LAYER_LIMIT:
            raise self.fail(key, value, f"a list of at most {LAYER_LIMIT} entries")
        return value

    def indices(self, key: str, *, count: int) -> frozenset[int] | None:
        """A list field of layer indices below `count`, as a set; None when absent."""
        if key not in self.index_sets:
            listed = self.items(key)
            found = None if listed is None else frozenset(self.whole(key, one, high=count - 1) for one in listed)
            self.index_sets[key] = found
        return self.index_sets[key]

    def whole(self, key: str, value: object, *, low: int = 0, high: int = LIMIT) -> int:
        """An entry of a list field as a whole number [1]."""
        return self._whole(key, value, low, high)

    def inner(self, *keys: str, family: str | None = None) -> Fields:
        """A nested object of the config, e.g. text_config; empty when absent."""
        key, value = self._get(keys)
        if value is None:
            value = {}
        if not isinstance(value, Mapping):
            raise self.fail(key, value, "an object of fields")
        return Fields(values=value, where=f"{self.where}: {key}", family=family or self.family)

    def layers(self, *keys: str, low: int = 1) -> int:
        """The number of layers L [1]."""
        return self.count(*keys, low=low, high=LAYER_LIMIT)

    def divide(self, whole_key: str, whole: int, part_key: str, part: int) -> int:
        """whole / part when it divides, e.g. hidden over heads [1]."""
        if whole % part:
            raise ModelError(f"{self.where}: {whole_key} = {whole} is not a multiple of {part_key} = {part}")
        return whole // part

    def grouped(self, heads: int, kv_heads: int, key: str = "num_key_value_heads") -> int:
        """kv_heads, checked to divide heads [1]."""
        if heads % kv_heads:
            raise ModelError(f"{self.where}: {key} = {kv_heads} does not divide the {heads} query heads")
        return kv_heads

    def top_k(self, top_k: int, experts: int, key: str = "num_experts_per_tok") -> int:
        """top_k, checked against the number of experts [1]."""
        if top_k > experts:
            raise ModelError(f"{self.where}: {key} = {top_k} is more than the {experts} experts")
        return top_k
