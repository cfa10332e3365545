"""Named launch settings of public benchmarks: rows of `data/recipes.tsv`, each the rules of one source that fit it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from ridgeline.errors import InputError, UnknownNameError
from ridgeline.facts import store
from ridgeline.facts.benchmark_settings import BenchmarkSetting, benchmark_settings
from ridgeline.facts.engine_kernels import release_key

TABLE = "recipes.tsv"
_PATTERNS = ("engine", "model", "device", "precision")


@dataclass(frozen=True, kw_only=True)
class BenchmarkRecipe:
    """One recipe; a blank `engine`, `models`, `device` or `precision` fits any.

    `release` and `day` are those of its newest run, `pools_release` and `pools_day` of its newest run with prefill
    and decode pools; blank where none is known.
    """

    name: str
    code: str
    engine: str
    models: str
    device: str
    precision: str
    release: str
    day: str
    pools_release: str
    pools_day: str
    source: str
    note: str

    @property
    def model(self) -> str:
        """The model as rules read it."""
        return self.models.partition(" ")[0]

    def names(self, *, engine: str, model: str, device: str, precision: str) -> dict[str, str]:
        """What rules are found by: the recipe's own names, those of the run where it has none."""
        run = {"engine": engine, "model": model, "device": device, "precision": precision}
        return {"code": self.code} | {name: getattr(self, name) or run[name] for name in _PATTERNS}

    @property
    def rules(self) -> tuple[BenchmarkSetting, ...]:
        """Its settings, in the order in which the first that fits a run holds."""
        return tuple(rule for rule in benchmark_settings() if rule.code == self.code and self._holds(rule))

    def _holds(self, rule: BenchmarkSetting) -> bool:
        own = ((getattr(rule, name), getattr(self, name)) for name in _PATTERNS)
        return all(not name or re.match(pattern, name, re.IGNORECASE) for pattern, name in own)

    @property
    def versions(self) -> str:
        """The releases that its rules name, first to last; '' where they name none."""
        ends = {end for rule in self.rules for end in rule.versions.split("..") if end and end != "blank"}
        ordered = sorted(ends | ({self.release} - {""}), key=release_key)
        return "" if not ordered else ordered[0] if len(ordered) == 1 else f"{ordered[0]}..{ordered[-1]}"


@cache
def recipes() -> Mapping[str, BenchmarkRecipe]:
    """All recipes by name."""
    found = {row["name"]: BenchmarkRecipe(**row) for row in store.read_tsv(TABLE)}
    for one in found.values():
        key, _, place = one.source.partition(",")
        if key not in store.sources() or not place.strip():
            raise InputError(f"'{one.source}' names no source and place", file=TABLE, field="source")
    return found


def recipe(name: str) -> BenchmarkRecipe:
    """The recipe of that name, whatever its case, `_` for `-`; raises `UnknownNameError` with the nearest names.

    >>> recipe("InferenceX/dsr1_fp8_h200").engine
    'SGLang'
    """
    found = recipes().get(name.strip().casefold().replace("_", "-"))
    if found is None:
        raise UnknownNameError("recipe", name, recipes(), hint="`ridgeline catalog recipes` shows all")
    return found
