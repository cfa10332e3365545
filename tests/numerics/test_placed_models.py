"""Neurons on a device and models behind a gate: each program against every choice of small cases."""

from __future__ import annotations

from itertools import combinations, product

import numpy as np
import pytest

from ridgeline import simulate
from ridgeline.errors import NoPlanError, PlanError
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
    some, budgets = arrays(3), (750.0, 1500.0, 1e6)
    found = [EdgeExperts(most_j=most_j, most_s=1e3, samples=10_000).run(some) for most_j in budgets]
    ratios = [one["loss_ratio"] for one in found]
    assert ratios[0] >= ratios[1] >= ratios[2] == pytest.approx(1.0)
    assert all(one["energy_j"] <= most_j for one, most_j in zip(found, budgets, strict=True))
    assert found[1]["loss_ratio"] <= found[1]["single_loss_ratio"]
    assert found[2]["asked_share"] == 1 / 256


def test_an_expert_costs_what_its_device_is_predicted_to_take() -> None:
    one = EdgeExperts(experts="llama-3.2-1b@Jetson-AGX-Orin-64GB", prompt=256, output=128)
    size, seconds, joules = one.cost("llama-3.2-1b@Jetson-AGX-Orin-64GB")
    words = {"arrivals": "burst", "requests": 1, "prompt": 256, "output": 128}
    value = simulate("llama-3.2-1b", on="1xJetson-AGX-Orin-64GB", **words).value
    assert size == pytest.approx(1.236, rel=1e-3)
    assert seconds == pytest.approx(value.metrics.latency.mean)
    # 60 W of board and 5 W of what is around it are the most; weights of 2.47 GB pass 128 times at 204.8 GB/s at least
    assert seconds > 128 * 2.47e9 / 204.8e9
    assert 0.3 * 60.0 * seconds < joules < 65.0 * seconds


def test_choices_keep_to_both_bounds_on_a_fleet_of_ones_own() -> None:
    fleet = ("llama-3.2-1b@Jetson-AGX-Orin-64GB", "qwen2.5-7b@Jetson-AGX-Orin-64GB", "qwen2.5-7b@RTX-4090")
    costs = {name: EdgeExperts().cost(name)[1:] for name in fleet}
    assert costs[fleet[2]][0] < costs[fleet[1]][0] / 3  # of 1,010 GB/s and 204.8 GB/s
    quick = EdgeExperts(experts="+".join(fleet), most_s=costs[fleet[1]][0] * 0.99, most_j=1e6).run(arrays(0))
    assert [quick[f"{name}_chosen"] for name in fleet] == [1.0, 0.0, 1.0]
    assert quick["energy_j"] == pytest.approx(costs[fleet[0]][1] + costs[fleet[2]][1])
    assert quick["slowest_s"] == max(costs[fleet[0]][0], costs[fleet[2]][0])
    thrifty = EdgeExperts(experts="+".join(fleet), most_s=1e3, most_j=costs[fleet[0]][1]).run(arrays(0))
    assert [thrifty[f"{name}_chosen"] for name in fleet] == [1.0, 0.0, 0.0]


@pytest.mark.parametrize("experts", ["", "llama-3.2-1b", "a@b@c", "gemma-2b@RTX-4090+gemma-2b@RTX-4090"])
def test_experts_that_are_not_written_so(experts: str) -> None:
    with pytest.raises(PlanError, match="MODEL@MACHINE"):
        EdgeExperts(experts=experts).run(arrays(0))


def test_bounds_that_no_model_keeps_to() -> None:
    with pytest.raises(NoPlanError, match=r"no model keeps to 0.01 s and 1500 J a task: gemma-2b@RTX-4090 .* J"):
        EdgeExperts(experts="gemma-2b@RTX-4090", most_s=0.01).run(arrays(0))
