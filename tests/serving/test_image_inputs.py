"""Images before a language model: tokens of their tiles, the tower's work once a prompt, its weights."""

import numpy as np
import pytest

from ridgeline.errors import PlanError
from ridgeline.facts.clusters import cluster
from ridgeline.graph.load import load
from ridgeline.lower.inference import serve
from ridgeline.lower.pieces import Core, Product
from ridgeline.plan.deployment import Deployment
from ridgeline.predict.serving import Operation, simulate_serving
from ridgeline.seams.resolve import rewritten
from ridgeline.seams.serving import with_inputs
from ridgeline.serving.traffic.asked import asked_traffic
from ridgeline.techniques.graphs.hired import Hired

WORDS = {"requests": 1, "prompt": (45, 45), "output": (8, 8), "arrivals": "burst"}


@pytest.mark.parametrize(
    ("width", "height", "tiles", "tokens"),
    [
        (600, 600, 5, 576 + 48 * 49),  # 2 x 2 tiles of 24 x 24 patches, a thumbnail, 48 ends of rows
        (1000, 300, 4, 576 + 24 * 73 - 2 * 73),  # 3 x 1 tiles; 72 wide leave 21 rows, an even number is cut: 22
        (336, 672, 3, 576 + 48 * 25),
    ],
)
def test_tokens_of_an_image_are_those_of_its_tiles(width: int, height: int, tiles: int, tokens: int) -> None:
    whole = Hired(share=1.0, width=width, height=height)
    assert (whole.tiles, whole.image_tokens) == (tiles, tokens)
    assert Hired(share=0.2, width=width, height=height).image_tokens == int(tiles * 576 * 0.2)


def test_the_tower_computes_all_tiles_once_a_prompt() -> None:
    model = rewritten(load("llama-2-7b"), ("hired",))
    served = serve(model, Deployment())
    (front,) = [piece for kind in served.kinds for piece in kind.pieces if isinstance(piece, Core) and piece.encoder]
    assert front.encoder is not None
    rows = front.encoder.samples * front.encoder.tokens
    assert rows == 5 * 577
    flop = sum(2 * rows * p.n * p.k * count for p, count in front.encoder.pieces if isinstance(p, Product))
    by_hand = 2 * rows * (24 * (4 * 1024**2 + 2 * 1024 * 4096) + 1024 * 4096 + 4096**2)
    assert flop == by_hand
    assert front.token_bytes(2.0) == 0.0
    assert model.graph.params - load("llama-2-7b").graph.params == pytest.approx(304e6 + 21e6, rel=0.01)


def test_dropped_tokens_save_prefill_and_not_the_tower() -> None:
    model, where = load("llama-2-7b"), cluster("1xA100-SXM")
    found = {}
    for share in ("hired(share=1.0)", "hired", ""):
        deployment = Deployment(technique=(share,) if share else ())
        traffic = with_inputs(asked_traffic(WORDS)[0], [deployment])
        found[share] = simulate_serving(model, where, [deployment], traffic, operation=Operation(changes=False))
    ttft = [one.metrics.ttft.mean for one in found.values()]
    assert ttft[0] > 2.5 * ttft[1] > 2.5 * ttft[2]
    tower_s = 2 * 2885 * 325e6 / 312e12  # at the peak of the datasheet
    assert ttft[1] - ttft[2] > tower_s
    assert np.isfinite(ttft).all()


def test_shares_of_nothing_are_refused() -> None:
    with pytest.raises(PlanError, match="share"):
        Hired(share=0.0)
