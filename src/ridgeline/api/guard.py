"""What a process that answers strangers may touch: files of one folder, the package's own, no network, no programs."""

from __future__ import annotations

import errno
import os
import sys
import sysconfig
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ridgeline.errors import InputError

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
