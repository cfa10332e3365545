"""Pictures and networks of images by flags: what a scenario file says, energy, money and refusals."""

from __future__ import annotations

from pathlib import Path

import pytest

import ridgeline as rl
from ridgeline.errors import InputError
from ridgeline.graph.denoiser_specs import DENOISERS, usual_sampling
from ridgeline.graph.diffusion import UNETS

ASKED = {"width": 1024, "height": 1024, "steps": 28}


def test_flags_say_what_a_scenario_file_says(tmp_path: Path) -> None:
    file = tmp_path / "s.toml"
    file.write_text(
        'model = "flux.1-dev"\ncluster = "1xH100-SXM"\n[workload]\ntask = "diffusion"\nwidth = 1024\nheight = 1024\n'
        "steps = 28\nbatch = 4\n"
    )
    said, flags = rl.predict(str(file)), rl.predict("flux.1-dev", on="1xH100-SXM", batch=4, **ASKED)
    assert flags.as_dict() == said.as_dict()
    assert rl.predict(str(file), steps=14)["step_s"] == said["step_s"]
    assert rl.predict(str(file), steps=14)["seconds"] < 0.6 * said["seconds"]


def test_energy_and_money_are_of_the_devices_that_draw() -> None:
    one = rl.predict("sdxl", on="1xH100-SXM", price=2, **ASKED).as_dict()
    assert one["usd"] == pytest.approx(2 * one["seconds"] / 3600)
    assert 0.2 * 700 < one["energy_j"] / one["seconds"] < 2 * 700
    idle = rl.predict("sdxl", on="8xH100-SXM", price=2, **ASKED).as_dict()
    assert idle["usd"] == pytest.approx(one["usd"])
    two = rl.predict("sdxl", on="8xH100-SXM", price=2, guidance=2, **ASKED).as_dict()
    assert two["usd"] == pytest.approx(2 * 2 * two["seconds"] / 3600)


@pytest.mark.parametrize(
    ("words", "told"),
    [({"tp": 2}, "--tp"), ({"seq_len": 8}, "--seq-len"), ({"steps": 0}, "--steps"), ({"precision": "bf61"}, "bf16")],
)
def test_words_that_are_not_of_pictures_are_refused_by_flag(words: dict[str, object], told: str) -> None:
    with pytest.raises(InputError, match=told):
        rl.predict("flux.1-dev", on="1xH100-SXM", **{**ASKED, **words})


def test_what_is_missing_is_told() -> None:
    with pytest.raises(InputError, match="--height"):
        rl.predict("flux.1-dev", on="1xH100-SXM", width=1024)
    with pytest.raises(InputError, match="--on"):
        rl.predict("flux.1-dev", **ASKED)


@pytest.mark.parametrize("name", [*DENOISERS, *UNETS])
def test_what_nobody_says_is_the_pipeline_s_own_and_told(name: str) -> None:
    usual = usual_sampling(name)
    found = rl.predict(name, on="1xH200-SXM", decoded=False).as_dict()
    said = rl.predict(name, on="1xH200-SXM", decoded=False, **usual).as_dict()
    assert found == {**said, "assumptions": found["assumptions"]}
    assert f"steps {usual['steps']}" in found["assumptions"][0]
    assert rl.predict(name, on="1xH200-SXM", decoded=False, steps=3)["asked"]["steps"] == 3


def test_advice_by_flags_is_a_scenario_file_s(tmp_path: Path) -> None:
    file = tmp_path / "s.toml"
    file.write_text(
        'model = "flux.1-schnell"\ncluster = "1xH100-SXM"\n[workload]\ntask = "diffusion"\nwidth = 1024\n'
        "height = 1024\nsteps = 4\npictures_per_minute = 100\n"
    )
    said = rl.advise(str(file)).as_dict()
    flags = rl.advise("flux.1-schnell", on="1xH100-SXM", pictures_per_minute=100).as_dict()
    assert flags["best"] == said["best"]
    with pytest.raises(InputError, match="--tp"):
        rl.advise("flux.1-schnell", on="1xH100-SXM", tp=2)


@pytest.mark.parametrize("name", ["resnet-50", "vit-base-patch16-224", "rnn-t", "dlrm-small", "ncf"])
def test_a_network_is_trained_and_served_with_memory_energy_and_money(name: str) -> None:
    trained = rl.predict(name, on="1xH100-SXM", global_batch=64).as_dict()
    served = rl.predict(name, on="1xH100-SXM", serve=True, batch=64).as_dict()
    for found in (trained, served):
        assert found["fits"]
        assert found["energy_j_per_step"] > 0
        assert found["usd_per_step"] > 0
        assert found["samples_per_s"] > 0
    assert served["step_time_s"]["value"] < trained["step_time_s"]["value"]


def test_a_served_batch_is_on_every_device() -> None:
    one, two = (rl.predict("resnet-50", on=f"{n}xH100-SXM", serve=True, batch=512) for n in (1, 2))
    assert two["step_time_s"]["value"] == pytest.approx(one["step_time_s"]["value"], rel=0.02)
    with pytest.raises(InputError, match="--micro-batch"):
        rl.predict("resnet-50", on="1xH100-SXM", serve=True, micro_batch=4)
