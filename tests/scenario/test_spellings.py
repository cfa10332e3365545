"""Own prices, counts and names as people write them."""

from __future__ import annotations

import pytest

import ridgeline as rl
from ridgeline.errors import ClusterError, InputError, UnknownNameError
from ridgeline.facts.clusters import cluster
from ridgeline.graph.load import find
from ridgeline.units import parse_count

STEP = {"seq_len": "1Ki", "global_batch": 64, "micro_batch": 8, "tokens": "1B"}


@pytest.mark.parametrize(
    ("text", "count"), [("128Ki", 131072), ("128k", 128_000), ("1.5M", 1_500_000), ("1.5m", 1_500_000), ("1,024", 1024)]
)
def test_counts(text: str, count: int) -> None:
    assert parse_count(text) == count


def test_an_option_that_is_a_count_takes_a_suffix() -> None:
    told, same = rl.op("decode", "4x4kx32x8x128", window="1Ki"), rl.op("decode", "4x4000x32x8x128", window=1024)
    assert {**told.as_dict(), "shape": ""} == {**same.as_dict(), "shape": ""}


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("h100", "1xH100-SXM"), ("H100 SXM5 80GB", "1xH100-SXM"), ("8 x h100", "8xH100-SXM"), ("8 H100", "8xH100-SXM"),
        ("16 h100s", "16xH100-SXM"), ("2 nodes x 8 H100", "16xH100-SXM"), ("A100 80G", "1xA100-SXM-80GB"),
        ("6000 ada", "1xRTX-6000-Ada"), ("4090", "1xRTX-4090"), ("v100 32gb", "1xV100-SXM2-32GB"),
    ],
)  # fmt: skip
def test_devices_by_the_names_people_use(text: str, name: str) -> None:
    assert cluster(text).name == name


@pytest.mark.parametrize(
    ("text", "names"),
    [("pro 6000", ("RTX-PRO-6000-Max-Q", "RTX-PRO-6000")), ("H100 94GB", ("H100-SXM-96GB", "H100-NVL"))],
)
def test_a_name_of_several_devices_is_refused_with_theirs(text: str, names: tuple[str, ...]) -> None:
    with pytest.raises(ClusterError) as caught:
        cluster(text)
    assert all(name in str(caught.value) for name in names)


@pytest.mark.parametrize("text", ["MI300", "H100 40GB", "A100 120G", "sxm", "8"])
def test_no_device_is_guessed(text: str) -> None:
    with pytest.raises((ClusterError, UnknownNameError)):
        cluster(text)


@pytest.mark.parametrize("text", ["Llama 3.1 70B Instruct", "meta-llama/Llama-3.1-70B-Instruct", "llama3.1:70b"])
def test_models_by_the_names_people_use(text: str) -> None:
    assert find(text) == "llama-3.1-70b"


@pytest.mark.parametrize("price", ["1.99", "$1.99", "1.99 USD/h"])
def test_money_follows_ones_own_price(price: str) -> None:
    found = rl.predict("gpt2", on="8xH100-SXM", price=price, **STEP).as_dict()
    seconds = found["run_time_s"]["value"] if isinstance(found["run_time_s"], dict) else found["run_time_s"]
    assert found["cluster"]["price_usd_per_device_h"]["value"] == 1.99
    usd = found["run_usd"]["value"] if isinstance(found["run_usd"], dict) else found["run_usd"]
    assert usd == pytest.approx(seconds / 3600 * 8 * 1.99, rel=1e-6)


def test_a_price_in_the_file_yields_to_the_flag(tmp_path_factory: pytest.TempPathFactory) -> None:
    file = tmp_path_factory.mktemp("price") / "s.toml"
    file.write_text(
        'model = "gpt2"\n[cluster]\nname = "8xH100-SXM"\nprice = "3 USD/h"\nregion = "FR"\n'
        "[workload]\nseq_len = 1024\nglobal_batch = 64\n[plan]\nmicro_batch = 8\n"
    )
    said, own = (rl.predict(str(file), **words)["cluster"] for words in ({}, {"price": "2"}))
    assert said["price_usd_per_device_h"]["value"] == 3
    assert own["price_usd_per_device_h"]["value"] == 2
    assert own["carbon_kg_per_j"] == said["carbon_kg_per_j"]


@pytest.mark.parametrize("price", ["-1", "cheap", "3 kWh", "nan"])
def test_a_price_that_is_none_is_refused_by_its_flag(price: str) -> None:
    with pytest.raises(InputError, match="--price"):
        rl.predict("gpt2", on="8xH100-SXM", price=price, **STEP)


def test_a_replay_and_advice_cost_what_one_pays() -> None:
    words = {"on": "1xH100-SXM", "rate": 2, "requests": 50, "prompt": 512, "output": 64}
    one, two = (rl.simulate("llama-3.1-8b", price=price, **words).as_dict() for price in (1, 2))
    assert two["usd_per_million_output_tokens"] == pytest.approx(2 * one["usd_per_million_output_tokens"])
