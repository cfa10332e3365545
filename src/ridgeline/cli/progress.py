"""How far a long command is: bars and spinners on a terminal's error stream, nothing elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def progress_bar(words: str) -> Iterator[Callable[[int, int], None] | None]:
    """A bar that is told how many of how many are done."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(words, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


@contextmanager
def busy(words: str) -> Iterator[None]:
    """A spinner for work that does not know how much of it is left."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(words):
        yield
