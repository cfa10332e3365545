"""The printed answer: its order, its numbers, its width."""

from __future__ import annotations

import io
import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.plan.plan import Plan
from ridgeline.report.blocks import Line, Table, plain, show
from ridgeline.report.report import Report, SearchReport, StageMemory
from ridgeline.report.search_text import search_blocks
from ridgeline.report.text import count_text, memory_bar, money_text, plan_text, report_blocks

ANSWER = """\
tiny (64 parameters), pretrain, on 2xToy: 4 sequences of 128 tokens per step, bf16, adamw

  plan         pp 2, 1f1b, micro-batch 1, full recompute
  step time    2 s (80 % interval 1.8 s to 2.4 s; closed form 1.5 s at the same prices)
  throughput   256 tokens/s, 128 per device; MFU 25.0%, HFU 33.3%
  power        3.6 kW at the wall, 2 Wh per step
  cost         $0.01 per step
  whole run    4000 s for 1.024M tokens, 4 kWh, $20
  limited by   matrix products take 75 % of the step
  evidence     derived: matrix rate 75% of the step time

Peak memory per device, of 10 GiB
  GiB               stage 0-1
  -------------  ------------
  W weights              4.00
  G gradients            2.00
  A activations          1.00
  total                  7.00
  80 % interval  6.41 to 9.17
  free                   3.00
  stage 0-1     [WWWWWWWWWWWWWWWWGGGGGGGGAAAA............]
"""


def test_the_answer_comes_first_to_the_letter(report: Report) -> None:
    assert plain(report_blocks(report)).startswith(ANSWER)


def test_networks_that_count_samples_tell_samples(report: Report) -> None:
    dims = {**report.model.dims, "tokens_per_sample": 128}
    text = plain(report_blocks(replace(report, model=replace(report.model, dims=dims))))
    assert "throughput   2 samples/s, 1 per device" in text
    assert "4 samples of 128 tokens per step" in text
    assert "4000 s for 8k samples" in text


def test_reasons_follow_the_answer(report: Report) -> None:
    text = plain(report_blocks(report, assumed=("seq_len = 128 tokens, as none was given",)))
    titles = ["Where the step time goes", "Operators of", "Evidence behind", "What would change", "Assumed", "Sources"]
    assert [text.index(title) for title in titles] == sorted(text.index(title) for title in titles)
    assert "- seq_len = 128 tokens, as none was given\n  - devices are alike" in text
    assert "matrix products  compute   1.5 s  75.0%" in text
    assert text.endswith("- made by hand\n")


def test_a_plan_that_does_not_fit_says_by_how_much(report: Report) -> None:
    gib = 2.0**30
    full = StageMemory(stage=1, categories={"weights": 12 * gib}, capacity_bytes=10 * gib)
    text = plain(report_blocks(replace(report, memory=(report.memory[0], full))))
    assert "DOES NOT FIT 2 GiB short on the fullest device" in text
    assert "[" + "W" * 40 + "]!" in text
    assert "but the high end" not in text


def test_a_plan_that_fits_by_less_than_its_interval_says_so(report: Report) -> None:
    gib = 2.0**30
    held = {"weights": 5 * gib, "activations": 4 * gib}
    tight, ample = (StageMemory(stage=1, categories=held, capacity_bytes=size * gib) for size in (10, 20))
    told = replace(report, memory=(report.memory[0], tight))
    assert told.fits
    line = "  memory       fits, but the high end of its 80 % interval does not: 14.83 of 10.00 GiB\n"
    assert line in plain(report_blocks(told))
    assert "but the high end" not in plain(report_blocks(replace(report, memory=(ample,))))


def test_search_ranks_plans_and_tells_its_gap(found: SearchReport) -> None:
    text = plain(search_blocks(found), width=120)
    assert "1,200 plans covered: 300 keep every rule, 40 fit in memory, 28 pruned by their lower bound" in text
    assert "no plan of the grid is more than 2.0% quicker at the same prices" in " ".join(text.split())
    assert "  1   2 s       256  25.0%       3.0  pp 2, 1f1b, micro-batch 1, full recompute\n" in text
    assert "  2   3 s       256  25.0%       3.0  tp 2, micro-batch 1, no recompute\n" in text
    assert "  - #1, #2: matrix products take 75 % of the step" in text
    assert "260  exceeds memory  tp 2 needs 1.5 GiB less" in text
    assert "1.25" not in text  # the seconds of the search never reach the diffable output


def test_an_empty_search_still_explains_itself(found: SearchReport) -> None:
    text = plain(search_blocks(replace(found, best=())))
    assert text.startswith("No plan fits.\n")
    assert "exceeds memory" in text


@pytest.mark.parametrize(
    ("plan", "text"),
    [
        (Plan(), "one device, micro-batch 1, no recompute"),
        (
            Plan(tp=8, pp=4, dp=2, schedule="interleaved", chunks=5, zero=1, sequence_parallel=True),
            "tp 8, pp 4, dp 2, interleaved x5 chunks, micro-batch 1, ZeRO-1, no recompute, sequence parallel",
        ),
        (
            Plan(dp=64, zero=3, zero_group=8, recompute="full", recompute_layers=3, overlap_weights=False),
            "dp 64, micro-batch 1, ZeRO-3 over 8, full recompute on 3 layers per stage, weight gathering exposed",
        ),
        (
            Plan(cp=2, pp=2, layer_split=(3, 5), offload_optimizer=True, offload_activations=True),
            "pp 2, cp 2, 1f1b, micro-batch 1, no recompute, ring context, optimizer in host memory, "
            "activations in host memory, layers 3/5",
        ),
    ],
)
def test_plan_in_one_line(plan: Plan, text: str) -> None:
    assert plan_text(plan) == text


def test_amounts_for_people() -> None:
    assert (money_text(1234567.2), money_text(0.01234)) == ("$1,234,567", "$0.0123")
    assert (count_text(70.6e9), count_text(15e12)) == ("70.6B", "15T")


def test_bar_columns_follow_running_totals() -> None:
    stage = StageMemory(stage=0, categories={"a": 1.0, "b": 1.0, "c": 1.0}, capacity_bytes=4.0)
    assert memory_bar(stage, {"a": "A", "b": "B", "c": "C"}, 8) == "[AABBCC..]"


def test_categories_that_begin_alike_have_letters_of_their_own(report: Report) -> None:
    """Five categories of 1 GiB: the initial, the next free letter, the first that is one, a ? where none is left."""
    held = dict.fromkeys(("weights", "workspace", "1-w", "2 x", "ow"), 2.0**30)
    stage = StageMemory(stage=0, categories=held, capacity_bytes=10 * 2.0**30)
    lines = plain(report_blocks(replace(report, memory=(stage,)))).splitlines()
    assert "  stage 0       [WWWWOOOO????XXXX????....................]" in lines
    assert [line.split()[0] for line in lines if line.endswith("1.00")] == ["W", "O", "?", "X", "?"]


@pytest.mark.parametrize(("many", "told"), [(24, False), (25, True)])
def test_operators_that_are_not_shown_are_counted(report: Report, many: int, told: bool) -> None:
    rows = tuple(replace(report.ops[0], op=f"op{place}") for place in range(many))
    text = plain(report_blocks(replace(report, ops=rows)))
    assert ("smaller ones" in text) is told
    assert not told or "and 1 smaller ones; --json has them all" in text


def test_columns_give_way_by_as_much_as_the_page_lacks() -> None:
    """Widths 3, 20 and 18 with two gaps of two and an indent of two are 47 columns; the first and right ones stay."""
    rows = (("abc", "b b b b b b b b b bb", "123456789012345678"),)
    table = Table(columns=("x", "y", "z"), rows=rows, right=frozenset({"z"}), indent=2)
    assert plain([table], 47).splitlines()[2] == "  abc  b b b b b b b b b bb  123456789012345678"
    first, second = plain([table], 46).splitlines()[2:4]
    assert (first, second) == ("  abc  b b b b b b b b b    123456789012345678", "       bb")


@given(
    words=st.lists(st.text("abc 1-", max_size=60), min_size=1, max_size=8),
    width=st.integers(80, 120),
)
def test_plain_text_keeps_within_the_page(words: list[str], width: int) -> None:
    table = Table(columns=("number", "text"), rows=tuple(("1", word) for word in words), right=frozenset({"number"}))
    text = plain([Line(text=" ".join(words), indent=2, hang=4), table], width)
    assert max(map(len, text.splitlines())) <= width
    assert all(line == line.rstrip() for line in text.splitlines())


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_sees_the_same_numbers(report: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    out = _Terminal()
    show(report_blocks(report), out)
    text = re.sub(r"\x1b\[[0-9;]*m", "", out.getvalue())
    assert max(map(len, text.splitlines())) <= 120
    assert "1.8 s to 2.4 s" in text


def test_a_pipe_sees_plain_text(report: Report) -> None:
    out = io.StringIO()
    show(report_blocks(report), out)
    assert out.getvalue() == plain(report_blocks(report))


def test_what_no_price_or_power_is_known_of_is_told(report: Report) -> None:
    cluster = replace(report.cluster, accelerator=replace(report.cluster.accelerator, tdp_w=None))
    text = plain(report_blocks(replace(report, cluster=cluster, usd_per_step=None)))
    assert "of the hosts alone: no rated power is known of Toy" in " ".join(text.split())
    assert "cost         no price is known of Toy; say --price, e.g. 2.5 dollars a device and hour" in text


def test_both_counts_of_attention_are_told_where_they_differ(report: Report) -> None:
    assert "MFU 25.0% (20.0% of attended pairs), HFU" in plain(report_blocks(replace(report, causal_mfu=0.2)))
