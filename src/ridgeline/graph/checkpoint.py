"""The number format of a checkpoint's weights, as the `quantization_config` of its config.json says it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from fnmatch import fnmatchcase
from typing import Any

from ridgeline.errors import ModelError
from ridgeline.graph.model import Model

_SHOWN = 40  # characters of a word that is repeated
_INTEGERS = "int8"  # weights that meet 8-bit inputs; no engine widens these
_MIXED = "MIXED_PRECISION"
_ALGORITHMS = {
    "FP8": "fp8",
    "FP8_PER_CHANNEL_PER_TOKEN": "fp8",
    "FP8_BLOCK_SCALES": "fp8_block",
    "FP8_PB_WO": "fp8_block",
    "NVFP4": "nvfp4",
    "W4A16_AWQ": "int4_wo",
    "W4A16": "int4_wo",
    "W8A16": "int8_wo",
    "W4A16_MXFP4": "w4a16_mxfp4",
    "W4A8_MXFP4_MXFP8": "w4a8_mxfp4_mxfp8",
    "W4A16_NVFP4": "w4.5a16",  # 4 bits, and 8 of scale for 16 of them
    "MXFP8": "fp8_block",  # in blocks of 32
}
"""NVIDIA ModelOpt's words. Source: TensorRT-LLM, tensorrt_llm/quantization/mode.py, QuantAlgo."""


def quantization(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a config says of its checkpoint's quantization; empty where it says nothing.

    Wrapped text models say it in their own table (Kimi-K2.5), older files of llm-compressor as `compression_config`.
    Source: transformers, quantizers/auto.py; vllm, vllm/transformers_utils/config.py, get_quant_config.
    """
    inner = config.get("text_config")
    for table in (config, inner if isinstance(inner, Mapping) else {}):
        for key in ("quantization_config", "compression_config"):
            found = table.get(key)
            if isinstance(found, Mapping) and found:
                return found
    return {}


def checkpoint_weights(config: Mapping[str, Any]) -> str:
    """Number format of a checkpoint's weights: fp8_block, w4a16_mxfp4, int4_wo ...; '' where they are 16 bits or wider.

    Methods that are not known are '' too. Raises `ModelError` for bits that are no number.
    Source: transformers, utils/quantization_config.py.

    >>> checkpoint_weights({"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}})
    'fp8_block'
    """
    found = quantization(config)
    method = _method(found)
    if method == "fp8":
        return "fp8_block" if found.get("weight_block_size") else "fp8"
    if method == "mxfp4":
        return "w4a16_mxfp4"
    if method in ("awq", "gptq"):
        bits = found.get("bits", found.get("w_bit", 4))
        if bits is not None and not isinstance(bits, int):
            raise ModelError(f"bits = {str(bits)[:_SHOWN]} of quantization_config is no number; write 4 or 8")
        return {4: "int4_wo", 8: "int8_wo"}.get(bits or 0, "")
    if method in ("bitsandbytes", "hqq"):
        return "int8_wo" if found.get("load_in_8bit") else "int4_wo"
    if method == "modelopt":
        algorithm = str(found.get("quant_algo", "")).upper()
        return _by_part(found)[0] if algorithm == _MIXED else _ALGORITHMS.get(algorithm, "")
    if method == "compressed-tensors":
        return _compressed(found.get("config_groups"))
    return ""


def _method(found: Mapping[str, Any]) -> str:
    """The method that a quantization is by; files of ModelOpt name their producer alone."""
    method = found.get("quant_method")
    if not isinstance(method, str) and "quant_algo" in found:
        return "modelopt"
    return str(method or "").casefold().replace("_", "-")


def _by_part(found: Mapping[str, Any]) -> tuple[str, str]:
    """Formats of feed-forwards (of routed experts where there are) and of attention, where layers have different ones.

    Each is that of most of its modules; '' where none is quantized, or in a way that is not known.
    """
    layers = found.get("quantized_layers")
    votes: dict[str, Counter[str]] = {"experts": Counter(), "feed": Counter(), "attention": Counter()}
    for name, said in layers.items() if isinstance(layers, Mapping) else ():
        algorithm = said.get("quant_algo") if isinstance(said, Mapping) else None
        part = _part(str(name))
        if part and isinstance(algorithm, str):
            votes[part][algorithm.upper()] += 1
    feed = votes["experts"] or votes["feed"]
    formats = [_ALGORITHMS.get(one.most_common(1)[0][0], "") if one else "" for one in (feed, votes["attention"])]
    return formats[0], formats[1]


def _part(name: str) -> str:
    """What of a layer a module is: routed 'experts', another 'feed'-forward, 'attention'; '' for others."""
    if "attn" in name or "attention" in name:
        return "attention"
    if "experts" in name and "shared" not in name:
        return "experts"
    return "feed" if "mlp" in name or "feed_forward" in name or "ffn" in name else ""


def _compressed(groups: object) -> str:
    """The format of the first group of llm-compressor's files."""
    first = next(iter(groups.values()), None) if isinstance(groups, Mapping) else None
    weights = first.get("weights") if isinstance(first, Mapping) else None
    if not isinstance(weights, Mapping):
        return ""
    inputs = first.get("input_activations") if isinstance(first, Mapping) else None
    kind, bits = weights.get("type"), weights.get("num_bits")
    if kind == "float":
        strategy = "fp8_block" if weights.get("strategy") == "block" else "fp8"
        return {8: strategy, 4: "nvfp4"}.get(bits, "") if isinstance(bits, int) else ""
    if kind == "int":
        narrow = {4: "int4_wo", 8: "int8" if inputs else "int8_wo"}
        return narrow.get(bits, "") if isinstance(bits, int) else ""
    return ""


def _unread(model: Model) -> str:
    """Words where the checkpoint says that it is quantized, in a way that is not known; '' where it is not."""
    found = quantization(model.config)
    if not found:
        return ""
    words = [str(found[key])[:_SHOWN] for key in ("quant_method", "quant_algo") if isinstance(found.get(key), str)]
    named = f"'{' '.join(words)}'" if words else "no method"
    return f"the checkpoint's quantization_config names {named}, not known: served in 16 bits; --weights says another"


def other_weights(model: Model, rates: Collection[str], asked: str | None = None) -> str:
    """The format of attention's products where a checkpoint keeps another for them; '' where it does not.

    Only where nobody `asked` for a format of the whole: routed experts that are narrower than all else, or attention
    that quantization passed over.
    """
    name = checkpoint_weights(model.config)
    if asked is not None or not name:
        return ""
    if model.config.get("expert_dtype") == "fp4":
        return name
    found = quantization(model.config)
    if str(found.get("quant_algo", "")).upper() == _MIXED and _method(found) == "modelopt":
        other = _by_part(found)[1] or "bf16"
        return "bf16" if other == _INTEGERS and _INTEGERS not in rates else "" if other == name else other
    return "bf16" if _attention_is_wide(model) else ""


def _attention_is_wide(model: Model) -> bool:
    """Whether the lists of modules that quantization passed over name attention's first and last product everywhere."""
    found = quantization(model.config)
    listed = [found.get(key) for key in ("ignore", "exclude_modules")]
    patterns = {_glob(one) for one in listed if isinstance(one, list) for one in one if isinstance(one, str)}
    broad = [one for one in patterns if "*" in one]

    def passed_over(name: str) -> bool:
        return name in patterns or any(fnmatchcase(name, one) for one in broad)

    return bool(patterns) and all(
        passed_over(f"layers.{layer}.self_attn.o_proj")
        and any(passed_over(f"layers.{layer}.self_attn.{name}") for name in ("q_proj", "q_b_proj"))
        for layer in range(len(model.graph.layers))
    )


def _glob(pattern: str) -> str:
    """A name or pattern of modules, from its layers on; the dots and stars of an expression are a name's own."""
    if pattern.startswith("re:"):
        pattern = pattern[3:].replace(".*", "*").replace("\\.", ".")
    return pattern[max(0, pattern.find("layers.")) :]


def served_weights(model: Model, rates: Collection[str], asked: str | None = None) -> tuple[str, str]:
    """The format that a model is served in, and why where nobody `asked` for it; '' is 16 bits.

    What was asked for, but 8-bit floats of a checkpoint whose own are scaled in blocks are those, as engines serve it:
    nobody scales it anew. Else that of its checkpoint; `rates` are the machine's matrix rates by number format. Narrow
    floats that it does not multiply are the engine's to widen as it reads them, or to refuse; integers are 16 bits
    there. Source: vllm, vllm/model_executor/layers/quantization/fp8.py, Fp8Config.from_config, which takes the block
    size of the checkpoint where `--quantization fp8` is said, and Fp8LinearMethod, which takes Marlin below 8.9.
    """
    name = checkpoint_weights(model.config)
    if asked is not None:
        if asked == "fp8" and name == "fp8_block" and "fp8" in rates:
            return name, "weights are fp8_block: the checkpoint's own 8-bit floats, scaled in blocks"
        return asked, ""
    if not name:
        return "", _unread(model)
    if model.config.get("expert_dtype") == "fp4":
        name = "w4a8_mxfp4_mxfp8" if "fp4" in rates else "w4a16_mxfp4"
        return name, f"routed experts are {name}, as in the checkpoint (expert_dtype)"
    if name == _INTEGERS and _INTEGERS not in rates:
        return "", f"the checkpoint's weights are {name}, for which this machine has no matrix rate: served in 16 bits"
    other = other_weights(model, rates)
    but = f" but for attention, which is {'16 bits' if other == 'bf16' else other}" if other else ""
    return name, f"weights are {name}{but}, as in the checkpoint (quantization_config); --weights bf16 asks for 16 bits"
