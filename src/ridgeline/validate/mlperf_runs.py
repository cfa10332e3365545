"""Rows of MLPerf Training beside the reference runs of their benchmark."""

from __future__ import annotations

import math
import re

from ridgeline.facts.convergence import Convergence, convergence
from ridgeline.validate.interpret import Interpretation
from ridgeline.validate.rows import Row


def reference(row: Row, job: Interpretation) -> Convergence | None:
    """What reference runs of a row's benchmark took at its batch; None where none are known."""
    said = re.search(r"training_results_v(\d+)\.(\d+)", row.text("source"))
    batch = job.workload.global_batch
    return convergence(row.text("model"), batch=batch, mlperf_round=(int(said[1]), int(said[2]))) if said else None


def logged_by_one(row: Row, job: Interpretation) -> bool:
    """Whether a rate of MLPerf is that of one device, as some logs count.

    Then all devices together, and not one alone, reach the target in the time that the row reports beside the rate, by
    about as many samples as the reference runs took.
    """
    minutes = re.search(r"ttt_min_median=([\d.]+)", row.text("also_reported"))
    found = reference(row, job)
    if minutes is None or found is None or row.measured is None or job.cluster.count == 1:
        return False
    share = row.measured * float(minutes[1]) * 60.0 / found.sequences
    return abs(math.log(share * job.cluster.count)) < abs(math.log(share))
