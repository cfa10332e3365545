"""Worker processes behind the page: who is idle, who must stop, and what each tells."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import threading
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any

from ridgeline.errors import InputError
from ridgeline.web.asking import WebQuestion
from ridgeline.web.worker import refused, work

_BEAT_S = 0.5  # after which a silent question is told to be alive
_GRACE_S = 0.3  # for a superseded question to stop by itself
_START_S = 120  # for the libraries to load
_MOST_WAITING = 16
_ENDS = frozenset({"answer", "refused", "stopped", "died"})


@dataclass(frozen=True, kw_only=True)
class WebBounds:
    """What one question may take: seconds, bytes beside the libraries; and how many are answered at a time."""

    seconds: float = 120.0
    memory_bytes: int = 4 * 2**30
    workers: int = 2


class WebWorker:
    """One worker process and the queue of what it tells."""

    def __init__(self, bounds: WebBounds) -> None:
        context = get_context("spawn")
        self.folder = tempfile.mkdtemp(prefix="ridgeline-web-")
        self.told: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.stop = context.Event()
        self._pipe, theirs = context.Pipe()
        self._loop = asyncio.get_running_loop()
        self._process = context.Process(
            target=work, args=(theirs, self.stop, self.folder, bounds.memory_bytes), daemon=True
        )
        self._process.start()
        theirs.close()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        message: dict[str, Any] = {}
        while message.get("event") != "died":
            try:
                message = self._pipe.recv()
            except (EOFError, OSError):
                message = {"event": "died"}
            with suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self.told.put_nowait, message)

    def begin(self, asked: WebQuestion) -> None:
        """Hands it a question; it must be idle."""
        self.stop.clear()
        self._pipe.send(asked)

    async def ended(self, within_s: float) -> bool:
        """Whether it ends its question, or becomes ready, within so many seconds."""
        try:
            async with asyncio.timeout(within_s):
                while True:
                    event = (await self.told.get())["event"]
                    if event in _ENDS or event == "ready":
                        return bool(event != "died")
        except TimeoutError:
            return False

    def kill(self) -> None:
        """Ends the process at once."""
        self._process.kill()
        self._process.join(5)
        shutil.rmtree(self.folder, ignore_errors=True)


class WorkerPool:
    """A few workers; a question that is no longer wanted makes room for the next."""

    def __init__(self, bounds: WebBounds) -> None:
        self.bounds = bounds
        self._idle: asyncio.Queue[WebWorker] = asyncio.Queue()
        self._all: set[WebWorker] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._waiting, self._closed = 0, False

    def open(self) -> None:
        """Starts the workers; the first is idle when its libraries are loaded."""
        for _ in range(self.bounds.workers):
            self._later(self._start())

    def close(self) -> None:
        """Ends all of them."""
        self._closed = True
        for task in self._tasks:
            task.cancel()
        for worker in self._all:
            worker.kill()

    def _later(self, what: Any) -> None:
        task = asyncio.get_running_loop().create_task(what)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _start(self) -> None:
        worker = WebWorker(self.bounds)
        self._all.add(worker)
        if await worker.ended(_START_S):
            self._idle.put_nowait(worker)
        else:
            self._end(worker)

    def _end(self, worker: WebWorker) -> None:
        self._all.discard(worker)
        worker.kill()

    async def answers(self, asked: WebQuestion) -> AsyncIterator[dict[str, Any]]:
        """Messages about a question, the last one 'answer' or 'refused'; it is stopped where nobody reads on."""
        if self._waiting >= _MOST_WAITING:
            yield refused(InputError("too many questions wait already; ask again in a moment"), asked)
            return
        self._waiting += 1
        worker = None
        try:
            while worker is None:
                with suppress(TimeoutError):
                    worker = await asyncio.wait_for(self._idle.get(), _BEAT_S)
                if worker is None:
                    if not self._all:
                        yield refused(InputError("no worker starts; see the terminal of `ridgeline web`"), asked)
                        return
                    yield {"event": "progress", "text": "waiting for a free worker", "share": None}
        finally:
            self._waiting -= 1
        ended = False
        try:
            worker.begin(asked)
            async for message in self._within(worker, asked):
                ended = message["event"] in _ENDS and not message.get("late")
                yield message
        finally:
            self._later(self._back(worker, ended))

    async def _within(self, worker: WebWorker, asked: WebQuestion) -> AsyncIterator[dict[str, Any]]:
        loop = asyncio.get_running_loop()
        last_s = loop.time() + self.bounds.seconds
        while True:
            left_s = last_s - loop.time()
            if left_s <= 0:
                told = f"takes longer than {self.bounds.seconds:g} s; ask for less, or start with a larger --limit"
                yield refused(InputError(told), asked) | {"late": True}
                return
            try:
                message = await asyncio.wait_for(worker.told.get(), min(_BEAT_S, left_s))
            except TimeoutError:
                yield {"event": "beat"}
                continue
            if message["event"] == "died":
                told = "its process ended, perhaps for lack of memory; ask for less"
                message = refused(InputError(told), asked) | {"late": True}
            yield message
            if message["event"] in _ENDS:
                return

    async def _back(self, worker: WebWorker, ended: bool) -> None:
        """An idle worker again, or a new one in its place."""
        if not ended:
            worker.stop.set()
            ended = await worker.ended(_GRACE_S)
        if ended:
            self._idle.put_nowait(worker)
            return
        self._end(worker)
        if not self._closed:
            await self._start()
