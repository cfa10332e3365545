"""Ways to divide sequences of unlike lengths over ranks, beside one ring of all ranks and beside packs of one degree.

    PYTHONPATH=src python benchmarks/bench_lengths.py

Writes lengths.md beside this file; a minute on one core.
"""

from __future__ import annotations

from pathlib import Path

from ridgeline.errors import NoPlanError
from ridgeline.facts.clusters import cluster
from ridgeline.graph.load import load
from ridgeline.graph.workload import Workload
from ridgeline.plan.plan import Plan
from ridgeline.predict.unlike_lengths import predict_lengths

HERE = Path(__file__).parent
MODEL, SEQUENCES, LONGEST = "llama-2-7b", 64, 65_536
CLUSTERS = ("16xA800-SXM-80GB", "32xH100-SXM")
WIDTHS = (0.8, 1.2, 2.0)
WAYS = {
    "one ring of all": ("ring", "packed(degree={ranks})"),
    "the same, routed": ("routed-ring", "packed(degree={ranks})"),
    "packs": ("ring", "packed"),
    "FlexSP": ("ring", "flexsp"),
    "ByteScale": ("ring", "bytescale"),
    "Zeppelin without routing": ("ring", "zeppelin"),
    "Zeppelin": ("routed-ring", "zeppelin"),
}
HEAD = f"""# Unlike lengths

Seconds of a step whose {SEQUENCES} sequences of {MODEL} are divided over all ranks (`--length-balance`), ZeRO-3,
ring attention: lengths log-normal of median 1,500 tokens and three widths, {LONGEST:,} at most. *One ring of all*
gives every sequence all ranks, the baseline of Zeppelin (claim 101); *packs* are groups of the degree that the
longest needs, that of FlexSP (91) and ByteScale (109). A ring between machines goes over one network card of each
(`--context-style ring`); *routed* is the same ring relayed over all cards of a machine by Zeppelin's routing layer
(`routed-ring`). Written by `bench_lengths.py`.

| cluster | width | {" | ".join(WAYS)} |
|---|---|{"---|" * len(WAYS)}
"""


def step_s(on: str, width: float, way: tuple[str, str]) -> str:
    """The step of one way [s], or that it has none."""
    where = cluster(on)
    lengths = f"lognormal(median=1500,sigma={width})"
    workload = Workload(seq_len=LONGEST, global_batch=SEQUENCES, lengths=lengths)
    style, balance = way
    plan = Plan(dp=where.count, zero=3, context_style=style, length_balance=balance.format(ranks=where.count))
    try:
        return f"{predict_lengths(load(MODEL), where, workload, plan).step_s:.2f}"
    except NoPlanError:
        return "does not fit"


def main() -> None:
    """Writes the page."""
    text = HEAD
    for on in CLUSTERS:
        for width in WIDTHS:
            cells = " | ".join(step_s(on, width, way) for way in WAYS.values())
            text += f"| {on} | {width:g} | {cells} |\n"
    (HERE / "lengths.md").write_text(text)


if __name__ == "__main__":
    main()
