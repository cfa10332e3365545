"""Applications that share one device, from a TOML file; docs/serving/shared-devices.md shows its tables."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationError, model_validator

from ridgeline.errors import InputError
from ridgeline.facts import store
from ridgeline.facts.file_quantities import FileTable, Name, Seconds
from ridgeline.facts.user_files import FileKind, read_toml

FILE = FileKind(what="a file of applications", most_bytes=2**20, most_lines=10_000, most_line_bytes=10_000)
Count = Annotated[int, Field(strict=True, ge=1, le=1_000_000)]


class RequestPartTable(FileTable):
    """A part of a request: something that takes so long [s] `times` over, in so many kernels each.

    Its time is `seconds` or the `value` of an answer of a command. The `objective` is of one time, in the mean [s].
    """

    seconds: Seconds | None = None
    command: str = ""
    value: str = ""
    times: Count = 1
    kernels: Count = 1
    memory: bool = False
    objective: Seconds | None = None

    @model_validator(mode="after")
    def _timed(self) -> RequestPartTable:
        if (self.seconds is None) != bool(self.command and self.value):
            raise ValueError("needs seconds, or a command and the value of its answer")
        return self


class ApplicationTable(FileTable):
    """Requests one after the other, or one `every` so long [s] from when the applications `after` which it comes end.

    The `objective` is of a whole request from its arrival [s].
    """

    name: Name
    requests: Count
    every: Seconds | None = None
    after: tuple[str, ...] = ()
    objective: Seconds | None = None
    part: Annotated[list[RequestPartTable], Field(min_length=1, max_length=100)]


class SharedDevice(FileTable):
    """Applications on one device."""

    application: Annotated[list[ApplicationTable], Field(min_length=1, max_length=100)]

    @model_validator(mode="after")
    def _ordered(self) -> SharedDevice:
        known: set[str] = set()
        for one in self.application:
            if one.name in known:
                raise ValueError(f"{one.name} stands twice; give each application a name of its own")
            if wrong := [name for name in one.after if name not in known]:
                raise ValueError(f"{one.name} comes after {wrong[0]}, which does not stand above it; reorder them")
            known.add(one.name)
        return self


def is_shared_device(text: str) -> bool:
    """Whether a word names applications that ship, or the file of some."""
    if text in store.names("shared_devices", ".toml"):
        return True
    path = Path(text)
    if path.suffix.casefold() != ".toml" or not path.is_file():
        return False
    return "application" in read_toml(path, FILE).tables


def shared_device(text: str) -> SharedDevice:
    """The applications that a word names; raises `InputError` for a file that is none."""
    ships = text in store.names("shared_devices", ".toml")
    path = store.path_of(f"shared_devices/{text}.toml") if ships else Path(text)
    try:
        return SharedDevice.model_validate({**read_toml(path, FILE).tables})
    except ValidationError as caught:
        first = caught.errors(include_url=False, include_context=False)[0]
        place = ".".join(str(one) for one in first["loc"])
        raise InputError(f"{first['msg']}", file=path.name, field=place or None) from None
