"""People's units, parsed and printed at the edge only; inside, everything is SI.

GB is 1e9 bytes, GiB is 2**30 bytes, Gb is 1e9 bits. `flops` is banned: it is either a count
(FLOP) or a rate (FLOP/s).
"""

from __future__ import annotations

import math
import re

from ridgeline.errors import UnitError

_SI = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
_BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40, "Pi": 2.0**50}
_COUNT = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9, "g": 1e9, "t": 1e12} | {
    name.casefold(): factor for name, factor in _BINARY.items()
}
_TIME = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_GROUPED = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")  # the commas of 1,024
_QUANTITY = re.compile(r"^\s*([+-]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*([^\d\s].*)?$")


def _table() -> dict[str, tuple[str, float]]:
    units: dict[str, tuple[str, float]] = {u: ("s", f) for u, f in _TIME.items()}
    for prefix, factor in (_SI | _BINARY).items():
        units[f"{prefix}B"] = ("byte", factor)
        units[f"{prefix}B/s"] = ("byte/s", factor)
        units[f"{prefix}b"] = ("byte", factor / 8)
        units[f"{prefix}bit"] = ("byte", factor / 8)
        units[f"{prefix}b/s"] = ("byte/s", factor / 8)
        units[f"{prefix}bps"] = ("byte/s", factor / 8)
    for prefix, factor in _SI.items():
        for one in ("FLOP", "OP"):
            units[f"{prefix}{one}"] = ("FLOP", factor)
            units[f"{prefix}{one}/s"] = ("FLOP/s", factor)
        units[f"{prefix}W"] = ("W", factor)
        units[f"{prefix}J"] = ("J", factor)
        units[f"{prefix}Wh"] = ("J", factor * 3600)
        units[f"{prefix}Hz"] = ("Hz", factor)
    units |= {"USD": ("USD", 1.0), "$": ("USD", 1.0), "USD/h": ("USD/h", 1.0), "$/h": ("USD/h", 1.0)}
    units |= {"g/kWh": ("kg/J", 1e-3 / 3.6e6), "kg/kWh": ("kg/J", 1 / 3.6e6), "1": ("1", 1.0), "%": ("1", 0.01)}
    return units


UNITS = _table()


def _kind(unit: str) -> str:
    return "number" if unit == "1" else f"quantity in {unit}"


def _wanted(unit: str) -> str:
    return "a number without a unit" if unit == "1" else unit


def parse(text: str | float, unit: str, *, field: str | None = None) -> float:
    """The SI value of a quantity such as '80 GiB', in the SI unit `unit`.

    A bare number is taken to be in `unit` already. Units of another dimension, unknown units,
    NaN and infinities are refused.

    >>> parse("80 GiB", "byte")
    85899345920.0
    >>> parse("400 Gb/s", "byte/s")
    50000000000.0
    """
    if isinstance(text, int | float) and not isinstance(text, bool):
        value, suffix = float(text), ""
    else:
        match = _QUANTITY.match(str(text))
        if match is None:
            raise UnitError(f"'{text}' is not a {_kind(unit)}", field=field, value=text)
        value, suffix = float(match[1].replace("_", "")), (match[2] or "").strip()
    if not math.isfinite(value):
        raise UnitError(f"'{text}' is not a finite {_kind(unit)}", field=field, value=text)
    if not suffix:
        return value
    found = UNITS.get(suffix)
    if found is None:
        raise UnitError(f"'{text}' has the unknown unit '{suffix}'; wanted {_wanted(unit)}", field=field, value=text)
    if found[0] != unit:
        raise UnitError(f"'{text}' is in {found[0]}; wanted {_wanted(unit)}", field=field, value=text)
    return value * found[1]


def whole_number(text: str) -> int | None:
    """A count [1] written in ASCII digits, at most 18 of them; None for any other text.

    >>> whole_number("12"), whole_number("\u00b2")
    (12, None)
    """
    text = text.strip()
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 18 else None


def parse_count(text: str | float, *, field: str | None = None) -> int:
    """A whole number of things [1] from '15T', '1_536', '4.2M', '128Ki', '1,024' or a number; case does not matter.

    >>> parse_count("15T"), parse_count("128Ki")
    (15000000000000, 131072)
    """
    match = _QUANTITY.match(_GROUPED.sub("", str(text)))
    factor = _COUNT.get((match[2] or "").strip().casefold()) if match else None
    if match is None or factor is None or isinstance(text, bool):
        raise UnitError(f"'{text}' is not a count such as 1536, 4M or 15T", field=field, value=text)
    value = float(match[1].replace("_", "")) * factor
    if not math.isfinite(value) or abs(value - round(value)) > 1e-6 * max(1.0, abs(value)):
        raise UnitError(f"'{text}' is not a whole number", field=field, value=text)
    return round(value)


def _scaled(value: float, steps: tuple[tuple[float, str], ...], digits: int) -> str:
    for factor, name in steps:
        if abs(value) >= factor:
            return f"{value / factor:.{digits}g} {name}".replace("e+03", "000")
    factor, name = steps[-1]
    return f"{value / factor:.{digits}g} {name}"


def time_text(value_s: float) -> str:
    """A time [s] for people, three significant digits."""
    if value_s >= 172_800:
        return f"{value_s / 86_400:.1f} days"
    if value_s >= 7_200:
        return f"{value_s / 3_600:.1f} h"
    return _scaled(value_s, ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns")), 4)


def bytes_text(value_bytes: float) -> str:
    """A size [byte] for people, in binary units, as allocators print it."""
    return _scaled(value_bytes, ((2.0**40, "TiB"), (2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB"), (1.0, "B")), 4)


def rate_text(value: float, unit: str) -> str:
    """A rate or count for people, with an SI prefix, e.g. '989 TFLOP/s'."""
    steps = ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))
    return _scaled(value, tuple((f, p + unit) for f, p in steps), 4)
