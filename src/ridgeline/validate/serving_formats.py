"""Number formats of serving rows: what a precision cell means for weights, attention and cache."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace

from ridgeline.cost.formats import FORMS, by_bits, form
from ridgeline.errors import DomainError, InputError
from ridgeline.facts.policies import version_key
from ridgeline.facts.readings import reading
from ridgeline.facts.records import Accelerator
from ridgeline.graph.checkpoint import checkpoint_weights, served_weights
from ridgeline.graph.model import Model
from ridgeline.validate.rows import Row
from ridgeline.validate.serving_words import whole

GGUF = tuple(name for name, what in FORMS.items() if what.whole)
"""Formats of llama.cpp's files: a cell that begins with one means it, and `q4` or `q5` alone their `_k`."""


_WIDE = ("fp16", "f16", "bf16", "16-bit", "float16", "bfloat16")


@dataclass(frozen=True, kw_only=True)
class ServedPrecision:
    """Formats of a row: `weights`, `other` (attention's products where they differ) and `kv`, '' for 16 bits."""

    weights: str
    other: str = ""
    kv: str = ""
    assumptions: tuple[str, ...] = ()

    @property
    def weight_bytes(self) -> float:
        """Size of one weight, scales included [byte]."""
        return form(self.weights).weight_bytes if self.weights else 2.0


def _plainly(cell: str) -> str:
    """The word for a format that a longer one stands for, itself where none does."""
    found = reading("format_word", words=cell)
    return cell if found is None else found.text


def precision_of(row: Row, model: Model, part: Accelerator, engine: str, release: str = "") -> ServedPrecision:
    """The formats that a row states or its source implies; raises `InputError` for a word that means none."""
    cell = re.sub(r"\(.*?\)", "", row.text("precision_weights")).strip().casefold()
    cell, beside = _beside_cache(cell)
    stated = _weights(_plainly(cell), model, engine) if cell else _unstated(row, model, part, engine)
    stated = _fitting(stated, row, model, part, engine) if cell else stated
    stated = replace(stated, kv=stated.kv or beside)
    kv, more = _cache(row, stated, engine, release)
    return ServedPrecision(weights=stated.weights, other=stated.other, kv=kv, assumptions=(*stated.assumptions, *more))


_CACHE_BITS = {"4": "q4_0", "8": "int8", "16": "bf16"}


def _beside_cache(cell: str) -> tuple[str, str]:
    """A word for weights and inputs, and the cache's format where the same word tells it: 'w4a8kv4'."""
    match = re.match(r"^(w\d+a\d+)[- ]?kv(4|8|16)$", cell)
    return (match[1], _CACHE_BITS[match[2]]) if match else (cell, "")


def _fitting(stated: ServedPrecision, row: Row, model: Model, part: Accelerator, engine: str) -> ServedPrecision:
    """The checkpoint's own format where 16 bits, which a row states, are more than its devices hold and that is not.

    A row that was measured has run: such cells say in which format activations were.
    """
    own, count = checkpoint_weights(model.config), whole(row, "n_devices")
    if stated.weights not in ("bf16", "fp16") or not own or count is None:
        return stated
    held = count * part.memory_bytes
    found = _weights(_plainly(own), model, engine)
    if model.graph.params * stated.weight_bytes <= held or model.graph.params * found.weight_bytes > held:
        return stated
    said = f"{stated.weights} weights are more than {count} devices hold: {own}, as the checkpoint's, assumed"
    return replace(found, assumptions=(*found.assumptions, said))


def _weights(cell: str, model: Model, engine: str) -> ServedPrecision:
    if cell in ("fp4", "nvfp4", "fp8") and checkpoint_weights(model.config) == "w4a16_mxfp4":
        own = _weights("mxfp4", model, engine)  # who trained it published no other; tables name what products take in
        called = f"{cell}: experts in mxfp4, as the checkpoint's own"
        return replace(own, assumptions=(*own.assumptions, called))
    told = reading("served_format", program=engine, model=model.name.casefold(), words=cell)
    if told is not None:
        weights, _, other = told.text.partition(" ")
        return ServedPrecision(weights=weights, other=other, assumptions=(told.told,) if told.told else ())
    plain = cell.removeprefix("ud-")  # mixtures of formats that Unsloth names after the usual one
    found = next((word for word in GGUF if plain.startswith(word)), f"{cell}_k" if cell in ("q4", "q5") else "")
    if found:
        said = (f"{cell.upper()}: {8 * form(found).weight_bytes:g} bits a weight, products in 16 bits",)
        return ServedPrecision(weights=found, assumptions=said)
    return _small(cell, engine)


def _small(cell: str, engine: str) -> ServedPrecision:
    """Formats of a few bits a weight, and the words of formats themselves."""
    match = re.match(r"^exl2-(\d+(?:\.\d+)?)bpw$", cell)
    if match and 1 <= float(match[1]) <= 8:
        said = (f"{match[1]} bits a weight, products in 16 bits",)
        return ServedPrecision(weights=by_bits(float(match[1])), assumptions=said)
    few = reading("weight_bits", program=engine, words=cell)
    if few is not None:
        said = (f"{few.number:g} bits a weight with scales, products in 16 bits",)
        return ServedPrecision(weights=by_bits(few.number), assumptions=said)
    if re.match(r"^(?:gptq|awq)|^int4|^w4a16|^4-?bit", cell):
        group = re.search(r"g(\d+)$", cell)
        name = by_bits(4 + 20 / int(group[1])) if group and int(group[1]) else "int4_wo"
        said = (f"{8 * form(name).weight_bytes:.4g} bits a weight with scales, products in 16 bits",)
        return ServedPrecision(weights=name, assumptions=said)
    return ServedPrecision(weights=_form_name(cell, "precision_weights"))


def _form_name(cell: str, field: str) -> str:
    try:
        return form(cell).name
    except DomainError as error:
        raise InputError(str(error), field=field) from None


def _unstated(row: Row, model: Model, part: Accelerator, engine: str) -> ServedPrecision:
    """The format where the cell is blank: the engine's usual, the submission's, else the checkpoint's own."""
    usual = reading("served_format_unstated", program=engine)
    if usual is not None:
        return ServedPrecision(weights=_weights(usual.text, model, engine).weights, assumptions=(usual.told,))
    bits = reading("served_bits_unstated", program=engine)
    if bits is not None:
        return ServedPrecision(weights=by_bits(bits.number), assumptions=(bits.told,))
    rates = part.peak_flop_per_s
    fits = "fits" if model.graph.params < (whole(row, "n_devices") or 1) * part.memory_bytes else ""
    submitted = reading("submitted_format", runs=row.source, device=" ".join((part.architecture, *rates)), words=fits)
    if submitted is not None:
        weights, _, kv = submitted.text.partition(" ")
        return ServedPrecision(weights=weights, kv=kv, assumptions=(submitted.told,))
    own = served_weights(model, rates)[0]
    if not own:
        return ServedPrecision(weights="bf16", assumptions=("precision not stated: 16 bits assumed",))
    found = _weights(_plainly(own), model, engine)
    return replace(found, assumptions=(*found.assumptions, f"precision not stated: {own}, the checkpoint's own"))


def _cache(row: Row, weights: ServedPrecision, engine: str, release: str) -> tuple[str, tuple[str, ...]]:
    cell = row.text("precision_kv").strip().casefold()
    if cell in _WIDE:
        return "bf16", ()
    if cell == "auto":
        return "", ()
    if cell in ("int4", "4-bit"):
        return "q4_0", ("cache in 4 bits with a scale to 32 numbers, as q4_0",)
    cell = _plainly(cell)
    apart = re.fullmatch(r"k(?:eys)? (\S+?),? v(?:alues)? (\S+)", cell)
    if apart:
        sides = ["bf16" if name in _WIDE else _form_name(name, "precision_kv") for name in apart.groups()]
        bits = sum(form(name).weight_bytes for name in sides) * 4
        nearest = min(("q4_0", "q8_0", "bf16"), key=lambda name: abs(math.log(8 * form(name).weight_bytes / bits)))
        if sides[0] == sides[1]:
            return sides[0], ()
        return nearest, (f"cache: keys in {apart[1]}, values in {apart[2]}, priced as {nearest} each",)
    if cell == "k q4_0":
        return "int8", ("cache: keys in q4_0, values in 16 bits, priced as 8 bits each",)
    if cell:
        return _form_name(cell, "precision_kv"), ()
    if weights.kv:
        return weights.kv, ()
    since = reading("checkpoint_cache", program=engine, words=weights.weights)
    if since is not None and version_key(release) >= version_key(since.text):
        return "fp8", ("cache in fp8: kv_cache_quant_algo of ModelOpt's fp8 and NVFP4 checkpoints",)
    return "", ()
