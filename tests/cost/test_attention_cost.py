"""Attention worked out by hand on a device of 4 SMs, 1 TFLOP/s each, 1 TB/s, and against published rates."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ridgeline.cost.attention import attention_cost, unfused_attention_cost
from ridgeline.cost.compute import tile_seconds
from ridgeline.cost.machine import Device
from ridgeline.cost.machine import device as resolved
from ridgeline.facts.accelerators import accelerator
from ridgeline.facts.mechanisms import AttentionKernel, attention_kernel, constant
from ridgeline.lower.work import Attention, Phase

LATENCY_S = constant("memory.latency") / 1e9  # cycles at 1 GHz
SCORES = 2 * 4 * 1024 * (512.5 + 64)  # half a tile of 128 beyond the mask for each row
MASKED = 1 - 1 / 1024  # 2 (1 - 512.5 / 1024)


def attention(phase: Phase = Phase.FORWARD, **choices: object) -> Attention:
    """2 sequences x 4 heads of 1024 x 1024 causal scores, 64 wide."""
    shape = {"sequences": 2, "heads": 4, "kv_heads": 2, "q_tokens": 1024, "kv_tokens": 1024, "mean_context": 512.5}
    shape |= {"qk_dim": 64, "v_dim": 64, "fused": True, "dropout": True}
    return Attention(name="a", phase=phase, **(shape | choices))  # type: ignore[arg-type]


def values(**choices: float) -> AttentionKernel:
    """A kernel at half the matrix rate, its whole softmax exposed, without fill and without loss."""
    numbers: dict[str, float] = {"norm": 1.0, "narrow": 128.0, "forward_share_": 0.5, "backward_share_": 0.25}
    numbers |= {"exposed_": 1.0, "wide_": 0.0, "fill_s_": 0.0, "masked_": 0.0, "low": 1.0, "high": 1.0}
    return AttentionKernel(kernel="toy", architecture="other", **(numbers | choices))


def softmax_s(operations: str) -> float:
    """Of one score at the rate of the whole device: operations at 0.5 T a second, 16 exponentials a cycle and SM."""
    return constant(operations) / 0.5e12 + 1 / (4 * constant("sm.exp_per_cycle") * 1e9)


def seconds(work: Attention, device: Device, kernel: AttentionKernel | str) -> float:
    return float(attention_cost(work, device, dtype="bf16", kernel=kernel).seconds)


def test_forward_counts_two_products_and_a_softmax(device: Device) -> None:
    cost = attention_cost(attention(), device, dtype="bf16", kernel=values())
    assert float(cost.flop) == pytest.approx(2 * SCORES * 128) == pytest.approx(1_209_008_128)
    # 256 FLOP of a score at half of 4 TFLOP/s
    expected = SCORES * (256 / 2e12 + softmax_s("attention.forward_vector_ops"))
    assert float(cost.seconds) == pytest.approx(expected)


def test_softmax_that_runs_beside_products_adds_as_squares(device: Device) -> None:
    expected = SCORES * np.hypot(256 / 2e12, 0.9 * softmax_s("attention.forward_vector_ops"))
    assert seconds(attention(), device, values(norm=2.0, exposed_=0.9)) == pytest.approx(expected)


def test_a_mask_costs_its_share_and_only_where_there_is_one(device: Device) -> None:
    full = attention(mean_context=1024)
    assert seconds(attention(), device, values(masked_=0.1)) == pytest.approx(
        (1 + 0.1 * MASKED) * seconds(attention(), device, values())
    )
    assert seconds(full, device, values(masked_=0.1)) == seconds(full, device, values())


def test_tiles_fill_and_drain(device: Device) -> None:
    # 8192 rows are 64 tiles of 128, 16 on each of 4 SMs
    more = seconds(attention(), device, values(fill_s_=1e-6)) - seconds(attention(), device, values())
    assert more == pytest.approx(16e-6)


def test_wide_heads_lose_rate_beyond_the_narrow_ones(device: Device) -> None:
    wide = attention(qk_dim=256, v_dim=256)
    score = 1024 * 1.2 / 2e12 + softmax_s("attention.forward_vector_ops")
    assert seconds(wide, device, values(wide_=0.2)) == pytest.approx(SCORES * score)


def test_no_tile_ends_before_its_last_key(device: Device) -> None:
    # one head, 128 queries: a single tile on a single SM sees 65536 keys, four times slower than four SMs would
    long = attention(sequences=1, heads=1, kv_heads=1, q_tokens=128, kv_tokens=65536, mean_context=65536)
    score = 256 / 2e12 + softmax_s("attention.forward_vector_ops")
    assert seconds(long, device, values(fill_s_=1e-6)) == pytest.approx(4 * 128 * 65536 * score + 1e-6)


def test_backward_counts_five_products_and_what_surrounds_them(device: Device) -> None:
    cost = attention_cost(attention(Phase.BACKWARD_INPUT), device, dtype="bf16", kernel=values())
    assert float(cost.flop) == pytest.approx(2 * SCORES * 5 * 64)
    core = SCORES * (640 / 1e12 + softmax_s("attention.backward_vector_ops"))
    # outputs and their gradients 2 + 2 bytes; gradients of queries cleared 4, read 4, written 2; at half of 1 TB/s
    around = 8192 * 64 * 14 / 0.5e12
    assert float(cost.seconds) == pytest.approx(core + around)


def test_newer_kernels_backward_is_that_of_the_second_generation_faster(device: Device) -> None:
    hopper = replace(device, accelerator=replace(device.accelerator, architecture="hopper"))
    around = 8192 * 64 * 14 / 0.5e12
    back = attention(Phase.BACKWARD_INPUT)
    new, old = seconds(back, hopper, "flash") - around, seconds(back, hopper, "flash2") - around
    assert old / new == pytest.approx(constant("attention.newer_backward"))


def test_one_large_array_runs_products_and_operations_one_after_the_other(device: Device) -> None:
    array = replace(device, sm_count=1)
    expected = SCORES * (256 / 4e12 + constant("attention.forward_vector_ops") / 0.5e12) + 64 * 2 * LATENCY_S
    assert seconds(attention(), array, "flash") == pytest.approx(expected)


def test_one_query_is_bound_by_its_keys_and_values(device: Device) -> None:
    slow = replace(device, memory_bytes_per_s=1e9)
    one = attention(q_tokens=1, kv_tokens=1024, mean_context=1024)
    # q and o: 2 * 4 * 128; k and v: 2 * 2 * 1024 * 128 elements of two bytes
    assert seconds(one, slow, "flash2") == pytest.approx((1024 + 524288) * 2 / 1e9)


def test_arrays_of_plans_are_priced_as_one_by_one(device: Device) -> None:
    tokens = np.array([128.0, 1000.0, 4096.0])
    together = attention_cost(attention(kv_tokens=tokens, mean_context=tokens / 2), device, dtype="bf16").seconds
    alone = [seconds(attention(kv_tokens=t, mean_context=t / 2), device, "flash") for t in tokens]
    np.testing.assert_allclose(together, alone)


# unfused ---------------------------------------------------------------------------------------------


def products_s(device: Device, stored: float) -> float:
    rate = {"rate_flop_per_s": 4e12, "element_bytes": 2.0, "device": device, "result_bytes": stored}
    found = tile_seconds((1024, 1024, 64), 8, **rate) + tile_seconds((1024, 64, 1024), 8, **rate)  # type: ignore[arg-type]
    return float(found)


def test_unfused_attention_moves_every_score(device: Device) -> None:
    forward = attention_cost(attention(fused=False), device, dtype="bf16")
    backward = attention_cost(attention(Phase.BACKWARD_INPUT, fused=False), device, dtype="bf16")
    scores = 8 * 1024 * 1024  # the whole square: nothing is skipped
    # q and o: 8 x 1024 rows of 128; k and v: 4 x 1024 rows of 128; two bytes once forward, three times backward
    operands = (8 + 4) * 1024 * 128
    seen = 8 * 1024 * 512.5  # before the mask: what the softmax reads, once forward, with gradients backward
    rate = constant("attention.plain_share") * 1e12
    assert float(forward.memory_s) == pytest.approx((scores * 11 + seen * 2 + operands * 2) / rate)
    assert float(backward.memory_s) == pytest.approx((scores * 16 + seen * 4 + operands * 6) / rate)
    assert float(forward.flop) == 2 * scores * 128
    # scores 1024 x 1024 x 64 and values 1024 x 64 x 1024, eight of each; backward twice that
    assert float(forward.compute_s) == pytest.approx(products_s(device, 2.0))
    assert float(backward.compute_s) == pytest.approx(2 * products_s(device, 2.0))
    assert float(forward.seconds) == pytest.approx(float(forward.compute_s + forward.memory_s))


@pytest.mark.parametrize(
    ("phase", "scores", "seen", "around"),
    [(Phase.FORWARD, 12 + 9, 4, 4), (Phase.BACKWARD_INPUT, 20 + 10, 8, 12)],
)
def test_scores_in_32_bits_are_twice_as_large_but_for_their_mask(
    device: Device, phase: Phase, scores: float, seen: float, around: float
) -> None:
    """Forward 8 bytes of scores and of dropout's, and a mask of 1 byte; backward 10 and 2."""
    found = attention_cost(attention(phase, fused=False), device, dtype="fp32")
    moved = 8 * 1024 * (1024 * scores + 512.5 * seen) + (8 + 4) * 1024 * 128 * around
    assert float(found.memory_s) == pytest.approx(moved / (constant("attention.plain_share") * 1e12))


@pytest.mark.parametrize(("phase", "each", "around"), [(Phase.FORWARD, 13 + 8, 2), (Phase.BACKWARD_INPUT, 20 + 4, 6)])
def test_chained_kernels_scale_and_mask_whole_squares_of_scores(
    device: Device, phase: Phase, each: float, around: float
) -> None:
    found = attention_cost(attention(phase, fused=False, chained=True), device, dtype="bf16")
    scores, operands = 8 * 1024 * 1024, (8 + 4) * 1024 * 128
    rate = constant("attention.plain_share") * 1e12
    assert float(found.memory_s) == pytest.approx((scores * each + operands * around) / rate)


def test_plain_operators_have_no_dropout_lay_inputs_out_anew_and_add_the_mask(device: Device) -> None:
    scores, operands = 8 * 1024 * 1024, (8 + 4) * 1024 * 128
    rate = constant("attention.plain_share") * 1e12
    added = scores / (constant("elementwise.broadcast_per_cycle") * 4 * 1e9)
    for phase, each, around, mask in ((Phase.FORWARD, 8, 5, added), (Phase.BACKWARD_INPUT, 14, 7, 0.0)):
        work = attention(phase, fused=False, dropout=False)
        causal = unfused_attention_cost(replace(work, plain=True), device, dtype="bf16")
        full = unfused_attention_cost(replace(work, mean_context=1024.0, plain=True), device, dtype="bf16")
        assert float(full.memory_s) == pytest.approx((scores * each + operands * around) / rate)
        assert float(causal.memory_s - full.memory_s) == pytest.approx(mask)


# the table -------------------------------------------------------------------------------------------


def test_a_kernel_is_found_on_its_own_architecture_else_on_others() -> None:
    assert attention_kernel("flash2", "hopper").architecture == "hopper"
    assert attention_kernel("flash2", "ada").architecture == "other"
    assert attention_kernel("flash3", "blackwell").architecture == "hopper"


@pytest.mark.parametrize(
    ("kernel", "head", "tokens", "causal", "published"),
    [  # TFLOP/s on H100 SXM of the abstracts and sections 4 of arXiv:2307.08691 and arXiv:2407.08608
        ("flash2", 128, 16384, False, 370.0),
        ("flash3", 128, 16384, False, 648.0),
        ("flash3", 256, 16384, False, 756.0),
        ("flash2", 128, 2048, True, 298.0),
    ],
)
def test_rates_are_those_that_the_papers_tell(
    kernel: str, head: int, tokens: int, causal: bool, published: float
) -> None:
    chip = resolved(accelerator("H100-SXM"))
    batch, heads = 16384 // tokens, 2048 // head
    work = attention(
        sequences=batch, heads=heads, kv_heads=heads, q_tokens=tokens, kv_tokens=tokens, qk_dim=head, v_dim=head,
        mean_context=(tokens + 1) / 2 if causal else tokens,
    )  # fmt: skip
    flop = 4.0 * batch * heads * tokens**2 * head * (0.5 if causal else 1.0)
    assert flop / seconds(work, chip, kernel) / 1e12 == pytest.approx(published, rel=0.15)
