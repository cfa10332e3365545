"""Number formats of serving rows: what a precision cell means for weights, attention and cache."""

from __future__ import annotations

import re
from collections.abc import Mapping
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

FOUR_BITS = ("blackwell", "cdna4")
"""Architectures whose MLPerf submissions run in four bits."""


@dataclass(frozen=True, kw_only=True)
class Precision:
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


CHECKPOINT_CACHES: Mapping[str, tuple[str, frozenset[str]]] = {
    "TensorRT-LLM": ("0", frozenset({"fp8", "nvfp4"})),
    "vLLM": ("0.14", frozenset({"nvfp4"})),
    "SGLang": ("0.5.4", frozenset({"nvfp4"})),
}
"""Since which release an engine takes the cache's format from ModelOpt's checkpoints where no flag does, and weights
whose checkpoints are ModelOpt's: fp8 of the makers of models is not, but of what TensorRT-LLM loads. Source: vllm, pull
request 29980 of 2025-12 (kv_cache_quant_algo of hf_quant_config.json); sglang, ModelRunner.configure_kv_cache_dtype, in
issue 12298 of 2025-10; releases approximate."""


def precision_of(row: Row, model: Model, part: Accelerator, engine: str, release: str = "") -> Precision:
    """The formats that a row states or its source implies; raises `InputError` for a word that means none."""
    cell = re.sub(r"\(.*?\)", "", row.text("precision_weights")).strip().casefold()
    stated = _weights(_plainly(cell), model, engine) if cell else _unstated(row, model, part, engine)
    stated = _fitting(stated, row, model, part, engine) if cell else stated
    kv, more = _cache(row, stated, engine, release)
    return Precision(weights=stated.weights, other=stated.other, kv=kv, assumptions=(*stated.assumptions, *more))


def _fitting(stated: Precision, row: Row, model: Model, part: Accelerator, engine: str) -> Precision:
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


def _weights(cell: str, model: Model, engine: str) -> Precision:
    name = model.name.casefold()
    if cell in ("fp16", "bf16", "float16", "bfloat16", "16-bit", "f16"):
        return Precision(weights="fp16" if cell in ("fp16", "float16", "f16") else "bf16")
    if cell in ("fp8-block", "fp8_block"):
        return Precision(weights="fp8_block")
    if cell in ("fp4", "nvfp4", "fp8") and checkpoint_weights(model.config) == "w4a16_mxfp4":
        own = _weights("mxfp4", model, engine)  # who trained it published no other; tables name what products take in
        called = f"{cell}: experts in mxfp4, as the checkpoint's own"
        return replace(own, assumptions=(*own.assumptions, called))
    if cell == "fp8":
        if reading("block_fp8", model=name) is not None:
            return Precision(weights="fp8_block", assumptions=("fp8 with scales of blocks of 128, as published",))
        return Precision(weights="fp8")
    if cell in ("fp4", "nvfp4"):
        if reading("attention_kept", model=name) is not None:
            return Precision(weights="nvfp4", other="bf16", assumptions=("attention in 16 bits, as published",))
        return Precision(weights="nvfp4")
    if cell == "mxfp4" and engine == "llama.cpp" and name.startswith("gpt-oss"):
        kept = "experts in mxfp4, attention in 8 bits: 59.02 GiB of gpt-oss-120b (llama-cpp, benches/dgx-spark.md)"
        return Precision(weights="w4a16_mxfp4", other="q8_0", assumptions=(kept,))
    if cell == "mxfp4":
        said = ("experts in mxfp4, the rest in 16 bits, as published",) if name.startswith("gpt-oss") else ()
        return Precision(weights="w4a16_mxfp4", other="bf16" if said else "", assumptions=said)
    found = next((word for word in GGUF if cell.startswith(word)), f"{cell}_k" if cell in ("q4", "q5") else "")
    if found:
        said = (f"{cell.upper()}: {8 * form(found).weight_bytes:g} bits a weight, products in 16 bits",)
        return Precision(weights=found, assumptions=said)
    return _small(cell, engine)


def _small(cell: str, engine: str) -> Precision:
    """Integer formats, where the engine says whether activations are integers too."""
    match = re.match(r"^exl2-(\d+(?:\.\d+)?)bpw$", cell)
    if match and 1 <= float(match[1]) <= 8:
        said = (f"{match[1]} bits a weight, products in 16 bits",)
        return Precision(weights=by_bits(float(match[1])), assumptions=said)
    few = reading("weight_bits", words=cell)
    if few is not None:
        said = (f"{few.number:g} bits a weight with scales, products in 16 bits",)
        return Precision(weights=by_bits(few.number), assumptions=said)
    if re.match(r"^(?:gptq|awq)|^int4|^w4a16|^4-?bit", cell):
        group = re.search(r"g(\d+)$", cell)
        bits = 4 + 20 / int(group[1]) if group and int(group[1]) else 4.5 if engine == "MLC-LLM" else None
        name = "int4_wo" if bits is None else by_bits(bits)
        said = (f"{8 * form(name).weight_bytes:.4g} bits a weight with scales, products in 16 bits",)
        return Precision(weights=name, assumptions=said)
    if cell in ("int8", "w8a16") and engine != "TensorRT-LLM":
        return Precision(weights="int8_wo", assumptions=("int8 weights, products in 16 bits (assumed)",))
    try:
        return Precision(weights=form(cell).name)
    except DomainError as error:
        raise InputError(str(error), field="precision_weights") from None


def _unstated(row: Row, model: Model, part: Accelerator, engine: str) -> Precision:
    """The format where the cell is blank: MLPerf submissions use the smallest that the part computes in."""
    if engine == "llama.cpp":
        found = _weights("q4_k_m", model, engine)
        return Precision(weights=found.weights, assumptions=("precision not stated: Q4_K_M assumed",))
    if engine == "Mixtral Offloading":
        said = "precision not stated: 4 bits, the least that this engine's experts were published in (assumed)"
        return Precision(weights=by_bits(4.5), assumptions=(said,))
    own = served_weights(model, part.peak_flop_per_s)[0]
    if row.source != "MLP" and own:
        found = _weights(_plainly(own), model, engine)
        said = f"precision not stated: {own}, the checkpoint's own"
        return replace(found, assumptions=(*found.assumptions, said))
    if row.source != "MLP":
        return Precision(weights="bf16", assumptions=("precision not stated: 16 bits assumed",))
    rates = part.peak_flop_per_s
    if "fp4" in rates and part.architecture in FOUR_BITS:
        said = "precision not stated: fp4 with an fp8 cache, the smallest that the part computes in (assumed)"
        return Precision(weights="nvfp4", kv="fp8", assumptions=(said,))
    held = (whole(row, "n_devices") or 1) * part.memory_bytes
    if "fp8" in rates and model.graph.params < held:
        said = "precision not stated: fp8 with an fp8 cache, as the configs of NVIDIA's v4.1 code and AMD's quantizer"
        return Precision(weights="fp8", kv="fp8", assumptions=(said,))
    return Precision(weights="int4_wo", assumptions=("precision not stated: 4-bit weights assumed",))


def _cache(row: Row, weights: Precision, engine: str, release: str) -> tuple[str, tuple[str, ...]]:
    cell = row.text("precision_kv").strip().casefold()
    if cell in ("fp16", "bf16", "16-bit"):
        return "bf16", ()
    if cell == "auto":
        return "", ()
    if cell in ("int4", "4-bit"):
        return "q4_0", ("cache in 4 bits with a scale to 32 numbers, as q4_0",)
    cell = _plainly(cell)
    if cell == "k q4_0":
        return "int8", ("cache: keys in q4_0, values in 16 bits, priced as 8 bits each",)
    if cell:
        try:
            return form(cell).name, ()
        except DomainError as error:
            raise InputError(str(error), field="precision_kv") from None
    if weights.kv:
        return weights.kv, ()
    since, quantized = CHECKPOINT_CACHES.get(engine, ("", frozenset()))
    if weights.weights in quantized and version_key(release) >= version_key(since):
        return "fp8", ("cache in fp8: kv_cache_quant_algo of ModelOpt's fp8 and NVFP4 checkpoints",)
    return "", ()
