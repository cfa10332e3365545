"""A folder for the processes that a command starts: they end and it goes, however the command ends."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

_MARK = "RIDGELINE_WORK"  # in the environment of every process that works for a folder
_NAME = re.compile(r"ridgeline-work-(\d+)-")
_TRIES, _PAUSE_S = 50, 0.02  # of stopping processes that start others meanwhile
_ENDED_BY_SIGNAL = 128


@contextmanager
def work_folder() -> Iterator[tuple[Path, dict[str, str]]]:
    """A new folder, and the environment to start its processes with.

    At the end, also that of SIGTERM, all processes with this environment are stopped, in whatever session they are, and
    the folder is removed. Folders whose owner was killed before it could do so are removed at the start of the next.
    """
    _remove_orphans()
    folder = Path(tempfile.mkdtemp(prefix=f"ridgeline-work-{os.getpid()}-"))
    own = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGTERM, _end) if own else None
    try:
        yield folder, {**os.environ, _MARK: str(folder)}
    finally:
        stop(folder)
        shutil.rmtree(folder, ignore_errors=True)
        if own:
            signal.signal(signal.SIGTERM, before if before is not None else signal.SIG_DFL)


def start(module: str, *words: str, errors: Path, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """A process of a session of its own that runs a module of this package; its errors go to a file.

    A pipe would stay open as long as any process that it starts.
    """
    paths = os.pathsep.join(filter(None, (str(Path(__file__).parents[2]), environment.get("PYTHONPATH"))))
    with errors.open("wb") as out:
        return subprocess.Popen(
            [sys.executable, "-m", f"ridgeline.{module}", *words], stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=out, env={**environment, "PYTHONPATH": paths}, start_new_session=True,
        )  # fmt: skip


def ending(child: subprocess.Popen[bytes], errors: Path) -> str:
    """How a process that failed has ended, with the last line of its errors."""
    told = errors.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:] or ["no message"]
    ended = f"signal {-child.returncode}" if child.returncode < 0 else f"exit code {child.returncode}"
    return f"ended with {ended}: {told[0][:300]}"


def stop(folder: Path) -> None:
    """Stops all processes that work for a folder, where the system tells their environment (Linux)."""
    for _ in range(_TRIES):
        running = _workers(folder)
        for one in running:
            with suppress(OSError):
                os.kill(one, signal.SIGKILL)
        if not running:
            return
        time.sleep(_PAUSE_S)


def _end(number: int, frame: FrameType | None) -> None:
    sys.exit(_ENDED_BY_SIGNAL + number)


def _workers(folder: Path) -> list[int]:
    """Processes of this user whose environment names the folder; those that have ended have none."""
    mark, found = f"{_MARK}={folder}".encode(), []
    for place in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if mark in place.read_bytes().split(b"\0"):
                found.append(int(place.parent.name))
    return [one for one in found if one != os.getpid()]


def _remove_orphans() -> None:
    """Removes this user's folders whose owner has ended, and stops what still works for them."""
    if not hasattr(os, "getuid"):
        return
    for path in Path(tempfile.gettempdir()).glob("ridgeline-work-*"):
        owner = _NAME.match(path.name)
        with suppress(OSError):
            if owner is not None and path.lstat().st_uid == os.getuid() and not _alive(int(owner[1])):
                stop(path)
                shutil.rmtree(path, ignore_errors=True)


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
