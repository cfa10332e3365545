"""Replays against queueing theory and hand arithmetic, and what must hold whatever the traffic."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.errors import DomainError
from ridgeline.serving import state
from ridgeline.serving.clock import BIN_LOW_S, BINS_A_FACTOR
from ridgeline.serving.replay import Replay
from ridgeline.serving.traffic.traffic import Traffic, traffic

Replays = Callable[..., Replay]
MANY = 200_000
SEEDS = st.integers(0, 2**32)


def poisson(rate: float, outputs: np.ndarray, seed: int) -> Traffic:
    gaps = np.random.default_rng(seed).exponential(1 / rate, len(outputs))
    return traffic(np.cumsum(gaps), np.full(len(outputs), 5), outputs)


def counted(found: Replay, seconds: float) -> float:
    """Tokens in the bin of this inter-token latency."""
    return float(found.histogram[int(np.log(seconds / BIN_LOW_S) * BINS_A_FACTOR)])


# closed forms ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("load", [0.3, 0.7])
def test_one_server_of_fixed_time_waits_as_pollaczek_and_khinchine_say(replayed: Replays, load: float) -> None:
    """M/D/1: W = load * D / (2 (1 - load))."""
    service_s = 0.25
    found = replayed(poisson(load / service_s, np.ones(MANY, dtype=int), 1), max_seqs=1, prompt_s=0.2, lane_s=0.05)
    wait_s = float(np.mean(found.first_s - found.came_s)) - service_s
    assert wait_s == pytest.approx(load * service_s / (2 * (1 - load)), rel=0.02)
    assert found.busy_s.sum() == pytest.approx(MANY * service_s, rel=1e-9)


def test_geometric_outputs_wait_as_exponential_service_does(replayed: Replays) -> None:
    """Steps that stop by a chance of 1/m: W = rate E[S^2] / (2 (1 - load)), near M/M/1's load / (1 - load) E[S]."""
    mean_tokens, step_s, load = 50, 0.01, 0.6
    outputs = np.random.default_rng(2).geometric(1 / mean_tokens, MANY)
    service_s = mean_tokens * step_s
    found = replayed(poisson(load / service_s, outputs, 3), max_seqs=1, lane_s=step_s)
    wait_s = float(np.mean(found.first_s - found.came_s)) - step_s
    second = step_s**2 * (2 - 1 / mean_tokens) * mean_tokens**2
    assert wait_s == pytest.approx(load / service_s * second / (2 * (1 - load)), rel=0.03)
    assert wait_s == pytest.approx(load / (1 - load) * service_s, rel=0.04)


def test_regular_arrivals_below_the_rate_of_service_never_wait(replayed: Replays) -> None:
    arrival = 1.01 * np.arange(1000)
    found = replayed(traffic(arrival, np.full(1000, 3), np.full(1000, 4)), max_seqs=1, lane_s=0.25)
    np.testing.assert_allclose(found.first_s - arrival, 0.25, rtol=0, atol=1e-9)
    np.testing.assert_allclose(found.end_s - arrival, 1.0, rtol=0, atol=1e-9)


def test_a_saturated_queue_yields_a_batch_of_tokens_a_step(replayed: Replays) -> None:
    requests, batch, tokens, step_s = 800, 8, 40, 0.05
    crowd = traffic(np.zeros(requests), np.full(requests, 7), np.full(requests, tokens))
    found = replayed(crowd, max_seqs=batch, lane_s=step_s)
    assert found.iterations == requests * tokens / batch
    assert found.span_s == pytest.approx(found.iterations * step_s)


def test_instances_share_a_saturated_load_evenly(replayed: Replays) -> None:
    crowd = traffic(np.zeros(400), np.full(400, 7), np.full(400, 20))
    found = replayed(crowd, instances=4, max_seqs=5, lane_s=0.1)
    assert found.span_s == pytest.approx(400 * 20 / (4 * 5) * 0.1, rel=0.01)
    np.testing.assert_allclose(found.busy_s, found.span_s, rtol=0.01)


@pytest.mark.parametrize("seed", [4, 5])
def test_little_s_law_of_decoding_sequences(replayed: Replays, seed: int) -> None:
    """Sequences that decode on average = tokens a second * seconds a token; prompts run apart here."""
    draw = np.random.default_rng(seed)
    outputs = draw.geometric(1 / 30, 3000)
    found = replayed(
        poisson(1.5, outputs, seed), scheduler=state.PREFILL_FIRST, max_seqs=64, lane_s=0.001, step_s=0.019
    )
    assert found.mean_sequences > 1.0
    assert found.mean_sequences * found.decode_s / 0.02 == pytest.approx((outputs - 1).sum(), rel=1e-9)


def test_users_of_a_closed_loop_share_the_batch(replayed: Replays) -> None:
    """With as many places as users nobody waits: users / latency requests a second."""
    crowd = traffic(np.zeros(300), np.full(300, 4), np.full(300, 10), concurrency=6)
    found = replayed(crowd, max_seqs=6, lane_s=0.1)
    settled = slice(6, None)  # the first ones come while an iteration runs
    latency_s = (found.end_s - found.came_s)[settled]
    assert latency_s.max() <= 1.1 + 1e-9  # ten steps, and at most one that has begun
    assert found.span_s == pytest.approx(300 / 6 * latency_s.mean(), rel=0.02)


# hand arithmetic -------------------------------------------------------------------------------------


@given(prompt=st.integers(1, 500), output=st.integers(1, 5000), arrival=st.floats(0, 100))
@settings(max_examples=50, deadline=None)
def test_a_lone_request_is_an_arithmetic_series(replayed: Replays, prompt: int, output: int, arrival: float) -> None:
    """First token after lane + prompt; step k reads prompt + k tokens of cache."""
    lane_s, step_s, context_s, prompt_s = 0.01, 0.002, 1e-6, 0.05
    found = replayed(
        traffic([arrival], [prompt], [output]),
        lane_s=lane_s, step_s=step_s, context_s=context_s, prompt_s=prompt_s,
    )  # fmt: skip
    first_s = arrival + lane_s + prompt_s
    steps = output - 1
    decoding_s = steps * (lane_s + step_s) + context_s * (steps * prompt + steps * (steps + 1) / 2)
    assert found.first_s[0] == pytest.approx(first_s, rel=1e-12)
    assert found.end_s[0] == pytest.approx(first_s + decoding_s, rel=1e-12)
    assert found.iterations == output
    assert found.runs <= 2  # one for the prompt, one for everything after it


def test_an_arrival_waits_for_the_step_that_runs(replayed: Replays) -> None:
    """Steps of 1 s from 0; the arrival at 3.5 enters the iteration from 4, which ends both prompt and step at 6."""
    pair = traffic([0.0, 3.5], [4, 4], [8, 3])
    found = replayed(pair, lane_s=1.0, prompt_s=1.0)
    assert found.first_s.tolist() == [2.0, 6.0]  # 2: lane and prompt
    assert found.end_s.tolist() == [10.0, 8.0]  # A: steps to 3, 4, 6, 7, 8, 9, 10; B: to 7, 8
    assert found.came_s.tolist() == [0.0, 3.5]
    apart = replayed(pair, scheduler=state.PREFILL_FIRST, lane_s=1.0, prompt_s=1.0)
    assert apart.first_s.tolist() == [2.0, 6.0]
    assert apart.end_s.tolist() == [11.0, 8.0]  # A stands still from 4 to 6


@pytest.mark.parametrize(("ahead", "first_s"), [(0, 7.0), (1, 8.0)])
def test_who_comes_between_two_looks_waits_for_the_next(replayed: Replays, ahead: int, first_s: float) -> None:
    """Iterations of a second. After that of two prompts, to 1, the next look is at 6, after five steps.

    The request of 1.5 is not let in by the one that ends at 2. What the look finds is computed to 7; prepared ahead, in
    the iteration after, to 8. A look follows the iteration of a prompt: it finds who came at 6.5.
    """
    crowd = traffic([0.0, 0.0, 1.5, 6.5], [5, 5, 5, 5], [20, 2, 1, 1])
    found = replayed(
        crowd, lane_s=1.0, scheduler=state.PREFILL_FIRST, receive_steps=5, ahead=ahead, eager_s=1.0
    )  # fmt: skip
    assert found.first_s.tolist() == [1.0, 1.0, first_s, first_s + 1.0]
    assert found.end_s[1] == 2.0


@pytest.mark.parametrize(
    ("holds", "enough", "first_s"),
    [(state.WHEN_FULL, 8.0, 10.0), (state.WHEN_FULL, 6.0, 5.0), (state.WHEN_ALL, 0, 5.0)],
)
def test_prompts_are_held_until_there_are_enough(replayed: Replays, holds: int, enough: float, first_s: float) -> None:
    """Iterations of a second; a prompt of 5 tokens comes at 3.5, seen at 4.

    It and the sequence that decodes are 6 tokens: where 8 are enough it is held for five iterations, from 9 to 10.
    Where 6 are enough, or every rank (here the only one) has a prompt, it goes at once.
    """
    found = replayed(traffic([0.0, 3.5], [5, 5], [20, 1]), lane_s=1.0, receive_steps=5, holds=holds, enough=enough)
    assert found.first_s.tolist() == [1.0, first_s]


@pytest.mark.parametrize(("every", "first_s"), [(3, [7.0, 10.0]), (100, [10.0, 10.0])])
def test_a_rank_without_a_place_has_no_prompt_to_wait_for(replayed: Replays, every: int, first_s: list[float]) -> None:
    """Iterations of a second, two ranks of two places; the first of rank 0 ends at 4, all others at 9.

    Who waits at rank 0 then has a place, who waits at rank 1 has none: the first is held until an interval of three
    iterations is over, at 6, or until both have one, at 9.
    """
    crowd = traffic([0.0] * 6, [5] * 6, [4, 9, 9, 9, 3, 3])
    found = replayed(crowd, lane_s=1.0, ranks=2, max_seqs=2, receive_steps=every, holds=state.WHEN_ALL)
    assert found.first_s.tolist()[4:] == first_s


def test_each_attention_rank_has_a_host_of_its_own(replayed: Replays) -> None:
    """Two requests on two ranks: a step of 1 s and 0.25 s of host for the one sequence of each, not for both."""
    found = replayed(traffic([0.0, 0.0], [5, 5], [3, 3]), lane_s=1.0, ranks=2, seq_host_s=0.25)
    assert found.end_s.tolist() == [3.75, 3.75]


def test_the_first_token_comes_with_the_cache_when_it_is_admitted(pooled: Replays) -> None:
    """Iterations of a second, caches of 4 tokens that take 0.5 s, one place where answers are made.

    A's prompt is done at 1, its cache there at 1.5, and its three steps are done at 4.5. B's cache is there at 2 and
    waits for the place until then. C has no token after its first, which its prompt makes, at 1.
    """
    crowd = traffic([0.0, 0.0, 0.0], [4, 4, 4], [4, 3, 1])
    found = pooled(crowd, decode={"max_seqs": 1}, lane_s=1.0, move_token_s=0.125)
    assert found.first_s.tolist() == [1.5, 4.5, 1.0]
    assert found.end_s.tolist() == [4.5, 6.5, 1.0]


@pytest.mark.parametrize(("holds", "first_s"), [(1, [1.5, 2.5, 3.5, 4.5]), (0, [1.5, 2.5, 2.5, 3.5])])
def test_who_is_on_the_way_holds_a_place_where_an_engine_says_so(
    pooled: Replays, holds: int, first_s: list[float]
) -> None:
    """Iterations of a second and two places for prompts; caches go one after the other, half a second each.

    A and B are done at 1, their caches there at 1.5 and 2. C begins at 1.5 where A's place is free only then, and D
    after C, at 2.5; else both at 1. Their caches are there at 3 and 4, else at 2.5 and 3; each waits for a step's end.
    """
    crowd = traffic([0.0] * 4, [4] * 4, [2] * 4)
    found = pooled(crowd, decode={}, lane_s=1.0, move_token_s=0.125, max_seqs=2, moving_holds=holds)
    assert found.first_s.tolist() == first_s


@pytest.mark.parametrize(
    ("ahead", "eager_s", "first_s"),
    [(0, 0.5, [1.0, 2.0, 2.0, 3.0]), (1, 0.5, [1.0, 2.0, 3.0, 4.0]), (1, 1.0, [2.0, 3.0, 3.0, 4.0])],
)
def test_a_pool_of_prompts_makes_up_a_batch_before_the_last_one_is_done(
    pooled: Replays, ahead: int, eager_s: float, first_s: list[float]
) -> None:
    """Iterations of a second, caches that take no time, two prompts at most in a batch.

    One after the other B and C begin at 1, D at 2. Ahead, kernels launched in half a second: B's batch is made up at
    0.5, without C, of 0.9; C's at 1, when A's result is there, without D, of 1.5; D's at 2, and it runs from 3 to 4.
    Launched in a second, when B and C are known: A's result, of 1, is looked at when their kernels are launched, at 2,
    and theirs, of 2, behind D's at 3. Nobody follows D, whose cache is there at 3 too, when a step of B and C begins.
    """
    crowd = traffic([0.0, 0.4, 0.9, 1.5], [4] * 4, [2] * 4)
    found = pooled(crowd, decode={}, lane_s=1.0, max_seqs=2, ahead=ahead, eager_s=eager_s)
    assert found.first_s.tolist() == first_s


@pytest.mark.parametrize(("stands", "end_s"), [(0, [6.0, 6.0, 5.0]), (1, [7.0, 6.0, 6.0])])
def test_a_rank_that_takes_a_cache_in_stands_while_the_others_step(
    pooled: Replays, stands: int, end_s: list[float]
) -> None:
    """Iterations of a second, two ranks for answers. A and B are taken in at 1, one by each, so that none waits.

    C's cache comes at 2.5 and is taken in at 3 by A's rank: from 3 to 4 B steps alone, then all three do.
    """
    crowd = traffic([0.0, 0.0, 1.5], [4, 4, 4], [6, 6, 3])
    found = pooled(crowd, decode={"ranks": 2, "stands": stands}, lane_s=1.0)
    assert found.first_s.tolist() == [1.0, 1.0, 3.0]
    assert found.end_s.tolist() == end_s


@pytest.mark.parametrize(("ahead", "second_s"), [(0, 4.0), (1, 5.0)])
def test_who_comes_while_an_iteration_is_prepared_waits_for_one_more(
    replayed: Replays, ahead: int, second_s: float
) -> None:
    """Iterations of a second. The second request comes in the third of them; the next one is under way by then."""
    found = replayed(traffic([0.0, 2.5], [5, 5], [10, 1]), lane_s=1.0, ahead=ahead)
    np.testing.assert_allclose(found.first_s, [1.0, second_s], atol=1e-9)


def test_an_idle_engine_prepares_nothing_ahead(replayed: Replays) -> None:
    found = replayed(traffic([0.0, 3.5], [5, 5], [2, 2]), lane_s=1.0, ahead=1)
    np.testing.assert_allclose(found.first_s, [1.0, 4.5], atol=1e-9)


def test_a_prompt_is_cut_to_the_budget(replayed: Replays) -> None:
    """A budget of 8 computes a prompt of 20 in chunks of 8, 8 and 4; beside a decoding sequence in 7, 7 and 6."""
    alone = replayed(traffic([0.0], [20], [1]), token_budget=8, lane_s=1.0)
    assert (alone.first_s[0], alone.iterations) == (3.0, 3)
    beside = replayed(traffic([0.0, 0.5], [1, 20], [10, 1]), token_budget=8, token_s=1.0)
    assert beside.first_s.tolist() == [1.0, 1.0 + 8 + 8 + 7]
    whole = replayed(traffic([0.0], [20], [1]), token_budget=8, chunked=0, lane_s=1.0)
    assert (whole.first_s[0], whole.iterations) == (1.0, 1)


def test_those_who_come_at_one_instant_start_together(replayed: Replays) -> None:
    crowd = traffic(np.zeros(4), [4] * 4, [3] * 4)
    for scheduler in (state.PREFILL_FIRST, state.MIXED_BATCHES, state.STATIC):
        found = replayed(crowd, scheduler=scheduler, lane_s=1.0)
        assert found.first_s.tolist() == [1.0] * 4
        assert found.end_s.tolist() == [3.0] * 4


def test_a_static_batch_ends_before_the_next_begins(replayed: Replays) -> None:
    """A, B and C at 0, a batch of two of 3 and 5 tokens; C begins when the longer one has ended."""
    crowd = traffic(np.zeros(3), [4] * 3, [3, 5, 2])
    found = replayed(crowd, scheduler=state.STATIC, max_seqs=2, lane_s=1.0)
    assert found.first_s.tolist() == [1.0, 1.0, 6.0]
    assert found.end_s.tolist() == [3.0, 5.0, 7.0]


def test_a_static_batch_cuts_its_prompts_too(replayed: Replays) -> None:
    """A prompt of 9 in chunks of 4, 4 and 1, then two steps; the next request waits for all five."""
    pair = traffic([0.0, 0.5], [9, 3], [3, 1])
    found = replayed(pair, scheduler=state.STATIC, token_budget=4, max_seqs=1, lane_s=1.0)
    assert found.first_s.tolist() == [3.0, 6.0]
    assert found.end_s.tolist() == [5.0, 6.0]


def test_only_who_was_decoding_waits_for_a_prompt(replayed: Replays) -> None:
    """Prompts apart, all iterations of 1 s, arrivals at 0 and 2.5: one token comes 2 s after the one before it."""
    found = replayed(traffic([0.0, 2.5], [4, 4], [10, 10]), scheduler=state.PREFILL_FIRST, lane_s=1.0)
    assert found.histogram.sum() == 18.0
    assert counted(found, 1.0) == 17.0
    assert counted(found, 2.0) == 1.0


def test_means_and_peaks_of_one_run(replayed: Replays) -> None:
    """A prompt of 10 and 101 tokens: steps read 11 to 110 tokens, 60.5 on average; 110 fill 28 blocks of 4."""
    found = replayed(traffic([0.0], [10], [101]), scheduler=state.PREFILL_FIRST, block_tokens=4, lane_s=1.0)
    assert found.mean_context == pytest.approx(60.5)
    assert found.mean_sequences == pytest.approx(1.0)
    assert found.series.max(axis=0).tolist() == [28.0, 0.0, 1.0]
    assert (found.prefill_s, found.decode_s) == (1.0, 100.0)


def test_a_stretch_in_which_nothing_begins_is_as_the_one_before(replayed: Replays) -> None:
    """A prompt and 100 steps of 1 s, walked in one run: the request runs in each of the 101 seconds."""
    found = replayed(traffic([0.0], [10], [101]), scheduler=state.PREFILL_FIRST, block_tokens=4, lane_s=1.0)
    last = int(found.span_s / found.series_s)
    assert found.series[:last, 2].tolist() == [1.0] * last
    assert (found.series[:last, 0] > 0).all()


def test_a_session_waits_for_its_turn_and_thinks(replayed: Replays) -> None:
    turns = traffic(
        [0.0, 0.0, 100.0], [2, 2, 2], [3, 3, 3], after=np.array([-1, 0, 1]), think_s=np.array([0.0, 5.0, 5.0])
    )
    found = replayed(turns, lane_s=1.0)
    assert found.came_s.tolist() == [0.0, 8.0, 100.0]  # 3 and 5 of thinking; the third no earlier than 100
    assert found.end_s.tolist() == [3.0, 11.0, 103.0]


def test_the_urgent_overtake_those_who_wait(replayed: Replays) -> None:
    crowd = traffic([0.0, 0.1, 0.2, 0.3], [2] * 4, [1] * 4, priority=np.array([1, 2, 1, 0]))
    found = replayed(crowd, max_seqs=1, lane_s=1.0)
    assert found.end_s.tolist() == [1.0, 4.0, 3.0, 2.0]


def test_preemption_by_hand(replayed: Replays) -> None:
    """Two sequences of 4 and 8 tokens in a cache of 3 blocks of 4: both need a second block in their first step.

    Iteration 1 computes A's prompt, 2 B's beside A's second token (A takes its second block). B would need a third
    block then: it goes, A ends alone after its 6 tokens at 6; B computes 5 tokens again to 7 and ends at 11.
    """
    pair = traffic([0.0, 0.5], [4, 4], [6, 6])
    found = replayed(pair, lane_s=1.0, block_tokens=4, capacity=3)
    assert found.preempted.tolist() == [0, 1]
    assert found.first_s.tolist() == [1.0, 2.0]
    assert found.end_s.tolist() == [6.0, 11.0]
    swapped = replayed(pair, lane_s=1.0, block_tokens=4, capacity=3, swaps=1, swap_token_s=0.125)
    assert swapped.end_s.tolist() == [7.0, 12.0]  # 4 tokens out and in again: 1 s; B needs no prompt, but a step more


def test_a_prefix_is_computed_once(replayed: Replays) -> None:
    """Blocks of 16: the second prompt of 40 finds 32 tokens; a prompt of 32 has one token left to compute, so 16."""
    blocks = np.array([0, 1, 0, 1, 0, 1])
    shared = traffic(
        [0.0, 100.0, 200.0], [40, 40, 32], [1, 1, 1],
        prefix_start=np.array([0, 2, 4, 6]), prefix_blocks=blocks, prefix_block_tokens=16,
    )  # fmt: skip
    found = replayed(shared, token_s=1.0)
    assert found.hit_tokens.tolist() == [0, 32, 16]
    assert (found.first_s - found.came_s).tolist() == [40.0, 8.0, 16.0]


def test_what_can_never_fit_is_refused(replayed: Replays) -> None:
    found = replayed(traffic([0.0, 1.0], [100, 10], [10, 10]), block_tokens=10, capacity=10, lane_s=1.0)
    assert found.refused.tolist() == [True, False]
    assert found.done.tolist() == [False, True]
    assert np.isnan(found.first_s[0])


def test_blocks_are_kept_free_only_beside_others(replayed: Replays) -> None:
    """A prompt that fills 9 of 10 blocks starts alone though 2 are kept free; one of 1 block waits beside it."""
    found = replayed(traffic([0.0, 0.5], [36, 3], [3, 1]), block_tokens=4, capacity=10, kept_free=2, lane_s=1.0)
    assert found.done.all()
    assert found.first_s.tolist() == [1.0, 4.0]
    assert replayed(
        traffic([0.0, 0.5], [36, 3], [3, 1]), block_tokens=4, capacity=13, kept_free=2, lane_s=1.0
    ).first_s.tolist() == [1.0, 2.0]


def test_a_prefix_router_keeps_to_the_warm_instance_and_spreads_the_rest(replayed: Replays) -> None:
    shared = traffic(
        [0.0, 100.0, 200.0], [17, 17, 17], [1, 1, 1],
        prefix_start=np.array([0, 1, 2, 3]), prefix_blocks=np.zeros(3, dtype=int), prefix_block_tokens=16,
    )  # fmt: skip
    warm = replayed(shared, instances=2, router="prefix", token_s=1.0)
    assert warm.hit_tokens.tolist() == [0, 16, 16]
    cold = replayed(shared, instances=2, router="round-robin", token_s=1.0)
    assert cold.hit_tokens.tolist() == [0, 0, 16]


def test_sessions_in_a_closed_loop_are_refused_in_words(replayed: Replays) -> None:
    both = traffic([0.0, 0.0], [1, 1], [1, 1], after=np.array([-1, 0]), concurrency=1)
    with pytest.raises(DomainError, match="closed loop of sessions"):
        replayed(both, lane_s=1.0)


# what always holds -----------------------------------------------------------------------------------


def drawn(seed: int, requests: int = 60) -> Traffic:
    draw = np.random.default_rng(seed)
    return traffic(
        np.sort(draw.uniform(0, 5, requests)), draw.integers(1, 200, requests), draw.integers(1, 100, requests)
    )


@given(
    seed=SEEDS, scheduler=st.sampled_from([state.PREFILL_FIRST, state.MIXED_BATCHES, state.STATIC]),
    capacity=st.integers(20, 200), ranks=st.integers(1, 3), instances=st.integers(1, 3), swaps=st.booleans(),
    router=st.sampled_from(["round-robin", "least-loaded"]),
)  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_no_request_is_lost_and_time_goes_forward(
    replayed: Replays, seed: int, scheduler: int, capacity: int, ranks: int, instances: int, swaps: bool, router: str
) -> None:
    asked = drawn(seed)
    chunked = scheduler != state.STATIC
    found = replayed(
        asked, instances=instances, router=router, scheduler=scheduler, chunked=chunked, capacity=capacity, ranks=ranks,
        swaps=swaps, token_budget=256, max_seqs=16, lane_s=0.01, token_s=1e-4, context_s=1e-5, swap_token_s=1e-5,
    )  # fmt: skip
    assert found.done.all()
    assert (found.came_s == asked.arrival_s).all()
    assert (found.first_s > found.came_s).all()
    assert (found.end_s >= found.first_s).all()
    assert ((found.end_s > found.first_s) == (asked.output_tokens > 1)).all()
    assert found.preemptions == found.preempted.sum()
    assert found.capacity_blocks == capacity * ranks * instances
    assert found.series[:, 0].max() <= found.capacity_blocks
    assert found.series[:, 2].max() <= 16 * ranks * instances
    if found.preemptions == 0:
        assert found.histogram.sum() == pytest.approx((asked.output_tokens - 1).sum())
    assert (found.busy_s <= found.span_s + 1e-9).all()


@given(seed=SEEDS)
@settings(max_examples=10, deadline=None)
def test_the_same_input_gives_the_same_bytes(replayed: Replays, seed: int) -> None:
    asked = drawn(seed)
    one, two = (replayed(asked, instances=2, capacity=40, max_seqs=8, lane_s=0.01, context_s=1e-5) for _ in range(2))
    for name, value in vars(one).items():
        assert np.asarray(value).tobytes() == np.asarray(getattr(two, name)).tobytes(), name


@given(seed=SEEDS, faster=st.floats(0.1, 1.0))
@settings(max_examples=40, deadline=None)
def test_faster_steps_never_lengthen_a_queue_of_one(replayed: Replays, seed: int, faster: float) -> None:
    asked = drawn(seed)
    times = {"lane_s": 0.01, "token_s": 1e-4, "context_s": 1e-5}
    slow = replayed(asked, max_seqs=1, **times)
    fast = replayed(asked, max_seqs=1, **{name: faster * value for name, value in times.items()})
    assert (fast.end_s <= slow.end_s + 1e-9).all()


def test_more_cache_preempts_less(replayed: Replays) -> None:
    crowd = traffic(np.zeros(24), np.full(24, 32), np.full(24, 64))
    counts = [replayed(crowd, capacity=blocks, lane_s=0.1).preemptions for blocks in (12, 24, 48, 96, 144)]
    assert counts == sorted(counts, reverse=True)
    assert counts[0] > 10
    assert counts[-1] == 0  # 24 requests of 6 blocks


def test_least_loaded_beats_taking_turns_where_lengths_differ(replayed: Replays) -> None:
    """Every other request is long: taking turns sends all of those to one of two instances."""
    outputs = np.tile([100, 1], 50)
    asked = traffic(0.4 * np.arange(100), np.full(100, 4), outputs)
    numbers = {"instances": 2, "max_seqs": 1, "lane_s": 0.01}
    turns = replayed(asked, router="round-robin", **numbers)
    least = replayed(asked, router="least-loaded", **numbers)
    assert (least.first_s - least.came_s).mean() < (turns.first_s - turns.came_s).mean()
    assert turns.busy_s[0] == pytest.approx(100 * turns.busy_s[1])
