"""Questions answered in processes of their own, each within limits of time, memory, files and size.

What talks to strangers (agents, pages) asks here: a process that runs out of its time is ended, and a new one takes
its place. Processes stay warm between questions.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import queue
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Event, Lock
from typing import Any

from ridgeline.api.guard import confine, refuse_outside
from ridgeline.api.progress import Watcher, watcher
from ridgeline.api.refusals import defect, refusal
from ridgeline.errors import LimitError, RidgelineError

Told = Callable[[str, float | None], None]
"""Is told of progress: what is done now, and which share of it is [1] (None: not known)."""

_LOOK_S = 0.05  # between looks at the clock; chosen
_START_S = 60.0  # for a process to import what it needs
_EVERY_S = 0.2  # between two tellings of progress
_LARGEST = 64 << 20  # bytes of one answer
_GIB = 1 << 30
_starting = Lock()


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What one question may take: `seconds` [s], `memory_bytes` [byte], and files under `root` alone."""

    root: Path
    seconds: float = 120.0
    memory_bytes: int = 8 * _GIB
    processes: int = 2


class Answerers:
    """Some processes that answer questions, one question each at a time; a context that ends them."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._free: queue.LifoQueue[_Process | None] = queue.LifoQueue()
        self._all: list[_Process] = []
        for _ in range(limits.processes):
            self._free.put(None)

    def ask(
        self, verb: str, words: Mapping[str, Any], told: Told = lambda text, share: None, stop: Event | None = None
    ) -> dict[str, Any]:
        """The answer: `answer` (as JSON holds it) and `impossible`, or `refused` alone, as `--json` prints it.

        It never raises for what was asked. `stop` ends the question from another thread.
        """
        try:
            one = self._free.get(timeout=self.limits.seconds)
        except queue.Empty:
            return {"refused": refusal(LimitError("all processes are at work; ask again later"))}
        try:
            if one is None or not one.alive:
                one = _Process(self.limits)
                self._all.append(one)
            return one.ask(verb, words, told, stop or Event())
        finally:
            if one is not None and not one.alive and one in self._all:
                self._all.remove(one)
            self._free.put(one if one is not None and one.alive else None)

    def __enter__(self) -> Answerers:
        return self

    def __exit__(self, *_: object) -> None:
        for one in self._all:
            one.end()


class _Process:
    """One process and the pipe to it."""

    def __init__(self, limits: Limits) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._limits, self._ready = limits, False
        self._process = context.Process(target=_answer_all, args=(theirs, limits), daemon=True)
        with _starting, without_main():
            self._process.start()
        theirs.close()

    @property
    def alive(self) -> bool:
        """Whether it takes questions."""
        return self._process.is_alive()

    def ask(self, verb: str, words: Mapping[str, Any], told: Told, stop: Event) -> dict[str, Any]:
        """The answer, or why there is none; the process is ended where it takes too long."""
        try:
            self._wait_until_ready(stop)
            self._pipe.send_bytes(json.dumps([verb, dict(words)]).encode())
            return self._heard(told, stop)
        except LimitError as error:
            self.end()
            return {"refused": refusal(error)}
        except (EOFError, OSError, ValueError):
            self.end()
            gib = self._limits.memory_bytes / _GIB
            said = f"the process that answered ended; it may have needed more than {gib:g} GiB; ask for less"
            return {"refused": refusal(LimitError(said))}
        except BaseException:  # whoever is told of progress has gone: what it works at is wanted no more
            self.end()
            raise

    def end(self) -> None:
        """Ends the process."""
        self._process.kill()
        self._process.join()
        self._pipe.close()

    def _wait_until_ready(self, stop: Event) -> None:
        if not self._ready:
            self._next(time.monotonic() + _START_S, stop)
            self._ready = True

    def _heard(self, told: Told, stop: Event) -> dict[str, Any]:
        until = time.monotonic() + self._limits.seconds
        while True:
            kind, *rest = self._next(until, stop)
            if kind == "answer":
                found: dict[str, Any] = rest[0]
                return found
            told(*rest)

    def _next(self, until: float, stop: Event) -> list[Any]:
        while not self._pipe.poll(_LOOK_S):
            if stop.is_set():
                raise LimitError("stopped by the one who asked")
            if time.monotonic() > until:
                raise LimitError(
                    f"took longer than {self._limits.seconds:g} s; ask for less (fewer devices, techniques, requests), "
                    "or start with a longer --limit"
                )
        heard: list[Any] = json.loads(self._pipe.recv_bytes(_LARGEST))
        return heard


@contextmanager
def without_main() -> Iterator[None]:
    """New processes do not run the program's main module again: they need this module alone."""
    main = sys.modules["__main__"]
    kept: dict[str, Any] = {name: vars(main).pop(name) for name in ("__file__", "__spec__") if name in vars(main)}
    main.__spec__ = None
    try:
        yield
    finally:
        vars(main).update(kept)


class _Teller(Watcher):
    """Sends progress through the pipe, a few times a second."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe, self._last_s = pipe, 0.0

    def _say(self, text: str, share: float | None) -> None:
        now = time.monotonic()
        if now - self._last_s >= _EVERY_S:
            self._last_s = now
            _send(self._pipe, ["progress", text, share])

    @contextmanager
    def bar(self, words: str) -> Iterator[Callable[[int, int], None] | None]:
        """Counts as shares."""
        yield lambda done, total: self._say(words, done / total if total else None)

    @contextmanager
    def busy(self, words: str) -> Iterator[None]:
        """One line at the start."""
        self._say(words, None)
        yield

    @contextmanager
    def steps(self, words: str) -> Iterator[Callable[[str, float], None]]:
        """Each step."""
        yield self._say

    def tell(self, text: str) -> None:
        """A line."""
        self._say(text, None)


def _send(pipe: Connection, message: list[Any]) -> None:
    pipe.send_bytes(json.dumps(message, allow_nan=False).encode())


def _answer_all(pipe: Connection, limits: Limits) -> None:
    """The life of a process: it limits itself, then answers until the pipe is closed."""
    os.dup2(2, 1)  # nothing printed here may reach what is spoken on standard output
    os.chdir(limits.root)
    from ridgeline.api import asking, options, planning  # noqa: F401  (loaded before the first question)

    with suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (limits.memory_bytes, limits.memory_bytes))
    confine(limits.root)
    watcher.set(_Teller(pipe))
    _send(pipe, ["ready"])
    with suppress(EOFError, OSError, KeyboardInterrupt):
        while True:
            verb, words = json.loads(pipe.recv_bytes())
            found = _answered(verb, words, limits)
            try:
                _send(pipe, ["answer", found])
            except ValueError as error:  # a number that JSON has none of
                _send(pipe, ["answer", {"refused": defect(error, 70)}])


def _answered(verb: str, words: dict[str, Any], limits: Limits) -> dict[str, Any]:
    from ridgeline.api.verb import ask

    try:
        refuse_outside(words, limits.root)
        answer = ask(verb, **words)
        return {"answer": answer.as_dict(), "impossible": answer.impossible}
    except RidgelineError as error:
        return {"refused": refusal(error)}
    except MemoryError:
        return {"refused": refusal(LimitError(f"needs more than {limits.memory_bytes / _GIB:g} GiB; ask for less"))}
    except Exception as error:  # a defect, or a file that the guard refused where nobody expects it
        return {"refused": defect(error, 70)}
