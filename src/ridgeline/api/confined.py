"""The life of a process that answers for strangers: it limits itself, then answers one question after another."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

from ridgeline.api.answer import Answer
from ridgeline.api.guard import confine, refuse_outside
from ridgeline.api.progress import Watcher, watcher
from ridgeline.api.refusals import defect, refusal
from ridgeline.api.verb import ask
from ridgeline.errors import InputError, LimitError, RidgelineError

if TYPE_CHECKING:
    from ridgeline.api.bounded import Limits

Form = Callable[[Answer], dict[str, Any]]
EXAMPLE = {"subject": "llama-3.1-8b", "on": "8xH100-SXM", "zero": "3", "micro_batch": "1"}
"""What a process asks as it starts, so that a first question is answered quickly."""
STOP = b"null"
"""What a process hears in place of a question where the one it answers is wanted no more."""
_EVERY_S = 0.1  # between two tellings of progress; chosen
_IDLE_S = 1.0  # without a question, until the compiler is loaded ahead; chosen


class _SupersededError(BaseException):
    """Whoever asked has gone, or asks something else; no handler of errors takes it for one."""


class _Teller(Watcher):
    """Sends progress through the pipe, a few times a second, and ends the work where something else is asked."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe, self._last_s = pipe, 0.0

    def _say(self, text: str, share: float | None, *, now: bool = False) -> None:
        if now or time.monotonic() - self._last_s >= _EVERY_S:
            if self._pipe.poll():
                raise _SupersededError
            self._last_s = time.monotonic()
            _send(self._pipe, ["progress", text, share])

    @contextmanager
    def bar(self, words: str) -> Iterator[Callable[[int, int], None] | None]:
        """Counts as shares."""
        self._say(words, None, now=True)
        yield lambda done, total: self._say(words, done / total if total else None)

    @contextmanager
    def busy(self, words: str) -> Iterator[None]:
        """One line at the start."""
        self._say(words, None, now=True)
        yield

    @contextmanager
    def steps(self, words: str) -> Iterator[Callable[[str, float], None]]:
        """Each step."""
        yield lambda text, share: self._say(f"{words}: {text}", share)

    def tell(self, text: str) -> None:
        """A line."""
        self._say(text, None, now=True)


def _send(pipe: Connection, message: list[Any]) -> None:
    pipe.send_bytes(json.dumps(message, allow_nan=False).encode())


def answer_all(pipe: Connection, limits: Limits, form: Form) -> None:
    """The life of a process: it limits itself, then answers until the pipe is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is of the program that started it
    os.dup2(2, 1)  # nothing printed here may reach what is spoken on standard output
    os.chdir(limits.root)
    form(ask("predict", **EXAMPLE))
    with suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (limits.memory_bytes, limits.memory_bytes))
    confine(limits.root, limits.outside)
    watcher.set(_Teller(pipe))
    with suppress(EOFError, OSError):
        _send(pipe, ["ready"])
        if not pipe.poll(_IDLE_S):
            with suppress(Exception):  # an answer can do without
                import numba  # noqa: F401  (for loops that are compiled: later it would delay an answer)
        while True:
            asked = pipe.recv_bytes()
            if asked == STOP:  # of a question that ended before
                continue
            try:
                _send(pipe, ["answer", _answered(json.loads(asked), limits, form)])
            except ValueError as error:  # a number that JSON has none of
                _send(pipe, ["answer", {"refused": defect(error, 70)}])


def _answered(question: list[Any], limits: Limits, form: Form) -> dict[str, Any]:
    verb, words, folder = question
    try:
        os.chdir(folder)
        refuse_outside(words, limits.root, limits.outside)
        return form(ask(verb, **words))
    except _SupersededError:
        return {}
    except RecursionError:
        return {"refused": refusal(InputError("is nested too deeply"))}
    except RidgelineError as error:
        return {"refused": refusal(error)}
    except MemoryError:
        said = f"needs more than {limits.memory_bytes / 2**30:g} GiB; ask for less, or start with a larger --memory"
        return {"refused": refusal(LimitError(said))}
    except Exception as error:  # a defect, or a file that the guard refused where nobody expects it
        return {"refused": defect(error, 70)}
    finally:
        os.chdir(limits.root)
