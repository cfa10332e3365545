"""Vision transformers: parameters and products of the published networks."""

from __future__ import annotations

import pytest

from ridgeline.errors import UnknownNameError
from ridgeline.graph.flop import model_flop_per_token
from ridgeline.graph.vision_transformer import vision_tokens, vision_transformer
from ridgeline.graph.workload import Workload
from ridgeline.lower.shard import Sharder
from ridgeline.lower.work import Gemm, Layout, Phase


@pytest.mark.parametrize(
    ("name", "params", "products"),  # timm's parameters; products of an image with those of attention
    [
        ("vit-tiny-patch16-224", 5_717_416, 1.25e9),
        ("vit-small-patch16-224", 22_050_664, 4.60e9),
        ("vit-base-patch16-224", 86_567_656, 17.56e9),
        ("vit-base-patch32-384", 88_297_192, 13.05e9),
        ("vit-large-patch16-224", 304_326_632, 61.55e9),
    ],
)
def test_published_networks(name: str, params: int, products: float) -> None:
    graph, tokens = vision_transformer(name).graph, vision_tokens(name)
    assert graph.params == params
    assert model_flop_per_token(graph, float(tokens)) * tokens / 2 == pytest.approx(products, rel=5e-3)


def test_one_token_of_an_image_is_classified_and_its_pixels_get_no_gradient() -> None:
    name = "vit-base-patch16-224"
    graph, tokens = vision_transformer(name).graph, vision_tokens(name)
    sharder = Sharder(Workload(seq_len=tokens, global_batch=4), Layout(micro_batch=4))
    (classes,) = [
        piece for piece in sharder.end(graph.head) if isinstance(piece, Gemm) and piece.phase is Phase.FORWARD
    ]
    assert (float(classes.m), classes.n, classes.k) == (pytest.approx(4), 1000, 768)
    phases = [piece.phase for piece in sharder.end(graph.embedding) if piece.name == "patches"]
    assert phases == [Phase.FORWARD, Phase.BACKWARD_WEIGHT]


@pytest.mark.parametrize("name", ["vit-base", "vit-giant-patch16-224", "vit-base-patch16-225"])
def test_an_unknown_name_is_refused(name: str) -> None:
    with pytest.raises(UnknownNameError, match="vit-base-patch16-224"):
        vision_transformer(name)


def test_autocast_widens_norms_sums_and_softmax_and_nothing_else() -> None:
    plain, wide = (vision_transformer("vit-base-patch16-224", autocast=autocast).graph for autocast in (False, True))
    assert plain.params == wide.params
    assert model_flop_per_token(plain, 197.0) == model_flop_per_token(wide, 197.0)
    (one,), (two,) = (tuple(graph.blocks.values()) for graph in (plain, wide))
    narrow, broad = ({op.name: op for op in block.ops} for block in (one, two))
    assert set(broad) - set(narrow) == {"attention_norm_cast", "mlp_norm_cast", "softmax_cast"}
    assert (broad["mlp_norm"].read, broad["mlp_residual"].read, broad["mlp_residual"].write) == (1536, 2304, 1536)
    assert broad["softmax_cast"].read == 2 * 12 * 197
    same = set(narrow) - {"attention_norm", "mlp_norm", "attention_residual", "mlp_residual"}
    assert all(narrow[name] == broad[name] for name in same)
