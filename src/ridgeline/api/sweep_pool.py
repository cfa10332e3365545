"""The cases of a sweep, answered by processes here or by a Ray cluster; a case that ends its process costs itself."""

from __future__ import annotations

import multiprocessing
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from typing import Any, Protocol

from ridgeline.api.bounded import without_main
from ridgeline.api.refusals import defect, refusal
from ridgeline.api.sweep_file import Sweep, SweepCase
from ridgeline.errors import InputError, LimitError, RidgelineError
from ridgeline.units import time_text

Row = dict[str, Any]
Batch = Sequence[SweepCase]
Keep = Callable[[list[Row]], None]
_AGAIN_S = 0.05  # between signals to a case that is over its time; chosen
_LARGEST_BATCH, _BATCHES = 64, 16  # cases sent at once, batches a process is given; chosen
_DESCRIPTIONS = frozenset({"model", "cluster", "workload"})  # of an answer: what was asked, not what was found


class SweepPool(Protocol):
    """What answers batches: processes here, or others elsewhere."""

    def submit(self, function: Callable[..., list[Row]], /, *arguments: Any) -> Future[list[Row]]:
        """The rows to come of a batch."""

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Ends it."""


class RayPool:
    """The processes of a Ray cluster; raises `InputError` where Ray is not there."""

    def __init__(self, address: str, processes: int) -> None:
        try:
            import ray
        except ImportError:
            raise InputError("needs Ray; `pip install ridgeline[ray]`", field="--ray") from None
        local: dict[str, Any] = {"num_cpus": processes, "include_dashboard": False}
        more = local if address == "local" else {"address": address}
        ray.init(log_to_driver=False, logging_level="error", **more)
        self._ray, self._answer = ray, ray.remote(answers)

    def submit(self, function: Callable[..., list[Row]], /, *arguments: Any) -> Future[list[Row]]:
        """The rows to come of a batch."""
        coming: Future[list[Row]] = self._answer.remote(*arguments).future()
        return coming

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Leaves the cluster."""
        self._ray.shutdown()


def processes_of(count: int) -> SweepPool:
    """A pool of processes here."""
    return ProcessPoolExecutor(count, mp_context=multiprocessing.get_context("spawn"), initializer=_begin)


def _begin() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the one who asked stops, and ends the others


def run(sweep: Sweep, cases: Batch, make: Callable[[int], SweepPool], count: int, keep: Keep) -> None:
    """Answers cases by `count` processes; `keep` gets rows as they come, in any order."""
    waiting = deque(_batches(cases, count))
    with without_main():
        while waiting:
            pool = make(min(count, len(waiting)))
            try:
                lost = _drain(pool, sweep, waiting, count, keep)
            finally:
                pool.shutdown(wait=False, cancel_futures=True)
            _one_by_one(sweep, lost, make, keep)


def _batches(cases: Batch, count: int) -> Iterator[Batch]:
    size = max(1, min(_LARGEST_BATCH, len(cases) // (count * _BATCHES)))
    return (cases[first : first + size] for first in range(0, len(cases), size))


def _drain(pool: SweepPool, sweep: Sweep, waiting: deque[Batch], count: int, keep: Keep) -> list[SweepCase]:
    """Cases whose batch was lost because a process ended; none where all that waited is answered."""
    running: dict[Future[list[Row]], Batch] = {}
    lost: list[SweepCase] = []
    while (waiting or running) and not lost:
        while waiting and len(running) < 2 * count:
            batch = waiting.popleft()
            try:
                running[_sent(pool, sweep, batch)] = batch
            except BrokenExecutor:
                lost += batch
                break
        for one in wait(running, return_when=FIRST_COMPLETED).done if running else ():
            batch = running.pop(one)
            try:
                keep(one.result())
            except BrokenExecutor:
                lost += batch
    return [*lost, *(case for batch in running.values() for case in batch)]


def _one_by_one(sweep: Sweep, cases: Batch, make: Callable[[int], SweepPool], keep: Keep) -> None:
    """Answers cases of which one ended its process, each alone, and tells of the one."""
    pool: SweepPool | None = None
    for case in cases:
        pool = pool or make(1)
        try:
            keep(_sent(pool, sweep, [case]).result())
        except BrokenExecutor:
            pool.shutdown(wait=False)
            pool = None
            said = LimitError("the process that answered ended; it may have needed more memory than there is")
            keep([_row(case, "refused", refusal(said), 0.0)])
    if pool is not None:
        pool.shutdown(wait=False)


def _sent(pool: SweepPool, sweep: Sweep, batch: Batch) -> Future[list[Row]]:
    return pool.submit(answers, sweep.verb, dict(sweep.words), sweep.columns, sweep.limit_s, list(batch))


def answers(
    verb: str, words: Mapping[str, Any], columns: tuple[str, ...], limit_s: float | None, batch: Batch
) -> list[Row]:
    """The rows of a batch: it runs in another process, and never raises for what was asked."""
    return [_answered(verb, {**words, **case.words}, columns, case, limit_s) for case in batch]


def _answered(
    verb: str, words: Mapping[str, Any], columns: tuple[str, ...], case: SweepCase, limit_s: float | None
) -> Row:
    from ridgeline.api.verb import ask

    begun_s = time.perf_counter()
    try:
        with _within(limit_s):
            answer = ask(verb, **words)
            found = answer.as_dict()
        values = {path: _at(found, path) for path in columns} if columns else dict(flat(found))
        status = "answered" if answer.impossible is None else "impossible"
        told = {"values": values, "error": answer.impossible}
    except _TooLongError:
        status, told = "refused", refusal(LimitError(f"took longer than {time_text(limit_s or 0.0)}"))
    except RidgelineError as error:
        status, told = ("impossible" if error.exit_code == 1 else "refused"), refusal(error)
    except MemoryError:
        status, told = "refused", refusal(LimitError("needs more memory than there is"))
    except Exception as error:  # a defect in one case leaves the others
        status, told = "refused", defect(error, 70)
    return _row(case, status, told, time.perf_counter() - begun_s)


class _TooLongError(BaseException):
    """A case is over its time; no handler of errors on the way takes it for its own."""


@contextmanager
def _within(limit_s: float | None) -> Iterator[None]:
    """Raises after some seconds, where the system has signals; a solver's one call is waited for."""
    if limit_s is None or threading.current_thread() is not threading.main_thread() or not hasattr(signal, "SIGALRM"):
        yield
        return

    inside = True

    def stop(*_: Any) -> None:
        if inside:
            raise _TooLongError

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, limit_s, _AGAIN_S)  # what is raised inside a callback is lost
    try:
        yield
    finally:
        inside = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _row(case: SweepCase, status: str, told: Mapping[str, Any], seconds: float) -> Row:
    kept = ("values", "error", "field", "nearest")
    return {
        "key": case.key, "number": case.number, "status": status, "seconds": round(seconds, 6),
        **{name: told[name] for name in kept if told.get(name)},
    }  # fmt: skip


def flat(answer: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """The numbers and words of an answer by path: of an estimate its interval and evidence beside the value, of a
    search the best, no lists."""
    for key, value in answer.items() if isinstance(answer, dict) else ():
        if isinstance(value, dict) and {"value", "unit", "evidence"} <= value.keys():
            yield path + key, value["value"]
            ends = ("low", "high", "evidence")
            yield from ((f"{path}{key}_{end}", value[end]) for end in ends if value.get(end) is not None)
        elif isinstance(value, dict) and key not in _DESCRIPTIONS and not path:
            yield from flat(value, f"{key}.")
        elif key in ("best", "rows") and isinstance(value, list) and value:
            yield from flat(value[0])
        elif isinstance(value, str | int | float) and value != "":
            yield path + key, value


def _at(answer: Any, path: str) -> Any:
    """What stands at a dotted path; None where nothing does."""
    for step in path.split("."):
        if isinstance(answer, list) and step.isdecimal() and int(step) < len(answer):
            answer = answer[int(step)]
        elif isinstance(answer, dict):
            answer = answer.get(step)
        else:
            return None
    return answer
