"""Iterations with weights on both sides: parts worked by hand, what overlaps, what fits, limits of each technique."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.cost.host import Kernel, Processors
from ridgeline.cost.machine import machine
from ridgeline.errors import NoPlanError, PlanError
from ridgeline.facts.clusters import cluster
from ridgeline.facts.cpus import cpu, neuron_law
from ridgeline.graph.load import load
from ridgeline.lower.pieces import Core, Experts
from ridgeline.scenario.serving_words import deployed
from ridgeline.serving.hybrid import decode, prefill
from ridgeline.serving.hybrid_model import Hybrid
from ridgeline.serving.hybrid_placement import (
    DeviceOrder,
    Habits,
    HostPlacement,
    OffloadMethod,
    habits_of,
    neurons_met,
    popularity,
    use_share,
)
from ridgeline.serving.hybrid_sides import Rows, host_s

HOST = Processors(cpu=cpu("Xeon Gold 6454S"), sockets=1, cores=32, memory_bytes_per_s=307.2e9, memory_bytes=512e9)
LINK = 31e9 * 0.88  # PCIe 4.0 of sixteen lanes, as a 4090 has, at the share that long copies reach [byte/s]
CORE = 307.2e9 / 16  # twice a core's share of the memory of its socket [byte/s]
MIXTRAL_EXPERT_BYTES = 3 * 4096 * 14336 * 2  # of one expert in one layer, 16 bits


def mixtral(
    technique: OffloadMethod = OffloadMethod.COMPUTED, *, device: str | None = "RTX-4090", **changes: object
) -> Hybrid:
    placement = {"share": 0.0, **{k: v for k, v in changes.items() if k in HostPlacement.__dataclass_fields__}}
    rest = {k: v for k, v in changes.items() if k in ("host", "habits", "host_bytes", "model")}
    habits = rest.get("habits", Habits(kernel=Kernel.VECTOR, launches="graph"))
    return Hybrid(
        load(str(rest.get("model", "mixtral-8x7b"))),
        None if device is None else machine(cluster(f"1x{device}")),
        rest.get("host", HOST),  # type: ignore[arg-type]
        HostPlacement(technique=technique, **placement),  # type: ignore[arg-type]
        deployment=deployed(kv=str(changes.get("kv", ""))),
        habits=habits,  # type: ignore[arg-type]
        host_bytes=rest.get("host_bytes"),  # type: ignore[arg-type]
    )


def test_experts_on_the_host_read_two_of_eight_in_each_layer() -> None:
    parts = decode(mixtral(), 1.0, 512.0)
    read = 32 * 2 * MIXTRAL_EXPERT_BYTES / HOST.read_bytes_per_s
    stages = 32 * 6 * 1e-5
    assert float(parts.host[0]) == pytest.approx(read + stages)
    assert float(parts.total[0]) == pytest.approx(float((parts.device + parts.host + parts.sync)[0]))


def test_experts_of_the_device_run_beside_those_of_the_host() -> None:
    split = decode(mixtral(share=0.5), 1.0, 512.0)
    assert float(split.total[0]) < float((split.device + split.host + split.sync)[0])
    assert float(split.host[0]) == pytest.approx(16 * 2 * MIXTRAL_EXPERT_BYTES / HOST.read_bytes_per_s + 32 * 6e-5)


def test_layers_filled_from_the_front_are_not_called_on_the_host() -> None:
    front, even = mixtral(share=0.5, order=DeviceOrder.FRONT), mixtral(share=0.5)
    calls = [float(decode(hybrid, 1.0, 512.0).sync[0]) - hybrid.loop_s for hybrid in (front, even)]
    assert calls[0] == pytest.approx(0.5 * calls[1])


def test_fetched_experts_cross_the_link() -> None:
    hybrid = mixtral(OffloadMethod.FETCHED, order=DeviceOrder.UNIFORM)
    parts = decode(hybrid, 1.0, 512.0)
    assert float(parts.link[0]) == pytest.approx(32 * 2 * MIXTRAL_EXPERT_BYTES / LINK, rel=1e-3)
    ahead = mixtral(OffloadMethod.FETCHED, order=DeviceOrder.UNIFORM, habits=Habits(launches="graph", prefetch=True))
    assert float(decode(ahead, 1.0, 512.0).total[0]) < float(parts.total[0])


def test_fiddler_takes_the_sooner_of_both() -> None:
    choosing = mixtral(habits=Habits(kernel=Kernel.VECTOR, launches="graph", fetches=True))
    computing, fetching = mixtral(), mixtral(OffloadMethod.FETCHED, order=DeviceOrder.UNIFORM)
    for run in (lambda h: decode(h, 1.0, 64.0), lambda h: prefill(h, 1.0, 2048.0)):
        best = min(float(run(computing).total[0]), float(run(fetching).total[0]))
        assert float(run(choosing).total[0]) <= best * (1 + 1e-9)


def test_long_prompts_bring_all_experts_once() -> None:
    habits = Habits(kernel=Kernel.VECTOR, launches="graph", streams=1024, chunk=65_536)
    hybrid = mixtral(layerwise=True, habits=habits)
    link = 32 * 8 * MIXTRAL_EXPERT_BYTES / LINK
    assert float(prefill(hybrid, 1.0, 4096.0).link[0]) == pytest.approx(link, rel=1e-3)
    assert float(prefill(hybrid, 1.0, 512.0).link[0]) == 0.0


def test_streamed_layers_cross_whole_unless_only_touched_experts_do() -> None:
    every = mixtral(OffloadMethod.STREAMED, habits=Habits(launches="graph", touched=False))
    some = mixtral(OffloadMethod.STREAMED, habits=Habits(launches="graph", touched=True))
    difference = float((decode(every, 1.0, 64.0).link - decode(some, 1.0, 64.0).link)[0])
    assert difference == pytest.approx(32 * 6 * MIXTRAL_EXPERT_BYTES / LINK, rel=1e-3)


def test_layers_streamed_from_disk_wait_for_it() -> None:
    inside, outside = (mixtral(OffloadMethod.STREAMED, from_disk=disk) for disk in (False, True))
    slower = float(decode(outside, 1.0, 64.0).total[0]) - float(decode(inside, 1.0, 64.0).total[0])
    assert slower == pytest.approx(float(decode(outside, 1.0, 64.0).disk[0]))
    assert slower > 32 * 2 * MIXTRAL_EXPERT_BYTES / 7e9


def test_a_host_alone_reads_every_weight_once_a_token() -> None:
    hybrid = mixtral(OffloadMethod.HOST, device=None, model="llama-2-7b", habits=Habits(), host_bytes=0.5)
    parts = decode(hybrid, 1.0, 1.0)
    weights = 0.5 * (6.738e9 - 32000 * 4096)  # all but the embedding
    bound = weights / HOST.read_bytes_per_s
    assert bound < float(parts.host[0]) < 1.25 * bound
    assert float(parts.total[0]) == pytest.approx(float(parts.host[0]) + hybrid.loop_s)


def test_a_dense_file_larger_than_memory_is_read_again_and_again() -> None:
    fits, reads = (
        decode(
            mixtral(
                OffloadMethod.DISK,
                device=None,
                model="llama-2-7b",
                habits=Habits(),
                host_bytes=0.5,
                resident_bytes=size,
            ),
            1.0,
            1.0,
        )
        for size in (8e9, 3e9)
    )
    assert float(fits.disk[0]) == 0.0
    assert float(reads.disk[0]) == pytest.approx(3.369e9 / 7e9, rel=0.02)  # 32 threads of 1.9 GB/s, more than it has
    one = replace(HOST, cores=1)
    alone = mixtral(OffloadMethod.DISK, device=None, model="llama-2-7b", habits=Habits(), host_bytes=0.5,
                    resident_bytes=3e9, host=one)  # fmt: skip
    waits = float(decode(alone, 1.0, 1.0).disk[0])
    assert waits == pytest.approx(3.369e9 * (5e-5 + 131072 / 7e9) / 131072, rel=0.02)


def test_layers_split_between_device_and_host_lie_between_both() -> None:
    times = [
        float(
            decode(
                mixtral(OffloadMethod.LAYERS, share=share, model="llama-2-7b", habits=Habits(launches="native")),
                1.0,
                128.0,
            ).total[0]
        )
        for share in (0.25, 0.5, 0.75)
    ]
    assert times[0] > times[1] > times[2]
    assert times[1] == pytest.approx((times[0] + times[2]) / 2)


def test_what_fits_is_held_and_what_does_not_is_refused() -> None:
    hybrid = mixtral(share=None)
    assert 0.1 < hybrid.share(1024.0) < 0.25  # 20 GB beside 3 GB of attention, of 90 GB of experts
    with pytest.raises(NoPlanError, match="do not fit"):
        decode(mixtral(host=Processors(**{**vars(HOST), "memory_bytes": 64e9})), 1.0, 64.0)
    with pytest.raises(PlanError, match="no processor"):
        mixtral(OffloadMethod.LAYERS, host=None)
    with pytest.raises(PlanError, match="needs an accelerator"):
        mixtral(OffloadMethod.NEURONS, device=None)
    with pytest.raises(PlanError, match="share"):
        HostPlacement(technique=OffloadMethod.HOST, share=1.5)


def test_a_cache_that_no_device_holds_is_brought_or_read_where_it_lies() -> None:
    hybrid = mixtral(share=0.0)
    tokens = 512 * 2048.0  # of 131,072 byte each: 137 GB
    assert hybrid.cache_fits(1e4)
    assert not hybrid.cache_fits(tokens)
    parts, fewer = decode(hybrid, 512.0, 2048.0), decode(hybrid, 512.0, 1.0)
    assert float((parts.host - fewer.host)[0]) == pytest.approx(tokens * 131_072 / HOST.read_bytes_per_s, rel=1e-6)
    alone = mixtral(OffloadMethod.FETCHED, order=DeviceOrder.UNIFORM, host=None)
    moved = decode(alone, 512.0, 2048.0).link - decode(alone, 512.0, 1.0).link
    assert float(moved[0]) == pytest.approx(tokens * 131_072 / LINK, rel=1e-6)


def test_shares_of_uses() -> None:
    assert use_share(8, 0.25, DeviceOrder.UNIFORM, 1.0) == 0.25
    assert popularity(2, 1.0).tolist() == pytest.approx([2 / 3, 1 / 3])
    assert use_share(2, 0.5, DeviceOrder.FREQUENT, 1.0) == pytest.approx(2 / 3)
    assert use_share(64, 0.25, DeviceOrder.RECENT, 0.0) == pytest.approx(0.25)  # all alike: a cache knows nothing


@given(st.integers(2, 300), st.floats(0.01, 0.99), st.floats(0.0, 2.0))
@settings(max_examples=60)
def test_popular_placement_is_best_and_chance_worst(experts: int, share: float, skew: float) -> None:
    chance, recent, popular = (
        use_share(experts, share, order, skew)
        for order in (DeviceOrder.UNIFORM, DeviceOrder.RECENT, DeviceOrder.FREQUENT)
    )
    assert chance <= recent + 1e-9
    assert recent <= popular + 1e-6
    assert popular <= 1 + 1e-12


@given(st.floats(0.0, 1.0), st.floats(0.0, 1.0))
@settings(max_examples=20, deadline=None)
def test_more_experts_on_the_device_never_read_more_on_the_host(one: float, other: float) -> None:
    low, high = sorted((one, other))
    assert float(decode(mixtral(share=high), 1.0, 64.0).host[0]) <= float(decode(mixtral(share=low), 1.0, 64.0).host[0])


def test_an_iteration_takes_the_loop_of_its_engine() -> None:
    fast, slow = mixtral(habits=Habits(loop="llama.cpp")), mixtral(habits=Habits(loop="transformers"))
    assert (fast.loop_s, slow.loop_s) == (0.0003, 0.003)


def test_cold_neurons_run_beside_hot_ones() -> None:
    """OPT-30B with room for 0.5 of its weights: attention, a third, and of the others a quarter of the neurons."""
    few, many = (mixtral(OffloadMethod.NEURONS, share=share, model="opt-30b") for share in (0.4, 0.5))
    slow, fast = decode(few, 1.0, 64.0), decode(many, 1.0, 64.0)
    assert float(fast.host[0]) < float(slow.host[0])
    attention, feed = 48 * 4 * 7168**2 * 2, 48 * 8 * 7168**2 * 2
    room = 0.5 * (attention + feed + many.ends_bytes) - attention
    sync = float(fast.sync[0] - many.loop_s) / 48
    rates = 1 / HOST.read_bytes_per_s - 1 / many.machine.device.memory_bytes_per_s
    active, met = neurons_met(neuron_law("opt-30b"), 48, room / feed, sync / (rates * feed / 48))
    read = feed / 48 * 0.03 * float((active * (1 - met)).sum()) + many.ends_bytes  # logits are the host's, of OPT
    assert float(fast.host[0]) == pytest.approx(read / HOST.read_bytes_per_s, rel=0.01)


def test_attention_that_the_device_does_not_hold_is_computed_on_the_host() -> None:
    """Room for 0.2 of OPT-30B's weights: no neurons, and of attention, a third of them, 0.6 of the layers'."""
    hybrid = mixtral(OffloadMethod.NEURONS, share=0.2, model="opt-30b")
    attention, feed = 48 * 4 * 7168**2 * 2, 48 * 8 * 7168**2 * 2
    there = 0.2 * (attention + feed + hybrid.ends_bytes) / attention
    read = (1 - there) * attention + 0.03 * feed + hybrid.ends_bytes
    assert float(decode(hybrid, 1.0, 1.0).host[0]) == pytest.approx(read / HOST.read_bytes_per_s, rel=0.02)


def test_neurons_of_one_layer_and_of_all_are_as_hot_as_measured() -> None:
    """Of OPT-30B 26 % of a layer's neurons make up 80 % of its activations, and 17 % of all neurons 80 % of all."""
    active, met = neurons_met(neuron_law("opt-30b"), 48, 0.17, 0.0)
    assert active.mean() == pytest.approx(1.0)
    assert float((active * met).sum()) / 48 == pytest.approx(0.8, abs=0.02)
    even = replace(neuron_law("opt-30b"), hot_model=0.26)
    alike, met = neurons_met(even, 48, 0.26, 0.0)
    assert alike == pytest.approx(1.0)
    assert met.mean() == pytest.approx(0.8, abs=0.02)


def test_stated_neurons_stand_for_those_of_such_models() -> None:
    usual = mixtral(OffloadMethod.NEURONS, share=0.5, model="opt-30b")
    dense = mixtral(OffloadMethod.NEURONS, share=0.5, model="opt-30b", active_neurons=0.5, hot_neurons=0.6)
    assert dense.neurons.active == 0.5
    assert dense.neurons.hot_model == pytest.approx(0.6 * 0.17 / 0.26)
    assert float(decode(dense, 1.0, 64.0).host[0]) > 4 * float(decode(usual, 1.0, 64.0).host[0])


def test_predictors_of_neurons_take_the_device() -> None:
    """Of OPT-30B's 48 layers of 12 x 7168^2 weights 4.9 % more are held by the device, and read for each token."""
    few = mixtral(OffloadMethod.NEURONS, share=0.1, model="opt-30b")
    predictors = 0.0488 * 48 * 12 * 7168**2 * 2
    whole = few.held_bytes(1.0)[0] / 1.0488
    assert few.held_bytes(0.1)[0] == pytest.approx(0.1 * whole + 0.0488 * whole)
    assert 0.0488 * whole == pytest.approx(predictors, rel=0.05)  # the head is beside
    assert few.machine is not None
    at_least = predictors / few.machine.device.memory_bytes_per_s
    assert float(decode(few, 1.0, 64.0).device[0]) > at_least


def test_habits_by_name_version_and_format() -> None:
    assert habits_of("KTransformers", version="0.2.1", weights="int8_wo", matrix_units=True).kernel is Kernel.LLAMAFILE
    assert habits_of("KTransformers", version="0.3", weights="int8_wo", matrix_units=True).kernel is Kernel.AMX_INT8
    assert habits_of("KTransformers", version="0.3", weights="int8_wo", matrix_units=True).numa == "spread"
    assert habits_of("KTransformers", version="0.2.1", weights="int8_wo", matrix_units=True).numa == "copies"
    assert habits_of("KT-Kernel + SGLang", weights="fp8_block", matrix_units=True).kernel is Kernel.VECTOR
    assert habits_of("KT-Kernel + SGLang", weights="int4_wo", matrix_units=True).kernel is Kernel.AMX_INT8
    assert habits_of("KTransformers", weights="int4_wo", matrix_units=True).kernel is Kernel.LLAMAFILE
    assert habits_of("ollama").launches == "native"
    assert habits_of("something else") == Habits()


def test_packed_weights_are_widened_before_their_products() -> None:
    """30 GB in 4 bits of one layer's kind: half a byte read and two written of each weight, at the device's rate."""
    from ridgeline.serving.hybrid_sides import widened_s

    made = mixtral(OffloadMethod.STREAMED, host=None, habits=habits_of("deepspeed"), host_bytes=0.5)
    assert made.machine is not None
    rate = made.machine.device.memory_bytes_per_s
    assert widened_s(made, 1e9) == pytest.approx(2.5e9 / rate)
    assert widened_s(mixtral(OffloadMethod.STREAMED, host=None, habits=habits_of("deepspeed")), 1e9) == 0.0
    flexgen = mixtral(OffloadMethod.STREAMED, host=None, habits=habits_of("flexgen"), host_bytes=0.5)
    assert widened_s(flexgen, 1e9) == pytest.approx(26.5e9 / rate)


def test_what_is_not_fetched_ahead_waits() -> None:
    hybrid = mixtral(OffloadMethod.STREAMED, host=None, habits=habits_of("deepspeed"))
    parts = decode(hybrid, 1.0, 16.0)
    assert float(parts.total[0]) == pytest.approx(float((parts.device + parts.link + parts.sync)[0]))


def test_a_cache_beside_the_device_is_relayed_or_attended() -> None:
    """2,000 tokens a sequence of 100: 8 heads of 128 in 16 bits over 32 layers are 131,072 bytes a token."""
    size = 100 * 2000 * 131072.0
    stream = HOST.stream_bytes_per_s
    relayed = mixtral(OffloadMethod.STREAMED, habits=habits_of("flexgen"), cache_on_host=True)
    kept = mixtral(OffloadMethod.STREAMED, habits=habits_of("flexgen"), cache_on_host=False)
    more = float((decode(relayed, 100.0, 2000.0).total - decode(kept, 100.0, 2000.0).total)[0])
    copied, crossed = 3 * size / stream, size / LINK
    assert more == pytest.approx(0.5 * (copied + max(copied, crossed) + crossed))
    attended = mixtral(OffloadMethod.STREAMED, habits=habits_of("deepspeed"), cache_on_host=True)
    # four heads share a key: keys are repeated (read 1, fetched and written 4 + 4), widened and read (7 x 4)
    assert float(decode(attended, 100.0, 2000.0).host[0]) == pytest.approx((9 + 28) * size / stream)


def test_mapped_weights_are_read_a_window_at_a_time() -> None:
    ways = {"from_disk": True, "read_bytes_per_s": 5.6e9}
    mapped = mixtral(OffloadMethod.STREAMED, host=None, habits=habits_of("flexgen"), **ways)
    ahead = mixtral(OffloadMethod.STREAMED, host=None, habits=habits_of("deepspeed"), **ways)
    slow, fast = (float(decode(one, 1.0, 16.0).disk[0]) for one in (mapped, ahead))
    assert slow / fast == pytest.approx((5e-5 + 131072 / 5.6e9) * 5.6e9 / 131072)


def test_pageable_copies_are_staged_by_a_core() -> None:
    from ridgeline.serving.hybrid_sides import link_bytes_per_s

    made = mixtral(habits=habits_of("llama.cpp"))
    assert link_bytes_per_s(made) == pytest.approx(1 / (1 / LINK + 1 / CORE))
    alone = mixtral(OffloadMethod.STREAMED, host=None, habits=habits_of("llama.cpp"))
    assert link_bytes_per_s(alone) == pytest.approx(1 / (1 / LINK + 1 / 13e9))


def test_long_prompts_of_experts_on_the_host_run_on_the_device() -> None:
    """llama.cpp copies the experts that 512 tokens take, all of them, and computes there; 16 tokens stay."""
    made = mixtral(habits=habits_of("llama.cpp"))
    parts = prefill(made, 1.0, 512.0)
    assert float(parts.link[0]) == pytest.approx(32 * 8 * MIXTRAL_EXPERT_BYTES * (1 / LINK + 1 / CORE), rel=1e-6)
    assert float(parts.host[0]) == 0.0
    assert float(prefill(made, 1.0, 16.0).host[0]) > 0.0


def test_a_prompt_of_one_subject_calls_a_part_of_the_experts() -> None:
    """83 of the 128 experts of gpt-oss in a layer, each of 512 tokens four of them: all 83."""
    made = mixtral(model="gpt-oss-120b", host_bytes=0.53)
    (piece,) = {piece for kind in made.whole.kinds for piece in kind.pieces if isinstance(piece, Experts)}
    tokens = np.array([1.0, 512.0])
    assert made.touched(piece, tokens, prompt=True) == pytest.approx([4.0, 0.65 * 128], rel=1e-6)
    assert made.touched(piece, tokens, prompt=False) == pytest.approx([4.0, 128.0], rel=1e-6)


def test_a_quantised_cache_is_attended_one_query_at_a_time() -> None:
    """32 heads of 128 wide keys and values over 4,096 tokens: a cycle for each value of a head, 32 cores, 2.2 GHz."""
    plain, packed = (
        mixtral(OffloadMethod.HOST, device=None, habits=habits_of("llama.cpp"), kv=kv) for kv in ("bf16", "q8_0")
    )
    core = next(piece for piece in packed.whole.kinds[0].pieces if isinstance(piece, Core))
    rows = Rows(tokens=np.array([512.0]), sequences=1.0, context=np.array([4096.0 - 256.0]), prompt=True)
    computed = 32 * 128 * 4096 * 512 / (32 * 2.2e9)
    assert float(host_s(packed, [core], rows)[0]) == pytest.approx(computed + 4e-6)
    assert float(host_s(plain, [core], rows)[0]) < computed
    step = Rows(tokens=np.array([1.0]), sequences=1.0, context=np.array([4096.0]), prompt=False)
    read = 4 * 2 * 8 * 128 * 1.0625 * 4096 / HOST.read_bytes_per_s  # each of 4 queries of a key reads it by itself
    assert float(host_s(packed, [core], step)[0]) == pytest.approx(max(read, 32 * 128 * 4096 / (32 * 2.2e9)) + 4e-6)


def test_what_a_program_does_since_a_release_build_pull_request_or_date() -> None:
    assert not habits_of("vllm", version="0.5.1 with pull 6317").touched
    assert habits_of("vllm", version="0.8.3").touched  # kernels read in place
    assert habits_of("vllm").touched
    assert not habits_of("ik_llama.cpp", version="cdcb324f (3742)").counts_uses
    assert habits_of("ik_llama.cpp", version="PR 520, build cdcb324f (3743)").counts_uses
    assert habits_of("ik_llama.cpp", version="pull 1593").pinned
    assert not habits_of("ik_llama.cpp", version="2025-04-30").pinned
