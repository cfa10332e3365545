"""What goes before a language model's first layer and after its last: parameters and work by hand."""

from __future__ import annotations

import pytest

from ridgeline.cost.machine import machine
from ridgeline.errors import PlanError
from ridgeline.facts.clusters import cluster
from ridgeline.graph import load as catalog
from ridgeline.graph.workload import Task, Workload
from ridgeline.lower.params import rank_params
from ridgeline.lower.shard import Sharder
from ridgeline.lower.work import Gemm, Layout, Phase
from ridgeline.scenario.serving_words import deployed
from ridgeline.seams.resolve import rewritten
from ridgeline.serving.engine import engine
from ridgeline.techniques.graphs.latent_pooling import LatentPooling
from ridgeline.techniques.graphs.vision_prefix import VisionPrefix

PHI, MISTRAL = catalog.load("phi-2"), catalog.load("mistral-7b")
JOB = Workload(seq_len=256, global_batch=1, task=Task.LORA)


def test_the_encoder_and_the_query_former_have_their_published_sizes() -> None:
    """EVA's ViT-g has 986 million (BLIP-2's report of its vision model), the Q-Former about 105 with its queries."""
    ops = rewritten(PHI, ("vision-prefix",)).graph.embedding
    size = {part: sum(op.params for op in ops if op.name.startswith(part)) for part in ("vision", "query", "project")}
    assert size["vision"] == pytest.approx(985e6, rel=0.005)
    assert size["query"] == pytest.approx(105e6, rel=0.01)
    assert size["project"] == 769 * 4096 + 4097 * 2560


def test_projections_alone_are_trained_and_the_encoder_runs_forward_alone() -> None:
    """One image of 257 patches in 256 tokens: qkv of a layer is a product of 257 rows; the projections have 32."""
    ops = rewritten(PHI, ("vision-prefix",)).graph.embedding
    found = rank_params(ops, Layout(), JOB)
    assert found.trained_dense == 769 * 4096 + 4097 * 2560
    work = [piece for piece in Sharder(JOB, Layout(micro_batch=1)).end(ops) if isinstance(piece, Gemm)]
    (qkv,) = (piece for piece in work if piece.name == "vision3.qkv")
    assert (float(qkv.m), qkv.n, qkv.k, qkv.phase) == (257.0, 3 * 1408, 1408, Phase.FORWARD)
    phases = {piece.phase for piece in work if piece.name == "projection"}
    assert phases == {Phase.FORWARD, Phase.BACKWARD_INPUT, Phase.BACKWARD_WEIGHT}
    with pytest.raises(PlanError, match="say lora"):
        rank_params(ops, Layout(), Workload(seq_len=256, global_batch=1))
    assert VisionPrefix(image=448).patches == 1025


def test_pooling_by_hand() -> None:
    """Mistral 7B, 512 latents, 8 heads of 4,096: queries and back, keys and values of latents, and a gated MLP."""
    block = rewritten(MISTRAL, ("latent-pooling",), "serving").graph.blocks["latent-pooling"]
    wide = 8 * 4096
    weights = 2 * 4096 * wide + 2 * 512 * wide + 3 * 4096 * 16_384
    assert block.params == weights + 2 * 16_384 + 4096  # biases of the MLP
    where = machine(cluster("1xH100-SXM"))
    plain, pooled = (
        engine(MISTRAL, where, deployed(technique=texts, instances=1)) for texts in ((), ("latent-pooling",))
    )
    assert pooled.capacity.weights_bytes - plain.capacity.weights_bytes == pytest.approx(2 * weights, rel=0.01)
    assert pooled.capacity.token_bytes == plain.capacity.token_bytes
    assert LatentPooling(latents=64).rewrite(MISTRAL.graph).params < LatentPooling().rewrite(MISTRAL.graph).params
