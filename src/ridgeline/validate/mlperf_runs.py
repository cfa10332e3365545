"""Rows of MLPerf Training beside the reference runs of their benchmark."""

from __future__ import annotations

import re

from ridgeline.facts.benchmarks import Convergence, convergence
from ridgeline.facts.readings import tell_recipe
from ridgeline.validate.interpret import Interpretation
from ridgeline.validate.rows import Row


def reference(row: Row, job: Interpretation) -> Convergence | None:
    """What reference runs of a row's benchmark took at its batch; None where none are known."""
    said = re.search(r"training_results_v(\d+)\.(\d+)", row.text("source"))
    if said is None:
        return None
    batch, known = job.workload.global_batch, (int(said[1]), int(said[2]))
    found = convergence(row.text("model"), batch=batch, mlperf_round=known)
    if found is not None:
        tell_recipe(re.escape(said[0]), row.text("source"), f"sequences to the target ({found.source})")
    return found


def logged_by_one(row: Row) -> bool:
    """Whether a rate of MLPerf is that of one device, as the logs of NVIDIA's RetinaNet count before its 25.04 code.

    Told by the benchmark and the release, or the round where no release is stated, never by the rate: in rounds 3.0 to
    4.1 and in later results of older releases rate times time to train is 1 / N of what reference runs took.
    """
    said = re.search(r"training_results_v(\d+)\.", row.text("source"))
    if said is None or "retinanet" not in row.text("model").casefold():
        return False
    releases = [int(year) for year in re.findall(r"\b(\d\d)\.\d\d\b", row.text("engine"))]
    return max(releases) < 25 if releases else int(said[1]) < 5
