"""Waiting is told from moving, idle from computing, by hand-worked spans; and what a run of one rank shows."""

from __future__ import annotations

from typing import Any

import pytest

from ridgeline.run.measured import idle_share, merged, moving_s, union_s


def test_bytes_move_from_the_moment_the_last_rank_has_come() -> None:
    early = [("all_reduce", 1.0, 5.0), ("all_reduce", 6.0, 7.0)]
    late = [("all_reduce", 4.0, 5.5), ("all_reduce", 5.9, 7.5)]
    assert moving_s([early, late]) == [
        {"all_reduce": pytest.approx(1.0 + 1.0)},
        {"all_reduce": pytest.approx(1.5 + 1.5)},
    ]


def test_a_send_lasts_from_both_sides_being_ready_until_it_is_received() -> None:
    sender = [("send", 1.0, 9.0), ("send", 3.0, 9.0)]  # its work is waited for at the end of the schedule
    receiver = [("recv", 0.0, 1.25), ("recv", 5.0, 5.5), ("send", 6.0, 6.5)]
    found = moving_s([sender, receiver])
    assert found[0] == {"send": pytest.approx(0.25 + 0.5)}
    assert "send" not in found[1]  # nobody received it


def test_calls_in_flight_at_once_are_counted_once() -> None:
    queued = [("all_reduce", 0.0, 2.0), ("all_reduce", 1.0, 3.0)]
    assert moving_s([queued, queued])[0] == {"all_reduce": pytest.approx(3.0)}
    assert union_s([]) == 0.0


def test_ranks_that_do_not_call_alike_are_left_out() -> None:
    assert moving_s([[("all_reduce", 0.0, 1.0)], []]) == [{}, {}]


def test_idle_share_of_an_even_pipeline_is_the_textbooks() -> None:
    stages, micro_batches = 4, 12
    whole = (stages + micro_batches - 1) * 3.0
    assert idle_share([micro_batches * 3.0] * stages, whole) == pytest.approx(
        (stages - 1) / (micro_batches + stages - 1)
    )


def answer(stage: int, **words: Any) -> dict[str, Any]:
    phase = {"forward": 2.0, "backward": 6.0, "computing": 4.0 + stage, "optimizer": 1.0, "step": 9.0}
    spans = [[], [("all_reduce", 0.0, 1.0)], [("all_reduce", 2.0, 5.0)], [("all_reduce", 6.0, 8.0)]]
    return {
        "phases": [phase], "losses": [float("nan") if stage == 0 else 3.0], "stage": stage, "tensor_bytes": 10 + stage,
        "grown_bytes": 20, "spans": spans, **words,
    }  # fmt: skip


def test_answers_of_ranks_become_one() -> None:
    found = merged([answer(0), answer(1)], "cpu", one_group=True)
    assert found.losses == (3.0,)  # the last stage has them
    assert found.memory_bytes == (10.0, 11.0)
    assert found.idle_shares == (pytest.approx(1 - (4 + 5) / 16),)
    assert found.collectives == {"all_reduce": {"calls": 1.0, "moving": 2.0, "seconds": 2.0}}
    assert "moving" not in merged([answer(0), answer(1)], "cpu", one_group=False).collectives["all_reduce"]
    assert merged([answer(0)], "cpu", one_group=True).idle_shares == ()
