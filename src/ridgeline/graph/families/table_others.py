"""GPT-2's kin, encoders and hybrids: readers and configuration-class defaults of each type."""

from __future__ import annotations

from ridgeline.graph.families import classic, encoders, hybrid, varied
from ridgeline.graph.families.sparse import Sparse
from ridgeline.graph.families.stack import Family

_DELTA_DEFAULTS = {
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "full_attention_interval": 4,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    "max_position_embeddings": 32768,
}
_BERT_DEFAULTS = {
    "vocab_size": 30522,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
    "tie_word_embeddings": True,
}
_T5_DEFAULTS = {
    "vocab_size": 32128,
    "d_kv": 64,
    "d_ff": 2048,
    "num_heads": 8,
    "relative_attention_num_buckets": 32,
    "dropout_rate": 0.1,
    "feed_forward_proj": "relu",
    "tie_word_embeddings": True,
}
_GPT2_DEFAULTS = {
    "vocab_size": 50257,
    "n_positions": 1024,
    "n_head": 12,
    "resid_pdrop": 0.1,
    "activation_function": "gelu_new",
    "tie_word_embeddings": True,
}

_MAMBA_DEFAULTS = {
    "mamba_n_heads": 128,
    "mamba_d_head": 64,
    "mamba_d_state": 256,
    "mamba_n_groups": 1,
    "mamba_d_conv": 4,
    "mamba_chunk_size": 256,
}

CLASSIC: dict[str, Family] = {
    "gpt2": Family(read=classic.gpt2, defaults=_GPT2_DEFAULTS),
    "gpt_bigcode": Family(
        read=classic.gpt2, defaults=_GPT2_DEFAULTS | {"multi_query": True, "activation_function": "gelu_pytorch_tanh"}
    ),
    "gptj": Family(
        read=classic.gptj,
        defaults={"vocab_size": 50400, "n_head": 16, "rotary_dim": 64, "activation_function": "gelu_new"},
    ),
    "gpt_neo": Family(
        read=classic.gpt_neo,
        defaults={
            "vocab_size": 50257,
            "num_heads": 16,
            "max_position_embeddings": 2048,
            "window_size": 256,
            "activation_function": "gelu_new",
            "tie_word_embeddings": True,
        },
    ),
    "gpt_neox": Family(read=classic.gpt_neox, defaults={"vocab_size": 50432, "hidden_act": "gelu"}),
    "phi": Family(read=classic.phi, defaults={"vocab_size": 51200, "hidden_act": "gelu_new"}),
    "opt": Family(
        read=classic.opt,
        defaults={
            "vocab_size": 50272,
            "max_position_embeddings": 2048,
            "ffn_dim": 3072,
            "num_attention_heads": 12,
            "activation_function": "relu",
            "dropout": 0.1,
            "tie_word_embeddings": True,
        },
    ),
    "bloom": Family(read=classic.bloom, defaults={"vocab_size": 250880, "tie_word_embeddings": True}),
    "falcon": Family(
        read=classic.falcon, defaults={"vocab_size": 65024, "activation": "gelu", "tie_word_embeddings": True}
    ),
    "mpt": Family(read=classic.mpt, defaults={"vocab_size": 50368, "max_seq_len": 2048, "tie_word_embeddings": True}),
}

ENCODERS: dict[str, Family] = {
    "bert": Family(read=encoders.bert, defaults=_BERT_DEFAULTS),
    "roberta": Family(read=encoders.roberta, defaults=_BERT_DEFAULTS | {"vocab_size": 50265}),
    "xlm-roberta": Family(read=encoders.roberta, defaults=_BERT_DEFAULTS),
    "electra": Family(
        read=encoders.electra,
        defaults=_BERT_DEFAULTS | {"embedding_size": 128, "num_attention_heads": 4, "intermediate_size": 1024},
    ),
    "distilbert": Family(
        read=encoders.distilbert,
        defaults={
            "vocab_size": 30522,
            "max_position_embeddings": 512,
            "n_heads": 12,
            "hidden_dim": 3072,
            "dropout": 0.1,
            "activation": "gelu",
        },
    ),
    "t5": Family(read=encoders.t5, defaults=_T5_DEFAULTS),
    "mt5": Family(
        read=encoders.t5,
        defaults=_T5_DEFAULTS | {"vocab_size": 250112, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
    ),
    "bart": Family(
        read=encoders.bart,
        defaults={
            "vocab_size": 50265,
            "max_position_embeddings": 1024,
            "encoder_ffn_dim": 4096,
            "decoder_ffn_dim": 4096,
            "encoder_attention_heads": 16,
            "decoder_attention_heads": 16,
            "activation_function": "gelu",
            "dropout": 0.1,
        },
    ),
}

HYBRID: dict[str, Family] = {
    "minimax": Family(
        read=hybrid.minimax,
        defaults={"num_key_value_heads": 8, "num_local_experts": 8, "num_experts_per_tok": 2},
    ),
    "qwen3_next": Family(
        read=hybrid.qwen_delta(Sparse(where="step", shared="width", shared_gate=True), parts=2),
        defaults=_DELTA_DEFAULTS
        | {
            "vocab_size": 151936,
            "intermediate_size": 5632,
            "num_experts": 512,
            "num_experts_per_tok": 10,
            "moe_intermediate_size": 512,
            "shared_expert_intermediate_size": 512,
        },
    ),
    "qwen3_5_text": Family(
        read=hybrid.qwen_delta(None, parts=4),
        defaults=_DELTA_DEFAULTS | {"vocab_size": 248320, "num_key_value_heads": 4},
    ),
    "qwen3_5_moe_text": Family(
        read=hybrid.qwen_delta(Sparse(shared="width", shared_gate=True), parts=4),
        defaults=_DELTA_DEFAULTS
        | {
            "vocab_size": 248320,
            "num_experts": 256,
            "num_experts_per_tok": 8,
            "moe_intermediate_size": 512,
            "shared_expert_intermediate_size": 512,
        },
    ),
    "nemotron_h": Family(
        read=hybrid.nemotron_h,
        defaults={
            "vocab_size": 131072,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "intermediate_size": 21504,
            "mlp_hidden_act": "relu2",
            "ssm_state_size": 128,
            "mamba_num_heads": 128,
            "mamba_head_dim": 64,
            "n_groups": 8,
            "conv_kernel": 4,
            "chunk_size": 128,
        },
    ),
    "mamba2": Family(
        read=hybrid.mamba2,
        defaults={
            "vocab_size": 32768,
            "num_heads": 128,
            "head_dim": 64,
            "state_size": 128,
            "n_groups": 8,
            "conv_kernel": 4,
            "chunk_size": 256,
        },
    ),
    "gemma4_text": Family(
        read=varied.gemma4,
        defaults={
            "vocab_size": 262144,
            "head_dim": 256,
            "sliding_window": 512,
            "hidden_activation": "gelu_pytorch_tanh",
            "hidden_size_per_layer_input": 256,
            "global_head_dim": 512,
            "tie_word_embeddings": True,
        },
    ),
    "nemotron-nas": Family(read=varied.searched, defaults={"vocab_size": 128256}),
    "granitemoehybrid": Family(
        read=varied.granite_hybrid,
        defaults=_MAMBA_DEFAULTS | {"vocab_size": 32000, "shared_intermediate_size": 1024, "num_experts_per_tok": 2},
    ),
    "bamba": Family(read=varied.bamba, defaults=_MAMBA_DEFAULTS | {"vocab_size": 128000, "num_key_value_heads": 8}),
}
