"""Answers for the page: questions and their files to processes within bounds, what they tell to messages."""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from threading import Event
from typing import Any

from ridgeline.api.answer import Answer
from ridgeline.api.bounded import Answerers, Limits, Told
from ridgeline.api.refusals import defect, refusal
from ridgeline.errors import RidgelineError
from ridgeline.web.asking import WebQuestion, command_of, word_at_fault

_HEADLINES = 60
_DEFECT = 70
_COUNTS = frozenset(
    {"idle_devices", "refused", "preemptions", "moves", "adapter_loads", "loans", "merges", "failures", "starts"}
)


def page_form(answer: Answer) -> dict[str, Any]:
    """An answer as the page shows it, and the numbers that it compares."""
    return {
        "event": "answer", "html": answer.body(), "numbers": headlines(answer.as_dict()),
        "impossible": answer.impossible, "aside": answer.aside,
    }  # fmt: skip


class PageAnswers:
    """Answers questions of the page; a context that starts and ends the processes."""

    def __init__(self, limits: Limits) -> None:
        self._root = limits.root
        self._answerers = Answerers(limits, page_form)
        self._threads = ThreadPoolExecutor(limits.processes + limits.waiting + 1)

    async def messages(self, asked: WebQuestion) -> AsyncIterator[dict[str, Any]]:
        """Messages about a question, the last one 'answer' or 'refused'; it is stopped where nobody reads on."""
        loop, stop = asyncio.get_running_loop(), Event()
        heard: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

        def _hear(message: dict[str, Any]) -> None:
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(heard.put_nowait, message)

        def _progress(text: str, share: float | None) -> None:
            _hear({"event": "progress", "text": text, "share": share})

        self._threads.submit(lambda: _hear(self._answered(asked, _progress, stop)))
        try:
            message: dict[str, Any] = {"event": "progress"}
            while message["event"] == "progress":
                message = await heard.get()
                yield message
        finally:
            stop.set()

    def _answered(self, asked: WebQuestion, told: Told, stop: Event) -> dict[str, Any]:
        """The message that ends a question, whose files lie in a folder of their own as long as it takes."""
        began = time.perf_counter()
        try:
            with tempfile.TemporaryDirectory(dir=self._root) as made:
                place = Path(made)
                for name, text in asked.files.items():
                    (place / name).write_text(text, encoding="utf-8", errors="replace")
                words = {key: str(place / word) if word in asked.files else word for key, word in asked.words.items()}
                found = self._answerers.ask(asked.verb, words, told, stop, place)
            found = json.loads(json.dumps(found).replace(json.dumps(f"{place}{os.sep}")[1:-1], ""))
        except Exception as error:
            found = {"refused": defect(error, _DEFECT)}
        if "refused" in found:
            return told_refused(found["refused"], asked)
        return {**found, "command": command_of(asked), "seconds": time.perf_counter() - began}

    def __enter__(self) -> PageAnswers:
        self._answerers.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._answerers.__exit__()
        self._threads.shutdown(wait=False, cancel_futures=True)


def told_refused(told: RidgelineError | dict[str, Any], asked: WebQuestion | None = None) -> dict[str, Any]:
    """A refusal as a message that names the word of the page at fault."""
    said = refusal(told) if isinstance(told, RidgelineError) else told
    word = str(said.get("field") or "") if asked is None else word_at_fault(said, asked)
    return {"event": "refused", **said, "word": word}


def headlines(told: Any) -> list[dict[str, Any]]:
    """The first numbers of an answer, or of the best of several, to compare: name, value, interval, unit.

    Latencies of traffic and what advice comes to stand first; counts of what did not happen are left out.
    """
    if isinstance(told, dict) and isinstance(told.get("best"), list) and told["best"]:
        told = told["best"][0]
    if not isinstance(told, dict):
        return []
    if "stack_gain" in told:
        told = {"now": {**told, "value": told["value"]}, "best": {**told, "value": told["best"]}}
    found = []
    for name, value in {**_latencies(told), **told}.items():
        one = value if isinstance(value, dict) and "value" in value else {"value": value}
        number = one["value"]
        if isinstance(number, int | float) and not isinstance(number, bool) and not (number == 0 and name in _COUNTS):
            entry = {"name": name, "value": number, "unit": one.get("unit", "")}
            found.append(entry | {key: one[key] for key in ("low", "high") if one.get(key) is not None})
    return found[:_HEADLINES]


def _latencies(told: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Times of requests by statistic, with their intervals [s]."""
    found = {}
    for name, (low, high) in (told.get("intervals") or {}).items():
        kind, _, statistic = name.partition("_")
        times = told.get(kind)
        if isinstance(times, dict) and statistic in times:
            found[name] = {"value": times[statistic], "low": low, "high": high, "unit": "s"}
    middle = [name for name in found if name.endswith("p50_s")]
    return {name: found[name] for name in (*middle, *found)}
