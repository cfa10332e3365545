"""Steps of pictures as samplers make them: by hand, against waiting, and refusals."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.errors import ModelError, PlanError
from ridgeline.facts.clusters import cluster
from ridgeline.graph.denoiser_specs import Picture
from ridgeline.graph.denoisers import denoiser
from ridgeline.graph.ops import AttentionOp
from ridgeline.graph.workload import Workload
from ridgeline.lower.sampling import exchanges, forward
from ridgeline.lower.work import Attention
from ridgeline.memory.sampling import kept_elements
from ridgeline.plan.sampling import Division, Sampling
from ridgeline.predict.sampling import sample
from ridgeline.predict.sampling_steps import steps_of
from ridgeline.seams.sampler import Stretch, stretched

XL = "stable-diffusion-xl"
NODE = cluster("8xA100-SXM-80GB")
ASKED = Sampling(width=2048, height=2048, steps=50, precision="fp16", decoded=False)
FOUR = Division(patches=4)
WAITS = sample(XL, NODE, ASKED, FOUR)


def test_displaced_patches_wait_in_the_first_steps_alone() -> None:
    by = replace(FOUR, technique=("distrifusion(warm=4)",))
    waiting, stale = steps_of(XL, ASKED, by)
    assert (waiting.steps, waiting.stale, stale.steps, stale.stale, stale.read) == (5, False, 45, True, 1.0)


@given(steps=st.integers(1, 60), warm=st.integers(0, 80))
def test_steps_are_conserved(steps: int, warm: int) -> None:
    plain = (Stretch(steps=steps, evaluations=2.0, by=FOUR),)
    for text in (f"distrifusion(warm={warm})", f"partial-patches(warm={warm})"):
        found = stretched(plain, (text,))
        assert sum(one.steps for one in found) == steps
        assert all(one.steps > 0 for one in found)
    plain = (Stretch(steps=steps, evaluations=2.0, by=Division()),)
    assert sum(one.steps for one in stretched(plain, ("guidance-adapters",))) == steps


@settings(deadline=None, max_examples=8)
@given(patches=st.sampled_from([2, 4, 8]), side=st.sampled_from([1024, 2048]), batch=st.integers(1, 2))
def test_what_is_stale_is_never_slower_than_waiting(patches: int, side: int, batch: int) -> None:
    asked = replace(ASKED, width=side, height=side, batch=batch)
    waits = sample(XL, NODE, asked, Division(patches=patches))
    late = sample(XL, NODE, asked, Division(patches=patches, technique=("distrifusion",)))
    part = sample(XL, NODE, asked, Division(patches=patches, technique=("partial-patches",)))
    assert part.seconds <= late.seconds * 1.001 <= waits.seconds * 1.002
    assert late.seconds >= waits.seconds - asked.steps * waits.parts["tensor link"]


def test_a_part_attends_from_its_patches_to_what_it_reads() -> None:
    model = denoiser("flux.1-dev", Picture(width=1024, height=1024))
    block = model.graph.blocks["single"]
    (core,) = (op for op in block.ops if isinstance(op, AttentionOp))
    workload = Workload(seq_len=1, global_batch=1)
    (work,) = (one for one in forward(block, workload, copies=1, by=FOUR, read=0.5) if isinstance(one, Attention))
    assert core.rows == core.positions == 4096 + 512
    assert work.q_tokens == core.rows / 4
    assert work.kv_tokens == round(core.positions * (1 + 0.5 * 3) / 4)
    (told,) = exchanges(block, copies=1, by=FOUR, element_bytes=2.0, read=0.5)
    assert told.bytes == 2 * 2.0 * core.rows * core.heads * core.qk_dim * 0.5  # keys and values of half the picture


def test_neighbours_are_two_of_the_others() -> None:
    (_, stale) = steps_of(XL, ASKED, Division(patches=8, technique=("partial-patches",)))
    assert stale.read == pytest.approx(2 / 7)
    half = steps_of(XL, ASKED, Division(patches=8, technique=("partial-patches(neighbour=0.5)",)))[1]
    assert half.read == pytest.approx(1 / 7)
    assert steps_of(XL, ASKED, Division(patches=2, technique=("partial-patches",)))[1].read == 1.0


def test_buffers_of_a_step_before_are_held() -> None:
    late = sample(XL, NODE, ASKED, replace(FOUR, technique=("distrifusion",)))
    kept = kept_elements(denoiser(XL, Picture(width=2048, height=2048)).graph)
    more = late.memory.parts["denoiser"].working_bytes - WAITS.memory.parts["denoiser"].working_bytes
    assert more == pytest.approx(2.0 * 2 * kept)  # fp16, with the words and without


def test_learned_guidance_halves_a_step_but_for_its_adapters() -> None:
    plain = sample(XL, NODE, ASKED)
    once = sample(XL, NODE, replace(ASKED, batch=1), Division(technique=("guidance-adapters(added=0.0)",)))
    some = sample(XL, NODE, ASKED, Division(technique=("guidance-adapters",)))
    assert once.seconds < 0.56 * plain.seconds
    assert some.seconds == pytest.approx(1.02 * once.seconds)
    grown = some.memory.parts["denoiser"].weights_bytes / plain.memory.parts["denoiser"].weights_bytes
    assert grown == pytest.approx(1.02)


@pytest.mark.parametrize(
    ("by", "told"),
    [
        (Division(technique=("distrifusion",)), "needs something that fills 'patches'"),
        (Division(patches=2, technique=("distrifusion", "partial-patches")), "both fill 'stale patches'"),
        (Division(guidance=2, technique=("guidance-adapters",)), "needs guidance = 1"),
        (Division(technique=("gpipe",)), "do not make pictures"),
    ],
)
def test_what_does_not_go_together_is_refused(by: Division, told: str) -> None:
    with pytest.raises(PlanError, match=told):
        sample(XL, NODE, ASKED, by)


def test_a_network_without_guidance_has_none_to_learn() -> None:
    with pytest.raises(PlanError, match="runs once a step already"):
        sample("flux.1-dev", NODE, ASKED, Division(technique=("guidance-adapters",)))


def test_a_deep_latent_without_a_decoder_is_said() -> None:
    with pytest.raises(ModelError, match="decoded = false"):
        sample("dc-gen-flux-f64", NODE, replace(ASKED, decoded=True))


def test_z_image_has_its_published_parameters() -> None:
    assert denoiser("z-image-turbo", Picture(width=1024, height=1024)).graph.params == pytest.approx(6.15e9, rel=0.01)


def test_blocks_of_a_video_take_one_evaluation_more_for_the_state() -> None:
    """4 steps of one evaluation and one that renews the state: 5; guided networks are refused."""
    asked = Sampling(width=832, height=480, frames=37, steps=4, decoded=False)
    plain = sample("longsana", NODE, asked)
    block = sample("longsana", NODE, asked, Division(technique=("block-linear-state",)))
    assert block.seconds == pytest.approx(1.25 * plain.seconds, rel=0.01)
    with pytest.raises(PlanError, match="distilled"):
        sample("sana-video-480p", NODE, asked, Division(technique=("block-linear-state",)))
