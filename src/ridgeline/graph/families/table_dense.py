"""Dense decoders under Llama's config keys: traits and configuration-class defaults of each type."""

from __future__ import annotations

from ridgeline.graph.families import renamed
from ridgeline.graph.families.decoder import LAYER, SCALE_ONLY, Traits, family, reader
from ridgeline.graph.families.pattern import ALL_WINDOWED, LATE_WINDOWED, Reach
from ridgeline.graph.families.stack import Family
from ridgeline.graph.spec import Norm

DENSE: dict[str, Family] = {
    "llama": family(
        Traits(qkv_bias="attention_bias", out_bias="attention_bias", mlp_bias="mlp_bias"),
        vocab_size=32000,
        max_position_embeddings=2048,
    ),
    "mistral": family(
        Traits(reach=ALL_WINDOWED),
        vocab_size=32000,
        num_key_value_heads=8,
        max_position_embeddings=131072,
        sliding_window=4096,
    ),
    "ministral3": family(Traits(reach=ALL_WINDOWED), vocab_size=131072, num_key_value_heads=8, head_dim=128),
    "qwen2": family(
        Traits(qkv_bias=True, reach=LATE_WINDOWED, head_dim_given=False),
        vocab_size=151936,
        sliding_window=4096,
        max_window_layers=28,
    ),
    "qwen3": family(
        Traits(qkv_bias="attention_bias", out_bias="attention_bias", qk_norm=True, reach=LATE_WINDOWED),
        vocab_size=151936,
        head_dim=128,
        sliding_window=4096,
        max_window_layers=28,
    ),
    "gemma": family(
        Traits(qkv_bias="attention_bias", out_bias="attention_bias"),
        vocab_size=256000,
        head_dim=256,
        hidden_act="gelu_pytorch_tanh",
        max_position_embeddings=8192,
        tie_word_embeddings=True,
    ),
    "gemma2": family(
        Traits(
            qkv_bias="attention_bias",
            out_bias="attention_bias",
            placement="sandwich",
            reach=Reach(rule="period", period=2),
        ),
        vocab_size=256000,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=256,
        hidden_activation="gelu_pytorch_tanh",
        sliding_window=4096,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
    ),
    "gemma3_text": family(
        Traits(
            qkv_bias="attention_bias",
            out_bias="attention_bias",
            placement="sandwich",
            qk_norm=True,
            reach=Reach(rule="period", period=6),
        ),
        vocab_size=262208,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=256,
        hidden_activation="gelu_pytorch_tanh",
        sliding_window=4096,
        max_position_embeddings=131072,
        tie_word_embeddings=True,
    ),
    "phi3": family(
        Traits(merged_qkv=True, merged_gate=True, reach=ALL_WINDOWED, head_dim_given=False),
        vocab_size=32064,
        max_position_embeddings=4096,
    ),
    "glm": family(
        Traits(qkv_bias="attention_bias", merged_gate=True, rotary=0.5),
        vocab_size=151552,
        num_key_value_heads=2,
        head_dim=128,
        attention_bias=True,
    ),
    "glm4": family(
        Traits(qkv_bias="attention_bias", merged_gate=True, rotary=0.5, placement="sandwich"),
        vocab_size=151552,
        num_key_value_heads=2,
        head_dim=128,
        attention_bias=True,
    ),
    "nemotron": family(
        Traits(
            norm=LAYER,
            gated=False,
            qkv_bias="attention_bias",
            out_bias="attention_bias",
            mlp_bias="mlp_bias",
            rotary=0.5,
        ),
        vocab_size=256000,
        hidden_act="relu2",
        max_position_embeddings=4096,
    ),
    "olmo": family(
        Traits(
            norm=Norm(kind="layer", scale=False),
            qkv_bias="attention_bias",
            out_bias="attention_bias",
            head_dim_given=False,
        ),
        vocab_size=50304,
    ),
    "olmo2": family(
        Traits(
            placement="output",
            qkv_bias="attention_bias",
            out_bias="attention_bias",
            qk_norm=True,
            qk_norm_over="all",
        ),
        vocab_size=50304,
    ),
    "olmo3": family(
        Traits(
            placement="output",
            qkv_bias="attention_bias",
            out_bias="attention_bias",
            qk_norm=True,
            qk_norm_over="all",
            reach=Reach(rule="period", period=4),
        ),
        vocab_size=50304,
        sliding_window=4096,
    ),
    "exaone4": family(
        Traits(placement="output", qk_norm=True, reach=Reach(rule="period", period=4, full_rotates=False)),
        vocab_size=102400,
        sliding_window=4096,
    ),
    "arcee": family(
        Traits(gated=False, qkv_bias="attention_bias", out_bias="attention_bias", mlp_bias="mlp_bias"),
        vocab_size=32000,
        hidden_act="relu2",
    ),
    "hunyuan_v1_dense": family(
        Traits(qkv_bias="attention_bias", out_bias="attention_bias", qk_norm=True), vocab_size=290943
    ),
    "cohere": family(
        Traits(
            norm=SCALE_ONLY,
            parallel=True,
            qkv_bias="attention_bias",
            out_bias="attention_bias",
            qk_norm="use_qk_norm",
            qk_norm_over="all",
            qk_norm_kind=SCALE_ONLY,
        ),
        vocab_size=256000,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
    ),
    "cohere2": family(
        Traits(
            norm=SCALE_ONLY,
            parallel=True,
            qkv_bias="attention_bias",
            out_bias="attention_bias",
            reach=Reach(rule="period", period=4, full_rotates=False),
        ),
        vocab_size=256000,
        sliding_window=4096,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
    ),
    "stablelm": family(
        Traits(
            norm=LAYER,
            parallel="use_parallel_residual",
            qkv_bias="use_qkv_bias",
            qk_norm="qk_layernorm",
            qk_norm_over="all",
            qk_norm_kind=SCALE_ONLY,
            rotary=0.25,
            head_dim_given=False,
        ),
        vocab_size=50304,
    ),
    "starcoder2": family(
        Traits(
            norm=LAYER,
            gated=False,
            qkv_bias="use_bias",
            out_bias="use_bias",
            mlp_bias="use_bias",
            reach=ALL_WINDOWED,
        ),
        vocab_size=49152,
        num_key_value_heads=2,
        hidden_act="gelu_pytorch_tanh",
        use_bias=True,
        tie_word_embeddings=True,
    ),
    "granite": family(
        Traits(qkv_bias="attention_bias", out_bias="attention_bias", mlp_bias="mlp_bias"), vocab_size=32000
    ),
    "smollm3": family(
        Traits(qkv_bias="attention_bias", out_bias="attention_bias", mlp_bias="mlp_bias", reach=Reach(rule="norope")),
        vocab_size=128256,
        num_key_value_heads=4,
        no_rope_layer_interval=4,
        tie_word_embeddings=True,
    ),
    "seed_oss": family(
        Traits(qkv_bias="attention_bias", out_bias="attention_out_bias", mlp_bias="mlp_bias"),
        vocab_size=155136,
        num_key_value_heads=8,
        head_dim=128,
        attention_bias=True,
    ),
    "ernie4_5": family(
        Traits(qkv_bias="use_bias", out_bias="use_bias", mlp_bias="use_bias"),
        vocab_size=103424,
        num_key_value_heads=2,
        head_dim=128,
        tie_word_embeddings=True,
    ),
    "mimo": family(
        Traits(qkv_bias="attention_bias", reach=LATE_WINDOWED), vocab_size=151680, num_key_value_heads=8, head_dim=128
    ),
    "apertus": family(
        Traits(gated=False, qkv_bias="attention_bias", out_bias="attention_bias", qk_norm=True),
        vocab_size=131072,
        hidden_act="xielu",
    ),
    "exaone": Family(
        read=reader(Traits()), defaults={"vocab_size": 102400}, renamed={"num_hidden_layers": "num_layers"}
    ),
    "internlm3": family(Traits(qkv_bias="qkv_bias", out_bias="bias", mlp_bias="bias"), vocab_size=128512, head_dim=128),
    "internlm2": family(Traits(qkv_bias="bias", out_bias="bias", merged_qkv=True)),
    "aquila": family(Traits()),
    "minicpm": family(Traits(), tie_word_embeddings=True),
    "baichuan": Family(read=renamed.baichuan, defaults={"vocab_size": 125696}),
    "chatglm": Family(read=renamed.chatglm, renamed=renamed.CHATGLM_KEYS),
    "qwen": Family(read=renamed.qwen, renamed=renamed.QWEN_KEYS),
}
