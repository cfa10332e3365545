"""Quantities of the tables of a machine's file, each with its unit and within what any machine has."""

from __future__ import annotations

import math
from functools import partial
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from ridgeline.errors import UnitError
from ridgeline.facts.clusters import MAX_DEVICES
from ridgeline.units import parse

_LARGEST = 1e24  # no quantity of a machine comes near it, in any SI unit
_SMALLEST = {"byte": 1e3, "byte/s": 1e3, "FLOP/s": 1e6, "Hz": 1e3}
"""Below these a number lost its unit: 80 for 80 GB, 989 for 989 TFLOP/s, 1.98 for GHz. The slowest links between sites
and the smallest processors are far above."""


def read_quantity(given: object, unit: str, *, zero: bool = False) -> float:
    """'80 GB' or a bare number in `unit`, positive and finite, or zero where that means none; raises `ValueError`."""
    example = f"'80 G{unit.replace('byte', 'B')}'"
    if isinstance(given, bool) or not isinstance(given, str | int | float):
        raise ValueError(f"wanted a quantity in {unit} such as a string {example} or a number")
    try:
        value = parse(given, unit)
    except UnitError as error:
        raise ValueError(str(error)) from None
    except OverflowError:
        value = math.inf
    if not (value > 0 or (zero and value == 0)) or value > _LARGEST:
        raise ValueError(f"needs a quantity {'>=' if zero else '>'} 0 and at most {_LARGEST:g} {unit}")
    if 0 < value < _SMALLEST.get(unit, 0.0):
        raise ValueError(f"{value:g} {unit} is less than any machine has; write the unit, such as {example}")
    return value


def quantity(unit: str, *, zero: bool = False) -> BeforeValidator:
    """Reads a field by `read_quantity`."""
    return BeforeValidator(partial(read_quantity, unit=unit, zero=zero))


Bytes = Annotated[float, quantity("byte")]
BytesOrNone = Annotated[float, quantity("byte", zero=True)]
Rate = Annotated[float, quantity("byte/s")]
RateOrNone = Annotated[float, quantity("byte/s", zero=True)]
FlopRate = Annotated[float, quantity("FLOP/s")]
Seconds = Annotated[float, quantity("s", zero=True)]
Watts = Annotated[float, quantity("W")]
WattsOrNone = Annotated[float, quantity("W", zero=True)]
Hertz = Annotated[float, quantity("Hz")]
Dollars = Annotated[float, quantity("USD/h", zero=True)]
Carbon = Annotated[float, quantity("kg/J", zero=True)]
Devices = Annotated[int, Field(strict=True, ge=1, le=MAX_DEVICES)]
Name = Annotated[str, Field(strict=True, min_length=1, max_length=100)]


class FileTable(BaseModel):
    """A table of the file; an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)
