"""What a person sees: the answer on standard output, bars and spinners on a terminal's error stream."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ridgeline.api.answer import Answer
from ridgeline.api.progress import Watcher


def printed(answer: Answer, *, as_json: bool, title: str, html: str | None, svg: str | None, png: str | None) -> int:
    """Prints an answer: one JSON object, or lines and tables; returns the exit code, 1 where nothing fits.

    Where files are named, it is written as a page and as charts too; raises `InputError` where one cannot be.
    """
    if html is not None:
        _write_page(html, answer.html(title))
    for flag, said in (("--svg", svg), ("--png", png)):
        if said is not None:
            _draw(answer, flag, said)
    if answer.aside:
        print(answer.aside, file=sys.stderr)
    if as_json:
        print_json(answer.as_dict())
    else:
        from ridgeline.report.blocks import show

        show(answer.blocks(), sys.stdout, width=answer.width)
    if answer.impossible:
        from ridgeline.errors import printable

        print(f"error: {printable(answer.impossible)}", file=sys.stderr)
    return int(answer.impossible is not None)


def _write_page(path: str, text: str) -> None:
    from ridgeline.errors import InputError

    try:
        with open(path, "w", encoding="utf-8") as out:
            out.write(text)
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror}", field="--html", value=path) from None


def _draw(answer: Answer, flag: str, said: str) -> None:
    from ridgeline.errors import InputError, UnknownNameError

    name, colon, path = said.partition(":")
    name, path = (name, path) if colon else ("", said)
    try:
        if not path.lower().endswith(f".{flag[2:]}"):
            raise InputError(f"'{path}' does not end in .{flag[2:]}")
        answer.figure(name).save(path)
    except (InputError, UnknownNameError) as error:
        raise InputError(str(error), field=flag, value=said) from None


def print_json(answer: Any) -> None:
    """Prints one JSON object."""
    print(json.dumps(answer, indent=1, allow_nan=False))


class Terminal(Watcher):
    """Bars and spinners on standard error, where that is a terminal."""

    @contextmanager
    def bar(self, words: str) -> Iterator[Callable[[int, int], None] | None]:
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
    def busy(self, words: str) -> Iterator[None]:
        """A spinner for work that does not know how much of it is left."""
        if not sys.stderr.isatty():
            yield
            return
        from rich.console import Console

        with Console(stderr=True).status(words):
            yield

    @contextmanager
    def steps(self, words: str) -> Iterator[Callable[[str, float], None]]:
        """A bar with the name of each step, else a line for each step."""
        if not sys.stderr.isatty():
            yield lambda text, share: print(f"{share:4.0%}  {text}", file=sys.stderr, flush=True)
            return
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        console = Console(stderr=True)
        with Progress(
            TextColumn("{task.description:20}"), BarColumn(), TextColumn("{task.percentage:3.0f}%"),
            TimeElapsedColumn(), console=console, transient=True,
        ) as bar:  # fmt: skip
            task = bar.add_task(words, total=1.0)

            def update(text: str, share: float) -> None:
                if len(text) > 20:
                    console.print(text)
                else:
                    bar.update(task, description=text, completed=share)

            yield update

    def tell(self, text: str) -> None:
        """A line on standard error."""
        print(text, file=sys.stderr, flush=True)
