"""What predict and plan say of streamed weights: one loop prices both, and no placement beats the plan's bound."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.errors import InputError, NoPlanError
from ridgeline.facts.clusters import cluster
from ridgeline.graph.load import load
from ridgeline.predict.offloaded import Offload, hybrid_of, offloaded
from ridgeline.report.offloaded import OffloadReport, PolicyReport
from ridgeline.scenario.serving_words import deployed
from ridgeline.search.offload_placement import best_policy
from ridgeline.serving.hybrid_placement import OffloadMethod
from ridgeline.serving.streamed_costs import CACHE, HIDDEN, WEIGHTS, HostMachine
from ridgeline.serving.streamed_fill import filled
from ridgeline.serving.streamed_machine import attention_of, job_of, machine_of
from ridgeline.serving.streamed_policy import StreamedPolicy

T4 = cluster("1xT4")
LENGTHS = {"prompt_tokens": 512, "output_tokens": 32}
WEIGHTS_16 = deployed(weights="fp16")


def asked(**words: Any) -> Offload:
    return Offload(technique=OffloadMethod.STREAMED, **({"processors": "Skylake", "dram_bytes": 208e9} | words))


def predicted(batch: int, **words: Any) -> OffloadReport:
    return offloaded(load("opt-30b"), T4, WEIGHTS_16, asked(**words), batch=batch, **LENGTHS)


@pytest.fixture(scope="module")
def plan() -> PolicyReport:
    return best_policy(load("opt-30b"), T4, WEIGHTS_16, asked(), **LENGTHS)


@pytest.fixture(scope="module")
def limits() -> HostMachine:
    hybrid, _ = hybrid_of(load("opt-30b"), T4, WEIGHTS_16, asked(), "FlexGen")
    return machine_of(hybrid, job_of(load("opt-30b"), 512, 32), 208e9)


def policy_of(plan: PolicyReport) -> StreamedPolicy:
    return StreamedPolicy(
        gpu_batch=plan.gpu_batch, gpu_batches=plan.gpu_batches, cpu_attention=plan.cpu_attention,
        shares=np.array(list(plan.shares.values())),
    )  # fmt: skip


def test_predict_of_the_plan_is_the_plan(plan: PolicyReport) -> None:
    policy = policy_of(plan)
    report = predicted(policy.block, policy=policy)
    assert report.output_tokens_per_s == pytest.approx(plan.tokens_per_s, rel=1e-9)
    assert report.first.total == pytest.approx(plan.prefill_s, rel=1e-9)
    assert report.batch * 32 / report.latency.low == pytest.approx(plan.high, rel=1e-9)
    with pytest.raises(InputError, match="a block of 128 sequences for a batch of 100"):
        predicted(100, policy=policy)


@given(st.integers(1, 230), st.one_of(st.none(), st.floats(0.0, 0.15)), st.sampled_from(["Skylake", ""]))
@settings(max_examples=12, deadline=None)
def test_no_filling_beats_the_bound_of_the_plan(
    plan: PolicyReport, batch: int, share: float | None, processors: str
) -> None:
    most = plan.tokens_per_s / (1.0 - plan.gap)
    try:
        report = predicted(batch, share=share, processors=processors)
    except NoPlanError:
        assert batch > 180  # of 208 GB the weights take 60, a sequence 0.75
        return
    assert report.output_tokens_per_s <= most * (1 + 1e-9)
    if share is not None:
        assert report.share == share


@given(st.integers(1, 60), st.integers(1, 6), st.integers(0, 2**32 - 1), st.booleans())
@settings(max_examples=40, deadline=None)
def test_no_stated_placement_beats_the_bound_of_the_plan(
    plan: PolicyReport, size: int, batches: int, seed: int, on_processors: bool
) -> None:
    shares = np.random.default_rng(seed).dirichlet((0.2, 1.0), size=3)
    policy = StreamedPolicy(
        gpu_batch=size, gpu_batches=batches, cpu_attention=on_processors,
        shares=np.column_stack([shares, np.zeros(3)]),
    )  # fmt: skip
    try:
        report = predicted(policy.block, policy=policy)
    except NoPlanError:
        return
    assert report.output_tokens_per_s <= plan.tokens_per_s / (1.0 - plan.gap) * (1 + 1e-9)


@given(st.integers(1, 400), st.floats(4e9, 8e10), st.floats(5e10, 5e11), st.sampled_from([0.0, 1e12]))
@settings(max_examples=15, deadline=None)
def test_fillings_fit_and_leave_no_room_for_more(
    limits: HostMachine, batch: int, gpu: float, dram: float, disk: float
) -> None:
    machine = HostMachine(**{**vars(limits), "gpu_bytes": gpu, "cpu_bytes": dram, "disk_bytes": disk})
    job = job_of(load("opt-30b"), 512, 32)
    try:
        policy, run = filled(job, machine, (True,), batch)
    except NoPlanError:
        return
    held = policy.held_bytes(job)
    assert policy.fits(job, machine)
    assert batch <= policy.block < batch + policy.gpu_batches
    assert run.prefill_s > 0.0
    full = held[0] > 0.999 * gpu
    assert full or policy.shares[:, 0] == pytest.approx(1.0) or (policy.shares[HIDDEN, 0] < 1.0)
    assert not disk or held[1] <= dram * (1 + 1e-6)
    assert disk or policy.shares[[WEIGHTS, CACHE], 2].sum() == 0.0


def test_what_does_not_fit_is_refused_with_what_it_takes() -> None:
    """Weights of 60 GB and 512 x 544 tokens of 1.4 MB: 440 GB."""
    with pytest.raises(NoPlanError, match=r"a batch of 512 takes .* DRAM .*has 193.7 GiB; take a smaller --batch"):
        predicted(512)
    with pytest.raises(NoPlanError, match="GPU memory"):
        predicted(8, share=0.9)
    told = str(predicted(512, storage="nvme"))
    assert re.search(r"placement +\d+ x \d+ sequences", told)
    hybrid, _ = hybrid_of(load("opt-30b"), T4, WEIGHTS_16, asked(processors=""), "FlexGen")
    assert attention_of(hybrid) == (False,)


def test_others_that_stream_are_not_priced_by_this_loop() -> None:
    words: dict[str, Any] = {"batch": 1, **LENGTHS}
    other = offloaded(load("opt-30b"), T4, WEIGHTS_16, asked(engine="accelerate"), **words)
    gated = offloaded(load("llama-3.1-8b"), T4, WEIGHTS_16, asked(), **words)
    assert (other.placement, gated.placement) == ("", "")
