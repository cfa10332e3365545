"""The number format of a checkpoint, from config.json to what a model is served in."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ridgeline.graph.checkpoint import checkpoint_weights, served_weights
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
        "minimax-m2": "fp8_block",
    }


def test_a_model_is_served_as_its_checkpoint_where_the_machine_can() -> None:
    model = load("deepseek-v3")
    assert served_weights(model, HOPPER)[0] == "fp8_block"
    without, why = served_weights(model, {"bf16", "int8"})
    assert without == ""
    assert "no matrix rate" in why
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
