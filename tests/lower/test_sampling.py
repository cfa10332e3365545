"""A denoiser's layers on devices that divide a picture: rows, heads and what is told, by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ridgeline.errors import PlanError
from ridgeline.graph.denoiser_specs import Picture
from ridgeline.graph.denoisers import denoiser
from ridgeline.graph.workload import Workload
from ridgeline.lower.sampling import check_division, exchanges, forward
from ridgeline.lower.work import Attention, CollectiveKind, Gemm, Phase, Stream
from ridgeline.plan.sampling import Division

FLUX = denoiser("flux.1-dev", Picture(width=1024, height=1024))
SINGLE = FLUX.graph.blocks["single"]
TOKENS, WIDE, HEADS = 4096 + 512, 3072, 24
WORKLOAD = Workload(seq_len=1, global_batch=1, precision="bf16", execution="compiled", framework="torch")


def flop(by: Division) -> tuple[float, float]:
    """FLOP of products and of scores of one layer on one device."""
    work = forward(SINGLE, WORKLOAD, copies=1, by=by)
    products = sum(2.0 * float(w.m) * w.n * w.k for w in work if isinstance(w, Gemm) and w.m > 1)
    scores = sum(float(w.heads) * float(w.q_tokens) * float(w.mean_context) for w in work if isinstance(w, Attention))
    return products, scores


def test_work_is_forward_alone_and_as_much_as_the_layer_has() -> None:
    work = forward(SINGLE, WORKLOAD, copies=1, by=Division())
    assert {w.phase for w in work} == {Phase.FORWARD}
    products = TOKENS * 2 * (WIDE * 7 * WIDE + 5 * WIDE * WIDE)
    assert flop(Division()) == (products, HEADS * TOKENS**2)


@pytest.mark.parametrize("by", [Division(ulysses=4), Division(ring=4), Division(ulysses=2, ring=2), Division(tensor=4)])
def test_four_devices_do_a_quarter_each(by: Division) -> None:
    whole, part = flop(Division()), flop(by)
    assert part == pytest.approx([each / 4 for each in whole])
    moved = [
        sum(float(w.bytes) for w in forward(SINGLE, WORKLOAD, copies=1, by=way) if isinstance(w, Stream))
        for way in (Division(), by)
    ]
    assert moved[1] == pytest.approx(moved[0] / 4)


def test_what_devices_tell_each_other_by_hand() -> None:
    told = exchanges(SINGLE, copies=2, by=Division(ulysses=4), element_bytes=2.0)
    assert [t.kind for t in told] == [CollectiveKind.ALL_TO_ALL] * 4
    assert {(float(t.bytes), t.ranks) for t in told} == {(2 * TOKENS / 4 * WIDE * 2, 4)}
    ring = exchanges(SINGLE, copies=1, by=Division(ring=2), element_bytes=2.0)
    assert [(t.kind, float(t.bytes)) for t in ring] == [(CollectiveKind.ALL_GATHER, 2 * TOKENS * WIDE * 2)]
    tensor = exchanges(SINGLE, copies=1, by=Division(tensor=8), element_bytes=2.0)
    assert [(t.kind, float(t.bytes)) for t in tensor] == [(CollectiveKind.ALL_REDUCE, TOKENS * WIDE * 2)] * 2
    assert not exchanges(SINGLE, copies=1, by=Division(), element_bytes=2.0)


def test_words_are_not_traded() -> None:
    block = denoiser("pixart-alpha", Picture(width=1024, height=1024)).graph.blocks["cross"]
    assert len(exchanges(block, copies=1, by=Division(ulysses=2), element_bytes=2.0)) == 4


def test_eight_bits_are_those_of_products() -> None:
    fp8 = Workload(seq_len=1, global_batch=1, precision="fp8", execution="graph", framework="torch")
    assert all(w.quantized for w in forward(SINGLE, fp8, copies=1, by=Division()) if isinstance(w, Gemm))


def test_divisions_that_cannot_be_are_refused() -> None:
    check_division(FLUX, Division(ulysses=8, pipeline=57))
    with pytest.raises(PlanError, match="does not divide 24 heads"):
        check_division(FLUX, Division(ulysses=16))
    with pytest.raises(PlanError, match="exceeds its 57 layers"):
        check_division(FLUX, Division(pipeline=58))
    with pytest.raises(PlanError, match="needs 1 or 2"):
        Division(guidance=3)


def test_sums_and_copies_ride_in_an_engines_kernels_and_operands_are_written_narrow() -> None:
    """FLUX's two gated sums of a layer of its own weights ride; its pack norms and turns, which is no copy."""
    joint = FLUX.graph.blocks["joint"]
    eager, engine = (
        forward(joint, replace(WORKLOAD, execution=execution, precision="fp8"), copies=1, by=Division())
        for execution in ("eager", "graph")
    )
    names = [{w.name for w in work if isinstance(w, Stream)} for work in (eager, engine)]
    assert names[0] - names[1] == {"image_add", "words_add", "image_feed_add", "words_feed_add"}
    assert "image_pack" in names[1]
    products = [[w for w in work if isinstance(w, Gemm)] for work in (eager, engine)]
    assert all(w.quantized and w.cast_layouts == 1 for w in products[0])
    assert all(w.quantized and w.cast_layouts == 0 for w in products[1])
