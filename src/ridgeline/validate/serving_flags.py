"""What the note of a serving row quotes, whatever its source: launch flags, counts of requests, lengths that vary."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import fields

from ridgeline.facts.benchmarks import RequestLengths
from ridgeline.facts.readings import readings
from ridgeline.facts.records import Evidence
from ridgeline.plan.engine_options import EngineOptions

_KEY = "engine_flag"
_KINDS = {each.name: str(each.type) for each in fields(EngineOptions)}
_REQUESTS = re.compile(
    r"(?<![\w.])(\d{1,3}(?:,\d{3})+|\d+) (?:requests|prompts)\b(?! *(?:/|per|a second))", re.IGNORECASE
)
MOST_REQUESTS = 10_000_000  # of one run; beyond it a number means something else

_DRAWN = re.compile(r"sharegpt|share[- ]gpt|conversation|lmsys|chat data", re.IGNORECASE)
_ALIKE = re.compile(r"random|synthetic|fixed", re.IGNORECASE)
_LEVELS = (0.0, 0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 0.995)
CONVERSATION = "lengths vary as those of conversations: exponential, at most five times the means (assumed)"


def conversation(prompt: float, output: float, said: str) -> Mapping[str, RequestLengths] | None:
    """Laws of lengths by side where a row says that they vary: it names conversations, or both means are fractions.

    Lengths that all requests share are whole numbers; means [token] of drawn ones are not.
    """
    both = not float(prompt).is_integer() and not float(output).is_integer() and not _ALIKE.search(said)
    if not both and not _DRAWN.search(said):
        return None
    shape = tuple(-math.log1p(-level) for level in _LEVELS)
    means = {"prompt": prompt, "output": output}
    return {
        side: RequestLengths(
            dataset="conversations", mean=mean, levels=(*_LEVELS[:-1], 1.0),
            tokens=tuple(max(1.0, mean * each) for each in shape), source="", evidence=Evidence.ASSUMED, note="",
        )
        for side, mean in means.items()
    }  # fmt: skip


def options_of(note: str) -> EngineOptions:
    """Switches and limits of an engine that a note states, as flags of its command or in words."""
    found: dict[str, int | float | bool] = {}
    for one in readings(_KEY, words=note):
        name = one.key.removeprefix(f"{_KEY}.")
        kind, value = _KINDS[name], one.value
        if isinstance(value, bool):
            found[name] = value
        elif kind.startswith("float"):
            if 0 < float(value) <= 1:
                found[name] = float(value)
        elif float(value) >= 1:
            found[name] = int(float(value))
    return EngineOptions(**found)  # type: ignore[arg-type]


def requests_of(note: str) -> int | None:
    """How many requests a run has, where its note says [1]."""
    match = _REQUESTS.search(note)
    count = int(match[1].replace(",", "")) if match else 0
    return count if 1 <= count <= MOST_REQUESTS else None
