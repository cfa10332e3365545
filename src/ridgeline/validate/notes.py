"""A row of training while it is read, facts that sources put into notes ('vp=4; ga=8'), and what a model cell says."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from ridgeline.errors import InputError
from ridgeline.facts import readings
from ridgeline.facts.programs import TrainingProgram
from ridgeline.facts.published_plans import PublishedPlan, published_plan
from ridgeline.facts.readings import Reading, Value, reading
from ridgeline.facts.records import Accelerator
from ridgeline.validate.rows import Row

_PAIR = re.compile(r"([A-Za-z][\w .-]*?)\s*=\s*(\S[^;,|]*)")
_NUMBER = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*([kKMBT]?)\b")
_SCALE = {"": 1.0, "k": 1e3, "K": 1e3, "M": 2.0**20, "B": 1e9, "T": 1e12}
"""'4M tokens' of a batch is 4 * 2**20: sources that print both give 1024 x 4096 and 2048 x 2048."""


@dataclass(frozen=True, kw_only=True)
class Notes:
    """The notes of one row, with what it also reports: key = value pairs, switches and the text itself."""

    text: str
    pairs: Mapping[str, str]
    switches: frozenset[str]

    def number(self, *keys: str) -> float | None:
        """The number under the first of `keys` that is given, 'k', 'M' applied."""
        for key in keys:
            match = _NUMBER.match(self.pairs.get(_key(key), ""))
            if match:
                return float(match[1]) * _SCALE[match[2]]
        return None

    def count(self, *keys: str) -> int | None:
        """The whole number under the first of `keys` that is given [1]."""
        value = self.number(*keys)
        return None if value is None or value < 1 else round(value)

    def word(self, key: str) -> str:
        """The text under a key, '' when absent."""
        return self.pairs.get(_key(key), "")

    def says(self, pattern: str) -> bool:
        """Whether the text matches a pattern, case ignored."""
        return re.search(pattern, self.text, re.IGNORECASE) is not None

    def found(self, pattern: str) -> int | None:
        """The first group of a pattern as a count [1]."""
        match = re.search(pattern, self.text, re.IGNORECASE)
        return int(match[1]) if match and match[1] and int(match[1]) >= 1 else None

    def tokens(self, *patterns: str) -> float | None:
        """A number of tokens such as '4M' in 'global bs = 4M tokens' [token]."""
        for pattern in patterns:
            match = re.search(pattern, self.text, re.IGNORECASE)
            if match:
                number = _NUMBER.match(match[1])
                if number:
                    return float(number[1]) * _SCALE[number[2]]
        return None


def read_notes(row: Row) -> Notes:
    """The notes and also-reported cells of a row, taken apart.

    Of 'vp=1 (5)', which gives two recipes, the one that the row's `second` names is kept.
    """
    text = "; ".join(part for part in (row.text("notes"), row.text("also_reported")) if part)
    pairs: dict[str, str] = {}
    switches: set[str] = set()
    for part in re.split(r"[;,]\s*", text):
        match = _PAIR.search(part)
        if match is None:
            switches.add(_key(part))
            continue
        pairs.setdefault(_key(match[1]), _recipe(match[2].strip(), second=row.second))
    return Notes(text=text, pairs=pairs, switches=frozenset(switches))


@dataclass(frozen=True, kw_only=True)
class TrainingRow:
    """A row with its notes, the conventions of its program, its device, and what has been assumed so far."""

    row: Row
    notes: Notes
    engine: TrainingProgram
    device: Accelerator
    said: list[str] = field(default_factory=list)

    def reading(self, key: str, **cells: str) -> Reading | None:
        """The first reading of a key that fits the row; what it tells is noted. `cells` replace the row's own."""
        found = readings.reading(key, **self.row.cells_of(**{"program": self.engine.name, **cells}))
        if found is not None and found.told:
            self.said.append(found.told)
        return found

    def settings(self, kind: str, **cells: str) -> dict[str, Value]:
        """Settings of a kind that fit the row, the later of two that share a key; what they tell is noted."""
        return readings.settings(kind, self.said, **self.row.cells_of(**{"program": self.engine.name, **cells}))

    @cached_property
    def published(self) -> PublishedPlan | None:
        """The configuration that the maker of the row published for it; None where none is known.

        Rows of MLPerf that name DeepSpeed ran the reference's code, not the makers'.
        """
        row = self.row
        if re.search(r"deepspeed", row.text("engine"), re.IGNORECASE):
            return None
        return published_plan(
            row.text("model"), device=row.text("hardware"), results=row.text("source"),
            devices=row.count("n_devices") or 0, submitter=row.text("source_where").partition("/")[0],
            stated={name: row.count(name) for name in ("tp", "pp", "cp")},
        )  # fmt: skip


def _key(text: str) -> str:
    return re.sub(r"[\s_]+", "-", text.strip().casefold())


def _recipe(value: str, *, second: bool) -> str:
    both = re.match(r"^(\S+)\s*\(([^()]+)\)", value)
    return both[2] if both and second and _NUMBER.match(both[2]) else value


_TRIMMINGS = re.compile(
    r"\(.*?\)|\b(?:truncated|cut|reduced) to.*$|"
    r"\b(?:squad|fine-?tun(?:e|ing)|finetune|pre-?train(?:ing)?|train|lora\s*r?\d*|qlora|model|"
    r"dense|custom|experimental|initial|final)\b|_finetune|-(?:megatron|deepspeed|flagscale)$",
    re.IGNORECASE,
)


TEXT_FAMILIES = ("recurrent network", "Transformer-XL", "translation transformer", "Longformer", "hybrid state-space")
"""Families of `not_language` that read text all the same: their rows count among those of language models."""


def is_language(name: str) -> bool:
    """Whether a model cell names a language model, one that is refused included; a blank cell names none.

    >>> is_language("ResNet-50"), is_language("Transformer-XL Base"), is_language("Llama 3 8B")
    (False, True, True)
    """
    family = reading("not_language", model=name)
    return bool(name.strip()) and (family is None or family.value in TEXT_FAMILIES)


_RECURRENT = re.compile(r"mamba|rwkv|jamba|hyena|retnet|griffin|zamba|xlstm", re.IGNORECASE)
"""Names of families whose layers, or most of them, are recurrent."""


def as_attention(name: str) -> tuple[str, ...]:
    """What is assumed of a model that is built from its parameters alone though its layers are recurrent."""
    return ("its recurrent layers are taken for attention (assumed)",) if _RECURRENT.search(name) else ()


def meant_by(source: str, name: str) -> str:
    """The model that a source means by a name."""
    found = reading("model_meant", runs=source, model=name)
    return name if found is None else found.text


def refuse_unsupported(name: str) -> None:
    """Raises `InputError` naming the family when a model cell is no language model that can be built."""
    if not name.strip():
        raise InputError("the model is not stated", field="model")
    family = reading("not_language", model=name)
    outside = re.sub(r"\(.*?\)", " ", name)
    if family is not None and family.value not in TEXT_FAMILIES and outside.strip():
        family = reading("not_language", model=outside)  # words in parentheses say which variant
    if family is not None:
        raise InputError(f"'{name}': {family.value} models are not predicted yet", field="model")
    if re.search(r"size not stated|\bexample\b", name, re.IGNORECASE):
        raise InputError(f"'{name}': the size is not stated", field="model")


def plain_name(name: str) -> str:
    """A model cell without organisation, parentheses and words about the job.

    >>> plain_name("Llama2-70B LoRA r16")
    'Llama2-70B'
    """
    text = _TRIMMINGS.sub(" ", name.rsplit("/", 1)[-1] if re.match(r"^[\w.-]+/", name) else name)
    return re.sub(r"\s+", " ", text).strip(" -_")


def catalog_spelling(name: str) -> str:
    """The name under which the catalog may know a plain name."""
    found = reading("catalog_name", model=name)
    return name if found is None else found.text


def named_params(name: str) -> float | None:
    """Parameters that a name states [1], e.g. 32e9 of 'custom dense 32B model'; None when it states none.

    >>> named_params("GPT-like 1T")
    1000000000000.0
    """
    found = re.findall(r"(?<![\d.])(\d+(?:\.\d+)?)\s?([MBT])(?![a-z])", name, re.IGNORECASE)
    if not found:
        return None
    size, unit = found[0]
    return float(size) * {"m": 1e6, "b": 1e9, "t": 1e12}[unit.casefold()]
