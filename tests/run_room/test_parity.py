"""The same plan on one rank and on several: every way to divide a model gives the losses of the undivided one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("torch")

from ridgeline.graph.build import build, from_dims
from ridgeline.graph.load import load
from ridgeline.graph.model import Model
from ridgeline.graph.workload import Workload
from ridgeline.plan.plan import Plan
from ridgeline.run.decoder import Decoder
from ridgeline.run.launch import launch
from ridgeline.run.mapping import execution_of, parameters, shape_of

WORK = Workload(seq_len=16, global_batch=4, precision="fp32", optimizer="sgd-momentum")
GPIPE = "gpipe"


def model(**words: Any) -> Model:
    dims: dict[str, Any] = {
        "layers": 2, "hidden": 64, "heads": 4, "kv_heads": 2, "vocab": 128, "ffn": 96, "gated": True,
        "activation": "silu", "norm": "rms", "bias": False, "tied": False, "positions": "rope",
    }  # fmt: skip
    return from_dims(**(dims | words))


DENSE = model()
EXPERTS = model(experts=4, top_k=2, expert_ffn=48)
TIED = model(tied=True, layers=3)
LATENT_CONFIG = {
    "architectures": ["DeepseekV2ForCausalLM"], "model_type": "deepseek_v2", "hidden_size": 64,
    "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4,
    "q_lora_rank": 24, "kv_lora_rank": 16, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 12,
    "vocab_size": 128, "max_position_embeddings": 64, "tie_word_embeddings": False, "hidden_act": "silu",
    "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "first_k_dense_replace": 2,
}  # fmt: skip
LATENT = build(LATENT_CONFIG, name="latent", source="test")
SHARED = build({**LATENT_CONFIG, "first_k_dense_replace": 0, "n_shared_experts": 2}, name="shared", source="test")
MODELS = {"dense": DENSE, "experts": EXPERTS, "tied": TIED, "latent": LATENT, "shared": SHARED}


def losses(which: Model, **words: Any) -> tuple[float, ...]:
    asked = execution_of(which, WORK, Plan(micro_batch=1, **words))
    return launch(asked, repeats=1, limit_s=120).losses


@pytest.fixture(scope="module", autouse=True)
def one_thread_a_rank() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        yield


@pytest.fixture(scope="module")
def alone(one_thread_a_rank: None) -> dict[str, tuple[float, ...]]:
    return {name: losses(which) for name, which in MODELS.items()}


def test_training_changes_the_loss_so_that_parity_means_something(alone: dict[str, tuple[float, ...]]) -> None:
    asked = execution_of(DENSE, replace(WORK, optimizer="sgd"), Plan(micro_batch=1))
    other = launch(asked, repeats=1, limit_s=120).losses  # without momentum: equal until the second update
    assert other[0] == pytest.approx(alone["dense"][0], abs=1e-7)
    assert abs(other[2] - alone["dense"][2]) > 1e-4


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("dense", {"dp": 2}),
        ("dense", {"dp": 2, "zero": 1}),
        ("dense", {"dp": 2, "tp": 2, "zero": 1}),
        ("tied", {"dp": 2, "pp": 2, "zero": 1}),
        ("dense", {"dp": 2, "zero": 2}),
        ("dense", {"dp": 2, "zero": 3, "recompute": "full"}),
        ("dense", {"tp": 2, "sequence_parallel": True}),
        ("dense", {"pp": 2}),
        ("dense", {"recompute": "selective", "tp": 2}),
        ("dense", {"cp": 2}),
        ("dense", {"cp": 2, "tp": 2, "recompute": "full"}),
        ("dense", {"cp": 2, "dp": 2, "zero": 3}),
        ("dense", {"cp": 2, "pp": 2}),
        ("experts", {"cp": 2, "recompute": "selective"}),
        ("dense", {"pp": 2, "schedule": GPIPE, "tp": 2}),
        ("dense", {"dp": 2, "tp": 2}),
        ("experts", {"tp": 2, "etp": 2}),
        ("experts", {"dp": 2, "zero": 3}),
        ("experts", {"dp": 2, "ep": 2}),
        ("experts", {"dp": 4, "ep": 2}),
        ("experts", {"cp": 2, "ep": 2, "recompute": "full"}),
        ("experts", {"pp": 2, "dp": 2, "ep": 2}),
        ("latent", {"tp": 2}),
        ("shared", {"tp": 2, "dp": 2, "ep": 2, "etp": 2}),
        ("tied", {"pp": 3}),
        ("tied", {"pp": 2, "tp": 2}),
        ("tied", {"pp": 2, "dp": 2, "zero": 3}),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(f"{key}={item}" for key, item in value.items()),
)
def test_losses_are_those_of_one_rank(name: str, words: dict[str, Any], alone: dict[str, tuple[float, ...]]) -> None:
    found = losses(MODELS[name], **words)
    assert len(found) == 3
    assert found == pytest.approx(alone[name], abs=3e-5)


@pytest.mark.parametrize("name", ["llama-3.2-1b", "gpt2", "mixtral-8x7b", "qwen2.5-0.5b", "llama-3.1-70b"])
def test_weights_of_catalog_models_are_counted_as_their_graphs_count_them(name: str) -> None:
    which = load(name)
    assert parameters(shape_of(which)) == which.graph.params


OLD = model(
    tied=True, bias=True, norm="layer", positions="learned", max_positions=32, gated=False, activation="gelu"
)  # fmt: skip


@pytest.mark.parametrize("which", [DENSE, EXPERTS, OLD, LATENT, SHARED])
def test_the_model_that_runs_holds_the_weights_of_the_graph(which: Model) -> None:
    assert sum(one.numel() for one in Decoder(shape_of(which)).parameters()) == which.graph.params


def test_selective_recompute_runs_attention_again_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch
    from torch.nn import functional

    from ridgeline.run.decoder import loss_of

    calls: list[int] = []
    linear: list[int] = []
    real, plain = functional.scaled_dot_product_attention, functional.linear

    def counted(*words: Any, **named: Any) -> Any:
        calls.append(1)
        return real(*words, **named)

    def multiplied(*words: Any) -> Any:
        linear.append(1)
        return plain(*words)

    monkeypatch.setattr(functional, "scaled_dot_product_attention", counted)
    monkeypatch.setattr(functional, "linear", multiplied)
    tokens = torch.randint(128, (1, 9))
    for recompute, times in (("none", 2), ("selective", 4), ("full", 4)):
        calls.clear()
        torch.manual_seed(0)
        decoder = Decoder(shape_of(DENSE), recompute=recompute)
        products = sum(isinstance(one, torch.nn.Linear) for one in decoder.modules())
        linear.clear()
        loss_of(decoder(tokens[:, :-1]), tokens[:, 1:]).backward()
        assert len(calls) == times
        assert (len(linear) > products) == (recompute == "full")
