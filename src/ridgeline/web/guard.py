"""What a worker process may open: the package, its libraries and the files of its question; nothing else."""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ridgeline.errors import InputError

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_TRUNC
_SYSTEM = frozenset({"/proc/cpuinfo", "/proc/meminfo", "/proc/self/statm", "/dev/null", "/dev/urandom"})
_FORBIDDEN = frozenset({"subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "socket.connect", "socket.bind"})


def guard(folder: Path) -> Callable[[str, tuple[Any, ...]], None]:
    """A hook for `sys.addaudithook`: files outside `folder` and the installed libraries cannot be opened.

    It also refuses programs to start and connections to be made. What it refuses is an `InputError`.
    """
    read, written = _roots(), (os.path.realpath(folder), *_caches())

    def hook(event: str, given: tuple[Any, ...]) -> None:
        if event in _FORBIDDEN:
            raise InputError(f"this app starts no programs and opens no connections ({event})")
        if event != "open" or isinstance(given[0], int) or given[0] is None:
            return
        path, mode, flags = os.path.realpath(os.fsdecode(given[0])), given[1] or "", given[2] or 0
        if _under(path, written) or path in _SYSTEM:
            return
        writes = any(letter in mode for letter in "wax+") if mode else bool(flags & _WRITES)
        if not _under(path, read) or (writes and "__pycache__" not in path):
            raise InputError(
                "lies outside what this app may open; add the file to the page", file=os.path.basename(path), value=path
            )

    return hook


def _under(path: str, roots: tuple[str, ...]) -> bool:
    return any(path == root or path.startswith(root + os.sep) for root in roots)


def _roots() -> tuple[str, ...]:
    """Folders of Python, of libraries, and of packages that were found at the start."""
    package = Path(__file__).parents[2]
    found = {sys.prefix, sys.base_prefix, str(package), *sysconfig.get_paths().values()}
    found |= {entry for entry in sys.path if entry and os.path.realpath(entry) != os.path.realpath(os.getcwd())}
    return tuple(sorted({os.path.realpath(one) for one in found} - {os.path.realpath(Path.home()), os.sep}))


def _caches() -> tuple[str, ...]:
    """Where compiled code is kept, and what `ridgeline calibrate` measured of this machine."""
    from ridgeline.facts.profiles import default_path

    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ridgeline"
    numba = os.environ.get("NUMBA_CACHE_DIR")
    found = [home, default_path(), *([Path(numba)] if numba else [])]
    return tuple(os.path.realpath(one) for one in found)
