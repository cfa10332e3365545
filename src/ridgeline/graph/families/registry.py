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

# Types whose configs hold a text model beside others, and the type of that model when it does not say.
WRAPPERS: Mapping[str, str] = {
    "gemma3": "gemma3_text",
    "gemma4": "gemma4_text",
    "kimi_k25": "kimi_k2",
    "kimi_vl": "deepseek_v3",
    "llama4": "llama4_text",
    "llava": "llama",
    "minimax_m3_vl": "minimax_m3",
    "mistral3": "mistral",
    "qwen2_5_vl": "qwen2",
    "qwen2_vl": "qwen2",
    "qwen3_5": "qwen3_5_text",
    "qwen3_5_moe": "qwen3_5_moe_text",
    "qwen3_vl": "qwen3",
    "qwen3_vl_moe": "qwen3_moe",
}
