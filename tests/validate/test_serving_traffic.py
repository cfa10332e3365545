"""Requests of serving rows and what a longer run measures, by hand."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ridgeline.serving.traffic.traffic import traffic
from ridgeline.validate.rows import Row
from ridgeline.validate.serving_rows import ServedJob, read_served
from ridgeline.validate.serving_traffic import gained_tokens, measured_span_s, sampled_share, traffic_of

CELLS = {
    "model": "Llama-2-70B", "params_b": "70", "active_params_b": "70", "hardware": "H100-SXM-80GB", "n_devices": "8",
    "tp": "", "precision_weights": "", "engine": "TensorRT-LLM", "scenario": "poisson-rate", "rate_rps": "2",
    "isl": "", "osl": "100", "metric": "output_tok_s", "value": "200", "unit": "tok/s", "source": "MLP",
    "batch_or_concurrency": "",
}  # fmt: skip


def job(**cells: str) -> ServedJob:
    return read_served(Row(line=2, id="mlp1a", cells={**CELLS, **cells}))


def replayed(**arrays: Any) -> Any:
    return SimpleNamespace(**{name: np.array(values, dtype=float) for name, values in arrays.items()})


def test_a_longer_run_ends_with_the_latency_of_the_request_that_comes_last() -> None:
    asked = replace(job(), open_s=1000.0)
    requests = traffic(np.array([0.0, 50.0, 100.0]), np.array([5, 5, 5]), np.array([100, 100, 100]))
    found = replayed(came_s=[0.0, 50.0, 100.0], end_s=[10.0, 62.0, 120.0], first_s=[1.0, 51.0, 101.0])
    steady = SimpleNamespace(overloaded="")
    assert measured_span_s(asked, requests, found, steady) == (1012.0, 2000.0)  # type: ignore[arg-type]
    assert measured_span_s(asked, requests, found, steady, 1.0) == (1020.0, 2000.0)  # type: ignore[arg-type]
    assert measured_span_s(replace(asked, open_s=None), requests, found, steady) == (120.0, 3.0)  # type: ignore[arg-type]
    growing = SimpleNamespace(overloaded="the queue grows")
    assert measured_span_s(asked, requests, found, growing) == (1200.0, 2000.0)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("stated", "requests"),
    [({}, 1000), ({"open_s": 300.0}, 600), ({"open_s": 2400.0}, 1200), ({"requests": 500}, 500)],
)
def test_arrivals_go_on_as_long_as_is_stated_or_for_a_clients_default(stated: dict[str, Any], requests: int) -> None:
    """2 a second: no more than ten minutes of them are replayed; vLLM's and SGLang's clients send 1000."""
    asked = replace(job(isl="100"), open_s=None, requests=None, lengths=None)
    assert traffic_of(replace(asked, **stated), ()).requests == requests


def test_a_longer_queue_is_emptied_at_the_steady_rate() -> None:
    asked = replace(job(scenario="offline", rate_rps=""), open_s=0.0, requests=300)
    ends = np.arange(1.0, 201.0)  # one a second; the last starts after 150 s
    requests = traffic(np.zeros(200), np.full(200, 5), np.full(200, 100))
    found = replayed(end_s=ends, first_s=np.minimum(ends, 150.0))
    span, count = measured_span_s(asked, requests, found, SimpleNamespace(overloaded=""))  # type: ignore[arg-type]
    assert count == 300.0
    assert span == pytest.approx(200.0 + 100.0)  # 100 more, one a second
    alike = replace(asked, lengths=None)
    assert measured_span_s(alike, requests, found, SimpleNamespace(overloaded="")) == (200.0, 200.0)  # type: ignore[arg-type]


def test_the_draws_of_a_run_move_its_rate() -> None:
    requests = traffic(np.array([0.0, 1.0]), np.array([5, 5]), np.array([50, 150]))  # coefficient of variation 0.5
    asked = replace(job(), open_s=5000.0)
    assert sampled_share(asked, requests) == pytest.approx(1.2816 * (1.25 / 10_000) ** 0.5)
    assert sampled_share(replace(asked, metric="samples_rate"), requests) == pytest.approx(1.2816 / 100.0)
    assert sampled_share(replace(asked, metric="ttft"), requests) == 0.0


@pytest.mark.parametrize(
    ("context", "prompt", "output", "gained"),
    [
        (2048, "2048", "2048", 1.0),  # the prompt is the whole context
        (2048, "1000", "2048", 1049.0),  # the last one lies beyond it
        (4096, "2048", "2048", 2048.0),
        (None, "2048", "64", 1.0),  # vLLM takes 2048 where a config states none
    ],
)
def test_sequences_end_at_the_context_of_the_model(
    context: int | None, prompt: str, output: str, gained: float
) -> None:
    asked = job(scenario="fixed-batch", rate_rps="", isl=prompt, osl=output, batch_or_concurrency="4", source="X")

    def tokens(ends: bool, arrivals: str = "static") -> float | None:
        one = SimpleNamespace(
            model=SimpleNamespace(max_positions=context), policy=SimpleNamespace(ends_at_context=ends)
        )
        return gained_tokens(replace(asked, arrivals=arrivals), one)  # type: ignore[arg-type]

    assert tokens(ends=True) == gained
    assert tokens(ends=False) == tokens(ends=True, arrivals="closed") == float(output)
