"""Kernels worked out by hand on a device of 4 SMs, 1 TFLOP/s each, 1 TB/s."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ridgeline.cost.compute import attention_cost, gemm_cost, stream_cost, tile_seconds
from ridgeline.cost.machine import Device
from ridgeline.errors import DomainError
from ridgeline.facts.mechanisms import constant
from ridgeline.lower.work import Attention, Gemm, Phase, Stream

LATENCY_S = constant("memory.latency") / 1e9  # cycles at 1 GHz


def tiles_s(device: Device, m: float, n: float, k: float, count: float = 1) -> float:
    return float(tile_seconds(m, n, k, count, rate_flop_per_s=4e12, element_bytes=2, device=device))


def gemm(m: float, n: float, k: float, **choices: object) -> Gemm:
    return Gemm(name="g", phase=Phase.FORWARD, m=m, n=n, k=k, **choices)  # type: ignore[arg-type]


def attention(phase: Phase = Phase.FORWARD, **choices: object) -> Attention:
    """2 sequences x 4 heads of 1024 x 1024 causal scores, 64 wide."""
    shape = {"sequences": 2, "heads": 4, "kv_heads": 2, "q_tokens": 1024, "kv_tokens": 1024, "mean_context": 512.5}
    return Attention(name="a", phase=phase, qk_dim=64, v_dim=64, **({"fused": True} | shape | choices))  # type: ignore[arg-type]


# tiles and waves -----------------------------------------------------------------------------------


def test_one_full_wave_of_square_tiles(device: Device) -> None:
    # 256 x 256 is four 128 x 128 tiles, one on each SM. A tile: 2 * 128 * 128 FLOP per step of k at 1 TFLOP/s
    # = 32.768 ns, 1024 steps; the wave waits once for memory and stores 4 tiles of 32 KiB at 1 TB/s = 131.072 ns.
    # 256 x 128 tiles with k split in two take the same time to compute and store twice as much.
    assert tiles_s(device, 256, 256, 1024) == pytest.approx(1024 * 32.768e-9 + LATENCY_S + 131.072e-9)


def test_a_tail_is_cheapest_in_small_tiles(device: Device) -> None:
    # 640 x 128 is 5 tiles of 128 x 128, two waves on 4 SMs: 2 * 8192 * 32.768 ns = 537 us. As 20 tiles of 64 x 64
    # (8.192 ns a step, 8 KiB each) it fills 5 waves to the last SM: 5 * 8192 * 8.192 ns = 335.5 us.
    assert tiles_s(device, 640, 128, 8192) == pytest.approx(5 * (8192 * 8.192e-9 + LATENCY_S + 32.768e-9))


def test_k_is_split_over_idle_sms(device: Device) -> None:
    # one 64 x 64 tile, k = 4096: four SMs take 1024 steps each (of 8.192 ns) and store a 64 x 64 partial each
    assert tiles_s(device, 64, 64, 4096) == pytest.approx(1024 * 8.192e-9 + LATENCY_S + 32.768e-9)


def test_k_is_not_split_below_256(device: Device) -> None:
    assert tiles_s(device, 64, 64, 256) == pytest.approx(256 * 8.192e-9 + LATENCY_S + 32.768e-9)


def test_operands_limit_a_tile_where_l2_is_slow(device: Device) -> None:
    # at a hundredth of the clock an SM reads constant * 1e7 byte/s; a 256 x 128 tile needs 384 * 2 bytes a step
    slow = replace(device, clock_hz=1e7)
    per_step = 384 * 2 / (constant("sm.l2_bytes_per_cycle") * 1e7)
    assert per_step > 65.536e-9
    # 512 x 256: four 256 x 128 tiles, one wave, 64 KiB stored by each of 4 SMs
    expected = 4096 * per_step + LATENCY_S * 100 + 262.144e-9
    assert tiles_s(slow, 512, 256, 4096) == pytest.approx(expected)


def test_groups_share_the_waves(device: Device) -> None:
    # four products of one 128 x 128 tile each fill the four SMs
    assert tiles_s(device, 128, 128, 2048, count=4) == pytest.approx(2048 * 32.768e-9 + LATENCY_S + 131.072e-9)


def test_one_systolic_array_pads_to_128(device: Device) -> None:
    # 100 x 130 pads to 128 x 256: 2 * 128 * 256 * 64 FLOP at 4 TFLOP/s
    assert tiles_s(replace(device, sm_count=1), 100, 130, 64) == pytest.approx(4194304 / 4e12)


def test_sm_pairs_take_wider_tiles(device: Device) -> None:
    # Blackwell: a 256 x 256 tile on a pair of SMs needs (256 + 256) * 2 bytes a step from two supplies, half of what
    # two 256 x 128 tiles would read; where L2 is slow that is what counts
    slow = replace(device, clock_hz=1e7)
    paired = replace(slow, accelerator=replace(slow.accelerator, architecture="blackwell"))
    per_step = 512 * 2 / (2 * constant("sm.l2_bytes_per_cycle") * 1e7)
    # 512 x 256 is two pairs of SMs, one wave; 256 * 256 * 2 bytes by each of two pairs
    assert tiles_s(paired, 512, 256, 4096) == pytest.approx(4096 * per_step + LATENCY_S * 100 + 262.144e-9)


# products ------------------------------------------------------------------------------------------


def test_a_thin_product_is_bound_by_its_weight(device: Device) -> None:
    slow = replace(device, memory_bytes_per_s=1e10)
    cost = gemm_cost(gemm(1, 4096, 4096), slow, dtype="bf16", element_bytes=2)
    # (4096 + 4096^2) * 2 bytes in, 4096 * 2 bytes out
    assert cost.bytes == 33570816
    assert cost.flop == 2 * 4096**2
    assert float(cost.seconds) == pytest.approx(33570816 / 1e10)


def test_accumulation_reads_the_result_too(device: Device) -> None:
    plain = gemm_cost(gemm(256, 256, 256, output_bytes=4.0), device, dtype="bf16", element_bytes=2)
    onto = gemm_cost(gemm(256, 256, 256, output_bytes=4.0, accumulate=True), device, dtype="bf16", element_bytes=2)
    assert onto.bytes - plain.bytes == 256 * 256 * 4


def test_a_filters_points_read_an_input_once(device: Device) -> None:
    plain = gemm_cost(gemm(1024, 64, 576), device, dtype="bf16", element_bytes=2)
    convolved = gemm_cost(gemm(1024, 64, 576, taps=9.0), device, dtype="bf16", element_bytes=2)
    assert float(plain.bytes - convolved.bytes) == 1024 * 576 * 2 * 8 / 9
    assert convolved.flop == plain.flop


def test_casting_to_eight_bits_reads_two_bytes_and_writes_two_layouts(device: Device) -> None:
    plain = gemm_cost(gemm(256, 256, 1024), device, dtype="bf16", element_bytes=1)
    cast = gemm_cost(gemm(256, 256, 1024, quantized=True), device, dtype="bf16", element_bytes=1)
    # 256 * 1024 elements, 2 bytes read and 1 + 1 written, at 0.5 TB/s; two more kernels
    assert float(cast.seconds - plain.seconds) == pytest.approx(256 * 1024 * 4 / 0.5e12)
    assert cast.kernels == plain.kernels + 2


def test_four_bit_weights_are_expanded_first(device: Device) -> None:
    plain = gemm_cost(gemm(256, 256, 1024), device, dtype="bf16", element_bytes=2)
    packed = gemm_cost(gemm(256, 256, 1024, weight_rows=256 * 1024), device, dtype="bf16", element_bytes=2)
    # half a byte read and two written for each element, at 0.5 TB/s
    assert float(packed.seconds - plain.seconds) == pytest.approx(256 * 1024 * 2.5 / 0.5e12)


def test_a_format_without_a_rate_is_refused_by_name(device: Device) -> None:
    with pytest.raises(DomainError, match=r"Toy has no fp8 matrix rate; it has bf16, fp32, tf32"):
        gemm_cost(gemm(256, 256, 256), device, dtype="fp8", element_bytes=1)


# attention -----------------------------------------------------------------------------------------

SCORES = 2 * 4 * 1024 * (512.5 + 64)  # half a tile of 128 beyond the mask for each row


def softmax_s(scores: float, operations: str) -> float:
    exponents = scores / (4 * constant("sm.exp_per_cycle") * 1e9)
    return scores * constant(operations) / 0.5e12 + exponents


def test_forward_counts_two_products_a_softmax_and_the_fill(device: Device) -> None:
    cost = attention_cost(attention(), device, dtype="bf16", overlapped=False)
    flop = 2 * SCORES * 128
    fill = 16 * 2 * LATENCY_S  # 8192 rows in blocks of 128 over 4 SMs
    assert float(cost.flop) == pytest.approx(flop) == pytest.approx(1_209_008_128)
    assert float(cost.seconds) == pytest.approx(flop / 4e12 + softmax_s(SCORES, "attention.forward_vector_ops") + fill)


def test_backward_counts_five_products(device: Device) -> None:
    cost = attention_cost(attention(Phase.BACKWARD_INPUT), device, dtype="bf16", overlapped=True)
    assert float(cost.flop) == pytest.approx(2 * SCORES * (3 * 64 + 2 * 64))
    expected = float(cost.flop) / 4e12 + softmax_s(SCORES, "attention.backward_vector_ops") + 16 * 2 * LATENCY_S
    assert float(cost.seconds) == pytest.approx(expected)


def test_overlapped_softmax_hides_in_the_root_of_squares(device: Device) -> None:
    cost = attention_cost(attention(), device, dtype="bf16", overlapped=True)
    matrix, softmax = 2 * SCORES * 128 / 4e12, softmax_s(SCORES, "attention.forward_vector_ops")
    assert float(cost.seconds) == pytest.approx((matrix**2 + softmax**2) ** 0.5 + 32 * LATENCY_S)


def test_older_kernels_take_longer_but_fill_alike(device: Device) -> None:
    new = attention_cost(attention(), device, dtype="bf16", overlapped=False)
    old = attention_cost(attention(), device, dtype="bf16", overlapped=False, slowdown=2.0)
    assert float(old.seconds) == pytest.approx(2 * float(new.seconds) - 32 * LATENCY_S)


def test_without_wgmma_hopper_has_a_share_of_its_peak(device: Device) -> None:
    hopper = replace(device, accelerator=replace(device.accelerator, architecture="hopper"))
    cost = attention_cost(attention(), hopper, dtype="bf16", overlapped=False)
    rate = constant("attention.hopper_mma_share") * 4e12
    expected = 2 * SCORES * 128 / rate + softmax_s(SCORES, "attention.forward_vector_ops") + 32 * LATENCY_S
    assert float(cost.seconds) == pytest.approx(expected)


def test_one_query_is_bound_by_its_keys_and_values(device: Device) -> None:
    slow = replace(device, memory_bytes_per_s=1e9)
    one = attention(q_tokens=1, kv_tokens=1024, mean_context=1024)
    # q and o: 2 * 4 * 128; k and v: 2 * 2 * 1024 * 128 elements of two bytes
    assert float(attention_cost(one, slow, dtype="bf16", overlapped=False).seconds) == pytest.approx(
        (1024 + 524288) * 2 / 1e9
    )


def test_unfused_attention_moves_every_score(device: Device) -> None:
    forward = attention_cost(attention(fused=False), device, dtype="bf16", overlapped=False)
    backward = attention_cost(attention(Phase.BACKWARD_INPUT, fused=False), device, dtype="bf16", overlapped=False)
    scores = 8 * 1024 * 1024  # the whole square: nothing is skipped
    # q and o: 8 x 1024 rows of 128; k and v: 4 x 1024 rows of 128; two bytes once forward, three times backward
    operands = (8 + 4) * 1024 * 128
    assert float(forward.memory_s) == pytest.approx((scores * 13 + operands * 2) / 0.5e12)
    assert float(backward.memory_s) == pytest.approx((scores * 20 + operands * 6) / 0.5e12)
    assert float(forward.flop) == 2 * scores * 128
    # scores 1024 x 1024 x 64 and values 1024 x 64 x 1024, eight of each; backward twice that
    products = tiles_s(device, 1024, 1024, 64, 8) + tiles_s(device, 1024, 64, 1024, 8)
    assert float(forward.compute_s) == pytest.approx(products)
    assert float(backward.compute_s) == pytest.approx(2 * products)
    assert float(forward.seconds) == pytest.approx(float(forward.compute_s + forward.memory_s))


# streams -------------------------------------------------------------------------------------------


def test_a_stream_runs_at_its_share_of_the_memory_rate(device: Device) -> None:
    work = Stream(name="norm", phase=Phase.FORWARD, bytes=1e9)
    assert float(stream_cost(work, device, dtype="bf16").seconds) == pytest.approx(2e-3)


def test_a_scan_is_bound_by_its_units_when_they_are_slower(device: Device) -> None:
    vector = Stream(name="scan", phase=Phase.FORWARD, bytes=1e6, flop=1e10)
    matrix = replace(vector, matrix=True)
    assert float(stream_cost(vector, device, dtype="bf16").seconds) == pytest.approx(1e10 / 1e12)
    assert float(stream_cost(matrix, device, dtype="bf16").seconds) == pytest.approx(1e10 / 4e12)


def test_arrays_of_shapes_price_each_shape(device: Device) -> None:
    m = np.array([1.0, 100.0, 640.0, 4096.0])
    together = gemm_cost(gemm(m, 128, 8192), device, dtype="bf16", element_bytes=2).seconds
    alone = [gemm_cost(gemm(x, 128, 8192), device, dtype="bf16", element_bytes=2).seconds for x in m]
    assert together.tolist() == [float(x) for x in alone]
