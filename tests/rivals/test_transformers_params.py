"""Parameter counts against Hugging Face transformers, built without storage on torch's meta device."""

from __future__ import annotations

import os
import random
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from ridgeline.graph.build import build, from_dims
from ridgeline.graph.flop import model_flop_per_token
from ridgeline.graph.load import catalog, catalog_config
from ridgeline.graph.model import Graph
from ridgeline.graph.ops import AttentionOp, Op

pytestmark = [pytest.mark.rival, pytest.mark.filterwarnings("ignore")]

# Model types that transformers has no class for, or one that holds more; tests/graph checks their catalog counts.
NOT_IN_TRANSFORMERS = {
    "explicit": "dimensions of this package",
    "chatglm": "published as remote code only",
    "qwen": "published as remote code only",
    "internlm2": "published as remote code only",
    "minicpm": "published as remote code only",
    "apertus": "two numbers of each layer's activation are left out: 160 of 70e9",
    "ernie4_5_moe": "corrections of the router, which training does not learn, are parameters there: 3264 of 300e9",
    "bailing_moe": "published as remote code only",
    "bailing_moe_v2": "published as remote code only",
    "deepseek": "published as remote code only",
    "exaone": "published as remote code only",
    "internlm3": "published as remote code only",
    "mimo": "published as remote code only",
    "nemotron-nas": "published as remote code only",
    "deepseek_v4": "newer than the release compared with",
    "minimax_m3": "newer than the release compared with",
    "deepseek_v32": "its indexer is counted by hand in lower/test_chosen_keys.py; the rest is deepseek_v3",
    "glm_moe_dsa": "as deepseek_v32; releases of transformers before 5.1 do not have it",
}
# Types without a class of their own in transformers, whose weights are those of another type.
SAME_WEIGHTS = {"kimi_k2": "deepseek_v3", "aquila": "llama", "baichuan": "llama"}
# Catalog entries whose count must differ, and why.
_UNTIED = "transformers 5 ties the head of every T5; T5 v1.1 and mT5 were trained and published untied"
EXEMPT = {name: _UNTIED for name in catalog() if name.startswith(("t5-v1.1-", "mt5-"))}
LEFT_OUT = {"gemma-4-26b-a4b": 30 * (4 * 2816 + 128)}  # three norms around the experts, scales of router and experts
HEADS = {
    "bert": "BertForPreTraining",
    "roberta": "RobertaForMaskedLM",
    "xlm-roberta": "XLMRobertaForMaskedLM",
    "electra": "ElectraForPreTraining",
    "distilbert": "DistilBertForMaskedLM",
    "t5": "T5ForConditionalGeneration",
    "mt5": "MT5ForConditionalGeneration",
    "bart": "BartForConditionalGeneration",
}
OURS_ALONE = {"source", "parameters", "aliases", "model_type", "architectures"}


def theirs(kind: str, config: Mapping[str, Any]) -> int:
    """Trainable numbers that transformers allocates for this config [1]."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch = pytest.importorskip("torch")
        transformers = pytest.importorskip("transformers")
        given = {key: value for key, value in config.items() if key not in OURS_ALONE}
        built = transformers.AutoConfig.for_model(SAME_WEIGHTS.get(kind, kind), **given)
        with torch.device("meta"):
            if kind in HEADS:
                model = getattr(transformers, HEADS[kind])(built)
            else:
                model = transformers.AutoModelForCausalLM.from_config(built)
        return sum(one.numel() for one in model.parameters())


def llama_like(draw: random.Random, **more: Any) -> dict[str, Any]:
    kv_heads = draw.choice([1, 2, 4])
    heads = kv_heads * draw.choice([1, 2, 3])
    return {
        "vocab_size": draw.randrange(50, 300),
        "hidden_size": heads * 2 * draw.choice([4, 8, 12]),
        "intermediate_size": draw.randrange(20, 200),
        "num_hidden_layers": draw.randrange(1, 6),
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "tie_word_embeddings": draw.random() < 0.5,
        "max_position_embeddings": 64,
        "pad_token_id": 0,
    } | more


def flags(draw: random.Random, *names: str) -> dict[str, bool]:
    return {name: draw.random() < 0.5 for name in names}


def experts(draw: random.Random, key: str, **more: Any) -> dict[str, Any]:
    count = draw.randrange(2, 9)
    return {key: count, "num_experts_per_tok": draw.randrange(1, count + 1)} | more


def latent(draw: random.Random) -> dict[str, Any]:
    heads = draw.choice([2, 4])
    return (
        llama_like(draw, num_attention_heads=heads, num_key_value_heads=heads, hidden_size=32)
        | experts(draw, "n_routed_experts", moe_intermediate_size=24, n_shared_experts=draw.randrange(1, 3))
        | {
            "first_k_dense_replace": 1,
            "kv_lora_rank": 12,
            "q_lora_rank": draw.choice([None, 20]),
            "qk_nope_head_dim": 10,
            "qk_rope_head_dim": 6,
            "v_head_dim": 14,
            "n_group": 1,
            "topk_group": 1,
        }
        | flags(draw, "attention_bias")
    )


def delta_like(draw: random.Random) -> dict[str, Any]:
    key_heads = draw.choice([1, 2])
    return (
        llama_like(draw, head_dim=12, num_hidden_layers=8)
        | {
            "linear_num_key_heads": key_heads,
            "linear_num_value_heads": key_heads * draw.choice([1, 2]),
            "linear_key_head_dim": 6,
            "linear_value_head_dim": draw.choice([6, 10]),
            "linear_conv_kernel_dim": draw.choice([3, 4]),
        }
        | flags(draw, "attention_bias")
    )


def gpt2_like(draw: random.Random, **more: Any) -> dict[str, Any]:
    heads = draw.choice([2, 4])
    return {
        "vocab_size": draw.randrange(50, 300),
        "n_positions": 40,
        "n_embd": heads * 8,
        "n_layer": draw.randrange(1, 5),
        "n_head": heads,
        "n_inner": draw.choice([None, 50]),
    } | more


def bert_like(draw: random.Random, **more: Any) -> dict[str, Any]:
    heads = draw.choice([2, 4])
    return {
        "vocab_size": draw.randrange(50, 300),
        "hidden_size": heads * 8,
        "num_hidden_layers": draw.randrange(1, 5),
        "num_attention_heads": heads,
        "intermediate_size": 70,
        "max_position_embeddings": 40,
        "type_vocab_size": draw.randrange(1, 4),
    } | more


def t5_like(draw: random.Random, **more: Any) -> dict[str, Any]:
    return {  # tied: see EXEMPT
        "vocab_size": draw.randrange(50, 300),
        "tie_word_embeddings": True,
        "d_model": 24,
        "d_kv": draw.choice([4, 8]),
        "d_ff": 50,
        "num_layers": draw.randrange(1, 4),
        "num_decoder_layers": draw.randrange(1, 4),
        "num_heads": 3,
        "relative_attention_num_buckets": 6,
        "feed_forward_proj": draw.choice(["relu", "gated-gelu"]),
    } | more


def hybrid_pattern(draw: random.Random) -> dict[str, Any]:
    given = llama_like(draw, tie_word_embeddings=False) | experts(draw, "n_routed_experts")  # its class cannot tie
    del given["num_hidden_layers"]
    return given | {
        "hybrid_override_pattern": "M-M*ME" + draw.choice(["", "M-", "*E"]),
        "head_dim": 8,
        "mamba_num_heads": 4,
        "mamba_head_dim": 8,
        "ssm_state_size": 6,
        "n_groups": 2,
        "n_shared_experts": 1,
        "moe_intermediate_size": 20,
        "moe_shared_expert_intermediate_size": 36,
    }


def small_mamba(draw: random.Random, groups: int) -> dict[str, Any]:
    """Fields of Mamba-2 mixers beside `llama_like`; heads times their width are twice the hidden size, set here too."""
    return {
        "hidden_size": 48,
        "num_attention_heads": 4,
        "num_key_value_heads": draw.choice([1, 2]),
        "mamba_n_heads": 12,
        "mamba_d_head": 8,
        "mamba_d_state": 6,
        "mamba_n_groups": groups,
        "mamba_expand": 2,
        "mamba_d_conv": 4,
        "mamba_chunk_size": 16,
    }


SMALL: Mapping[str, Callable[[random.Random], dict[str, Any]]] = {
    "aquila": llama_like,
    "baichuan": lambda r: llama_like(r, num_attention_heads=4, num_key_value_heads=4, hidden_size=32),
    "kimi_k2": latent,
    "llama": lambda r: llama_like(r, head_dim=r.choice([None, 10])) | flags(r, "attention_bias", "mlp_bias"),
    "mistral": llama_like,
    "ministral3": lambda r: llama_like(r, head_dim=12),
    "qwen2": llama_like,
    "qwen3": lambda r: llama_like(r, head_dim=10) | flags(r, "attention_bias"),
    "gemma": lambda r: llama_like(r, head_dim=10),
    "gemma2": lambda r: llama_like(r, head_dim=10) | flags(r, "attention_bias"),
    "gemma3_text": lambda r: llama_like(r, head_dim=10) | flags(r, "attention_bias"),
    "phi3": llama_like,
    "glm": lambda r: llama_like(r, head_dim=10) | flags(r, "attention_bias"),
    "glm4": lambda r: llama_like(r, head_dim=10) | flags(r, "attention_bias"),
    "nemotron": lambda r: llama_like(r, head_dim=10) | flags(r, "attention_bias", "mlp_bias"),
    "olmo": lambda r: llama_like(r) | flags(r, "attention_bias"),
    "olmo2": lambda r: llama_like(r) | flags(r, "attention_bias"),
    "olmo3": lambda r: llama_like(r) | flags(r, "attention_bias"),
    "exaone4": llama_like,
    "arcee": lambda r: llama_like(r, head_dim=10) | flags(r, "attention_bias", "mlp_bias"),
    "hunyuan_v1_dense": lambda r: llama_like(r, head_dim=10) | flags(r, "attention_bias"),
    "dots1": lambda r: (
        llama_like(r, num_hidden_layers=4)
        | experts(r, "n_routed_experts", moe_intermediate_size=24, n_shared_experts=r.choice([1, 2]), n_group=1)
        | {"first_k_dense_replace": r.choice([1, 2])}
        | flags(r, "attention_bias")
    ),
    "qwen3_next": lambda r: (
        delta_like(r)
        | experts(r, "num_experts", moe_intermediate_size=24, shared_expert_intermediate_size=36)
        | {"decoder_sparse_step": r.choice([1, 2]), "mlp_only_layers": r.choice([[], [1]])}
    ),
    "qwen3_5_text": lambda r: delta_like(r),
    "qwen3_5_moe_text": lambda r: (
        delta_like(r) | experts(r, "num_experts", moe_intermediate_size=24, shared_expert_intermediate_size=36)
    ),
    "cohere": lambda r: llama_like(r) | flags(r, "attention_bias", "use_qk_norm"),
    "cohere2": lambda r: llama_like(r) | flags(r, "attention_bias"),
    "stablelm": lambda r: llama_like(r) | flags(r, "use_qkv_bias", "qk_layernorm", "use_parallel_residual"),
    "starcoder2": lambda r: llama_like(r) | flags(r, "use_bias"),
    "granite": lambda r: llama_like(r) | flags(r, "attention_bias", "mlp_bias"),
    "smollm3": lambda r: llama_like(r) | flags(r, "attention_bias", "mlp_bias"),
    "seed_oss": lambda r: llama_like(r, head_dim=10) | flags(r, "attention_bias", "attention_out_bias", "mlp_bias"),
    "ernie4_5": lambda r: llama_like(r, head_dim=10) | flags(r, "use_bias"),
    "mixtral": lambda r: llama_like(r) | experts(r, "num_local_experts"),
    "phimoe": lambda r: llama_like(r) | experts(r, "num_local_experts") | flags(r, "attention_bias", "lm_head_bias"),
    "qwen2_moe": lambda r: (
        llama_like(r, num_hidden_layers=5)
        | experts(r, "num_experts", moe_intermediate_size=24, shared_expert_intermediate_size=36)
        | {"decoder_sparse_step": r.choice([1, 2]), "mlp_only_layers": r.choice([[], [1]])}
        | flags(r, "qkv_bias")
    ),
    "qwen3_moe": lambda r: (
        llama_like(r, num_hidden_layers=5)
        | experts(r, "num_experts", moe_intermediate_size=24)
        | {"decoder_sparse_step": r.choice([1, 2]), "mlp_only_layers": r.choice([[], [1]])}
        | flags(r, "attention_bias")
    ),
    "olmoe": lambda r: llama_like(r) | experts(r, "num_experts"),
    "granitemoe": lambda r: llama_like(r) | experts(r, "num_local_experts") | flags(r, "attention_bias"),
    "gpt_oss": lambda r: llama_like(r, head_dim=10) | experts(r, "num_local_experts") | flags(r, "attention_bias"),
    "llama4_text": lambda r: (
        llama_like(r, head_dim=10, num_hidden_layers=6, intermediate_size_mlp=44)
        | experts(r, "num_local_experts")
        | {"interleave_moe_layer_step": r.choice([1, 2])}
    ),
    "glm4_moe": lambda r: (
        llama_like(r, num_hidden_layers=4)
        | experts(r, "n_routed_experts", moe_intermediate_size=24, n_shared_experts=r.choice([1, 2]), n_group=1)
        | {"first_k_dense_replace": r.choice([1, 2])}
        | flags(r, "attention_bias", "use_qk_norm")
    ),
    "minimax_m2": lambda r: llama_like(r, head_dim=10) | experts(r, "num_local_experts"),
    "deepseek_v2": latent,
    "deepseek_v3": latent,
    "gpt2": gpt2_like,
    "gpt_bigcode": lambda r: gpt2_like(r) | flags(r, "multi_query"),
    "gptj": lambda r: gpt2_like(r, rotary_dim=4),
    "gpt_neo": lambda r: {
        "vocab_size": 90,
        "hidden_size": 32,
        "num_layers": 4,
        "num_heads": 4,
        "max_position_embeddings": 40,
        "attention_types": [[["global", "local"], 2]],
        "intermediate_size": r.choice([None, 50]),
    },
    "gpt_neox": lambda r: llama_like(r) | flags(r, "use_parallel_residual", "attention_bias"),
    "phi": lambda r: llama_like(r) | flags(r, "qk_layernorm"),
    "opt": lambda r: (
        bert_like(r, ffn_dim=50, word_embed_proj_dim=r.choice([None, 12]))
        | flags(r, "do_layer_norm_before", "enable_bias", "layer_norm_elementwise_affine")
    ),
    "bloom": lambda r: {"vocab_size": 90, "hidden_size": 32, "n_layer": r.randrange(1, 4), "n_head": 4},
    "falcon": lambda r: (
        bert_like(r, num_attention_heads=4, hidden_size=32, num_kv_heads=2)
        | flags(r, "new_decoder_architecture", "multi_query", "parallel_attn", "bias", "alibi")
    ),
    "mpt": lambda r: {"vocab_size": 90, "d_model": 32, "n_layers": r.randrange(1, 4), "n_heads": 4},
    "bert": bert_like,
    "roberta": bert_like,
    "xlm-roberta": bert_like,
    "electra": lambda r: bert_like(r, num_attention_heads=4, hidden_size=32, embedding_size=r.choice([12, 32])),
    "distilbert": lambda r: {
        "vocab_size": 90,
        "dim": 32,
        "n_layers": r.randrange(1, 4),
        "n_heads": 4,
        "hidden_dim": 50,
        "max_position_embeddings": 40,
    },
    "t5": t5_like,
    "mt5": t5_like,
    "bart": lambda r: {
        "vocab_size": 90,
        "d_model": 32,
        "encoder_layers": r.randrange(1, 4),
        "decoder_layers": r.randrange(1, 4),
        "encoder_ffn_dim": 50,
        "decoder_ffn_dim": 60,
        "encoder_attention_heads": 4,
        "decoder_attention_heads": 2,
        "max_position_embeddings": 40,
    },
    "minimax": lambda r: (
        llama_like(r, head_dim=10, num_hidden_layers=4)
        | experts(r, "num_local_experts")
        | {"layer_types": ["linear_attention", "full_attention"] * 2}
    ),
    "nemotron_h": hybrid_pattern,
    "glm4_moe_lite": latent,
    "hunyuan_v1_moe": lambda r: (
        llama_like(r, head_dim=10)
        | {"num_experts": 4, "moe_topk": r.choice([1, 2]), "num_shared_expert": 1, "moe_intermediate_size": 24}
        | {"intermediate_size": 24}
    ),
    "gemma4_text": lambda r: (
        llama_like(r, head_dim=8, num_hidden_layers=4, hidden_size_per_layer_input=0, num_kv_shared_layers=0)
        | {"layer_types": ["sliding_attention", "full_attention"] * 2, "sliding_window": 16, "global_head_dim": 12}
        | flags(r, "attention_k_eq_v")
    ),
    "granitemoehybrid": lambda r: (
        llama_like(r, num_hidden_layers=4, layer_types=["mamba", "attention"] * 2, shared_intermediate_size=44)
        | experts(r, "num_local_experts")
        | small_mamba(r, r.choice([1, 2]))
    ),
    "bamba": lambda r: llama_like(r, num_hidden_layers=4, attn_layer_indices=[1]) | small_mamba(r, 1),
    "mamba2": lambda r: (
        {
            "vocab_size": 90,
            "hidden_size": 32,
            "num_hidden_layers": r.randrange(1, 4),
            "num_heads": 8,
            "head_dim": 8,
            "state_size": 6,
            "n_groups": r.choice([1, 2]),
        }
        | flags(r, "use_bias", "use_conv_bias", "tie_word_embeddings")
    ),
}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", sorted(SMALL))
def test_small_random_configs_have_the_parameters_that_transformers_allocates(kind: str, seed: int) -> None:
    config = SMALL[kind](random.Random(f"{kind}-{seed}"))
    ours = build({"model_type": kind, **config}, name=kind, source="random")
    assert ours.graph.params == theirs(kind, config)


def compared() -> list[str]:
    def kind(name: str) -> str:
        return str(catalog_config(name)["model_type"])

    return [name for name in catalog() if kind(name) not in NOT_IN_TRANSFORMERS and name not in (*EXEMPT, *LEFT_OUT)]


@pytest.mark.parametrize("name", compared())
def test_catalog_models_have_the_parameters_that_transformers_allocates(name: str) -> None:
    config = catalog_config(name)
    ours = build(config, name=name, source="catalog")
    assert ours.graph.params == theirs(str(config["model_type"]), config)


@pytest.mark.parametrize("name", sorted(LEFT_OUT))
def test_what_is_left_out_is_all_that_differs(name: str) -> None:
    config = catalog_config(name)
    ours = build(config, name=name, source="catalog")
    assert ours.graph.params + LEFT_OUT[name] == theirs(str(config["model_type"]), config)


def test_every_family_is_compared_or_excused() -> None:
    from ridgeline.graph.build import types

    assert set(types()) == set(SMALL) | set(NOT_IN_TRANSFORMERS)


@pytest.mark.parametrize("seed", range(5))
def test_explicit_gpts_have_the_parameters_of_gpt2(seed: int) -> None:
    given = gpt2_like(random.Random(seed))
    ours = from_dims(
        layers=given["n_layer"],
        hidden=given["n_embd"],
        heads=given["n_head"],
        ffn=given["n_inner"],
        vocab=given["vocab_size"],
        max_positions=given["n_positions"],
    )
    assert ours.graph.params == theirs("gpt2", given)


@pytest.mark.parametrize("seed", range(5))
def test_explicit_encoders_have_the_parameters_of_bert(seed: int) -> None:
    given = bert_like(random.Random(seed))
    ours = from_dims(
        layers=given["num_hidden_layers"],
        hidden=given["hidden_size"],
        heads=given["num_attention_heads"],
        ffn=given["intermediate_size"],
        vocab=given["vocab_size"],
        max_positions=given["max_position_embeddings"],
        type_vocab=given["type_vocab_size"],
        encoder=True,
        placement="post",
        pooler=True,
    )
    assert ours.graph.params == theirs("bert", given)


@pytest.mark.parametrize("seed", range(5))
def test_explicit_decoders_have_the_parameters_of_llama_and_mixtral(seed: int) -> None:
    draw = random.Random(seed)
    kind = draw.choice(["llama", "mixtral"])
    given = llama_like(draw) | (experts(draw, "num_local_experts") if kind == "mixtral" else {})
    ours = from_dims(
        layers=given["num_hidden_layers"],
        hidden=given["hidden_size"],
        heads=given["num_attention_heads"],
        kv_heads=given["num_key_value_heads"],
        ffn=given["intermediate_size"],
        vocab=given["vocab_size"],
        tied=given["tie_word_embeddings"],
        gated=True,
        activation="silu",
        norm="rms",
        bias=False,
        positions="rope",
        experts=given.get("num_local_experts", 0),
        top_k=given.get("num_experts_per_tok"),
    )
    assert ours.graph.params == theirs(kind, given)


@pytest.mark.parametrize("name", sorted(EXEMPT))
def test_exempt_models_differ_by_their_reason_alone(name: str) -> None:
    config = catalog_config(name)
    head = config["vocab_size"] * config["d_model"]
    ours = build(config, name=name, source="catalog")
    assert ours.graph.params - head == theirs(str(config["model_type"]), config)


# Families whose forward pass, on the CPU, is made of the products that the graph lists.
TRACED = (
    "arcee",
    "bloom",
    "cohere",
    "deepseek_v3",
    "gemma",
    "gemma2",
    "glm",
    "glm4_moe",
    "gpt2",
    "gpt_neox",
    "llama",
    "mixtral",
    "nemotron",
    "olmo2",
    "opt",
    "phi",
    "phi3",
    "qwen2",
    "qwen2_moe",
    "qwen3",
    "qwen3_moe",
    "starcoder2",
)


@pytest.mark.parametrize("kind", TRACED)
def test_forward_flop_is_what_torch_counts(kind: str) -> None:
    seq_len = 24
    config = SMALL[kind](random.Random(f"{kind}-flop"))
    graph = build({"model_type": kind, **config}, name=kind, source="random").graph
    # eager attention computes every position, also those that a window would hide
    full = model_flop_per_token(without_windows(graph), float(seq_len), attention="full")
    assert traced_flop(kind, config, seq_len) == full * seq_len


def traced_flop(kind: str, config: Mapping[str, Any], seq_len: int) -> float:
    """FLOP of a forward pass as torch counts them, the rotary angles left out [FLOP]."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch = pytest.importorskip("torch")
        transformers = pytest.importorskip("transformers")
        flop_counter = pytest.importorskip("torch.utils.flop_counter")
        given = {"attn_implementation": "eager", "experts_implementation": "eager"}
        built = transformers.AutoConfig.for_model(kind, **config, **given)
        model = transformers.AutoModelForCausalLM.from_config(built)
        with flop_counter.FlopCounterMode(display=False) as counter:
            model(input_ids=torch.zeros((1, seq_len), dtype=torch.long), use_cache=False)
    parts = counter.get_flop_counts()
    angles = sum(sum(ops.values()) for name, ops in parts.items() if name.endswith("rotary_emb"))
    return float(counter.get_total_flops() - angles)


def without_windows(graph: Graph) -> Graph:
    def plain(op: Op) -> Op:
        return replace(op, window=None, chunk=None) if isinstance(op, AttentionOp) else op

    blocks = {name: replace(block, ops=tuple(plain(op) for op in block.ops)) for name, block in graph.blocks.items()}
    return replace(graph, blocks=blocks)
