"""Why a deployment is as slow as it is: what its iterations are made of, and what its requests wait for."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Protocol

import numpy as np

from ridgeline.plan.deployment import Deployment
from ridgeline.serving.metrics import Metrics
from ridgeline.serving.replay import Replay
from ridgeline.units import time_text

_FULL = 0.95  # of the blocks in use: hardly a request's worth is left
_TOLD = 0.15  # of TPOT that is no decode step, from which it is told; waiting takes more than half of TTFT


class Replayed(Protocol):
    """What the reasons are read from: a report of a replay."""

    @property
    def deployments(self) -> tuple[Deployment, ...]:
        """One deployment, or the pools of prompts and answers."""

    @property
    def metrics(self) -> Metrics:
        """What users saw."""

    @property
    def replay(self) -> Replay:
        """What happened."""

    @property
    def decode_parts(self) -> Mapping[str, float]:
        """Parts of a decode step at the mean batch [s]."""

    @property
    def queue_share(self) -> float:
        """Part of TTFT that is not the prompt's own iteration [1]."""


def limits(decode_parts: Mapping[str, float], prefill_parts: Mapping[str, float], queue_share: float) -> str:
    """The longest part of a decode step and of a prompt's iteration, and the share of TTFT that is waiting."""

    def longest(parts: Mapping[str, float]) -> str:
        total = sum(parts.values()) or 1.0
        name = max(parts, key=lambda part: parts[part])
        return f"{name} {parts[name] / total:.0%}"

    queue = f", {queue_share:.0%} of TTFT is waiting" if queue_share >= 0.01 else ""
    return f"decode: {longest(decode_parts)}; prompts: {longest(prefill_parts)}{queue}"


def because(report: Replayed) -> list[str]:
    """Why tokens take longer than a decode step, and what requests wait for; nothing where neither is so."""
    return [text for text in (_steps(report), _waits(report)) if text]


def _steps(report: Replayed) -> str:
    """How much of TPOT is no decode step, where that is much of it."""
    one, step_s, tpot_s = report.deployments[-1], sum(report.decode_parts.values()), report.metrics.tpot.mean
    if one.draft_tokens or one.beam_width > 1 or not math.isfinite(tpot_s) or tpot_s - step_s < _TOLD * tpot_s:
        return ""
    apart = one.split or len(report.deployments) > 1
    other = "waits between steps" if apart else "prompts in the same iterations or between them"
    return f"a decode step takes {time_text(step_s)} of a mean TPOT of {time_text(tpot_s)}; the rest is {other}"


def _waits(report: Replayed) -> str:
    """What requests wait for, where they wait for more than half of TTFT."""
    found = report.replay
    last = int(found.span_s / found.series_s) + 1
    used, waiting = found.series[:last, 0], found.series[:last, 1]
    if report.queue_share < 0.5 or not waiting.any() or len(report.deployments) > 1:
        return ""
    full = float(np.mean(used[waiting > 0] >= _FULL * found.capacity_blocks))
    if full >= 0.5:
        return f"requests wait for room in the cache, which is full in {full:.0%} of the time in which any wait"
    return "requests wait for their turn in an iteration, not for room in the cache"
