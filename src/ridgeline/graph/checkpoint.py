"""The number format of a checkpoint's weights, as the `quantization_config` of its config.json says it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from ridgeline.graph.ops import Model

_SHOWN = 40  # characters of a word that is repeated
_RATES = {"fp8": "fp8", "fp8_block": "fp8", "nvfp4": "fp4", "int8": "int8"}  # matrix rate that a format needs


def checkpoint_weights(config: Mapping[str, Any]) -> str:
    """Number format of a checkpoint's weights: fp8_block, w4a16_mxfp4, int4_wo ...; '' where they are 16 bits or wider.

    Methods that are not known are '' too. Source: transformers, utils/quantization_config.py.

    >>> checkpoint_weights({"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}})
    'fp8_block'
    """
    found = config.get("quantization_config")
    if not isinstance(found, Mapping):
        return ""
    method = str(found.get("quant_method", "")).casefold().replace("_", "-")
    if method == "fp8":
        return "fp8_block" if found.get("weight_block_size") else "fp8"
    if method == "mxfp4":
        return "w4a16_mxfp4"
    if method in ("awq", "gptq"):
        return {4: "int4_wo", 8: "int8_wo"}.get(found.get("bits", found.get("w_bit", 4)), "")
    if method in ("bitsandbytes", "hqq"):
        return "int8_wo" if found.get("load_in_8bit") else "int4_wo"
    if method == "modelopt":
        return {"FP8": "fp8", "NVFP4": "nvfp4"}.get(str(found.get("quant_algo", "")).upper(), "")
    if method == "compressed-tensors":
        return _compressed(found.get("config_groups"))
    return ""


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
    found = model.config.get("quantization_config")
    if not isinstance(found, Mapping) or not found:
        return ""
    method = found.get("quant_method")
    named = f"'{method[:_SHOWN]}'" if isinstance(method, str) else "no method"
    return f"the checkpoint's quantization_config names {named}, not known: served in 16 bits; --weights says another"


def other_weights(model: Model, rates: Collection[str], asked: str | None = None) -> str:
    """The format of all but routed experts where a checkpoint keeps those alone narrower; '' where it does not.

    Only where nobody `asked` for a format of the whole.
    """
    name = checkpoint_weights(model.config)
    narrow = asked is None and model.config.get("expert_dtype") == "fp4"
    return name if narrow and _RATES.get(name, "") in rates else ""


def served_weights(model: Model, rates: Collection[str], asked: str | None = None) -> tuple[str, str]:
    """The format that a model is served in, and why where nobody `asked` for it; '' is 16 bits.

    What was asked for, but 8-bit floats of a checkpoint whose own are scaled in blocks are those, as engines serve it:
    nobody scales it anew. Else that of its checkpoint, where the machine multiplies it (`rates` are its matrix rates by
    number format). Source: vllm, vllm/model_executor/layers/quantization/fp8.py, Fp8Config.from_config, which takes the
    block size of the checkpoint where `--quantization fp8` is said.
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
    if name in _RATES and _RATES[name] not in rates:
        return "", f"the checkpoint's weights are {name}, for which this machine has no matrix rate: served in 16 bits"
    return name, f"weights are {name}, as in the checkpoint (quantization_config); --weights bf16 asks for 16 bits"
