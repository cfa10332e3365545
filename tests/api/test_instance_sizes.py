"""How many devices an instance takes where nobody says: the fewest that hold the model, told; what is said is kept."""

from __future__ import annotations

import pytest

import ridgeline as rl
from ridgeline.api.asking import deployed_scenario_of
from ridgeline.errors import NoPlanError


@pytest.mark.parametrize(
    ("model", "on", "tp", "pp", "instances"),
    [
        ("llama-3.1-8b", "4xH100-SXM", 1, 1, 4),
        ("llama-3.1-70b", "4xA100-SXM-80GB", 2, 1, 2),
        ("deepseek-v3", "8xH200-SXM", 8, 1, 1),
        ("deepseek-v3", "16xH100-SXM", 8, 2, 1),
    ],
)
def test_the_fewest_devices_that_hold_a_model(model: str, on: str, tp: int, pp: int, instances: int) -> None:
    asked = deployed_scenario_of(model, on, {})
    (one,) = asked.deployments
    assert (one.tp, one.pp, one.instances) == (tp, pp, instances)
    assert any("as none was given" in text for text in asked.assumed) == (tp * pp > 1)
    assert "tp" not in asked.stated


def test_a_degree_that_is_said_is_kept() -> None:
    assert deployed_scenario_of("llama-3.1-70b", "4xA100-SXM-80GB", {"tp": "4"}).deployments[0].tp == 4
    with pytest.raises(NoPlanError, match="will not start on 1x"):
        rl.predict("llama-3.1-70b", on="4xA100-SXM-80GB", serve=True, batch=1, tp=1)


def test_what_no_division_holds_is_refused_as_it_was_asked() -> None:
    with pytest.raises(NoPlanError, match="will not start on 1xH100-SXM"):
        rl.predict("llama-3.1-405b", on="4xH100-SXM", serve=True, batch=1)
