"""Neurons on a device and models behind a gate: each program against every choice of small cases."""

from __future__ import annotations

from itertools import combinations, product

import numpy as np
import pytest

from ridgeline.numerics.algorithm import Arrays
from ridgeline.numerics.edge_experts import EdgeExperts, chosen
from ridgeline.numerics.neuron_placement import NeuronPlacement
from ridgeline.serving.hybrid_placement import placed_neurons


def arrays(seed: int) -> Arrays:
    return Arrays(weight=np.zeros((2, 2)), inputs=np.zeros((2, 2)), seed=seed)


@pytest.mark.parametrize("seed", range(20))
def test_no_choice_of_neurons_meets_more_uses(seed: int) -> None:
    draw = np.random.default_rng(seed)
    layers, batches, room, least = 3, 4, int(draw.integers(0, 12)), int(draw.integers(1, 4))
    uses = -np.sort(-draw.uniform(0.0, 1.0, (layers, batches)), axis=1)
    met = np.cumsum(np.concatenate([np.zeros((layers, 1)), uses], axis=1), axis=1)
    able = (0, *range(least, batches + 1))
    best = max(
        sum(met[layer, count] for layer, count in enumerate(counts))
        for counts in product(able, repeat=layers)
        if sum(counts) <= room
    )
    found = placed_neurons(uses, room, least).astype(int)
    assert found.sum() <= room
    assert all(count == 0 or count >= least for count in found)
    assert met[np.arange(layers), found].sum() == pytest.approx(best)


def test_the_program_meets_no_less_than_plain_rules() -> None:
    for share in (0.05, 0.25, 0.6):
        found = NeuronPlacement(layers=12, batches=64, share=share, uneven=1.0).run(arrays(1))
        assert found["program_met"] >= max(found["even_met"], found["most_used_met"]) - 1e-9
    all_ = NeuronPlacement(layers=4, batches=16, share=1.0).run(arrays(0))
    assert all_["program_met"] == pytest.approx(1.0)


@pytest.mark.parametrize("seed", range(30))
def test_no_set_of_models_loses_less(seed: int) -> None:
    draw = np.random.default_rng(seed)
    models = int(draw.integers(1, 8))
    each = draw.uniform(0.1, 2.0, (models, 5))
    energy, seconds = draw.uniform(0.1, 1.0, models), draw.uniform(0.1, 1.0, models)
    most = float(draw.uniform(0.1, energy.sum())), float(draw.uniform(0.1, 1.0))

    def loss(one: frozenset[int]) -> float:
        return float(each[sorted(one)].min(axis=0).mean()) if one else float("inf")

    best = float("inf")
    for count in range(1, models + 1):
        for rows in map(list, combinations(range(models), count)):
            if energy[rows].sum() <= most[0] and seconds[rows].max() <= most[1]:
                best = min(best, loss(frozenset(rows)))
    found, asked = chosen(loss, energy, seconds, *most)
    assert loss(found) == best
    assert asked <= 2**models
    if found:
        assert energy[sorted(found)].sum() <= most[0]
        assert seconds[sorted(found)].max() <= most[1]


def test_larger_budgets_lose_no_more_and_ask_fewer_sets_than_there_are() -> None:
    some = arrays(3)
    losses = [EdgeExperts(most_energy=share, most_seconds=1.0, samples=10_000).run(some) for share in (0.2, 0.5, 1.0)]
    ratios = [one["loss_ratio"] for one in losses]
    assert ratios[0] >= ratios[1] >= ratios[2] == pytest.approx(1.0)
    assert all(one["energy_share"] <= share for one, share in zip(losses, (0.2, 0.5, 1.0 + 1e-9), strict=True))
    assert losses[1]["loss_ratio"] <= losses[1]["single_loss_ratio"]
    assert losses[2]["asked_share"] == 1 / 256
