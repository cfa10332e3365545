"""A static batch: the cache changes no answer, dividing heads changes none, and phases are those of the replay."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from ridgeline.errors import PlanError  # noqa: E402
from ridgeline.graph.build import from_dims  # noqa: E402
from ridgeline.plan.deployment import Deployment  # noqa: E402
from ridgeline.plan.engine_options import EngineOptions  # noqa: E402
from ridgeline.run.decoder import Decoder  # noqa: E402
from ridgeline.run.divide import divide  # noqa: E402
from ridgeline.run.gap import generation_of  # noqa: E402
from ridgeline.run.launch import launch  # noqa: E402
from ridgeline.run.mapping import shape_of  # noqa: E402
from ridgeline.run.rank import Generator  # noqa: E402

MODEL = from_dims(
    layers=2, hidden=64, heads=4, kv_heads=2, vocab=128, ffn=96, gated=True, activation="silu", norm="rms", bias=False,
    tied=False, positions="rope",
)  # fmt: skip
OLD = from_dims(layers=2, hidden=64, heads=4, vocab=128, max_positions=32)


@pytest.mark.parametrize("which", [MODEL, OLD])
def test_tokens_one_by_one_get_the_logits_of_the_whole_sequence(which: object) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(1)
    decoder = Decoder(shape_of(which)).eval()  # type: ignore[arg-type]
    tokens = torch.randint(128, (3, 12))
    caches: list[list[object]] = [[], []]
    with torch.no_grad():
        whole = decoder(tokens)
        parts = [decoder(tokens[:, :7], 0, caches)]
        parts += [decoder(tokens[:, place : place + 1], place, caches) for place in range(7, 12)]
    torch.testing.assert_close(torch.cat(parts, dim=1), whole, atol=1e-5, rtol=1e-5)


def test_a_later_token_changes_no_earlier_logit() -> None:
    torch.manual_seed(1)
    decoder = Decoder(shape_of(MODEL)).eval()
    tokens = torch.randint(128, (1, 9))
    other = tokens.clone()
    other[0, 5] = (other[0, 5] + 1) % 128
    with torch.no_grad():
        first, second = decoder(tokens), decoder(other)
    assert torch.equal(first[:, :5], second[:, :5])
    assert not torch.allclose(first[:, 5:], second[:, 5:])


def test_divided_heads_generate_the_same_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    words = {"batch": 2, "prompt": 8, "output": 4}
    one, two = (
        launch(
            replace(generation_of(MODEL, Deployment(tp=tp)), precision="fp32"), repeats=2, limit_s=120, generate=words
        )
        for tp in (1, 2)
    )
    assert one.losses == two.losses  # sums of the generated tokens
    for phases in two.phases_s:
        assert phases["batch"] == pytest.approx(phases["prefill"] + 3 * phases["decode step"], rel=0.5)


def test_one_output_token_needs_no_decode_step() -> None:
    asked = replace(generation_of(MODEL, Deployment()), precision="fp32")
    run = Generator(divide(asked, torch.device("cpu"), 0), batch=1, prompt=4, output=1, seed=0)
    total = run.step(0)
    assert 0 <= total < 128
    assert math.isclose(run.phases["batch"], run.phases["prefill"] + run.phases["decode step"])


@pytest.mark.parametrize(
    ("deployment", "told"),
    [
        (Deployment(weights="fp8"), "weights = fp8"),
        (Deployment(dp=2), "dp = 2 is not run here"),
        (Deployment(options=EngineOptions(memory_fraction=0.5)), "memory_fraction = 0.5"),
        (Deployment(tp=4), "does not divide kv_heads = 2"),
    ],
)
def test_deployments_that_do_not_run_are_refused(deployment: Deployment, told: str) -> None:
    with pytest.raises(PlanError, match=told):
        generation_of(MODEL, deployment)
