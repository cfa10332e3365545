"""Degrees that makers published with their MLPerf training code, for rows of it that give none.

Source: mlcommons/training_results_v4.0, v4.1 and v5.0, NVIDIA/benchmarks/llama2_70b_lora/implementations/nemo: names of
configurations are nodes x devices x accumulation and degrees, 'config_DGXH100_1x8x4xtp4pp1cp1.sh'.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ridgeline.validate.rows import Row


@dataclass(frozen=True, kw_only=True)
class PublishedPlan:
    """Degrees of one configuration; `model`, `device` and `rounds` are patterns, `devices` the counts it is for."""

    model: str
    device: str
    rounds: str
    devices: range
    tp: int
    cp: int
    name: str


LORA = r"llama2?.*70b.*lora"
MANY = range(64, 4096)
PLANS: tuple[PublishedPlan, ...] = (
    PublishedPlan(
        model=LORA, device="H100", rounds="", devices=range(8, 9), tp=4, cp=1, name="config_DGXH100_1x8x4xtp4pp1cp1.sh"
    ),
    PublishedPlan(
        model=LORA, device="H100", rounds="", devices=MANY, tp=4, cp=2, name="config_DGXH100_8x8x1xtp4pp1cp2.sh"
    ),
    PublishedPlan(
        model=LORA, device="H200", rounds=r"v4\.0", devices=range(8, 9), tp=2, cp=1,
        name="config_DGXH200_1x8x2xtp2pp1cp1.sh",
    ),
    PublishedPlan(
        model=LORA, device="H200", rounds="", devices=range(8, 9), tp=1, cp=2, name="config_DGXH200_1x8x2xtp1pp1cp2.sh"
    ),
    PublishedPlan(
        model=LORA, device="H200", rounds="", devices=MANY, tp=4, cp=2, name="config_DGXH200_64x8x1xtp4pp1cp2.sh"
    ),
    PublishedPlan(
        model=LORA, device="L40S", rounds="", devices=MANY, tp=4, cp=2, name="config_L40S_16x4x2xtp4pp1cp2.sh"
    ),
)  # fmt: skip
"""The first that fits holds."""


def published_plan(row: Row) -> PublishedPlan | None:
    """The configuration that a row of MLPerf training results ran by its maker's code; None if none is known."""
    if "mlcommons/training_results" not in row.text("source"):
        return None
    devices = row.count("n_devices") or 0
    for plan in PLANS:
        fits = (
            re.search(plan.model, row.text("model"), re.IGNORECASE)
            and re.search(plan.device, row.text("hardware"))
            and re.search(plan.rounds, row.text("source"))
        )
        if fits and devices in plan.devices:
            return plan
    return None
