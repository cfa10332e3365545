"""Every `model_type` that can be built, with the defaults that its configuration class adds.

Defaults and layouts: the configuration and modeling files of Hugging Face transformers 5.23
(Apache-2.0), for each model_type of the same name; chatglm, qwen, baichuan, aquila, internlm2,
minicpm and kimi_k2 from the files that their authors publish beside the weights.
"""

from __future__ import annotations

from collections.abc import Mapping

from ridgeline.graph.families import explicit
from ridgeline.graph.families.stack import Family
from ridgeline.graph.families.table_dense import DENSE
from ridgeline.graph.families.table_experts import EXPERTS
from ridgeline.graph.families.table_others import CLASSIC, ENCODERS, HYBRID

FAMILIES: Mapping[str, Family] = {
    "explicit": Family(read=explicit.read),
    **DENSE,
    **EXPERTS,
    **CLASSIC,
    **ENCODERS,
    **HYBRID,
}

# Types whose configs hold a text model beside others, and the type of that model when it does not say. Any other type
# is one too where its text model says a type of its own that is known.
WRAPPERS: Mapping[str, str] = {
    "gemma3": "gemma3_text",
    "gemma4": "gemma4_text",
    "kimi_k25": "kimi_k2",
    "kimi_vl": "deepseek_v3",
    "llama4": "llama4_text",
    "llava": "llama",
    "llava_llama": "llama",
    "llava_mistral": "mistral",
    "llava_next": "llama",
    "llava_qwen": "qwen2",
    "minimax_m3_vl": "minimax_m3",
    "mistral3": "mistral",
    "paligemma": "gemma",
    "phi3_v": "phi3",
    "qwen2_5_vl": "qwen2",
    "qwen2_vl": "qwen2",
    "qwen3_5": "qwen3_5_text",
    "qwen3_5_moe": "qwen3_5_moe_text",
    "qwen3_vl": "qwen3",
    "qwen3_vl_moe": "qwen3_moe",
}

# Types that text models have inside a wrapper, and the family that they are one of.
TEXTS: Mapping[str, str] = {
    "glm4v_moe_text": "glm4_moe",
    "glm4v_text": "glm4",
    "qwen2_5_omni_text": "qwen2",
    "qwen2_5_vl_text": "qwen2",
    "qwen2_vl_text": "qwen2",
    "qwen3_omni_moe_text": "qwen3_moe",
    "qwen3_vl_moe_text": "qwen3_moe",
    "qwen3_vl_text": "qwen3",
}


def _sizes(hidden: int, ffn: int, layers: int, heads: int, kv_heads: int | None = None) -> Mapping[str, int]:
    sizes = {"hidden_size": hidden, "intermediate_size": ffn, "num_hidden_layers": layers, "num_attention_heads": heads}
    return sizes if kv_heads is None else {**sizes, "num_key_value_heads": kv_heads}


# Sizes of configuration classes, which a nested config leaves out where it has the same (llava-1.5-7b, Pixtral 12B).
NESTED: Mapping[str, Mapping[str, int]] = {
    "cohere2": _sizes(8192, 22528, 40, 64),
    "gemma": _sizes(3072, 24576, 28, 16, 16),
    "gemma2": _sizes(2304, 9216, 26, 8, 4),
    "gemma3_text": _sizes(2304, 9216, 26, 8, 4),
    "granite": _sizes(4096, 11008, 32, 32),
    "llama": _sizes(4096, 11008, 32, 32),
    "mistral": _sizes(4096, 14336, 32, 32, 8),
    "phi3": _sizes(3072, 8192, 32, 32),
    "qwen2": _sizes(4096, 22016, 32, 32, 32),
    "qwen3": _sizes(4096, 22016, 32, 32, 32),
}
