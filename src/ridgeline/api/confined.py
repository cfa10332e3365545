"""The life of a process that answers for strangers: it limits itself, then answers one question after another."""

from __future__ import annotations

import errno
import json
import os
import signal
import sys
import sysconfig
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ridgeline.api.answer import Answer
from ridgeline.api.progress import Watcher, watcher
from ridgeline.api.refusals import defect, refusal
from ridgeline.api.verb import ask
from ridgeline.errors import InputError, LimitError, RidgelineError

if TYPE_CHECKING:
    from ridgeline.api.bounded import Limits


_LISTS = frozenset({"os.listdir", "os.scandir"})
_CHANGES = frozenset(
    {"os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.truncate", "os.link", "os.symlink", "os.chmod", "os.utime"}
)
_REFUSED = frozenset(
    {"subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "os.forkpty", "os.startfile",
     "socket.connect", "socket.bind", "socket.sendto"}
)  # fmt: skip
_DEVICES = ("/dev/null", "/dev/urandom", "/proc/cpuinfo", "/proc/meminfo", "/proc/self/status", "/sys/devices/system")
"""What libraries read of the machine."""
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


def confine(root: Path, outside: str) -> None:
    """From here on this process opens files under `root` alone, beside code and what Ridgeline keeps for itself.

    It holds for all that files name in turn, and for links, as every opening of a file is looked at. It cannot be
    taken back. Programs and connections are refused as well. Of other files it is said that they are `outside`.
    """
    written = (_real(root), *map(_real, _caches()))
    read = (*written, *map(_real, _code()), *_DEVICES)

    def _within(path: Any, folders: Iterable[str]) -> None:
        if not _inside(path, folders):
            raise PermissionError(errno.EACCES, f"it is {outside}")

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path, _, flags = arguments
            if not isinstance(path, int) and path is not None:
                _within(path, written if flags & _WRITES else read)
        elif event in _LISTS:
            if not isinstance(arguments[0], int):
                _within(arguments[0] or ".", read)
        elif event in _CHANGES:
            for path in arguments[:2]:
                if isinstance(path, str | bytes | os.PathLike):
                    _within(path, written)
        elif event in _REFUSED:
            raise PermissionError(errno.EACCES, f"{event} is refused here")

    sys.addaudithook(hook)


def refuse_outside(words: Mapping[str, Any], root: Path, outside: str) -> None:
    """Raises `InputError` for a word that is a path `outside` of `root`, before anyone looks whether it is there."""
    for name, value in words.items():
        for text in value if isinstance(value, list | tuple) else (value,):
            if isinstance(text, str) and _is_path(text) and not _inside(text, (_real(root),)):
                raise InputError(f"is {outside}", field=name, value=text)


def _is_path(text: str) -> bool:
    return text.startswith("~") or os.path.isabs(text) or ".." in text.replace("\\", "/").split("/")


def _inside(path: Any, folders: Iterable[str]) -> bool:
    try:
        real = _real(os.path.expanduser(os.fsdecode(path)))
    except (ValueError, OSError):
        return False
    return any(real == folder or real.startswith(folder.rstrip(os.sep) + os.sep) for folder in folders)


def _real(path: Any) -> str:
    return str(os.path.realpath(path))


def _code() -> list[str]:
    """Folders of Python, of libraries and of this package."""
    found = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    here = str(Path(__file__).parents[1])
    libraries = [entry for entry in sys.path if entry and os.path.basename(entry) in ("site-packages", "dist-packages")]
    return [*filter(None, found), here, *libraries, *(str(each) for each in _own())]


def _own() -> list[Path]:
    """What Ridgeline keeps of this machine: its profile."""
    from ridgeline.facts.profiles import default_path

    return [default_path().parent]


def _caches() -> list[str]:
    """Where compiled loops are kept."""
    here = Path(__file__).parents[1]
    given = os.environ.get("NUMBA_CACHE_DIR")
    return [*(str(folder) for folder in here.rglob("__pycache__")), *([given] if given else [])]


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
