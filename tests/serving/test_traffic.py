"""Traffic: its rules, its parts, its sessions and what its names mean."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.errors import InputError, UnknownNameError, WorkloadError
from ridgeline.facts.trace_file import in_place
from ridgeline.serving.traffic.named import named_traffic, traffic_names
from ridgeline.serving.traffic.sessions import chained
from ridgeline.serving.traffic.summary import summarize
from ridgeline.serving.traffic.traffic import Traffic, traffic


def four() -> Traffic:
    """Four requests: blocks 0 1 | none | 0 1 2 | 3, sessions a - a a."""
    return traffic(
        [0.0, 1.0, 3.0, 6.0],
        [1000, 50, 1500, 512],
        [10, 20, 30, 40],
        prefix_start=np.array([0, 2, 2, 5, 6]),
        prefix_blocks=np.array([0, 1, 0, 1, 2, 3]),
        prefix_block_tokens=512,
        session=np.array([0, -1, 0, 0]),
    )


def ints(*values: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.array(values, dtype=np.int64)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"arrival_s": [1.0, 0.5]}, "request 1: arrival_s must not decrease"),
        ({"arrival_s": [-1.0, 0.5]}, "request 0: arrival_s"),
        ({"arrival_s": [0.0, np.inf]}, "request 1: arrival_s"),
        ({"prompt_tokens": [1, 0]}, "request 1: prompt_tokens"),
        ({"output_tokens": [0, 1]}, "request 0: output_tokens"),
        ({"output_tokens": [1]}, "1 output_tokens for 2 requests"),
        ({"after": ints(-1, 1)}, "request 1: after"),
        ({"after": ints(1, -1)}, "request 0: after"),
        ({"after": ints(-2, -1)}, "request 0: after"),
        ({"think_s": np.array([0.0, np.nan])}, "request 1: think_s"),
        ({"client": ints(0, 1), "client_names": ("one",)}, "request 1: client"),
        ({"prefix_start": ints(0, 1)}, "3 entries"),
        ({"prefix_start": ints(0, 1, 2), "prefix_blocks": ints(0, 1)}, "more prefix blocks"),
        (
            {"prefix_start": ints(0, 2, 2), "prefix_blocks": ints(0, 1), "prefix_block_tokens": 512},
            "more prefix blocks",
        ),
        ({"concurrency": 2}, "closed loop"),
        ({"concurrency": 0, "arrival_s": [0.0, 0.0]}, "closed loop"),
    ],
)
def test_what_contradicts_itself_is_refused(change: dict[str, object], word: str) -> None:
    good: dict[str, object] = {"arrival_s": [0.0, 1.0], "prompt_tokens": [5, 5], "output_tokens": [5, 5]}
    assert traffic(**good).requests == 2  # type: ignore[arg-type]
    with pytest.raises(WorkloadError, match=word):
        traffic(**good | change)  # type: ignore[arg-type]


def test_no_request_is_no_traffic() -> None:
    with pytest.raises(WorkloadError, match="no request"):
        traffic([], [], [])


def test_a_part_renumbers_blocks_and_predecessors() -> None:
    whole = chained(four(), think_s=2.0)
    assert whole.after.tolist() == [-1, -1, 0, 2]
    assert whole.think_s.tolist() == [0.0, 0.0, 2.0, 2.0]
    part = whole.take([1, 2, 3])
    assert part.after.tolist() == [-1, -1, 1]
    assert part.think_s.tolist() == [0.0, 0.0, 2.0]
    assert part.prefix_start.tolist() == [0, 0, 3, 4]
    assert whole.take([1, 3]).prefix_blocks.tolist() == [0]
    assert whole.take([1, 3]).after.tolist() == [-1, -1]


def test_first_and_between() -> None:
    assert four().first(2).arrival_s.tolist() == [0.0, 1.0]
    assert four().first(99).requests == 4
    part = four().between(1.0, 6.0)
    assert part.arrival_s.tolist() == [0.0, 2.0]
    assert part.output_tokens.tolist() == [20, 30]
    with pytest.raises(WorkloadError, match="the last is at 6 s"):
        four().between(7.0, 9.0)
    with pytest.raises(WorkloadError, match="needs >= 1"):
        four().first(0)


def test_scaling_divides_arrivals_and_leaves_people_their_time() -> None:
    fast = chained(four(), think_s=2.0).scaled(2.0)
    assert fast.arrival_s.tolist() == [0.0, 0.5, 1.5, 3.0]
    assert fast.think_s.tolist() == [0.0, 0.0, 2.0, 2.0]
    for factor in (0.0, -1.0, np.inf, np.nan):
        with pytest.raises(WorkloadError, match="rate factor"):
            four().scaled(factor)


def test_a_closed_loop_has_no_times() -> None:
    loop = four().closed(3)
    assert loop.arrival_s.tolist() == [0.0] * 4
    assert loop.concurrency == 3
    assert summarize(loop).rate_per_s is None
    assert summarize(loop).burstiness is None


def test_the_summary_by_hand() -> None:
    summary = summarize(chained(four()))
    assert (summary.requests, summary.span_s, summary.rate_per_s) == (4, 6.0, 0.5)
    # gaps 1, 2, 3: mean 2, variance 2/3
    assert summary.burstiness == pytest.approx((2 / 3) ** 0.5 / 2)
    assert (summary.prompt.total, summary.prompt.most, summary.prompt.p50) == (3062, 1500, 756.0)
    assert summary.output.mean == 25.0
    assert summary.repeated_share == pytest.approx(2 / 6)  # two of six blocks came before
    assert (summary.sessions, summary.clients, summary.waiting, summary.dropped) == (1, 0, 2, 0)


def test_chaining_needs_sessions_and_a_sane_wait() -> None:
    with pytest.raises(WorkloadError, match="names no session"):
        chained(traffic([0.0], [1], [1]))
    with pytest.raises(WorkloadError, match="think_s"):
        chained(four(), think_s=-1.0)


@settings(deadline=None)
@given(st.lists(st.integers(-1, 4), min_size=1, max_size=30).filter(lambda ids: max(ids) >= 0))
def test_each_turn_waits_for_the_one_before_it(ids: list[int]) -> None:
    plain = traffic(np.arange(len(ids)), np.ones(len(ids)), np.ones(len(ids)), session=np.array(ids, dtype=np.int64))
    last: dict[int, int] = {}
    expected = []
    for place, session in enumerate(ids):
        expected.append(last.get(session, -1) if session >= 0 else -1)
        last[session] = place
    assert chained(plain).after.tolist() == expected


@settings(deadline=None)
@given(st.data())
def test_parts_keep_every_request_whole(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 12))
    lengths = data.draw(st.lists(st.integers(0, 3), min_size=count, max_size=count))
    blocks = data.draw(st.lists(st.integers(0, 5), min_size=sum(lengths), max_size=sum(lengths)))
    start = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    whole = traffic(
        np.arange(count), np.full(count, 64), np.arange(count) + 1,
        prefix_start=start, prefix_blocks=in_place(start, np.array(blocks, dtype=np.int64)), prefix_block_tokens=16,
    )  # fmt: skip
    chosen = data.draw(st.lists(st.integers(0, count - 1), min_size=1, unique=True).map(sorted))
    part = whole.take(chosen)
    seen: dict[int, int] = {}
    for place, old in enumerate(chosen):
        mine = part.prefix_blocks[part.prefix_start[place] : part.prefix_start[place + 1]].tolist()
        theirs = whole.prefix_blocks[start[old] : start[old + 1]].tolist()
        assert part.output_tokens[place] == old + 1
        assert len(mine) == len(theirs)
        for new, before in zip(mine, theirs, strict=True):
            assert seen.setdefault(before, new) == new
    assert sorted(seen.values()) == list(range(len(seen)))


def test_names_and_paths(tmp_path: Path) -> None:
    assert traffic_names() == ("azure-conv", "azure-code", "mooncake", "nexus-mixed", "servegen", "tree-search")
    assert named_traffic("Azure_Conv").requests == 19_366
    assert named_traffic("mooncake").prefix_block_tokens == 512
    path = tmp_path / "mine"
    path.write_text("arrival_s,input_tokens,output_tokens,session\n0,1,1,x\n5,2,0,x\n7,3,3,x\n")
    mine = named_traffic(str(path), sessions="chained", think_s=1.5)
    assert mine.after.tolist() == [-1, 0]
    assert mine.think_s.tolist() == [0.0, 1.5]
    assert [(each.line, each.field) for each in mine.dropped] == [(3, "output_tokens")]
    assert mine.name == "mine"


def test_what_names_nothing_is_told_its_neighbours() -> None:
    with pytest.raises(UnknownNameError, match="nearest: mooncake"):
        named_traffic("moncake")
    for path in ("absent.csv", ".", "x/" * 5000, "nul\0.csv"):
        with pytest.raises(InputError, match=r"cannot be read|no such file|is a folder"):
            named_traffic(path)
    with pytest.raises(UnknownNameError, match="unknown trace"):
        named_traffic("x" * 5000)
    with pytest.raises(WorkloadError, match="written, chained"):
        named_traffic("mooncake", sessions="often")


def test_the_shipped_traces_are_as_bursty_as_known() -> None:
    conversation, code = summarize(named_traffic("azure-conv")), summarize(named_traffic("azure-code"))
    assert conversation.burstiness is not None
    assert code.burstiness is not None
    assert 1.0 < conversation.burstiness < 1.2 < 10 < code.burstiness
    # 288500 blocks of 182790 different contents
    assert summarize(named_traffic("mooncake")).repeated_share == pytest.approx(1 - 182_790 / 288_500)
