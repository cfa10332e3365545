"""What an answer hangs on is told part by part, the least known first."""

from __future__ import annotations

from ridgeline.facts.records import Evidence
from ridgeline.report.evidence import Known, known_as_list, known_text, lowest

HOST = Known(part="host time", evidence=Evidence.ASSUMED, share=0.07)
KERNELS = Known(part="kernels", evidence=Evidence.MEASURED, share=0.93)
TRACE = Known(part="links", evidence=Evidence.DERIVED, share=0.001)


def test_the_lowest_rung_comes_first_with_its_share() -> None:
    told = known_text((KERNELS, HOST, TRACE), "TPOT")
    assert told == "assumed: host time 7%; measured elsewhere: kernels 93% of TPOT"
    assert lowest((KERNELS, HOST, TRACE)) is Evidence.ASSUMED
    assert lowest((KERNELS, TRACE)) is Evidence.MEASURED  # nothing hangs on a thousandth


def test_the_numbers_are_whole_in_json() -> None:
    assert known_as_list((TRACE,)) == [{"part": "links", "evidence": "derived", "share": 0.001}]
