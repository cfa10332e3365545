"""The optional wheel of measured operator tables is hidden: tests answer alike with it and without it."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

import pytest
from hypothesis import settings

from ridgeline.facts import opdata

settings.register_profile("unhurried", deadline=None)  # properties are not timed: machines are shared
settings.load_profile("unhurried")


def forget() -> None:
    """What was found of the wheel is looked for again."""
    opdata.root.cache_clear()
    opdata.tables.cache_clear()


@pytest.fixture(scope="session", autouse=True)
def no_wheel() -> Iterator[None]:
    """As if the reader of the wheel's files were not installed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(opdata, "find_spec", lambda name: None)
        forget()
        yield
    forget()


@pytest.fixture
def wheel(no_wheel: None) -> Iterator[None]:
    """The wheel for a test that asks for it, which is skipped where it is not installed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(opdata, "find_spec", find_spec)
        forget()
        if opdata.root() is None:
            pytest.skip("the measured tables are not installed: pip install 'ridgeline[measured]'")
        yield
    forget()
