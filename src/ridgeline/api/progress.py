"""How long work tells how far it is: to a terminal, to a page, or to nobody."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar


class Watcher:
    """Who is told of progress; this one is nobody. A watcher stops the work by raising from `advance`."""

    def bar(self, words: str) -> AbstractContextManager[Callable[[int, int], None] | None]:
        """A block of work that says how many of how many parts are done; None where nobody looks."""
        return _unseen()

    def busy(self, words: str) -> AbstractContextManager[object]:
        """A block of work that does not know how much of it is left."""
        return _unseen()

    def steps(self, words: str) -> AbstractContextManager[Callable[[str, float], None]]:
        """Work that names each step and says which share of all is done."""
        return _unnamed()

    def tell(self, text: str) -> None:
        """One line about the work."""


@contextmanager
def _unseen() -> Iterator[None]:
    yield


@contextmanager
def _unnamed() -> Iterator[Callable[[str, float], None]]:
    yield lambda text, share: None


watcher: ContextVar[Watcher] = ContextVar("watcher", default=Watcher())  # noqa: B039  (it holds no state)


def progress_bar(words: str) -> AbstractContextManager[Callable[[int, int], None] | None]:
    """A function that is told how many of how many are done; None where nobody looks."""
    return watcher.get().bar(words)


def busy(words: str) -> AbstractContextManager[object]:
    """Work that does not know how much of it is left."""
    return watcher.get().busy(words)


def tell(text: str) -> None:
    """One line about work that goes on, for people."""
    watcher.get().tell(text)


def steps(words: str) -> AbstractContextManager[Callable[[str, float], None]]:
    """A function that is told which step runs now, and which share of all is done."""
    return watcher.get().steps(words)
