"""What a hardware cell of a serving row means: a device, also behind the name of the computer that holds it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ridgeline.errors import InputError
from ridgeline.facts.readings import reading
from ridgeline.facts.records import Accelerator, Cluster
from ridgeline.validate.hardware import Device, find_device
from ridgeline.validate.machines import Machines, place

_CARD = re.compile(r"\(\s*((?:nvidia|amd|intel arc|radeon|geforce|rtx|rx|quadro|tesla)\b[^()]*)\)", re.IGNORECASE)

HALF_PARTS = re.compile(r"one (?:gcd|die|tile|stack)", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class Place:
    """The device of a row, the cluster it stands in, and what was assumed."""

    part: Accelerator
    cluster: Cluster
    assumptions: tuple[str, ...]


def without_accelerator(cell: str) -> bool:
    """Whether a cell names a computer and no card in it."""
    card = _CARD.search(cell)
    named = card[1] if card else cell
    known = card is not None or reading("card", words=named) is not None
    return not known and reading("no_accelerator", words=cell.strip()) is not None


def find(cell: str, source: Machines) -> Device:
    """The accelerator that a cell means; raises `InputError` when it names none."""
    text = cell.strip()
    card = _CARD.search(text)
    named = card[1] if card else text
    known = reading("card", words=named)
    if known is not None:
        found = next((part for part in source.accelerators() if part.name == known.text), None)
        if found is not None:
            return _narrowed(Device(accelerator=found, assumptions=_said(text, found.name)), text)
    if card is None and reading("no_accelerator", words=text) is not None:
        raise InputError(f"'{text[:60]}' has no accelerator: serving on a CPU is not predicted", field="hardware")
    device = find_device(named, source.accelerators(), source.usual)
    if HALF_PARTS.search(text):
        device = _halved(device)
    return _narrowed(device, text) if card else device


def meant(code: str, engine: str, cell: str) -> tuple[str, int, tuple[str, ...]]:
    """The device that a source means by a hardware cell, how many are one of its own [1], and words that say so."""
    cells = {"runs": code, "program": engine, "device": cell}
    found, dies = reading("served_device", **cells), reading("dies", **cells)
    count = 1 if dies is None else int(dies.number)
    return (cell, 1, ()) if found is None else (found.text, count, (found.told,))


def put(cell: str, count: int, texts: Sequence[str], source: Machines) -> Place:
    """`count` devices of the cell in the machine that `texts` name or imply."""
    if re.search(r"\bcluster\b", cell, re.IGNORECASE):
        raise InputError(f"'{cell[:60]}': a cluster of small computers, its network is not known", field="hardware")
    device = find(cell, source)
    cluster, notes = place(device.accelerator, count, texts, source)
    return Place(part=device.accelerator, cluster=cluster, assumptions=(*device.assumptions, *notes))


def _said(text: str, name: str) -> tuple[str, ...]:
    return () if name.replace("-", " ").casefold() in text.replace("-", " ").casefold() else (f"{name} in '{text}'",)


def _halved(device: Device) -> Device:
    """One of two dies of a package: half of everything."""
    part = device.accelerator
    half = replace(
        part,
        peak_flop_per_s={name: rate / 2 for name, rate in part.peak_flop_per_s.items()},
        vector_flop_per_s=part.vector_flop_per_s / 2,
        memory_bytes=part.memory_bytes / 2,
        memory_bytes_per_s=part.memory_bytes_per_s / 2,
        l2_bytes=None if part.l2_bytes is None else part.l2_bytes / 2,
        sm_count=None if part.sm_count is None else part.sm_count // 2,
        tdp_w=None if part.tdp_w is None else part.tdp_w / 2,
    )
    return Device(accelerator=half, assumptions=(*device.assumptions, f"one of the two dies of {part.name}"))


def _narrowed(device: Device, text: str) -> Device:
    slot = reading("slot_bytes_per_s", words=text)
    if slot is None:
        return device
    part = replace(device.accelerator, host_bytes_per_s=slot.number)
    return Device(accelerator=part, assumptions=(*device.assumptions, slot.told))
