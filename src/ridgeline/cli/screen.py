"""What a person sees: the answer on standard output, bars and spinners on a terminal's error stream."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ridgeline.report.blocks import Block


def printed(
    as_json: bool, answer: Callable[[], Any], blocks: Callable[[], Iterable[Block]], *, width: int = 100
) -> None:
    """Prints an answer: one JSON object, or its blocks, of `width` columns where they are piped."""
    if as_json:
        print_json(answer())
        return
    from ridgeline.report.blocks import show

    show(blocks(), sys.stdout, width=width)


def print_json(answer: Any) -> None:
    """Prints one JSON object."""
    print(json.dumps(answer, indent=1, allow_nan=False))


@contextmanager
def progress_bar(words: str) -> Iterator[Callable[[int, int], None] | None]:
    """A bar that is told how many of how many are done."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(file=sys.stderr), transient=True) as bar:  # also while a block redirects it
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
