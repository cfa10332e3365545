"""The process that judges one candidate: reads a request, writes an answer (`python -m ridgeline.judge.child`)."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from ridgeline.errors import RidgelineError
from ridgeline.judge.verdict import JudgeSettings, Verdict, as_dict


def judge_kernel(path: str, candidate: str, settings: JudgeSettings) -> Verdict:
    """Executes a kernel file in this process and judges one of its candidates."""
    from ridgeline.judge import clock
    from ridgeline.judge.guards import Snapshot, one_thread, warm_up
    from ridgeline.judge.judge import Judge
    from ridgeline.judge.kernel_file import cases, load_kernel

    warm_up()
    snapshot = Snapshot()
    kernel = load_kernel(path, candidate)
    judge = Judge(kernel=kernel, snapshot=snapshot, device=settings.device)
    with one_thread():
        judge.ask_all()
    timings: dict[str, Any] = {}
    largest = next(case for case in cases(kernel, settings.device) if case.size == kernel.sizes[-1])
    if not judge.findings and settings.repeats:
        ours, theirs = clock.time_candidate(judge, largest, settings)
        timings = {"candidate_time": ours, "eager_time": theirs, "roof": clock.roof(judge, largest, settings)}
        clock.check_content_time(judge, largest, ours, settings)
        if settings.compiled:
            timings["compiled_time"] = clock.time_compiled(judge, largest, settings)
    return Verdict(
        file=path,
        candidate=candidate,
        findings=tuple(judge.findings.values()),
        cases=judge.asked,
        timed_size=f"{largest.size}, {largest.dtype}" if timings else "",
        remarks=tuple(judge.remarks),
        **timings,
    )


def main(request: str, answer: str) -> None:
    """Judges what the file `request` asks and writes the verdict, or why there is none, to the file `answer`."""
    asked = json.loads(Path(request).read_text(encoding="utf-8"))
    told: dict[str, Any]
    try:
        told = {"verdict": as_dict(judge_kernel(asked["file"], asked["candidate"], JudgeSettings(**asked["settings"])))}
    except RidgelineError as error:
        told = {"refused": str(error)}
    Path(answer).write_text(json.dumps(told), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:3])
