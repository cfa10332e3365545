"""Trace files of strangers: good rows are answered, bad ones are named by line and field, nothing is a traceback."""

from __future__ import annotations

import gzip
import json
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.errors import InputError, UnknownNameError
from ridgeline.facts import trace_file, trace_text
from ridgeline.facts.store import source
from ridgeline.facts.trace_file import TraceFile, in_place, parse_trace
from ridgeline.facts.traces import client_mix, shipped, shipped_trace, trace_names

HEADER = "arrival_s,input_tokens,output_tokens"


def parsed(*lines: str, header: str = HEADER, block_tokens: int = 512) -> TraceFile:
    return parse_trace("\n".join([header, *lines]).encode(), "t.csv", block_tokens=block_tokens)


def faults(trace: TraceFile) -> list[tuple[int, str]]:
    return [(each.line, each.field) for each in trace.dropped]


def test_good_rows_are_read_as_written() -> None:
    trace = parsed("0,100,10", "0.5,200,20", "0.5,300,30")
    assert trace.arrival_s.tolist() == [0.0, 0.5, 0.5]
    assert trace.prompt_tokens.tolist() == [100, 200, 300]
    assert trace.output_tokens.tolist() == [10, 20, 30]
    assert trace.line.tolist() == [2, 3, 4]
    assert (trace.rows, trace.dropped, trace.notes) == (3, (), ())
    assert trace.session.tolist() == trace.client.tolist() == [-1, -1, -1]


@pytest.mark.parametrize(
    ("row", "field", "word"),
    [
        ("-1,5,5", "arrival_s", "negative"),
        ("nan,5,5", "arrival_s", "finite"),
        ("inf,5,5", "arrival_s", "finite"),
        ("1e11,5,5", "arrival_s", "unit"),
        ("soon,5,5", "arrival_s", "number"),
        (",5,5", "arrival_s", "blank"),
        ("1,0,5", "input_tokens", "least"),
        ("1,-3,5", "input_tokens", "least"),
        ("1,2.5,5", "input_tokens", "whole"),
        ("1,99999999999,5", "input_tokens", "limit of 10000000"),
        ("1,1_000,5", "input_tokens", "number"),
        ("1,5,0", "output_tokens", "least"),
        ("1,5,-inf", "output_tokens", "finite"),
        ("1,5", "", "2 cells, the header has 3"),
        ("1,5,5,5", "", "4 cells, the header has 3"),
    ],
)
def test_a_bad_row_is_named_and_the_others_answered(row: str, field: str, word: str) -> None:
    trace = parsed("0,100,10", row, "2,300,30")
    assert faults(trace) == [(3, field)]
    assert word in trace.dropped[0].reason
    assert trace.arrival_s.tolist() == [0.0, 2.0]
    assert trace.rows == 3


def test_a_row_is_named_once_by_its_first_fault() -> None:
    assert faults(parsed("0,1,1", "-1,0,x")) == [(3, "arrival_s")]


def test_rows_out_of_order_are_kept_sorted_and_told() -> None:
    trace = parsed("5,1,1", "3,2,2", "4,3,3")
    assert trace.arrival_s.tolist() == [0.0, 1.0, 2.0]
    assert trace.prompt_tokens.tolist() == [2, 3, 1]
    assert trace.line.tolist() == [3, 4, 2]
    assert trace.dropped == ()
    assert "1 row arrives before" in trace.notes[0]
    assert "at 3 s" in trace.notes[1]


def test_comments_blank_lines_and_windows_ends_keep_line_numbers() -> None:
    raw = f"# a comment\r\n\r\n{HEADER}\r\n0,1,1\r\n   \r\n# more\r\n1,x,1\r\n2,3,4\r\n".encode()
    trace = parse_trace(b"\xef\xbb\xbf" + raw, "t")
    assert trace.line.tolist() == [4, 8]
    assert faults(trace) == [(7, "input_tokens")]


def test_quotes_tabs_and_other_names_of_columns() -> None:
    assert parsed('"0","1,5",3', '"1","2",3').prompt_tokens.tolist() == [2]
    tabs = parsed("x\t7\t8\t0.5", header="model\tPrompt Tokens\tcompletion_tokens\tarrived_at")
    assert (tabs.prompt_tokens.tolist(), tabs.output_tokens.tolist()) == ([7], [8])


def test_dates_of_azure_become_seconds() -> None:
    trace = parsed(
        "2023-11-16 18:15:46.6805900,4808,10",
        "2023-11-16 18:15:50.9951690,3180,8",
        "yesterday,5,5",
        header="TIMESTAMP,ContextTokens,GeneratedTokens",
    )
    assert trace.arrival_s == pytest.approx([0.0, 4.314579], abs=1e-6)
    assert faults(trace) == [(4, "TIMESTAMP")]


def test_the_first_rows_decide_between_dates_and_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_text, "CHUNK_ROWS", 2)
    trace = parsed("0,1,1", "1,1,1", "2023-11-16 18:15:46,1,1", "2023-11-16 18:15:47,1,1", "4,1,1")
    assert trace.arrival_s.tolist() == [0.0, 1.0, 4.0]
    assert faults(trace) == [(4, "arrival_s"), (5, "arrival_s")]


def test_mooncake_json_lines_count_milliseconds() -> None:
    rows = [
        {"timestamp": 0, "input_length": 1000, "output_length": 5, "hash_ids": [7, 8]},
        {"timestamp": 3000, "input_length": 1500, "output_length": 6, "hash_ids": [7, 8, 40]},
    ]
    trace = parse_trace("\n".join([*map(json.dumps, rows), "{broken", "[1]"]).encode(), "t.jsonl")
    assert trace.arrival_s.tolist() == [0.0, 3.0]
    assert trace.prefix_blocks.tolist() == [0, 1, 0, 1, 2]
    assert faults(trace) == [(3, ""), (4, "")]


def test_prefix_ranges_become_dense_blocks() -> None:
    trace = parsed("0,2048,1,10-12 90", "1,100,1,", "2,1025,1,10-11 5", header=f"{HEADER},prefix_block_ids")
    assert trace.prefix_start.tolist() == [0, 4, 4, 7]
    assert trace.prefix_blocks.tolist() == [0, 1, 3, 4, 0, 1, 2]
    assert trace.prefix_block_tokens == 512


def test_a_block_is_known_by_what_came_before_it() -> None:
    """An id that comes twice in a prompt is two blocks; the same id after another beginning is another block."""
    trace = parsed(
        "0,2048,1,1 1", "1,2048,1,1 1 2", "2,2048,1,2 1", "3,2048,1,1 2", header=f"{HEADER},prefix_block_ids"
    )
    assert trace.prefix_blocks.tolist() == [0, 2, 0, 2, 5, 1, 4, 0, 3]


@given(st.lists(st.lists(st.integers(0, 3), max_size=5), min_size=1, max_size=8))
def test_two_prompts_share_the_blocks_of_their_common_beginning_alone(prompts: list[list[int]]) -> None:
    start = np.cumsum([0, *map(len, prompts)])
    found = in_place(start, np.array([block for one in prompts for block in one], dtype=np.int64)).tolist()
    runs = [found[first:last] for first, last in pairwise(start)]
    for one, mine in zip(prompts, runs, strict=True):
        for other, theirs in zip(prompts, runs, strict=True):
            unlike = [place for place, (a, b) in enumerate(zip(one, other, strict=False)) if a != b]
            common = min([*unlike, len(one), len(other)])
            assert len(set(mine) & set(theirs)) == common
    assert sorted(set(found)) == list(range(len(set(found))))


@pytest.mark.parametrize("cell", ["3-", "a", "-4", "1;2", "5-3", "0-99999999999", "0-2", "9" * 25, "9" * 19])
def test_prefix_cells_that_cannot_be_are_named(cell: str) -> None:
    trace = parsed("0,1024,1,0 1", f"1,1024,1,{cell}", "2,1024,1,1", header=f"{HEADER},prefix_block_ids")
    assert faults(trace) == [(3, "prefix_block_ids")]
    assert trace.prefix_start.tolist() == [0, 2, 3]


def test_all_blocks_of_a_file_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_file, "LARGEST_BLOCKS", 5)
    with pytest.raises(InputError, match="prefix blocks; split"):
        parsed("0,2048,1,0-3", "0,2048,1,4-7", header=f"{HEADER},prefix_block_ids")


def test_sessions_clients_and_priorities() -> None:
    trace = parsed(
        "2,1,1,b,north,3", "0,1,1,a,,", "1,1,1,b,south,-1", "3,1,1,,,0.5", header=f"{HEADER},session,client,priority"
    )
    assert trace.session.tolist() == [0, 1, 1]
    assert trace.session_names == ("a", "b")
    assert trace.client.tolist() == [-1, 0, 1]
    assert trace.client_names == ("south", "north")
    assert trace.priority.tolist() == [0, -1, 3]
    assert faults(trace) == [(5, "priority")]


@pytest.mark.parametrize(
    ("raw", "word"),
    [
        (b"", "empty"),
        (b"# only\n\n", "empty"),
        (b"arrival_s,input_tokens\n0,1\n", "output_tokens"),
        (b"a,b,c\n0,1,2\n", "arrival_s"),
        (f"{HEADER},{HEADER}\n0,1,1,0,1,1\n".encode(), "twice"),
        (f"{HEADER}\n".encode(), "no rows"),
        (f"{HEADER}\n0,0,0\nx,1,1\n".encode(), "2 dropped"),
        (b"\x1f\x8bnonsense", "gzip"),
        (b"{broken\n", "JSON"),
        (b'{"timestamp": 1}\n', "input_tokens"),
        (b"\x00\xff\xfe\x80" * 50, "arrival_s"),
    ],
)
def test_a_file_of_no_use_is_refused(raw: bytes, word: str) -> None:
    with pytest.raises(InputError, match=word) as caught:
        parse_trace(raw, "t.csv")
    assert str(caught.value).startswith("t.csv")


def test_rows_before_a_break_of_a_gzip_file_are_answered() -> None:
    whole = f"{HEADER}\n" + "".join(f"{place},{place * 7919 % 4093 + 1},1\n" for place in range(20_000))
    packed = gzip.compress(whole.encode())
    found = parse_trace(packed[: len(packed) // 2], "t.csv.gz")
    rows = len(found.arrival_s)
    assert 5_000 < rows < 15_000
    assert found.prompt_tokens.tolist() == [place * 7919 % 4093 + 1 for place in range(rows)]
    (cut,) = found.dropped
    assert str(cut) == f"line {rows + 2}: the gzip file breaks off here: its end is missing"
    two = parse_trace(gzip.compress(whole.encode()) + gzip.compress(b"20000,5,1\n") + b"\0" * 9, "t.csv.gz")
    assert (len(two.arrival_s), list(two.dropped)) == (20_001, [])


def test_the_error_of_a_useless_file_holds_line_and_field() -> None:
    with pytest.raises(InputError) as caught:
        parsed("0,0,1")
    assert (caught.value.line, caught.value.field) == (2, "input_tokens")


def test_prefix_blocks_are_counted_before_they_are_laid_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_file, "LARGEST_BLOCKS", 40)
    monkeypatch.setattr(trace_file, "expand", lambda *_: pytest.fail("laid out"))
    with pytest.raises(InputError, match=r"t\.csv: the prompts name more than 4e\+01 prefix blocks; split the trace"):
        parsed("0,10240,1,0-19", "1,10240,1,20-39", "2,512,1,40", header=f"{HEADER},prefix_block_ids")


def test_rows_that_cannot_be_used_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_file, "MOST_DROPPED", 2)
    assert len(parsed("0,1,1", "x,1,1", "y,1,1").dropped) == 2
    with pytest.raises(InputError, match="more than 2 rows cannot be used; the first: line 2"):
        parsed("x,1,1", "y,1,1", "z,1,1", "0,1,1")


def test_chunks_do_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [f"{i % 7},{i % 5 * 512},{i % 3 + 1},{i % 4},{i % 6}" for i in range(50)]
    whole = parsed(*lines, header=f"{HEADER},prefix_block_ids,session")
    monkeypatch.setattr(trace_text, "CHUNK_ROWS", 7)
    pieces = parsed(*lines, header=f"{HEADER},prefix_block_ids,session")
    assert whole.dropped == pieces.dropped
    for name in ("arrival_s", "prompt_tokens", "output_tokens", "prefix_start", "prefix_blocks", "session", "line"):
        assert np.array_equal(getattr(whole, name), getattr(pieces, name)), name


CELL = st.one_of(
    st.integers(-5, 5000).map(str),
    st.floats().map(repr),
    st.text(st.characters(blacklist_characters="\n\r"), max_size=6),
    st.sampled_from(["0-3", "1 2", "", '"', "1e400", "2023-11-16 18:15:46", "0x10", "９"]),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.lists(CELL, min_size=2, max_size=6), max_size=8))
def test_whatever_the_cells_rows_are_used_or_dropped(rows: list[list[str]]) -> None:
    header = f"{HEADER},prefix_block_ids,priority"
    lines = [",".join(row) for row in rows]
    text = "\n".join([header, "0,10,10,,", *lines])
    expected = sum(bool(line.strip()) and not line.lstrip().startswith("#") for line in lines)
    try:
        trace = parse_trace(text.encode("utf-8", "replace"), "t.csv")
    except InputError as refusal:
        said = str(refusal)  # most times are dates, and no row with a date can be used
        trace = None
    if trace is None:
        assert f"({1 + expected} dropped)" in said
        return
    assert trace.rows == 1 + expected
    assert trace.rows == len(trace.arrival_s) + len(trace.dropped)
    assert (np.diff(trace.arrival_s) >= 0).all()
    assert trace.arrival_s[0] == 0
    assert (trace.prompt_tokens >= 1).all()
    assert (trace.output_tokens >= 1).all()
    assert trace.prefix_start[-1] == len(trace.prefix_blocks)
    assert (np.diff(trace.prefix_start) <= -(-trace.prompt_tokens // 512)).all()


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=300))
def test_any_bytes_are_answered_or_refused(raw: bytes) -> None:
    for content in (raw, HEADER.encode() + b"\n0,1,1\n" + raw, b'{"time": 0, "isl": 1, "osl": 1}\n' + raw):
        try:
            trace = parse_trace(content, "t")
        except InputError:
            continue
        assert len(trace.arrival_s) >= 1


def test_shipped_files_are_as_their_table_says() -> None:
    assert trace_names() == ("azure-conv", "azure-code", "mooncake", "nexus-mixed")
    for name in trace_names():
        trace, entry = shipped_trace(name), shipped()[name]
        assert len(trace.arrival_s) == trace.rows == entry.rows
        assert trace.dropped == trace.notes == ()
        assert trace.prefix_block_tokens == (entry.block_tokens or 0)
    assert all(source(entry.source).note for entry in shipped().values())
    with pytest.raises(UnknownNameError, match="azure-conv"):
        shipped_trace("azure-con")


@pytest.mark.parametrize(
    ("name", "prompts", "outputs", "last_s", "blocks"),
    [
        ("azure-conv", 22_361_870, 4_088_665, 3501.721937, 0),
        ("azure-code", 18_059_974, 245_896, 3435.948056, 0),
        ("mooncake", 144_793_823, 4_122_048, 3537.0, 288_500),
        ("nexus-mixed", 5_283_178, 254_487, 2057.485, 0),
    ],
)
def test_sums_of_shipped_traces_are_pinned(name: str, prompts: int, outputs: int, last_s: float, blocks: int) -> None:
    trace = shipped_trace(name)
    assert (int(trace.prompt_tokens.sum()), int(trace.output_tokens.sum())) == (prompts, outputs)
    assert trace.arrival_s[-1] == last_s
    assert len(trace.prefix_blocks) == blocks


def test_the_client_mix_is_whole() -> None:
    mix = client_mix()
    assert (len(mix.client_names), len(mix.rate_per_s), int(mix.weibull.sum())) == (73, 3111, 522)
    assert mix.rate_per_s.sum() * 600 == pytest.approx(1_383_669.09, abs=0.01)
    assert (mix.shape > 0).all()
    assert (np.diff(mix.prompt_tokens, axis=1) >= 0).all()
    assert (np.diff(mix.output_tokens, axis=1) >= 0).all()
    assert mix.prompt_tokens.min() >= 1
