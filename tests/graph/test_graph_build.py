"""Graphs of known architectures, and errors for configs that cannot be built."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.errors import InputError, ModelError, RidgelineError
from ridgeline.graph.build import build, from_dims, nested, texts, types, wrappers
from ridgeline.graph.load import catalog, catalog_config, load, parse_config
from ridgeline.graph.model import Block, op_params
from ridgeline.graph.ops import ElementwiseOp, GroupedGemmOp, LinearOp, Op, Region, Split
from ridgeline.lower.inference import serve
from ridgeline.lower.pieces import Core
from ridgeline.scenario.serving_words import deployed

EXAMPLES = {str(catalog_config(name)["model_type"]): dict(catalog_config(name)) for name in catalog()}


def one_block(name: str) -> Block:
    (block,) = load(name).graph.blocks.values()
    return block


def named(block: Block) -> dict[str, Op]:
    return {op.name: op for op in block.ops}


def test_llama_ops_in_order() -> None:
    assert [op.name for op in one_block("llama-3-8b").ops] == [
        "attention_norm",
        "qkv",
        "rotary",
        "attention",
        "attention_out",
        "attention_residual",
        "mlp_norm",
        "mlp_up",
        "mlp_activation",
        "mlp_down",
        "mlp_residual",
    ]


def test_llama_shapes() -> None:
    ops = named(one_block("llama-3-8b"))
    assert (ops["qkv"].k, ops["qkv"].n, ops["qkv"].parts, ops["qkv"].split) == (4096, 6144, 3, Split.COLUMN)
    assert (ops["attention_out"].k, ops["attention_out"].n, ops["attention_out"].split) == (4096, 4096, Split.ROW)
    assert (ops["mlp_up"].n, ops["mlp_up"].parts) == (2 * 14336, 2)
    assert (ops["attention"].heads, ops["attention"].kv_heads, ops["attention"].qk_dim) == (32, 8, 128)
    assert ops["mlp_activation"].read == 2 * 14336
    assert ops["mlp_activation"].backward_read == 3 * 14336
    assert ops["rotary"].read == 40 * 128


def test_every_catalog_model_has_the_count_that_was_published() -> None:
    published = {name: catalog_config(name).get("parameters") for name in catalog()}
    known = {name: count for name, count in published.items() if count is not None}
    assert len(known) >= 100
    assert {name: load(name).graph.params for name in known} == known


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("megatron-1.7b", 1.7),
        ("megatron-18b", 18.4),
        ("megatron-145b", 145.6),
        ("megatron-310b", 310.1),
        ("megatron-530b", 529.6),
        ("megatron-1t", 1008.0),
        ("palm-540b", 540.4),
        ("nemotron-4-340b", 341.0),
        ("glm-4.5", 352.8),
        ("minimax-text-01", 456.1),
        ("minimax-m2", 228.7),
        ("kimi-k2", 1026.4),
        ("nemotron-h-8b", 8.1),
    ],
)
def test_counts_that_papers_round(name: str, billions: float) -> None:
    assert round(load(name).graph.params / 1e9, 1) == billions


def test_gpt_count_is_narayanans_formula_and_a_final_norm() -> None:
    # arXiv:2104.04473, equation 2: 12 l h^2 (1 + 13/12h + (V + s)/12lh)
    for layers, hidden, heads in ((24, 2304, 24), (105, 20480, 128)):
        model = from_dims(layers=layers, hidden=hidden, heads=heads, vocab=51200, max_positions=2048)
        expected = 12 * layers * hidden**2 + 13 * layers * hidden + (51200 + 2048) * hidden
        assert model.graph.params == expected + 2 * hidden


def test_active_parameters_of_deepseek_v3() -> None:
    graph = load("deepseek-v3").graph
    assert graph.params - graph.active_params == 58 * (256 - 8) * 3 * 7168 * 2048


def test_deepseek_stacks_three_dense_layers_and_58_of_experts() -> None:
    graph = load("deepseek-v3").graph
    assert graph.layers == ("dense",) * 3 + ("moe",) * 58
    ops = named(graph.blocks["moe"])
    assert (ops["kv_down"].n, ops["q_up"].n, ops["kv_up"].n) == (512 + 64, 128 * 192, 128 * 256)
    assert (ops["attention"].qk_dim, ops["attention"].v_dim) == (192, 128)
    assert graph.blocks["moe"].shared_experts == 1
    assert "multi-token-prediction" in load("deepseek-v3").notes[0]


def test_windows_and_chunks() -> None:
    assert load("gemma-3-27b").graph.layers[:6] == ("sliding-dense",) * 5 + ("dense",)
    assert load("gemma-2-9b").graph.layers[:2] == ("sliding-dense", "dense")
    assert load("gpt-oss-20b").graph.layers[:2] == ("sliding-moe", "moe")
    assert named(load("gpt-oss-20b").graph.blocks["sliding-moe"])["attention"].window == 128
    scout = load("llama-4-scout").graph
    assert scout.layers[:4] == ("chunked-moe",) * 3 + ("moe",)
    assert "rotary" not in named(scout.blocks["moe"])
    assert load("llama-4-maverick").graph.layers[:4] == ("chunked-dense", "chunked-moe", "chunked-dense", "moe")
    assert load("minimax-text-01").graph.layers[6:8] == ("lightning-moe", "moe")


def test_boundaries() -> None:
    def kinds(block: Block) -> list[str]:
        return [edge.kind for edge in block.boundaries]

    assert kinds(one_block("llama-3-8b")) == ["tensor", "tensor"]
    assert kinds(one_block("pythia-1b")) == ["tensor"]
    assert kinds(one_block("mixtral-8x7b")) == ["tensor", "expert"]
    assert kinds(load("deepseek-v3").graph.blocks["moe"]) == ["tensor", "expert", "tensor"]
    assert kinds(load("nemotron-h-8b").graph.blocks["mamba"]) == ["tensor"]


def test_split_of_parameters() -> None:
    for name in ("llama-3-8b", "mixtral-8x7b", "gpt3-125m", "deepseek-v3"):
        for block in load(name).graph.blocks.values():
            for op in block.ops:
                if isinstance(op, LinearOp) and op.split in (Split.COLUMN, Split.ROW):
                    assert op.params_split, (name, op.name)
                if op.name.endswith("_norm") or op.name == "router":
                    assert not op.params_split, (name, op.name)


def test_lora_parameters_of_llama_2_7b() -> None:
    # peft, rank 16 on all seven linear layers of Llama-2-7B: 39,976,960 trainable
    ops = one_block("llama-2-7b").ops
    assert 32 * sum(16 * (op.parts * op.k + op.n) for op in ops if isinstance(op, LinearOp) and op.lora) == 39_976_960


def test_tied_heads_count_once() -> None:
    tied = from_dims(layers=1, hidden=8, heads=2, vocab=10, max_positions=4)
    free = from_dims(layers=1, hidden=8, heads=2, vocab=10, max_positions=4, tied=False)
    assert free.graph.params - tied.graph.params == 80
    head = next(op for op in tied.graph.head if op.name == "lm_head")
    assert (head.tied, op_params(head, 1), head.params) == (True, 0, 80)


def test_encoder_output_is_kept_once_for_the_decoder() -> None:
    graph = load("bart-base").graph
    ends = [name for name in graph.layers if any(op.name == "encoder_output" for op in graph.blocks[name].ops)]
    assert len(ends) == 1
    assert graph.layers.index(ends[0]) == 5


def test_explicit_options_change_what_they_say() -> None:
    base = partial(from_dims, layers=4, hidden=64, heads=8, vocab=100, max_positions=32)
    model = base(experts=4, top_k=2, expert_ffn=32, dense_layers_first=1, shared_experts=1)
    assert model.graph.layers == ("dense", "moe", "moe", "moe")
    assert base(experts=4, top_k=1, expert_interval=2).graph.layers == ("dense", "moe", "dense", "moe")
    assert base(window=16, global_every=2).graph.layers == (
        "sliding-dense",
        "dense",
        "sliding-dense",
        "dense",
    )
    encoder = base(encoder=True, placement="post", type_vocab=2, pooler=True)
    assert not named(next(iter(encoder.graph.blocks.values())))["attention"].causal
    assert [op.name for op in encoder.graph.head][:3] == ["pooler", "next_sentence", "head_transform"]
    biased = base(bias={"qkv": True})
    assert biased.graph.params == base(bias=False).graph.params + 4 * 3 * 64
    normed = base(qk_norm=True)
    assert normed.graph.params == base().graph.params + 4 * 2 * 2 * 8  # scale and shift of heads 8 wide, twice a layer


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"num_attention_heads": 0}, "num_attention_heads = 0"),
        ({"num_attention_heads": "32"}, "num_attention_heads = '32', needs a whole number"),
        ({"num_attention_heads": 33}, "not a multiple of num_attention_heads = 33"),
        ({"num_key_value_heads": 5}, "num_key_value_heads = 5 does not divide the 32 query heads"),
        ({"hidden_size": -4096}, "hidden_size = -4096"),
        ({"hidden_size": math.nan}, "hidden_size = nan"),
        ({"hidden_size": 1e300}, "hidden_size = 1e"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers = 1000000000, needs a whole number from 1 to"),
        ({"num_hidden_layers": None}, "no field 'num_hidden_layers'"),
        ({"hidden_size": 10**5000}, "hidden_size = int too long to print"),
        ({"hidden_size": {"a": [1]}}, "hidden_size = {'a': [1]}"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings = 'yes', needs true or false"),
        ({"hidden_act": 3}, "hidden_act = 3, needs a text"),
        ({"model_type": "lama"}, "nearest: llama"),
        ({"model_type": None}, "no field 'model_type'"),
        ({"model_type": 7}, "no field 'model_type'"),
    ],
)
def test_bad_fields_are_named(change: dict[str, Any], words: str) -> None:
    config = dict(catalog_config("llama-3-8b")) | change
    with pytest.raises(ModelError) as caught:
        build(config, name="mine", source="test")
    assert words in str(caught.value)
    assert "mine" in str(caught.value)


def test_an_unknown_type_says_how_to_give_dimensions() -> None:
    with pytest.raises(ModelError, match="model_type 'explicit' with layers, hidden, heads, vocab"):
        build({"model_type": "frobnicator"}, name="mine", source="test")


def test_a_misspelt_dimension_is_not_a_silent_default() -> None:
    config = {"model_type": "explicit", "layers": 2, "hidden": 8, "heads": 2, "vocab": 9, "kv_head": 1}
    with pytest.raises(ModelError, match="unknown field 'kv_head'; nearest: kv_heads"):
        build(config, name="mine", source="test")


def test_more_experts_wanted_than_there_are() -> None:
    config = dict(catalog_config("mixtral-8x7b")) | {"num_experts_per_tok": 9}
    with pytest.raises(ModelError, match="num_experts_per_tok = 9 is more than the 8 experts"):
        build(config, name="mine", source="test")


def test_defaults_that_were_used_are_said() -> None:
    config = {"model_type": "gemma3_text", "hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 100}
    model = build(config, name="mine", source="test")
    assert any("num_attention_heads = 8" in note for note in model.notes)


def test_wrapped_text_models() -> None:
    inner = dict(catalog_config("gemma-3-4b"))
    del inner["model_type"]
    model = build({"model_type": "gemma3", "text_config": inner}, name="mine", source="test")
    assert model.graph == load("gemma-3-4b").graph
    assert model.model_type == "gemma3_text"
    assert any("text model" in note for note in model.notes)


JUNK = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-5, 300)
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["full_attention", "moe", "gated-gelu", "explicit", "1" * 400]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=400, deadline=None)
@given(data=st.data())
def test_mutated_configs_build_or_raise_the_right_error(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(sorted(EXAMPLES)))
    config = dict(EXAMPLES[kind])
    for key in data.draw(st.lists(st.sampled_from(sorted(config)), min_size=1, max_size=4)):
        if data.draw(st.booleans()):
            config.pop(key, None)
        else:
            config[key] = data.draw(JUNK)
    for key in data.draw(st.lists(st.sampled_from(EXTRA), max_size=2)):
        config[key] = data.draw(JUNK)
    try:
        model = build(config, name="mutant", source="test")
    except (ModelError, InputError):
        return
    assert model.graph.params > 0
    assert model.graph.active_params <= model.graph.params


def test_a_small_gemma_4_borrows_keys_and_has_an_embedding_for_each_layer() -> None:
    """Of 42 layers the last 18 keep no keys; each has 2560 x 256 numbers in, 256 x 2560 out and a norm of its own."""
    graph = load("gemma-4-e4b").graph
    blocks = [graph.blocks[name] for name in graph.layers]
    borrowed = [block.attention.borrowed for block in blocks if block.attention is not None]
    assert borrowed == [False] * 24 + [True] * 18
    own, late = ({op.name: op for op in block.ops} for block in (blocks[0], blocks[41]))
    assert own["qkv"].params == 2560 * 256 * (8 + 2 * 2)
    assert late["qkv"].params == 2560 * 512 * 8
    assert sum(own[name].params for name in ("layer_gate", "layer_project", "layer_norm")) == 2 * 2560 * 256 + 2560
    (table,) = (op for op in graph.embedding if op.name == "embed_layers")
    assert table.params == 262144 * 42 * 256
    (first, *_, last) = serve(load("gemma-4-e4b"), deployed()).kinds
    cached = [sum(piece.token_bytes(2.0) for piece in kind.pieces if isinstance(piece, Core)) for kind in (first, last)]
    assert cached == [2.0 * 2 * 2 * 256, 0.0]


EXTRA = (
    "layer_types",
    "no_rope_layers",
    "moe_layers",
    "mlp_only_layers",
    "rope_parameters",
    "rope_scaling",
    "attn_config",
    "text_config",
    "head_dim",
    "moe_layer_freq",
    "partial_rotary_factor",
    "architectures",
    "num_nextn_predict_layers",
    "bias",
    "hybrid_override_pattern",
    "use_sliding_window",
)


@settings(max_examples=200, deadline=None)
@given(config=st.dictionaries(st.sampled_from(["model_type", "text_config", "layers", "x"]), JUNK, max_size=4))
def test_arbitrary_objects_build_or_raise_the_right_error(config: Mapping[str, Any]) -> None:
    with pytest.raises(ModelError):
        build(config, name="junk", source="test")


@settings(max_examples=200, deadline=None)
@given(text=st.text(max_size=40) | st.sampled_from(["[1]", "{", '{"a": 1,}', "1" * 5000, "[" * 100_000, "\x00", "NaN"]))
def test_any_text_is_a_config_or_an_input_error(text: str) -> None:
    with suppress(InputError):
        assert isinstance(parse_config(text, file="config.json"), dict)


@pytest.mark.parametrize("size", [2**40, 2**39 + 1])
def test_huge_dimensions_stay_exact(size: int) -> None:
    model = from_dims(layers=1, hidden=size, heads=1, vocab=size, max_positions=1, bias=False)
    assert model.graph.params == 12 * size**2 + 4 * size + size**2 + size + 2 * size
    json.dumps(model.dims)


def test_wrappers_point_to_families() -> None:
    assert set(wrappers().values()) | set(texts().values()) <= set(types())
    assert not (set(wrappers()) | set(texts())) & set(types())
    assert nested("gemma")["hidden_size"] == 3072
    assert nested("deepseek_v3") == {}


VICUNA = {"model_type": "llama", "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "vocab_size": 32064}
PIXTRAL = {
    "hidden_size": 5120, "head_dim": 128, "intermediate_size": 14336, "max_position_embeddings": 1024000,
    "model_type": "mistral", "num_hidden_layers": 40, "num_key_value_heads": 8, "sliding_window": None,
    "vocab_size": 131072,
}  # fmt: skip
INTERNLM = {
    "model_type": "internlm2", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 92553, "max_position_embeddings": 32768,
}  # fmt: skip
GLM = {
    "model_type": "glm4v_text", "hidden_size": 4096, "intermediate_size": 13696, "num_hidden_layers": 40,
    "num_attention_heads": 32, "num_key_value_heads": 2, "vocab_size": 151552, "attention_bias": True,
}  # fmt: skip


@pytest.mark.parametrize(
    ("config", "kind", "params"),
    [
        ({"model_type": "llava", "text_config": VICUNA}, "llama", 6_738_939_904),  # Vicuna 7B and 64 rows more
        ({"model_type": "llava", "text_config": PIXTRAL}, "mistral", 12_247_782_400),  # Mistral NeMo's text model
        ({"model_type": "internvl_chat", "llm_config": INTERNLM}, "internlm2", 7_737_782_272),  # InternVL2-8B
        ({"model_type": "glm4v", "text_config": GLM}, "glm4", 9_400_279_040),  # GLM-4-9B-0414
        ({"model_type": "spoken", "thinker_config": {"text_config": INTERNLM}}, "internlm2", 7_737_782_272),
    ],
)
def test_a_text_model_inside_another_is_answered_alone(config: dict[str, Any], kind: str, params: int) -> None:
    model = build(config, name="wrapped", source="test")
    assert (model.model_type, model.graph.params) == (kind, params)
    assert f"the text model of '{config['model_type']}' alone" in model.notes


@pytest.mark.parametrize("outer", ["llava", "spoken"])
def test_a_text_model_of_an_unknown_type_is_never_taken_for_another(outer: str) -> None:
    with pytest.raises(ModelError, match="unknown model_type"):
        build(
            {"model_type": outer, "text_config": {**INTERNLM, "model_type": "odd_text"}}, name="wrapped", source="test"
        )


def test_sizes_are_filled_in_only_where_the_class_is_the_text_model_s_own() -> None:
    with pytest.raises(ModelError, match="no field 'num_hidden_layers'"):
        build(
            {"model_type": "x", "thinker_config": {"text_config": {"model_type": "qwen2_5_omni_text"}}},
            name="x",
            source="test",
        )
    with pytest.raises(ModelError, match="no field"):
        build({"model_type": "llama", "vocab_size": 32000}, name="x", source="test")  # a whole config says its sizes


def test_expert_weights_exist_once_per_expert() -> None:
    block = one_block("mixtral-8x7b")
    experts = [op for op in block.ops if op.region is Region.EXPERT and isinstance(op, GroupedGemmOp)]
    assert sum(op.params for op in experts) == 3 * 4096 * 14336
    assert block.params - block.active_params == 6 * 3 * 4096 * 14336


def test_files_and_folders(tmp_path: Path) -> None:
    folder = tmp_path / "my-model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(dict(catalog_config("llama-3-8b"))))
    for given_path in (folder, str(folder), folder / "config.json", str(folder / "config.json")):
        assert load(given_path).name == "my-model"
    (folder / "config.json").write_text('{\n "a": 1,\n "b": }\n')
    with pytest.raises(InputError, match=r"config\.json:3"):
        load(folder)
    with pytest.raises(RidgelineError, match="holds no config"):
        load(str(tmp_path))
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="is not UTF-8"):
        load(tmp_path / "binary.json")
    with pytest.raises(InputError, match="no such file"):
        load("./absent.json")


def test_the_page_on_models_lists_every_type() -> None:
    page = (Path(__file__).parents[2] / "docs" / "models.md").read_text(encoding="utf-8")
    rows = page.split("## Types", 1)[1].split("|---|---|", 1)[1].split("\n\n", 1)[0]
    assert set(re.findall(r"`([^`]+)`", rows)) == set(types()) | set(wrappers())


LATENT_EXPERTS = {
    "model_type": "nemotron_h", "hidden_size": 64, "hybrid_override_pattern": "E", "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 32, "mlp_hidden_act": "relu2", "vocab_size": 100,
    "max_position_embeddings": 64, "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
    "n_shared_experts": 1, "moe_shared_expert_intermediate_size": 48,
}  # fmt: skip


def test_experts_in_a_latent_are_as_wide_as_it() -> None:
    """Nemotron 3 Super's layer by hand: D = 64, latent 16, 4 experts of 32, 2 visited, a shared one of 48."""
    plain, latent = (
        build({**LATENT_EXPERTS, "moe_latent_size": size}, name="x", source="test").graph for size in (None, 16)
    )
    around = 64 + 64 * 4 + 2 * 64 * 48  # norm, router, shared expert
    ends = 2 * 100 * 64 + 64
    assert plain.params == ends + around + 4 * 2 * 64 * 32
    assert latent.params == ends + around + 2 * 64 * 16 + 4 * 2 * 16 * 32
    assert latent.active_params == ends + around + 2 * 64 * 16 + 2 * 2 * 16 * 32
    (block,) = latent.blocks.values()
    assert [edge.width for edge in block.boundaries if edge.kind == "expert"] == [16]
    sizes = {op.name: (op.read, op.write) for op in block.ops if isinstance(op, ElementwiseOp)}
    assert sizes["dispatch"] == (2 * 16, 2 * 16)
    assert sizes["combine"] == (2 * 16, 16)
