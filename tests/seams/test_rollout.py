"""Orders of generation and training, collections of responses and rows of batches, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from ridgeline.errors import PlanError
from ridgeline.seams.rollout import (
    Generated,
    RankDivision,
    Requests,
    collection,
    period_s,
    rollout_schedule,
    sequence_packing,
)

READY = np.array([2.0, 4.0, 6.0, 10.0])


def period(mode: str, *, rollout_s: float = 10.0, work_s: float = 6.0, transfer_s: float = 1.0) -> float:
    return period_s(rollout_schedule(mode), READY * rollout_s / 10.0, rollout_s, work_s, transfer_s)


def test_the_synchronous_order_adds_up() -> None:
    assert period("synchronous") == pytest.approx(10.0 + 6.0 + 1.0)


def test_staleness_0_is_the_synchronous_order() -> None:
    assert period("off-policy(staleness=0)") == pytest.approx(period("synchronous"))
    assert period("streaming(staleness=0,parts=1)") == pytest.approx(period("synchronous"))


def test_one_step_off_takes_the_longer_side() -> None:
    """Generation or training never waits for the other, but both stop for the second in which weights are sent."""
    assert period("off-policy") == pytest.approx(10.0 + 1.0)
    assert period("off-policy", work_s=30.0) == pytest.approx(30.0 + 1.0)


def test_weights_that_wait_in_host_memory_stop_nobody() -> None:
    assert period("streaming(staleness=1,parts=1)") == pytest.approx(10.0)
    assert period("streaming(staleness=1,parts=1)", work_s=30.0) == pytest.approx(30.0)


def test_streaming_trains_under_the_tail_of_its_own_iteration() -> None:
    """Four pieces of 1.5 s are ready at 2, 4, 6 and 10 s: the last follows the rollouts, then the weights."""
    assert period("streaming(staleness=0,parts=4)") == pytest.approx(10.0 + 1.5 + 1.0)


@pytest.mark.parametrize("pair", [("off-policy(staleness=1)", "off-policy(staleness=4)"), ("synchronous", "streaming")])
def test_more_overlap_is_never_slower(pair: tuple[str, str]) -> None:
    for work_s in (1.0, 6.0, 20.0):
        assert period(pair[1], work_s=work_s) <= period(pair[0], work_s=work_s) + 1e-9


def test_roles_that_share_devices_cannot_overlap() -> None:
    with pytest.raises(PlanError, match="rollout_devices, or mode = synchronous"):
        rollout_schedule("off-policy").check(colocated=True)
    rollout_schedule("off-policy(staleness=0)").check(colocated=True)


# collections ----------------------------------------------------------------------------------------


def one_token_a_second(asked: Requests) -> Generated:
    """An engine without limits: every request takes a second a token, from the start."""
    end = asked.output.astype(float)
    return Generated(
        requests=asked, first_s=np.ones(len(end)), end_s=end, rollout_s=float(end.max()), ready_s=np.sort(end),
        tokens=int(asked.output.sum()),
    )  # fmt: skip


def asked(*output: int) -> Requests:
    return Requests(prompt=np.full(len(output), 100), output=np.array(output))


def test_every_response_waits_for_the_longest() -> None:
    found = collection("every-response").collect(asked(10, 20, 90), one_token_a_second)
    assert found.rollout_s == 90.0
    assert found.tokens == 120


def test_over_provisioned_rollouts_end_at_the_target_count() -> None:
    """Of four requests (10, 90 twice) two are needed: both of 10 s end the rollouts, the other two go on later."""
    found = collection("over-provisioned(extra=1,rounds=1)").collect(asked(10, 90), one_token_a_second)
    assert found.rollout_s == 10.0
    assert len(found.ready_s) == 2
    later = collection("over-provisioned(extra=1,rounds=2)").collect(asked(10, 90), one_token_a_second)
    assert later.again_tokens == 2 * 9  # in 10 s, the first at 1 s, each has 9 of its 90; their cache is gone
    assert later.rollout_s == 81.0  # beside a new one of 10 s and one of 90 s they end second
    plain = collection("over-provisioned(extra=0,rounds=1)").collect(asked(10, 90), one_token_a_second)
    assert plain.rollout_s == collection("every-response").collect(asked(10, 90), one_token_a_second).rollout_s


def test_partial_rollouts_cut_responses_into_segments_and_lose_no_token() -> None:
    found = collection("partial-rollouts(budget=40)").collect(asked(10, 40, 90), one_token_a_second)
    assert sorted(found.requests.output.tolist()) == [10, 10, 40, 40, 40]
    assert found.requests.output.sum() == 10 + 40 + 90
    assert found.rollout_s == 40.0
    assert found.again_tokens == 40 + 80
    assert found.old_share == pytest.approx(80 / 140)


def test_dynamic_sampling_generates_more_than_is_trained_on() -> None:
    found = collection("dynamic-sampling(factor=3)").collect(asked(10, 20), one_token_a_second)
    assert found.tokens == 3 * 30
    assert found.ready_s.tolist() == [10.0, 20.0]


# rows -----------------------------------------------------------------------------------------------


def test_packed_rows_hold_all_tokens_and_no_padding() -> None:
    lengths = np.array([100.0, 200.0, 300.0, 400.0])
    assert sequence_packing("packed-sequences").rows(lengths, 1) == (3, 334, 0.0)
    assert sequence_packing("packed-sequences(tokens=1000)").rows(lengths, 1) == (1, 1000, 0.0)
    rows, tokens, _ = sequence_packing("packed-sequences").rows(lengths, 4)
    assert (rows, tokens) == (4, 250)


def test_packed_rows_may_hold_a_number_of_sequences() -> None:
    """Six sequences of 600 tokens, two to a row, are three rows of 200; on four ranks four, of 150."""
    lengths = np.array([50.0, 50.0, 100.0, 100.0, 100.0, 200.0])
    assert sequence_packing("packed-sequences(sequences=2)").rows(lengths, 1) == (3, 200, 0.0)
    assert sequence_packing("packed-sequences(sequences=2)").rows(lengths, 4) == (4, 150, 0.0)


def test_ranks_in_lockstep_wait_for_the_fullest() -> None:
    """However 1, 1, 1 and 3 fall on two ranks, one turn lasts 3 and the other 1: rows of 2, a quarter idle."""
    lengths, turns = np.array([1.0, 1.0, 1.0, 3.0]), RankDivision(ranks=2, lockstep=True)
    assert sequence_packing("packed-sequences(sequences=1)").rows(lengths, 2, turns) == (4, 2, 0.25)
    assert sequence_packing("packed-sequences(sequences=1)").rows(4 * lengths, 2, RankDivision(ranks=2)) == (4, 6, 0.0)
    assert sequence_packing("packed-sequences(tokens=12)").rows(4 * lengths, 2, turns) == (2, 12, 0.0)


def test_bins_leave_room_and_are_padded_for_a_pipeline() -> None:
    """In bins of 400 lie 400; 300 and 100; 200: three rows, of 333 tokens on average, of 400 where stages pass them on.

    On two ranks they are four, of 250 or 400; equally full rows would be three, of 334.
    """
    bins, lengths = sequence_packing("packed-sequences(bins=true)"), np.array([100.0, 200.0, 300.0, 400.0])
    assert bins.rows(lengths, 1) == (3, 334, 0.0)
    assert bins.rows(lengths, 1, RankDivision(pipeline=True)) == (3, 400, pytest.approx(1 / 6))
    assert bins.rows(lengths, 2, RankDivision(ranks=2)) == (4, 250, 0.0)
    assert bins.rows(lengths, 2, RankDivision(ranks=2, pipeline=True)) == (4, 400, pytest.approx(3 / 8))
    five = np.array([400.0, 250.0, 250.0, 250.0, 250.0])
    assert sequence_packing("packed-sequences").rows(five, 1)[0] == 4
    assert bins.rows(five, 1)[0] == 5  # no two of 250 lie in a bin of 400


def test_padded_rows_are_as_long_as_the_longest() -> None:
    rows, tokens, padding = sequence_packing("padded-sequences").rows(np.array([100.0, 200.0, 300.0]), 2)
    assert (rows, tokens) == (4, 300)
    assert padding == pytest.approx(0.5)


def test_padded_rows_may_be_as_long_as_the_limits() -> None:
    rows, tokens, padding = sequence_packing("padded-sequences(tokens=1536)").rows(np.array([300.0, 468.0]), 2)
    assert (rows, tokens) == (2, 1536)
    assert padding == pytest.approx(0.75)  # 768 of 3072 tokens are of sequences
    assert sequence_packing("padded-sequences(tokens=100)").rows(np.array([300.0]), 1)[1] == 300
