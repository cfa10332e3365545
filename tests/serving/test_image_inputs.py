"""Images before a language model: tokens of their tiles, the tower's work once a prompt, its weights."""

import numpy as np
import pytest

from ridgeline.cost.machine import machine
from ridgeline.errors import PlanError
from ridgeline.facts.clusters import cluster
from ridgeline.graph.load import load
from ridgeline.plan.deployment import Deployment
from ridgeline.predict.serving import Operation, simulate_serving
from ridgeline.seams.resolve import rewritten
from ridgeline.serving.engine import engine
from ridgeline.serving.traffic.asked import asked_traffic
from ridgeline.techniques.graphs.hired import Hired, ImageInputs

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
    whole = ImageInputs(width=width, height=height)
    assert (whole.tiles, whole.image_tokens) == (tiles, tokens)
    assert ImageInputs(width=width, height=height, count=3).prompt_tokens(45) == 45 + 3 * tokens
    assert Hired(share=0.2, width=width, height=height).image_tokens == int(tiles * 576 * 0.2)


def test_the_tower_computes_all_tiles_with_the_first_chunk_of_a_prompt() -> None:
    plain, model = load("llama-2-7b"), rewritten(load("llama-2-7b"), ("hired",), "serving")
    assert model.graph.params - plain.graph.params == pytest.approx(304e6 + 21e6, rel=0.01)
    where, said = machine(cluster("1xA100-SXM")), {"longest_prompt": 1024, "longest": 1100}
    with_image, words = (engine(plain, where, Deployment(technique=texts)).tables(**said) for texts in (("hired",), ()))
    added = with_image.first.mid - words.first.mid
    flop = 2 * 5 * 577 * (24 * (4 * 1024**2 + 2 * 1024 * 4096) + 1024 * 4096 + 4096**2)  # products of 5 tiles
    assert flop / 312e12 < added[0, 0] < 4 * flop / 312e12  # the peak of the datasheet
    assert added[:, 0] == pytest.approx(added[0, 0])  # whatever the words
    assert not added[:, 1:].any()  # later chunks have none
    assert 0.0 < (with_image.each.mid - words.each.mid)[0, 0] <= added[0, 0]


def test_dropped_tokens_save_prefill_and_not_the_tower() -> None:
    model, where = load("llama-2-7b"), cluster("1xA100-SXM")
    found = {}
    for share in ("images", "hired", ""):
        deployment = Deployment(technique=(share,) if share else ())
        traffic = asked_traffic(WORDS, [deployment])[0]
        found[share] = simulate_serving(model, where, [deployment], traffic, operation=Operation(changes=False))
    ttft = [one.metrics.ttft.mean for one in found.values()]
    assert ttft[0] > 2.5 * ttft[1] > 2.5 * ttft[2]
    tower_s = 2 * 2885 * 325e6 / 312e12  # at the peak of the datasheet
    assert ttft[1] - ttft[2] > tower_s
    assert np.isfinite(ttft).all()


def test_shares_of_nothing_and_images_twice_are_refused() -> None:
    with pytest.raises(PlanError, match="images and hired both fill 'images'"):
        engine(load("llama-2-7b"), machine(cluster("1xA100-SXM")), Deployment(technique=("images", "hired")))
    with pytest.raises(PlanError, match="share"):
        Hired(share=0.0)
