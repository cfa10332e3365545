"""Kernels worked out by hand on a device of 4 SMs, 1 TFLOP/s each, 1 TB/s."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ridgeline.cost.compute import gemm_cost, stream_cost, tile_seconds
from ridgeline.cost.formats import FORMS
from ridgeline.cost.machine import Device, stream_share
from ridgeline.errors import DomainError
from ridgeline.facts.accelerators import accelerator
from ridgeline.facts.mechanisms import constant
from ridgeline.lower.work import Gemm, Phase, Stream

BF16 = FORMS["bf16"]
ONE_BYTE = replace(BF16, input_bytes=1.0, weight_bytes=1.0)

LATENCY_S = constant("memory.latency") / 1e9  # cycles at 1 GHz


def tiles_s(device: Device, m: float, n: float, k: float, count: float = 1) -> float:
    return float(tile_seconds((m, n, k), count, rate_flop_per_s=4e12, element_bytes=2, device=device))


def gemm(m: float, n: float, k: float, **choices: object) -> Gemm:
    return Gemm(name="g", phase=Phase.FORWARD, m=m, n=n, k=k, **choices)  # type: ignore[arg-type]


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


def test_rows_that_tokens_choose_end_in_half_a_tile(device: Device) -> None:
    # four products of 128 x 128: even, four tiles of 128 x 128 in one wave. Of 128 rows on average each ends in half a
    # tile more: (2 + 1/2) x 2 tiles of 64 x 64, 20 in five waves of 8.192 ns a step, beat two waves of 32.768 ns.
    even = tile_seconds((128, 128, 1024), 4, rate_flop_per_s=4e12, element_bytes=2, device=device)
    assert float(even) == pytest.approx(1024 * 32.768e-9 + LATENCY_S + 131.072e-9)
    spread = tile_seconds((128, 128, 1024), 4, rate_flop_per_s=4e12, element_bytes=2, device=device, uneven=True)
    assert float(spread) == pytest.approx(5 * (1024 * 8.192e-9 + LATENCY_S + 32.768e-9))
    few = tile_seconds((8, 128, 1024), 4, rate_flop_per_s=4e12, element_bytes=2, device=device, uneven=True)
    assert float(few) == tiles_s(device, 8, 128, 1024, 4)  # one tile at least


@pytest.mark.parametrize(
    ("together", "batches", "steps", "share"), [(0, 1, 1024, 0.82), (4, 1, 1024, 1), (2, 2, 512, 1), (1, 4, 256, 1)]
)
def test_products_of_experts_share_waves_with_those_beside_them(
    device: Device, together: int, batches: int, steps: int, share: float
) -> None:
    # four of one tile: one wave of all, in one kernel at 0.82 of the rate; two at a time split k in two, one in four
    work = gemm(64, 64, 1024, count=4, routed=True, together=float(together))
    found = float(np.asarray(gemm_cost(work, device, BF16).compute_s))
    assert found == pytest.approx(batches * (steps * 8.192e-9 + LATENCY_S + 32.768e-9) / share)


def test_k_of_a_convolution_is_not_split(device: Device) -> None:
    # one tile of 128 x 32 computes alone: 2 * 128 * 32 FLOP a step = 8.192 ns, 4096 steps; 4 SMs' tiles of 8 KiB stored
    rate = {"rate_flop_per_s": 4e12, "element_bytes": 2, "device": device, "convolution": True}
    found = float(tile_seconds((128, 32, 4096), 1, **rate))  # type: ignore[arg-type]
    assert found == pytest.approx(4096 * 8.192e-9 + LATENCY_S + 32.768e-9)
    assert found > 1.9 * tiles_s(device, 128, 32, 4096)  # two tiles of 64 x 64, each on two SMs


def test_a_filter_for_each_channel_streams_or_loads(device: Device) -> None:
    # 64 channels of 10,000 pixels, 3 x 3: 5.76 M points of 4 SMs x 32 a cycle at 1 GHz = 45 us; 2 bytes of each input
    # and output at 1 TB/s = 2.56 us. Its FLOP on tiles of 128 x 32 would take 64 x 79 tiles.
    work = gemm(10_000, 1, 9, count=64, taps=9.0)
    found = gemm_cost(work, device, BF16)
    assert found.compute_s == pytest.approx(10_000 * 9 * 64 / (4 * 32 * 1e9))
    moved = (10_000 + 9 + 10_000) * 2 * 64
    assert found.bytes == pytest.approx(moved)
    assert found.memory_s == pytest.approx(moved / (1e12 * device.stream_share))
    both = gemm_cost(replace(work, loads=2.0), device, BF16)  # and the filter's point each time
    assert both.compute_s == pytest.approx(2 * found.compute_s)
    paired = gemm_cost(replace(work, n=2), device, BF16)  # two filters a group meet in a tile
    assert paired.compute_s > 2 * found.compute_s
    array = replace(device, sm_count=1)
    alone = gemm_cost(work, array, BF16)
    assert alone.compute_s == pytest.approx(2 * 10_000 * 9 * 64 / device.vector_flop_per_s)


def test_a_direct_convolution_loads_both_factors_of_each_multiplication(device: Device) -> None:
    # 2 groups of 64 channels, 1000 pixels, 3 x 3: 73.7 M multiplications, two loads each, 4 SMs x 32 a cycle at 1 GHz
    work = gemm(1000, 64, 576, count=2, taps=9.0, direct=True)
    found = gemm_cost(work, device, BF16)
    assert found.compute_s == pytest.approx(2 * 1000 * 64 * 576 * 2 / (4 * 32 * 1e9))
    filters = gemm_cost(replace(work, phase=Phase.BACKWARD_WEIGHT), device, BF16)
    assert filters.compute_s == pytest.approx(97.0 / 47.3 * found.compute_s, rel=1e-3)


def test_narrow_operands_that_were_written_so_are_not_cast(device: Device) -> None:
    # 64 x 256 by 256 x 64 in one byte: a cast reads 2 and writes 2 x 1 bytes of each of the 64 x 256 numbers
    work = gemm(64, 64, 256, quantized=True)
    first = gemm_cost(work, device, ONE_BYTE)
    ready = gemm_cost(replace(work, cast_layouts=0), device, ONE_BYTE)
    assert first.bytes - ready.bytes == pytest.approx(64 * 256 * 4)
    assert first.seconds - ready.seconds == pytest.approx(64 * 256 * 4 / (1e12 * device.stream_share))
    assert (first.kernels, ready.kernels) == (3, 1)


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
    cost = gemm_cost(gemm(1, 4096, 4096), slow, BF16)
    # (4096 + 4096^2) * 2 bytes in, 4096 * 2 bytes out
    assert cost.bytes == 33570816
    assert cost.flop == 2 * 4096**2
    assert float(cost.seconds) == pytest.approx(33570816 / 1e10)


def test_accumulation_reads_the_result_too(device: Device) -> None:
    plain = gemm_cost(gemm(256, 256, 256, output_bytes=4.0), device, BF16)
    onto = gemm_cost(gemm(256, 256, 256, output_bytes=4.0, accumulate=True), device, BF16)
    assert onto.bytes - plain.bytes == 256 * 256 * 4


def test_a_filters_points_read_an_input_once(device: Device) -> None:
    plain = gemm_cost(gemm(1024, 64, 576), device, BF16)
    convolved = gemm_cost(gemm(1024, 64, 576, taps=9.0), device, BF16)
    assert float(plain.bytes - convolved.bytes) == 1024 * 576 * 2 * 8 / 9
    assert convolved.flop == plain.flop


def test_casting_to_eight_bits_reads_two_bytes_and_writes_two_layouts(device: Device) -> None:
    plain = gemm_cost(gemm(256, 256, 1024), device, ONE_BYTE)
    cast = gemm_cost(gemm(256, 256, 1024, quantized=True), device, ONE_BYTE)
    # 256 * 1024 elements, 2 bytes read and 1 + 1 written, at 0.5 TB/s; two more kernels
    assert float(cast.seconds - plain.seconds) == pytest.approx(256 * 1024 * 4 / 0.5e12)
    assert cast.kernels == plain.kernels + 2


def test_four_bit_weights_are_expanded_first(device: Device) -> None:
    plain = gemm_cost(gemm(256, 256, 1024), device, BF16)
    packed = gemm_cost(gemm(256, 256, 1024, weight_rows=256 * 1024), device, BF16)
    # half a byte read and two written for each element, at 0.5 TB/s
    assert float(packed.seconds - plain.seconds) == pytest.approx(256 * 1024 * 2.5 / 0.5e12)


def test_a_format_without_a_rate_is_refused_by_name(device: Device) -> None:
    with pytest.raises(DomainError, match=r"Toy has no fp8 matrix rate; nearest: bf16; it has bf16, fp32, tf32"):
        gemm_cost(gemm(256, 256, 256), device, FORMS["fp8"])


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
    together = gemm_cost(gemm(m, 128, 8192), device, BF16).seconds
    alone = [gemm_cost(gemm(x, 128, 8192), device, BF16).seconds for x in m]
    assert together.tolist() == [float(x) for x in alone]


@pytest.mark.parametrize(
    ("name", "kind"), [("RTX-5090", "gddr"), ("RTX-4090", "gddr"), ("A100-SXM-80GB", "ampere"), ("H100-SXM", "hopper")]
)
def test_graphics_memory_of_any_rate_is_filled_by_few_loads(name: str, kind: str) -> None:
    assert stream_share(accelerator(name)) == constant(f"stream.share.{kind}")
