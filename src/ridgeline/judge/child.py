"""The process that judges one candidate: reads a request, writes an answer (`python -m ridgeline.judge.child`)."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from ridgeline.errors import RidgelineError
from ridgeline.judge.judge import outputs
from ridgeline.judge.kernel_file import Case, KernelFile
from ridgeline.judge.verdict import Finding, JudgeSettings, Verdict, as_dict

SMALL = 0.01  # range or deviation below which a loose absolute tolerance lets a constant pass


def task_weaknesses(kernel: KernelFile, cases: list[Case]) -> Iterator[str]:
    """Why a wrong candidate might pass a task with fixed tolerances, in phrases; cases of random contents are asked.

    The filters of robust-kbench: all outputs near 0; outputs that hardly vary at all, or along one axis; an input
    that changes nothing; the same outputs for other contents. The judge's own tolerance is relative to the outputs, so
    that it still tells such candidates; a benchmark's may not.
    """
    results = [outputs(kernel.reference(*one.build())) for one in cases[:2]]
    for place, one in enumerate(results[0]):
        if not one.is_floating_point() or not one.numel():
            continue
        name, wide = f"task: output {place}", one.to(torch.float64)
        if float(wide.abs().max()) < SMALL:
            yield f"{name} lies within {SMALL:g} of 0: zeros pass an absolute tolerance of that"
        if one.numel() > 1 and float(wide.std()) < SMALL:
            yield f"{name} deviates by less than {SMALL:g}: a constant passes an absolute tolerance of that"
        else:
            for axis in range(wide.dim()):
                if wide.shape[axis] > 1 and float(wide.std(dim=axis).max()) < SMALL:
                    yield f"{name} hardly varies along axis {axis}: one slice passes for all"
        if len(results) > 1 and one.shape == results[1][place].shape and torch.equal(one, results[1][place]):
            yield f"{name} is the same for other contents: it can be computed beforehand"
    yield from _idle_inputs(kernel, cases[0], results[0])


def _idle_inputs(kernel: KernelFile, case: Case, usual: list[Any]) -> Iterator[str]:
    """Inputs that the reference's outputs do not hang on."""
    for place, one in enumerate(case.build()):
        if not isinstance(one, torch.Tensor) or not one.is_floating_point() or not one.dim():
            continue
        given = list(case.build())
        given[place] = one.flip(0) * 2 + 1
        found = outputs(kernel.reference(*given))
        if all(a.shape == b.shape and torch.equal(a, b) for a, b in zip(found, usual, strict=True)):
            yield f"task: input {place} changes no output: a candidate may leave it out"


def judge_kernel(path: str, candidate: str, settings: JudgeSettings, solution: str = "") -> Verdict:
    """Executes a kernel file in this process and judges one of its candidates; tells the weaknesses of the task."""
    from ridgeline.judge import clock
    from ridgeline.judge.guards import Snapshot, one_thread, warm_up
    from ridgeline.judge.judge import Judge
    from ridgeline.judge.kernel_file import cases, load_kernel

    warm_up()
    snapshot = Snapshot()
    from ridgeline.judge.module_task import unsolved

    kernel = load_kernel(path, candidate, solution)
    asked = list(cases(kernel, settings.device))
    weak = tuple(task_weaknesses(kernel, [one for one in asked if one.distribution == "random"]))
    if kernel.candidate is unsolved:
        return _unsolved(kernel, asked, settings, weak)
    judge = Judge(kernel=kernel, snapshot=snapshot, device=settings.device)
    with one_thread():
        judge.ask_all()
    timings: dict[str, Any] = {}
    largest = next(case for case in asked if case.size == kernel.sizes[-1])
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
        remarks=(*weak, *judge.remarks),
        **timings,
    )


def _unsolved(kernel: Any, asked: list[Any], settings: JudgeSettings, weak: tuple[str, ...]) -> Verdict:
    """A task that nobody solved: how long its reference takes, and its weaknesses."""
    from ridgeline.judge import clock

    found = Finding(name="unsolved", detail="there is no candidate; the reference alone was looked at")
    largest = next(case for case in asked if case.size == kernel.sizes[-1])
    spent = clock.time_reference(kernel, largest, settings) if settings.repeats else None
    told = f"{largest.size}, {largest.dtype}"
    weak = weak if spent is None else (*weak, f"the reference takes {1e3 * spent.median_s:.3g} ms")
    return Verdict(
        file=kernel.path, candidate=kernel.name, findings=(found,), cases=len(asked), eager_time=spent, remarks=weak,
        timed_size=told if spent else "",
    )  # fmt: skip


def main(request: str, answer: str) -> None:
    """Judges what the file `request` asks and writes the verdict, or why there is none, to the file `answer`."""
    asked = json.loads(Path(request).read_text(encoding="utf-8"))
    asked["settings"] = JudgeSettings(**asked["settings"])
    told: dict[str, Any]
    try:
        told = {"verdict": as_dict(judge_kernel(**asked))}
    except RidgelineError as error:
        told = {"refused": str(error)}
    Path(answer).write_text(json.dumps(told), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:3])
