"""Replicas on one device by hand, what they hold, and the batch of the knee."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ridgeline.cost.machine import machine
from ridgeline.errors import NoPlanError, PlanError
from ridgeline.facts.clusters import cluster
from ridgeline.graph.load import load
from ridgeline.scenario.serving_words import deployed
from ridgeline.serving.engine import Engine, engine
from ridgeline.serving.metrics import decode_parts
from ridgeline.serving.nano import Overlap, overlapped_s
from ridgeline.serving.replay import replay_tables
from ridgeline.serving.step import StepTables
from ridgeline.serving.traffic.arrivals import burst
from ridgeline.serving.traffic.asked import synthetic
from ridgeline.serving.traffic.lengths import Fixed
from ridgeline.techniques.overlaps.device_replicas import advised

MODEL, DEVICE = load("opt-1.3b"), machine(cluster("1xH100-SXM-64GB"))


def served(text: str = "", **words: Any) -> tuple[Engine, StepTables]:
    technique = {"technique": (text,)} if text else {}
    one = engine(MODEL, DEVICE, deployed(engine="vLLM", version="0.6.3", **technique, **words))
    return one, one.tables(longest_prompt=128, longest=512)


def test_a_process_waits_for_its_kernels_and_its_host_or_for_the_busiest_resource() -> None:
    """Of 2 ms of products, 4 ms at memory and 4 ms of attention two processes have 5 ms each, and a host of 3 ms."""
    two = Overlap(memory_sms=0.5, link_sms=0.1, chain=0.5, chain_step_s=1e-3, chain_seq_s=1e-4)
    found = overlapped_s(2e-3, 4e-3, 0.0, overlap=two, attention_s=4e-3, sequences=20.0)
    assert found == pytest.approx(5e-3 + 1e-3 + 2e-3)  # memory is busy for 8 ms, as long
    assert overlapped_s(2e-3, 4e-3, 0.0, overlap=two, attention_s=5e-3) == pytest.approx(9e-3)  # memory
    four = Overlap(memory_sms=0.5, link_sms=0.1, chain=0.25, chain_step_s=1e-2)
    assert overlapped_s(2e-3, 1e-3, 1e-3, overlap=four) == pytest.approx(1e-3 + 1e-2)  # one's chain and host


def shared_s(count: int, layers: int, work: tuple[float, float, float], memory_sms: float) -> float:
    """A step of `count` processes by events, each a host's turn, then kernels of memory and products layer by layer.

    Kernels that wait for memory share its rate, and hold their part of the multiprocessors while any runs; products
    share what is left. `work` is one process's compute, memory and host [s]; mean time of a step once they have spread.
    """
    compute, memory, host = work
    cycle = [("host", host), *[("memory", memory / layers), ("compute", compute / layers)] * layers]
    place, left = [0] * count, [host * (one + 1) / count for one in range(count)]
    now, done, began = 0.0, 0, 0.0
    while done < 220 * count:
        busy = [cycle[at][0] for at in place]
        rates = {
            "host": 1.0, "memory": 1.0 / max(busy.count("memory"), 1),
            "compute": (1.0 - memory_sms * ("memory" in busy)) / max(busy.count("compute"), 1),
        }  # fmt: skip
        step = min(amount / rates[kind] for amount, kind in zip(left, busy, strict=True))
        now += step
        for one, kind in enumerate(busy):
            left[one] -= step * rates[kind]
            if left[one] < 1e-12:
                place[one] = (place[one] + 1) % len(cycle)
                left[one] = cycle[place[one]][1]
                done += place[one] == 0
                began = now if done == 20 * count and place[one] == 0 else began
    return (now - began) / 200.0


@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("work", [(2.0, 3.0, 6.0), (1.0, 4.0, 0.5), (3.0, 1.0, 1.0), (1.0, 1.0, 9.0), (0.5, 6.0, 5.0)])
def test_processes_that_share_a_device_take_no_less_and_little_more(
    count: int, work: tuple[float, float, float]
) -> None:
    """The bound leaves out that products beside memory's kernels are slowed, and that processes meet at random."""
    compute, memory, host = work
    how = Overlap(memory_sms=0.5, link_sms=0.1, chain=1.0 / count, chain_step_s=host)
    bound = float(overlapped_s(count * compute, count * memory, 0.0, overlap=how))
    assert bound * 0.99 <= shared_s(count, 12, work, 0.5) <= 1.4 * bound


@pytest.mark.parametrize(("slower", "batch"), [(2.0, 96), (4.0, 256)])
def test_the_knee_of_a_small_model_is_where_its_authors_replicate(slower: float, batch: int) -> None:
    """OPT-1.3B: the batches of their replicas (96 and 256), at two and four times the step of 32 sequences."""
    one, tables = served(f"device-replicas(count=2,knee=0.1,slower={slower},context=256)", max_seqs=1024)
    assert float(one.rule(tables)["max_seqs"]) == 2.0 * batch


def test_four_replicas_hold_four_copies_and_capture_graphs_of_their_parts() -> None:
    """OPT-1.3B has 2.6 GB of weights; graphs of up to 256 sequences each hold 1,024 in all."""
    (one, plain), (four, many) = served(), served("device-replicas(count=4)", max_seqs=512)
    assert four.capacity.weights_bytes == pytest.approx(4.0 * one.capacity.weights_bytes)
    assert four.capacity.context_bytes == pytest.approx(4.0 * one.capacity.context_bytes)
    rule = four.rule(many)
    assert (rule["chain"], rule["nano_tokens"], rule["step_host_s"]) == (0.25, 4.0, 0.0)
    assert rule["chain_seq_s"] == pytest.approx(0.25 * float(one.rule(plain)["seq_host_s"]))
    assert many.nano is not None
    at, quarter = (list(many.sequences).index(size) for size in (256.0, 64.0))
    alone = np.broadcast_to(many.decode.mid, many.nano.decode.mid.shape)
    assert many.nano.decode.mid[at] == pytest.approx(4.0 * alone[quarter])


def test_a_replay_takes_what_its_parts_say() -> None:
    """A burst that decodes: the mean gap lies between the steps at the first and the last context, hosts within."""
    one, tables = served("device-replicas(count=2)", max_seqs=128)
    found = replay_tables([one], [tables], synthetic(burst(128), Fixed(tokens=4), Fixed(tokens=400)))
    gap = float(np.median((found.end_s - found.first_s) / 399))
    low, high = (sum(decode_parts(one, tables, 128.0, context).values()) for context in (5.0, 404.0))
    assert low <= gap <= high


def test_the_knee_is_the_largest_batch_that_still_pays() -> None:
    """Steps of 1, 2, 4 and 9 ms: at 128 a sequence has a ninth of its speed alone, and 9 ms are over four times 2."""
    batches, steps = [1, 32, 64, 128], [1e-3, 2e-3, 4e-3, 9e-3]
    assert advised(batches, steps, knee=0.2, slower=5.0) == 64
    assert advised(batches, steps, knee=0.3, slower=5.0) == 32
    assert advised(batches, steps, knee=0.1, slower=5.0) == 128
    assert advised(batches, steps, knee=0.1, slower=4.0) == 64
    assert advised(batches, steps, knee=1.0, slower=1.0) == 1  # none keeps it


def test_the_knee_bounds_the_sequences_of_all_replicas() -> None:
    one, tables = served("device-replicas(count=2,knee=0.2)", max_seqs=1024)
    most = float(one.rule(tables)["max_seqs"])
    assert most % 2 == 0
    assert 2 * 32 <= most < 1024


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(NoPlanError, match="weights take"):
        _ = served("device-replicas(count=32)", max_seqs=64)[0].capacity
    with pytest.raises(PlanError, match="tp 2"):
        deployed(tp=2, technique=("device-replicas",))
