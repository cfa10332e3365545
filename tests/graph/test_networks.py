"""Networks by name: each is reached by `load` as the catalog lists it, counts its samples, and trains a step."""

from __future__ import annotations

import pytest

from ridgeline.errors import InputError, PlanError, UnknownNameError
from ridgeline.facts.clusters import cluster
from ridgeline.graph.load import load
from ridgeline.graph.model import SAMPLE
from ridgeline.graph.networks import find_network, network, networks, sample_tokens
from ridgeline.graph.workload import Workload
from ridgeline.plan.plan import Plan
from ridgeline.predict import predict
from ridgeline.scenario.training import scenario_from_words
from ridgeline.search.search import search


@pytest.mark.parametrize("name", networks())
def test_every_network_is_loaded_by_its_name_and_counts_its_samples(name: str) -> None:
    model = load(name)
    assert model.name == name
    assert model.graph.params > 0
    assert model.dims[SAMPLE] == model.max_positions == sample_tokens(name)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("resnet50", "resnet-50"), ("RN50 v1.5", "resnet-50"), ("tf_efficientnetv2_m", "efficientnet-v2-m"),
        ("swin_tiny_patch4_window7_224", "swin-tiny"), ("Mask R-CNN", "mask-rcnn"), ("3D U-Net", "unet-3d"),
        ("RNN-T", "rnn-t"), ("vit_large_patch16_384", "vit-large-patch16-384"), ("dlrm dcnv2", "dlrm-dcnv2"),
        ("gpt-2", None),
    ],
)  # fmt: skip
def test_other_spellings_mean_the_same_and_language_models_none(text: str, name: str | None) -> None:
    assert find_network(text) == name


def test_a_language_model_s_name_stays_its_own_and_an_unknown_name_is_refused() -> None:
    assert SAMPLE not in load("gpt2").dims
    with pytest.raises(UnknownNameError, match="nearest: resnet-"):
        load("resnet-51")
    with pytest.raises(UnknownNameError, match="network"):
        network("resnet")


@pytest.mark.parametrize("name", ["resnet-50", "ssd-resnet-50", "unet-3d", "gnmt", "rnn-t", "dlrm-small", "swin-tiny"])
def test_a_step_of_twice_the_samples_takes_no_less_and_no_more_than_twice(name: str) -> None:
    model, machine = load(name), cluster("1xA100-SXM-80GB")
    times = [
        predict(
            model, machine, Workload(seq_len=sample_tokens(name), global_batch=batch), Plan(micro_batch=batch)
        ).step_time.value
        for batch in (64, 128)
    ]
    assert times[0] <= times[1] <= 2.0 * times[0]


def test_what_a_person_leaves_out_is_a_step_of_images() -> None:
    tables = {"model": {"name": "resnet50"}, "cluster": {"name": "8xA100-SXM-80GB"}, "plan": {}}
    found = scenario_from_words(tables)
    assert (found.workload.seq_len, found.workload.global_batch) == (1, 256)
    assert found.plan is not None
    assert (found.plan.dp, found.plan.micro_batch) == (8, 32)
    assert any("256 samples" in line for line in found.assumed)
    with pytest.raises(InputError, match="a sample of resnet-50 is 1 tokens"):
        scenario_from_words({**tables, "workload": {"seq_len": 4096}})


def test_plans_of_networks_are_not_searched() -> None:
    with pytest.raises(PlanError, match="counts samples of 1 tokens"):
        search(load("resnet-50"), cluster("8xA100-SXM-80GB"), Workload(seq_len=1, global_batch=256))
