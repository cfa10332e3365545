"""A process that answers one question after another, within bounds of memory and files, and tells how far it is."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ridgeline.api.answer import Answer
from ridgeline.api.progress import Watcher, watcher
from ridgeline.api.refusals import defect, refusal
from ridgeline.api.verb import ask
from ridgeline.errors import InputError, RidgelineError
from ridgeline.web.asking import WebQuestion, command_of, word_at_fault
from ridgeline.web.forms import EXAMPLE

_BETWEEN_S = 0.1  # of two messages about progress
_DEFECT = 70
_HEADLINES = 60


class Superseded(BaseException):
    """Whoever asked has gone, or asks something else; no handler of errors takes it for one."""


class PipeWatcher(Watcher):
    """Tells progress through a pipe, and stops the work where `stop` is set."""

    def __init__(self, send: Callable[[dict[str, Any]], None], stop: Any) -> None:
        self._send, self._stop, self._last_s = send, stop, 0.0

    def _told(self, text: str, share: float | None, *, now: bool = False) -> None:
        if self._stop.is_set():
            raise Superseded
        if now or time.monotonic() - self._last_s > _BETWEEN_S:
            self._last_s = time.monotonic()
            self._send({"event": "progress", "text": text, "share": share})

    @contextmanager
    def bar(self, words: str) -> Iterator[Callable[[int, int], None] | None]:
        """A block that says how many of how many are done."""
        self._told(words, None, now=True)
        yield lambda done, total: self._told(words, done / total if total else None)

    @contextmanager
    def busy(self, words: str) -> Iterator[None]:
        """A block that does not know how much is left."""
        self._told(words, None, now=True)
        yield

    @contextmanager
    def steps(self, words: str) -> Iterator[Callable[[str, float], None]]:
        """Work that names its steps."""
        yield lambda text, share: self._told(f"{words}: {text}", share)

    def tell(self, text: str) -> None:
        """A line about the work."""
        self._told(text, None, now=True)


def work(pipe: Any, stop: Any, folder: str, memory_bytes: int) -> None:
    """Answers questions from a pipe until it closes; `memory_bytes` may be taken beside what the libraries hold."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the server's
    os.chdir(folder)
    _told(ask("predict", **EXAMPLE), WebQuestion(verb="predict", words=EXAMPLE))
    _bound(memory_bytes)
    from ridgeline.web.guard import guard

    sys.addaudithook(guard(Path(folder)))
    watcher.set(PipeWatcher(pipe.send, stop))
    pipe.send({"event": "ready"})
    while True:
        try:
            asked: WebQuestion = pipe.recv()
        except (EOFError, OSError):
            return
        pipe.send(answered(asked, Path(folder)))


def _bound(memory_bytes: int) -> None:
    """Bounds the address space, where the system can."""
    try:
        import resource

        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
        most = pages * resource.getpagesize() + memory_bytes
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
    except (ImportError, OSError, ValueError):
        return


def answered(asked: WebQuestion, folder: Path) -> dict[str, Any]:
    """The message that ends a question: 'answer', 'refused' or 'stopped'; its files lie in a folder of their own."""
    place = Path(tempfile.mkdtemp(dir=folder))
    began = time.perf_counter()
    try:
        for name, text in asked.files.items():
            (place / name).write_text(text, encoding="utf-8", errors="replace")
        os.chdir(place)
        given = {name: str(place / value) if value in asked.files else value for name, value in asked.words.items()}
        found = _told(ask(asked.verb, **given), asked)
        found["seconds"] = time.perf_counter() - began
    except Superseded:
        found = {"event": "stopped"}
    except MemoryError:
        error = InputError("needs more memory than this app allows; ask for less, or start it with a larger --memory")
        found = refused(error, asked)
    except RecursionError:
        found = refused(InputError("is nested too deeply"), asked)
    except RidgelineError as error:
        found = refused(error, asked)
    except Exception as error:
        found = {"event": "refused", **defect(error, _DEFECT), "word": ""}
    finally:
        os.chdir(folder)
        shutil.rmtree(place, ignore_errors=True)
    whole: dict[str, Any] = json.loads(json.dumps(found).replace(json.dumps(f"{place}{os.sep}")[1:-1], ""))
    return whole


def refused(error: RidgelineError, asked: WebQuestion) -> dict[str, Any]:
    """An error as a message that names the word of the page at fault."""
    told = refusal(error)
    return {"event": "refused", **told, "word": word_at_fault(told, asked)}


def _told(answer: Answer, asked: WebQuestion) -> dict[str, Any]:
    return {
        "event": "answer", "html": answer.body(), "numbers": headlines(answer.as_dict()),
        "impossible": answer.impossible, "aside": answer.aside, "command": command_of(asked),
    }  # fmt: skip


def headlines(told: Any) -> list[dict[str, Any]]:
    """The first numbers of an answer, or of the best of several, to compare: name, value, interval, unit."""
    if isinstance(told, dict) and isinstance(told.get("best"), list) and told["best"]:
        told = told["best"][0]
    found = []
    for name, value in told.items() if isinstance(told, dict) else ():
        one = value if isinstance(value, dict) and "value" in value else {"value": value}
        number = one["value"]
        if isinstance(number, int | float) and not isinstance(number, bool):
            entry = {"name": name, "value": number, "unit": one.get("unit", "")}
            found.append(entry | {key: one[key] for key in ("low", "high") if one.get(key) is not None})
    return found[:_HEADLINES]
