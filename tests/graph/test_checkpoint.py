"""The number format of a checkpoint, from config.json to what a model is served in."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ridgeline.errors import InputError
from ridgeline.graph.checkpoint import checkpoint_weights, other_weights, served_weights
from ridgeline.graph.load import catalog, catalog_config, load

HOPPER = {"bf16", "fp16", "fp8", "int8"}
GROUP = {"weights": {"num_bits": 8, "type": "float", "strategy": "channel"}, "input_activations": {"num_bits": 8}}


@pytest.mark.parametrize(
    ("said", "name"),
    [
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "fp8_block"),
        ({"quant_method": "fp8", "activation_scheme": "dynamic"}, "fp8"),
        ({"quant_method": "mxfp4"}, "w4a16_mxfp4"),
        ({"quant_method": "awq", "bits": 4}, "int4_wo"),
        ({"quant_method": "gptq", "bits": 8}, "int8_wo"),
        ({"quant_method": "gptq", "bits": 3}, ""),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "nvfp4"),
        ({"quant_method": "modelopt", "quant_algo": "W4A16_AWQ"}, "int4_wo"),
        ({"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"}, ""),
        ({"producer": {"name": "modelopt"}, "quant_algo": "FP8", "ignore": ["lm_head"]}, "fp8"),
        ({"quant_method": "compressed-tensors", "config_groups": {"group_0": GROUP}}, "fp8"),
        (
            {"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": {"num_bits": 4, "type": "int"}}}},
            "int4_wo",
        ),
        ({"quant_method": "compressed-tensors", "config_groups": {}}, ""),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "int4_wo"),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "int8_wo"),
        ({"quant_method": "hqq"}, "int4_wo"),
        ({"quant_method": "weirdo", "bits": 3}, ""),
        ("fp8", ""),
        (None, ""),
    ],
)
def test_a_format_is_read_from_the_words_of_transformers(said: Any, name: str) -> None:
    assert checkpoint_weights({"quantization_config": said}) == name
    assert checkpoint_weights({}) == ""


def test_the_catalog_says_which_checkpoints_are_narrow() -> None:
    narrow = {name: found for name in catalog() if (found := checkpoint_weights(catalog_config(name)))}
    assert narrow == {
        "deepseek-r1": "fp8_block",
        "deepseek-v3": "fp8_block",
        "deepseek-v3.2": "fp8_block",
        "deepseek-v4-flash": "fp8_block",
        "deepseek-v4-pro": "fp8_block",
        "gpt-oss-120b": "w4a16_mxfp4",
        "gpt-oss-20b": "w4a16_mxfp4",
        "kimi-k2": "fp8_block",
        "kimi-k2-thinking": "int4_wo",
        "minimax-m2": "fp8_block",
    }


def test_a_model_is_served_as_its_checkpoint_where_the_machine_can() -> None:
    model = load("deepseek-v3")
    assert served_weights(model, HOPPER)[0] == "fp8_block"
    assert served_weights(model, {"bf16", "int8"}) == served_weights(model, HOPPER)  # engines widen it or refuse
    integers = {"quant_method": "compressed-tensors", "config_groups": {"group_0": INT8}}
    quantized = replace(model, config={**model.config, "quantization_config": integers})
    without, why = served_weights(quantized, {"bf16"})
    assert without == ""
    assert "no matrix rate" in why
    assert served_weights(quantized, HOPPER)[0] == "int8"
    assert served_weights(model, HOPPER, "fp8")[0] == "fp8_block"  # nobody scales them anew
    assert served_weights(model, HOPPER, "bf16") == ("bf16", "")
    assert served_weights(model, {"bf16", "int8"}, "fp8") == ("fp8", "")  # refused later, with the machine's rates
    assert served_weights(load("llama-3.1-8b"), HOPPER, "fp8") == ("fp8", "")
    assert served_weights(load("gpt-oss-20b"), {"bf16"})[0] == "w4a16_mxfp4"  # widened as it is read
    assert served_weights(load("llama-3.1-8b"), HOPPER) == ("", "")


def test_a_method_that_is_not_known_is_told_not_passed_over() -> None:
    model = load("tinyllama-1.1b")
    odd = replace(model, config={**model.config, "quantization_config": {"quant_method": "weirdo", "bits": 3}})
    name, why = served_weights(odd, ("bf16", "fp8"))
    assert name == ""
    assert why.startswith("the checkpoint's quantization_config names 'weirdo', not known: served in 16 bits")
    assert served_weights(model, ("bf16", "fp8")) == ("", "")


PLAIN = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 100, "max_position_embeddings": 64,
}  # fmt: skip
INT4 = {"weights": {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32}, "input_activations": None}
INT8 = {"weights": {"num_bits": 8, "type": "int"}, "input_activations": {"num_bits": 8}}
PACKED = {"quant_method": "compressed-tensors", "config_groups": {"group_0": INT4}}


def folder(tmp_path: Path, config: dict[str, Any], beside: str | None = None) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    if beside is not None:
        (tmp_path / "hf_quant_config.json").write_text(beside, encoding="utf-8")
    return tmp_path


def test_a_wrapped_text_model_says_its_own_format(tmp_path: Path) -> None:
    """As moonshotai/Kimi-K2.5 does: its quantization is in text_config."""
    inner = {**PLAIN, "quantization_config": PACKED}
    model = load(folder(tmp_path, {"model_type": "llava", "text_config": inner}))
    assert served_weights(model, HOPPER)[0] == "int4_wo"
    assert any("quantized (compressed-tensors)" in note for note in model.notes)


def test_a_file_beside_the_config_says_the_format(tmp_path: Path) -> None:
    """As nvidia/Llama-3.1-70B-Instruct-FP8 does: its config.json says nothing of quantization."""
    said = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}}
    model = load(folder(tmp_path, PLAIN, json.dumps(said)))
    assert served_weights(model, HOPPER)[0] == "fp8"
    assert served_weights(load(tmp_path / "config.json"), HOPPER)[0] == "fp8"
    own = load(folder(tmp_path, {**PLAIN, "quantization_config": PACKED}))
    assert served_weights(own, HOPPER)[0] == "int4_wo"  # the config's own word comes first


def test_a_file_beside_the_config_that_is_no_json_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"hf_quant_config.json:1: not JSON"):
        load(folder(tmp_path, PLAIN, "{"))


@pytest.mark.parametrize(
    ("listed", "other"),
    [
        ({"ignore": ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*"]}, "bf16"),  # moonshotai/Kimi-K2.5
        ({"ignore": ["lm_head", "model.layers.0.self_attn*", "model.layers.1.self_attn*"]}, "bf16"),
        ({"exclude_modules": ["language_model.model.layers.0*", "language_model.model.layers.1.self_attn*"]}, "bf16"),
        ({"ignore": ["lm_head", "model.layers.0.self_attn*"]}, ""),  # the other layer's attention is quantized
        ({"ignore": ["model.layers.0.self_attn.k_proj", "model.layers.1.self_attn.k_proj"]}, ""),
        ({"ignore": ["lm_head"]}, ""),
        ({"ignore": [7, None, "re:("]}, ""),
        ({"ignore": "re:.*self_attn.*"}, ""),
    ],
)
def test_attention_that_quantization_passed_over_keeps_16_bits(
    tmp_path: Path, listed: dict[str, Any], other: str
) -> None:
    model = load(folder(tmp_path, {**PLAIN, "quantization_config": {**PACKED, **listed}}))
    assert other_weights(model, HOPPER) == other
    assert other_weights(model, HOPPER, "fp8") == ""
    assert ("but for attention" in served_weights(model, HOPPER)[1]) == bool(other)


MIXED = {
    "quant_method": "modelopt",
    "quant_algo": "MIXED_PRECISION",
    "quantized_layers": {
        "model.layers.0.mlp.up_proj": {"quant_algo": "W4A16_NVFP4", "group_size": 16},
        "model.layers.1.mlp.up_proj": {"quant_algo": "W4A16_NVFP4", "group_size": 16},
        "model.layers.0.self_attn.o_proj": {"quant_algo": "FP8"},
        "model.layers.1.self_attn.o_proj": {"quant_algo": "FP8"},
        "lm_head": {"quant_algo": "NVFP4"},
    },
}


@pytest.mark.parametrize(
    ("layers", "weights", "other"),
    [
        (MIXED["quantized_layers"], "w4.5a16", "fp8"),  # nvidia/Qwen3.6-27B-NVFP4
        (
            {
                "layers.0.moe.experts.0.w1": {"quant_algo": "NVFP4"},
                "layers.0.mlp.shared_experts.up_proj": {"quant_algo": "MXFP8"},
            },
            "nvfp4",
            "bf16",
        ),
        ({"layers.0.self_attn.o_proj": {"quant_algo": "FP8"}}, "", ""),
        ({"layers.0.mlp.up_proj": {"quant_algo": "NEW7"}}, "", ""),
        ({"layers.0.mlp.up_proj": 7, "layers.1.mlp.up_proj": {"quant_algo": 3}}, "", ""),
        (None, "", ""),
    ],
)
def test_layers_of_different_formats_are_read_by_their_part(
    tmp_path: Path, layers: Any, weights: str, other: str
) -> None:
    model = load(folder(tmp_path, {**PLAIN, "quantization_config": {**MIXED, "quantized_layers": layers}}))
    rates = HOPPER | {"fp4"}
    assert checkpoint_weights(model.config) == weights
    assert other_weights(model, rates) == other
    if other == "fp8":
        assert "but for attention, which is fp8" in served_weights(model, rates)[1]
        assert other_weights(model, {"bf16"}) == "fp8"  # widened as it is read where nothing multiplies it
    if not weights:
        assert "MIXED_PRECISION', not known" in served_weights(model, rates)[1]
