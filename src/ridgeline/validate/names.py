"""What a model cell says: whether it is a language model, its plain name, the size it names."""

from __future__ import annotations

import re

from ridgeline.errors import InputError
from ridgeline.facts.readings import reading

_TRIMMINGS = re.compile(
    r"\(.*?\)|\btruncated to.*$|"
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
