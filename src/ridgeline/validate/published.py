"""Dimensions that makers published, and how the layers of each family look."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Published:
    """Dimensions of a known architecture, as keyword arguments of `from_dims`; `source` says where."""

    pattern: str
    dims: Mapping[str, object]
    source: str


GPT_STYLE: Mapping[str, object] = {}
"""Megatron-LM GPT: pre-norm with bias, gelu, ffn = 4 D, learned positions, tied embeddings: `from_dims`' defaults."""

LLAMA_STYLE: Mapping[str, object] = {
    "gated": True, "activation": "silu", "norm": "rms", "bias": False, "tied": False, "positions": "rope",
}  # fmt: skip
MPT_STYLE: Mapping[str, object] = {"bias": False}
"""llm-foundry's benchmark MPT: no bias, learned positions as long as the sequence, tied embeddings."""
BERT_STYLE: Mapping[str, object] = {
    "encoder": True, "placement": "post", "type_vocab": 2, "pooler": True, "vocab": 30522, "max_positions": 512,
    "dropout": True,
}  # fmt: skip
MEGATRON_BERT_STYLE: Mapping[str, object] = {**BERT_STYLE, "placement": "pre"}

PUBLISHED: tuple[Published, ...] = (
    Published(
        pattern=r"^cpm$",
        dims={
            "layers": 24,
            "hidden": 1024,
            "heads": 16,
            "vocab": 30000,
            "max_positions": 1024,
            "dropout": True,
        },
        source="FlagPerf, training/benchmarks/cpm/pytorch/config/_base.py",
    ),
    Published(
        pattern=r"^(?:megatron|gpt)[- ]22b$",
        dims={"layers": 48, "hidden": 6144, "heads": 64, "vocab": 51200, "max_positions": 2048},
        source="arXiv:2205.05198, table 3",
    ),
    Published(
        pattern=r"(?:turing|mt-?nlg|megatron-turing|gpt)[- ]530b$",
        dims={"layers": 105, "hidden": 20480, "heads": 128, "vocab": 51200, "max_positions": 2048},
        source="arXiv:2201.11990, section 2",
    ),
    Published(
        pattern=r"^(?:megatron|gpt)[- ]1t$",
        dims={"layers": 128, "hidden": 25600, "heads": 160, "vocab": 51200, "max_positions": 2048},
        source="arXiv:2205.05198, table 3",
    ),
    Published(
        pattern=r"^gpt-?3?[- ]?175b$",
        dims={"layers": 96, "hidden": 12288, "heads": 96, "vocab": 51200, "max_positions": 2048},
        source="arXiv:2005.14165, table 2.1",
    ),
    Published(
        pattern=r"^gpt-?3?[- ](?:dense )?6\.7b$",
        dims={"layers": 32, "hidden": 4096, "heads": 32, "vocab": 50257, "max_positions": 2048},
        source="arXiv:2005.14165, table 2.1",
    ),
    Published(
        pattern=r"^gpt-?3[- ]13b$",
        dims={"layers": 40, "hidden": 5120, "heads": 40, "vocab": 50257, "max_positions": 2048},
        source="arXiv:2005.14165, table 2.1",
    ),
    Published(
        pattern=r"^gpt-?3[- ]5b$",
        dims={"layers": 24, "hidden": 4096, "heads": 32, "vocab": 51200, "max_positions": 2048},
        source="NeMo launcher scripts, conf/training/gpt3/5b.yaml",
    ),
    Published(
        pattern=r"^gpt-?3[- ]20b$",
        dims={"layers": 44, "hidden": 6144, "heads": 48, "vocab": 51200, "max_positions": 2048},
        source="NeMo launcher scripts, conf/training/gpt3/20b.yaml",
    ),
    Published(
        pattern=r"^gpt-?2$",
        dims={"layers": 24, "hidden": 1024, "heads": 16, "vocab": 50257, "max_positions": 1024},
        source="FlagPerf gpt2-pytorch: Megatron's 345M GPT-2 (arXiv:1909.08053, table 2)",
    ),
    Published(
        pattern=r"^gpt-2 style 345m$",
        dims={"layers": 24, "hidden": 1024, "heads": 16, "vocab": 50257, "max_positions": 1024},
        source="stanford-crfm/levanter@c907befc, config/gpt2_medium.yaml",
    ),
    Published(
        pattern=r"^gpt-2 style 750m$",
        dims={"layers": 36, "hidden": 1280, "heads": 20, "vocab": 50257, "max_positions": 1024},
        source="stanford-crfm/levanter@c907befc, config/gpt2_large.yaml",
    ),
    Published(
        pattern=r"^gpt-2 style 1\.4b$",
        dims={"layers": 48, "hidden": 1536, "heads": 24, "vocab": 50257, "max_positions": 1024},
        source="stanford-crfm/levanter@c907befc, config/gpt2_1536.yaml",
    ),
    Published(
        pattern=r"^gpt-2 style 6\.7b$",
        dims={"layers": 32, "hidden": 4096, "heads": 32, "vocab": 50257, "max_positions": 2048},
        source="stanford-crfm/levanter@c907befc, config/gpt2_7b.yaml",
    ),
    Published(
        pattern=r"^gpt-2 style 20b$",
        dims={"layers": 44, "hidden": 6144, "heads": 64, "vocab": 50257, "max_positions": 2048},
        source="stanford-crfm/levanter@c907befc, config/gpt2_20b.yaml",
    ),
    Published(
        pattern=r"^nemotron(?:-?4)?[- ]8b$",
        dims={
            "layers": 32,
            "hidden": 4096,
            "heads": 32,
            "vocab": 256000,
            "activation": "relu2",
            "bias": False,
            "tied": False,
            "positions": "rope",
            "ffn": 16384,
        },
        source="huggingface.co/nvidia/nemotron-3-8b-base-4k",
    ),
    Published(
        pattern=r"^nemotron(?:-?4)?[- ]22b$",
        dims={
            "layers": 40,
            "hidden": 6144,
            "heads": 48,
            "vocab": 256000,
            "activation": "relu2",
            "bias": False,
            "tied": False,
            "positions": "rope",
            "ffn": 24576,
        },
        source="NeMo launcher scripts, conf/training/nemotron/nemotron_22b.yaml",
    ),
    Published(
        pattern=r"^nemotron(?:-?4)?[- ]340b$",
        dims={
            "layers": 96,
            "hidden": 18432,
            "heads": 96,
            "kv_heads": 8,
            "vocab": 256000,
            "activation": "relu2",
            "bias": False,
            "tied": False,
            "positions": "rope",
            "ffn": 73728,
        },
        source="arXiv:2406.11704, table 1",
    ),
    Published(
        pattern=r"^llama[- ]7b$",
        dims={**LLAMA_STYLE, "layers": 32, "hidden": 4096, "heads": 32, "vocab": 32000, "ffn": 11008},
        source="arXiv:2302.13971, table 2",
    ),
    Published(
        pattern=r"^llama[- ]13b$",
        dims={**LLAMA_STYLE, "layers": 40, "hidden": 5120, "heads": 40, "vocab": 32000, "ffn": 13824},
        source="arXiv:2302.13971, table 2",
    ),
    Published(
        pattern=r"^llama[- ]3[03]b$",
        dims={**LLAMA_STYLE, "layers": 60, "hidden": 6656, "heads": 52, "vocab": 32000, "ffn": 17920},
        source="arXiv:2302.13971, table 2",
    ),
    Published(
        pattern=r"^llama[- ]65b$",
        dims={**LLAMA_STYLE, "layers": 80, "hidden": 8192, "heads": 64, "vocab": 32000, "ffn": 22016},
        source="arXiv:2302.13971, table 2",
    ),
    Published(
        pattern=r"^llama-like[- ]7b$",
        dims={**LLAMA_STYLE, "layers": 32, "hidden": 4096, "heads": 32, "vocab": 32000, "ffn": 11008},
        source="arXiv:2307.09288 (a Llama of that size)",
    ),
    Published(
        pattern=r"^llama-like[- ]70b$",
        dims={**LLAMA_STYLE, "layers": 80, "hidden": 8192, "heads": 64, "kv_heads": 8, "vocab": 32000, "ffn": 28672},
        source="arXiv:2307.09288 (a Llama of that size)",
    ),
    Published(
        pattern=r"^aquila2?[- _]7b",
        dims={**LLAMA_STYLE, "layers": 32, "hidden": 4096, "heads": 32, "vocab": 100008, "ffn": 11008},
        source="huggingface.co/BAAI/Aquila2-7B, config.json",
    ),
    Published(
        pattern=r"^baichuan2[- _]13b",
        dims={
            **LLAMA_STYLE,
            "layers": 40,
            "hidden": 5120,
            "heads": 40,
            "vocab": 125696,
            "ffn": 13696,
            "positions": "alibi",
        },
        source="huggingface.co/baichuan-inc/Baichuan2-13B-Base, config.json",
    ),
    Published(
        pattern=r"^chatglm3[- _]6b",
        dims={**LLAMA_STYLE, "layers": 28, "hidden": 4096, "heads": 32, "kv_heads": 2, "vocab": 65024, "ffn": 13696},
        source="huggingface.co/THUDM/chatglm3-6b, config.json",
    ),
    Published(
        pattern=r"^palm[- ]540b$",
        dims={
            **LLAMA_STYLE,
            "norm": "layer",
            "tied": True,
            "parallel": True,
            "layers": 118,
            "hidden": 18432,
            "heads": 48,
            "kv_heads": 1,
            "head_dim": 256,
            "vocab": 256000,
            "ffn": 73728,
        },
        source="arXiv:2204.02311, table 1",
    ),
    Published(
        pattern=r"^qwen1\.5[- _]moe",
        dims={
            **LLAMA_STYLE,
            "bias": {"qkv": True, "out": False, "mlp": False},
            "layers": 24,
            "hidden": 2048,
            "heads": 16,
            "vocab": 151936,
            "experts": 60,
            "top_k": 4,
            "expert_ffn": 1408,
            "shared_experts": 1,
            "shared_ffn": 5632,
        },
        source="huggingface.co/Qwen/Qwen1.5-MoE-A2.7B, config.json",
    ),
    Published(
        pattern=r"^qwen2-57b-a14b",
        dims={
            **LLAMA_STYLE,
            "bias": {"qkv": True, "out": False, "mlp": False},
            "layers": 28,
            "hidden": 3584,
            "heads": 28,
            "kv_heads": 4,
            "vocab": 151936,
            "experts": 64,
            "top_k": 8,
            "expert_ffn": 2560,
            "shared_experts": 1,
            "shared_ffn": 20480,
        },
        source="huggingface.co/Qwen/Qwen2-57B-A14B, config.json",
    ),
    Published(
        pattern=r"^gpt 1\.3b\+moe-128$",
        dims={
            "layers": 24,
            "hidden": 2048,
            "heads": 16,
            "vocab": 51200,
            "max_positions": 2048,
            "experts": 128,
            "top_k": 1,
            "expert_interval": 2,
            "dense_layers_first": 1,
        },
        source="arXiv:2201.05596, table 2",
    ),
    Published(
        pattern=r"^bloomz?-7b1$",
        dims={"layers": 30, "hidden": 4096, "heads": 32, "vocab": 250880, "positions": "alibi", "embed_norm": True},
        source="huggingface.co/bigscience/bloom-7b1, config.json",
    ),
    Published(
        pattern=r"^(?:bert(?:[-_ ]large(?:[- ]uncased)?|_hf)?)$",
        dims={**BERT_STYLE, "layers": 24, "hidden": 1024, "heads": 16},
        source="arXiv:1810.04805, section 3 (large, the size that public training benchmarks run)",
    ),
    Published(
        pattern=r"^bert[-_ ]base(?:[- ]uncased)?$",
        dims={**BERT_STYLE, "layers": 12, "hidden": 768, "heads": 12},
        source="arXiv:1810.04805, section 3",
    ),
    Published(
        pattern=r"^distilbert",
        dims={**BERT_STYLE, "layers": 6, "hidden": 768, "heads": 12, "type_vocab": 0, "pooler": False},
        source="arXiv:1910.01108, section 3",
    ),
    Published(
        pattern=r"^electra$",
        dims={**BERT_STYLE, "layers": 12, "hidden": 768, "heads": 12, "pooler": False},
        source="arXiv:2003.10555, table 6 (base discriminator; the generator, a ninth of it, is left out)",
    ),
)


def published(name: str) -> Published | None:
    """The published dimensions of a plain name, None when the table has none."""
    return next((entry for entry in PUBLISHED if re.search(entry.pattern, name.strip(), re.IGNORECASE)), None)


def style_of(name: str) -> Mapping[str, object]:
    """Keyword arguments of `from_dims` for the family that a name belongs to; Megatron GPT by default."""
    if re.search(r"mcore test bert", name, re.IGNORECASE):
        return MEGATRON_BERT_STYLE
    if re.search(r"bert|electra", name, re.IGNORECASE):
        return BERT_STYLE
    if re.search(r"^mpt", name, re.IGNORECASE):
        return MPT_STYLE
    if re.search(r"llama|mistral|mixtral|qwen|deepseek|aquila|baichuan|yi-|gemma|custom dense", name, re.IGNORECASE):
        return LLAMA_STYLE
    return GPT_STYLE
