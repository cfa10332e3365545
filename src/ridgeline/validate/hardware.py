"""What a hardware cell says: which accelerator of the catalog, and what it states against the catalog."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from ridgeline.errors import InputError
from ridgeline.facts.accelerators import canonical
from ridgeline.facts.readings import words
from ridgeline.facts.records import Accelerator
from ridgeline.units import parse

GIGABYTE = 1e9
SAME_MEMORY = 0.08
"""Two nominal sizes are the same part within this share: 80 GiB is 85.9 GB, '140GB' and '141GB' are one H200."""

_VENDORS, _FORMS = words("hardware.vendor"), words("hardware.form")
_ALIASES, ARCHITECTURES = words("hardware.alias"), words("hardware.architecture")
_NOISE = frozenset(words("hardware.noise"))
"""Words for makers, form factors, code names and machine types, architectures (the training part that stands for one
when a row names no more is assumed), and words that name nothing."""

_BRANDS = ("tesla", "geforce", "quadro", "instinct", "radeon")

_MEMORY = re.compile(r"(?<![\w.])(\d{1,4})\s*-?\s*Gi?B\b(?!\s*/\s*s)", re.IGNORECASE)
_BANDWIDTH = re.compile(r"(\d+(?:\.\d+)?)\s*TB/s", re.IGNORECASE)
_POWER = re.compile(r"(\d{2,4})\s*W\b")
_APPLE_MACHINE = re.compile(r"\b(?:Mac ?Book(?: ?(?:Air|Pro))?|Mac ?Studio|Mac ?mini|iMac)\b", re.IGNORECASE)
_COUNTED = re.compile(r"^\s*\d{1,5}\s*[x\u00d7*]\s+(?=\w)|^\s*\d{1,5}[x\u00d7*](?=[A-Za-z])", re.IGNORECASE)
"""How many there are, before the name: '8x H100'. The count of devices has a column of its own."""

_VAGUE = re.compile(r"not stated", re.IGNORECASE)
_UNSTATED = re.compile(r"^\s*(?:not stated|n/?a|none|unknown|-+)?\s*$", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class DeviceText:
    """A hardware cell taken apart: words outside and inside parentheses, form factor and stated limits.

    `memory_bytes`, `memory_bytes_per_s` and `power_w` are None where the cell is silent.
    """

    words: tuple[str, ...]
    aside: tuple[str, ...]
    vendors: frozenset[str]
    form: str | None
    memory_bytes: float | None
    memory_bytes_per_s: float | None
    power_w: float | None


@dataclass(frozen=True, kw_only=True)
class NamedDevice:
    """The accelerator a hardware cell means, with what it states put over the catalog, and what was assumed.

    `sizes` are the parts of the same form with another memory that a cell which states none may mean as well.
    """

    accelerator: Accelerator
    assumptions: tuple[str, ...]
    sizes: tuple[Accelerator, ...] = ()


@lru_cache(maxsize=4096)
def read_device(text: str) -> DeviceText:
    """A hardware cell taken apart; knows no catalog.

    >>> read_device("H100 SXM 96GB HBM2e 2.4TB/s 500W cap").memory_bytes
    96000000000.0
    """
    inside = " ".join(re.findall(r"\(([^()]*)\)", text))
    outside = re.sub(r"\([^()]*\)?", " ", text)
    memory, bandwidth, power = _MEMORY.search(text), _BANDWIDTH.search(text), _POWER.search(text)
    tokens = _tokens(outside) or _tokens(inside)
    aside = () if _VAGUE.search(inside) else tuple(_tokens(inside))
    forms = [_FORMS[token] for token in (*_tokens(outside), *aside) if token in _FORMS]
    return DeviceText(
        words=tuple(token for token in tokens if not _plain(token)),
        aside=tuple(token for token in _tokens(inside) if not _plain(token)),
        vendors=frozenset(_VENDORS[token] for token in tokens if token in _VENDORS),
        form="nvl" if "nvl" in forms else forms[0] if forms else None,
        memory_bytes=float(memory[1]) * GIGABYTE if memory else None,
        memory_bytes_per_s=parse(bandwidth[0], "byte/s") if bandwidth else None,
        power_w=float(power[1]) if power else None,
    )


def find_device(text: str, catalog: Sequence[Accelerator], usual: Callable[[str], str | None]) -> NamedDevice:
    """The catalog's accelerator that a hardware cell means, e.g. 'H100 SXM 96GB HBM2e 2.4TB/s 500W cap'.

    Vendor words, form factor, memory size, memory bandwidth and power cap are read apart from the
    name. `usual` names the part that a bare name such as 'H100' stands for. Raises `InputError`
    with the reason when no part can be named.
    """
    if _UNSTATED.match(text):
        raise InputError("the hardware is not stated", field="hardware")
    text = _APPLE_MACHINE.sub("", _COUNTED.sub("", text)).strip()
    said = read_device(text)
    try:
        family, assumptions = _family(text, said, catalog)
    except InputError:
        known = _by_other_name(text, said, catalog)
        if known is None:
            raise
        return _restated(said, known, ())
    parts = [part for part in catalog if family in family_keys(part.name)]
    chosen, more = _part(said, parts, usual(family))
    found = _restated(said, chosen, (*assumptions, *more))
    return found if said.memory_bytes is not None else replace(found, sizes=_sizes(chosen, parts))


def _by_other_name(text: str, said: DeviceText, catalog: Sequence[Accelerator]) -> Accelerator | None:
    """The part that the catalog lists under another name: 'DGX Spark', 'M4 Max', 'TPU v7'.

    None where it lists none, and where the words in parentheses name a second part.
    """
    if _longest(said.aside, {key for part in catalog for key in family_keys(part.name)}):
        return None
    outside = re.sub(r"\([^()]*\)?", " ", text)
    for text in (outside, _MEMORY.sub(" ", outside), " ".join(said.words)):
        found = canonical(text)
        if found is not None:
            return next((part for part in catalog if part.name == found), None)
    return None


@lru_cache(maxsize=4096)
def family_keys(name: str) -> frozenset[str]:
    """The keys under which a catalog name is found, free of vendor, form factor and memory size.

    >>> sorted(family_keys("GeForce RTX 4090"))
    ['4090', 'rtx4090']
    """
    said = read_device(name)
    keys = {"".join(said.words)}
    keys |= {key[3:] for key in keys if key.startswith(("rtx", "gtx")) and len(key) > 6}
    keys |= {re.sub(r"^tesla|^quadro|^radeon", "", key) for key in keys}
    return frozenset(_ALIASES.get(key, key) for key in keys if key)


def _tokens(text: str) -> list[str]:
    text = _MEMORY.sub(" ", _BANDWIDTH.sub(" ", text))
    tokens = []
    for token in re.findall(r"[a-z0-9]+", text.casefold()):
        for brand in _BRANDS:
            if token.startswith(brand) and token != brand:
                tokens.append(brand)
                token = token.removeprefix(brand)
        tokens.append(token)
    return tokens


def _plain(token: str) -> bool:
    return token in _VENDORS or token in _NOISE or token in _FORMS or bool(re.fullmatch(r"\d+w", token))


def _family(text: str, said: DeviceText, catalog: Sequence[Accelerator]) -> tuple[str, tuple[str, ...]]:
    known = {key for part in catalog if _vendor_fits(said, part) for key in family_keys(part.name)}
    if not _VAGUE.search(text.split("(")[0]):
        for words in (said.words, said.aside):
            found = _longest(words, known)
            if found:
                return found, ()
    named = _longest((*said.words, *said.aside), known)
    for word in (*said.words, *said.aside):
        named = named or (ARCHITECTURES.get(word) if not said.vendors - {"NVIDIA"} else None)
    if named is None and "class" in text:
        named = next((key for key in known if key in text.casefold()), None)
    if named is None:
        raise InputError(f"'{text}' names no accelerator of the catalog", field="hardware")
    return named, (f"hardware '{text}': taken as {named.upper()} (assumed: the closest class it names)",)


def _vendor_fits(said: DeviceText, part: Accelerator) -> bool:
    return not said.vendors or part.vendor in said.vendors


def _longest(words: Sequence[str], known: Iterable[str]) -> str | None:
    """The longest known key that consecutive words spell."""
    keys = set(known)
    found = ""
    for start in range(len(words)):
        for end in range(start + 1, min(len(words), start + 5) + 1):
            key = "".join(words[start:end])
            key = _ALIASES.get(key, key)
            if key in keys and len(key) > len(found):
                found = key
    return found or None


def _part(said: DeviceText, parts: Sequence[Accelerator], usual: str | None) -> tuple[Accelerator, tuple[str, ...]]:
    """The part of one family with the stated form and the nearest memory; else the usual one, SXM, the largest.

    A laptop's part is meant only where the cell says so.
    """
    forms = {part.name: read_device(part.name).form for part in parts}
    if said.form != "laptop":
        parts = [part for part in parts if forms[part.name] != "laptop"] or parts
    same = [part for part in parts if said.form is not None and forms[part.name] == said.form]
    assumptions: list[str] = []
    pool = list(same or parts)
    if said.form is not None and not same and any(forms.values()):
        assumptions.append(f"the catalog has no {said.form.upper()} form of this part")
    if said.memory_bytes is not None:
        wanted = said.memory_bytes
        pool.sort(
            key=lambda part: (abs(_nominal_bytes(part) - wanted) > SAME_MEMORY * wanted, forms[part.name] != "sxm")
        )
        if not same:
            pool.sort(key=lambda part: abs(_nominal_bytes(part) - wanted) > SAME_MEMORY * wanted)
    else:
        pool.sort(key=lambda part: (part.name != usual, forms[part.name] not in ("sxm", None), -part.memory_bytes))
        if len(pool) > 1:
            assumptions.append(f"memory size not stated: {pool[0].name} assumed")
    if said.form is None and len({forms[part.name] for part in pool}) > 1:
        assumptions.append(f"form factor not stated: {pool[0].name} assumed")
    return pool[0], tuple(assumptions)


def _sizes(chosen: Accelerator, parts: Sequence[Accelerator]) -> tuple[Accelerator, ...]:
    """The parts of a family that differ from the chosen one in memory but not in form."""
    form, size = read_device(chosen.name).form, _nominal_bytes(chosen)
    return tuple(
        part
        for part in parts
        if read_device(part.name).form == form and abs(_nominal_bytes(part) - size) > SAME_MEMORY * size
    )


def _nominal_bytes(part: Accelerator) -> float:
    """Memory as sold [byte]: drivers report a few percent more or less than the label says."""
    fact = part.facts.get("memory_nominal_bytes")
    return fact.value if fact is not None else read_device(part.name).memory_bytes or part.memory_bytes


def _restated(said: DeviceText, part: Accelerator, assumptions: tuple[str, ...]) -> NamedDevice:
    """The part with stated memory, bandwidth and power in place of the catalog's."""
    changes: dict[str, float] = {}
    notes = list(assumptions)
    nominal = _nominal_bytes(part)
    if said.memory_bytes is not None and abs(said.memory_bytes - nominal) > SAME_MEMORY * nominal:
        changes["memory_bytes"] = said.memory_bytes * part.memory_bytes / nominal
        notes.append(f"{part.name} with {said.memory_bytes / GIGABYTE:g} GB as stated")
    if said.memory_bytes_per_s is not None:
        changes["memory_bytes_per_s"] = said.memory_bytes_per_s
        notes.append(f"memory rate {said.memory_bytes_per_s / 1e12:g} TB/s as stated")
    if said.power_w is not None and part.tdp_w is not None and said.power_w < part.tdp_w:
        changes["tdp_w"] = said.power_w
        notes.append(f"power cap {said.power_w:g} W as stated, peak rates those of the {part.tdp_w:g} W part")
    return NamedDevice(accelerator=replace(part, **changes) if changes else part, assumptions=tuple(notes))  # type: ignore[arg-type]
