"""Questions answered in processes of their own, each within limits of time, memory, files and size.

What talks to strangers (agents, pages) asks here: a process that runs out of its time is ended, and a new one takes
its place. Processes are started ahead and stay warm between questions.
"""

from __future__ import annotations

import json
import multiprocessing
import queue
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Lock
from typing import Any

from ridgeline.api.answer import Answer
from ridgeline.api.confined import STOP, Form, answer_all
from ridgeline.api.refusals import refusal
from ridgeline.errors import InputError, LimitError
from ridgeline.units import parse

Told = Callable[[str, float | None], None]
"""Is told of progress: what is done now, and which share of it is [1] (None: not known)."""
_LOOK_S = 0.05  # between looks at the clock; chosen
_WAIT_S = 0.5  # between two tellings that no process is free; chosen
_START_S = 120.0  # for a process to import what it needs and to answer the example
_GRACE_S = 0.3  # for a question that is stopped to end by itself; chosen
_LARGEST = 64 << 20  # bytes of one answer
_GIB = 1 << 30
_starting = Lock()


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What one question may take: `seconds` [s], `memory_bytes` [byte], and files under `root` alone.

    So many `processes` answer at a time, and so many questions may be `waiting`; `outside` is said of other files.
    """

    root: Path
    seconds: float = 120.0
    memory_bytes: int = 8 * _GIB
    processes: int = 2
    waiting: int = 16
    outside: str = "outside the folder given at the start; say a path inside it"


def memory_limit(text: str) -> int:
    """A bound of memory as a person writes it [byte]; raises `InputError` for one that no answer fits in."""
    memory_bytes = round(parse(text, "byte"))
    if memory_bytes < _GIB:
        raise InputError("is too little to answer; say at least 1GiB", field="--memory", value=text)
    return memory_bytes


def as_json(answer: Answer) -> dict[str, Any]:
    """An answer as `--json` prints it, and why nothing fits."""
    return {"answer": answer.as_dict(), "impossible": answer.impossible}


class Answerers:
    """Some processes that answer questions, one question each at a time; a context that starts and ends them.

    `form` is what they send of an answer: a function of a module, which they import.
    """

    def __init__(self, limits: Limits, form: Form = as_json) -> None:
        self.limits, self._form = limits, form
        self._free: queue.LifoQueue[_Process] = queue.LifoQueue()
        self._all: list[_Process] = []
        self._waiting, self._closed = 0, False

    def ask(
        self, verb: str, words: Mapping[str, Any], told: Told = lambda text, share: None, stop: Event | None = None,
        folder: Path | None = None,
    ) -> dict[str, Any]:  # fmt: skip
        """What `form` makes of the answer, or `refused` alone, as `--json` prints it.

        It never raises for what was asked. `stop` ends the question from another thread; `folder` is where its relative
        paths begin (None: the root).
        """
        one, stop = None, stop or Event()
        try:
            one = self._taken(told, stop)
            return one.ask([verb, dict(words), str(folder or self.limits.root)], told, stop)
        except LimitError as error:
            return {"refused": refusal(error)}
        except _StoppedError:
            return {"refused": refusal(LimitError("stopped by the one who asked"))}
        finally:
            if one is not None:
                self._back(one)

    def _taken(self, told: Told, stop: Event) -> _Process:
        if self._waiting >= self.limits.waiting:
            raise LimitError("too many questions wait already; ask again in a moment")
        until = time.monotonic() + self.limits.seconds
        self._waiting += 1
        try:
            while not (stop.is_set() or self._closed):
                with suppress(queue.Empty):
                    one = self._free.get(timeout=_WAIT_S)
                    if one.alive:
                        return one
                    self._back(one)  # it was ended by others while it had nothing to do
                    continue
                if time.monotonic() > until:
                    raise LimitError("all processes are at work; ask again later")
                told("waiting for a free process", None)
            raise _StoppedError
        finally:
            self._waiting -= 1

    def _back(self, one: _Process) -> None:
        """A process that is free again, or a new one in its place."""
        if not one.alive:
            self._all.remove(one)
            self._start()
        else:
            self._free.put(one)

    def _start(self) -> None:
        if not self._closed:
            one = _Process(self.limits, self._form)
            self._all.append(one)
            self._free.put(one)

    def __enter__(self) -> Answerers:
        for _ in range(self.limits.processes):
            self._start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed = True
        for one in tuple(self._all):
            one.end()


class _StoppedError(Exception):
    """Of a question that nobody wants answered any more."""


class _Process:
    """One process and the pipe to it."""

    def __init__(self, limits: Limits, form: Form) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._limits, self._ready = limits, False
        self._process = context.Process(target=answer_all, args=(theirs, limits, form), daemon=True)
        with _starting, without_main():
            self._process.start()
        theirs.close()

    @property
    def alive(self) -> bool:
        """Whether it takes questions."""
        return self._process.is_alive()

    def ask(self, question: list[Any], told: Told, stop: Event) -> dict[str, Any]:
        """The answer; raises `LimitError` where there is none, and ends the process that takes too long."""
        asked = False
        try:
            if not self._ready:
                self._next(time.monotonic() + _START_S, stop)
                self._ready = True
            self._pipe.send_bytes(json.dumps(question).encode())
            asked = True
            return self._heard(told, stop)
        except LimitError:
            self.end()
            raise
        except (EOFError, OSError, ValueError):
            self.end()
            gib = self._limits.memory_bytes / _GIB
            said = f"the process that answered ended; it may have needed more than {gib:g} GiB; ask for less"
            raise LimitError(said) from None
        except BaseException:  # it is stopped, or whoever is told of progress has gone
            if asked:
                self._settle()
            raise

    def end(self) -> None:
        """Ends the process."""
        self._process.kill()
        self._process.join()

    def _settle(self) -> None:
        """A question that is stopped ends by itself within moments, or with its process."""
        try:
            self._pipe.send_bytes(STOP)
            until = time.monotonic() + _GRACE_S
            while self._next(until, Event())[0] != "answer":
                pass
        except (LimitError, EOFError, OSError, ValueError):
            self.end()

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
                raise _StoppedError
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
