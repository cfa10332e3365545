"""What a hardware cell of a serving row means: a device, also behind the name of the computer that holds it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ridgeline.errors import InputError
from ridgeline.facts.records import Accelerator, Cluster
from ridgeline.validate.hardware import Device, find_device
from ridgeline.validate.machines import Machines, place

NO_ACCELERATOR = re.compile(
    r"cpu only|xeon|epyc|^pi \d|^raspberry|cm5|n150|orion o6|ampereone|risc-v|riscv|hifive|^none$|"
    r"thelio|ryzen \d|core (?:i\d|ultra)|snapdragon|rk3588",
    re.IGNORECASE,
)
"""Cells that name a computer and no accelerator: refused but for one batch of llama.cpp (`serving_processors`)."""

_CARD = re.compile(r"\(\s*((?:nvidia|amd|intel arc|radeon|geforce|rtx|rx|quadro|tesla)\b[^()]*)\)", re.IGNORECASE)

CARDS: tuple[tuple[str, str], ...] = (
    (r"rx 6500 ?xt", "RX-6500-XT"),
    (r"rx 6700 ?xt", "RX-6700-XT"),
    (r"rx 7600", "RX-7600"),
    (r"7900 ?xtx", "RX-7900-XTX"),
    (r"7900 ?xt\b", "RX-7900-XT"),
    (r"9070 ?xt", "RX-9070-XT"),
    (r"w7700", "Pro-W7700"),
    (r"m1 ultra", "Apple-M1-Ultra-48-core"),
    (r"^m1 max mac studio", "Apple-M1-Max-32-core"),
    (r"^m4 mac mini", "Apple-M4-10-core"),
    (r"framework (?:desktop|mainboard)|ryzen ai max|strix halo", "Radeon-8060S"),
)
"""Cards and systems on chip by the words of lists of small computers."""

NARROW_HOSTS: tuple[tuple[str, float, str], ...] = (
    (r"^pi 5|^raspberry pi 5|cm5|^pi 500", 0.5e9, "one PCIe 2.0 lane of a Raspberry Pi 5"),
    (r"orion o6", 15.75e9, "eight PCIe 4.0 lanes of a Radxa Orion O6"),
)
"""Small computers whose slot is narrower than the card. Source: raspberrypi.com, Raspberry Pi 5 product brief."""

MEANT: tuple[tuple[str, str, str, str, int, str], ...] = (
    ("LIB", "", r"^A100$", "A100-SXM-40GB", 1, "A100 of 40 GB: the size that its largest batches fit"),
    (
        "LIB", "vLLM", r"^Max ?1550$", "Max 1550 (one stack)", 1,
        "a rank on each stack, which programs see as devices (llm-inference-bench, vLLM/Max1550/README.md:"
        " ZE_FLAT_DEVICE_HIERARCHY=FLAT)",
    ),
    (
        "LIB", "", r"^MI250$", "MI250-die", 2,
        "a rank on each of the two dies of an MI250 (llm-inference-bench, llama.cpp/MI250/llama2-7b.sh: two, four and"
        " eight visible devices; vLLM/MI250/run-throughput-bench.sh: tensor parallel 8 on four)",
    ),
)  # fmt: skip
"""Devices that one source names in part: (source, engine or empty, cell, what is meant, how many of them are one of
its devices, words)."""

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
    known = any(re.search(pattern, named, re.IGNORECASE) for pattern, _ in CARDS)
    return card is None and not known and NO_ACCELERATOR.search(cell.strip()) is not None


def find(cell: str, source: Machines) -> Device:
    """The accelerator that a cell means; raises `InputError` when it names none."""
    text = cell.strip()
    card = _CARD.search(text)
    named = card[1] if card else text
    known = next((part for pattern, part in CARDS if re.search(pattern, named, re.IGNORECASE)), None)
    if known is not None:
        found = next((part for part in source.accelerators() if part.name == known), None)
        if found is not None:
            return _narrowed(Device(accelerator=found, assumptions=_said(text, found.name)), text)
    if card is None and NO_ACCELERATOR.search(text):
        raise InputError(f"'{text[:60]}' has no accelerator: serving on a CPU is not predicted", field="hardware")
    device = find_device(named, source.accelerators(), source.usual)
    if HALF_PARTS.search(text):
        device = _halved(device)
    return _narrowed(device, text) if card else device


def meant(code: str, engine: str, cell: str) -> tuple[str, int, tuple[str, ...]]:
    """The device that a source means by a hardware cell, how many are one of its own [1], and words that say so."""
    for source, by, pattern, device, count, words in MEANT:
        if source == code and by in ("", engine) and re.search(pattern, cell):
            return device, count, (words,)
    return cell, 1, ()


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
    for pattern, rate, words in NARROW_HOSTS:
        if re.search(pattern, text, re.IGNORECASE):
            part = replace(device.accelerator, host_bytes_per_s=rate)
            return Device(accelerator=part, assumptions=(*device.assumptions, words))
    return device
