"""What a cluster file may say. The only module of this room that needs pydantic; imported on demand."""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from ridgeline.errors import UnitError
from ridgeline.facts.clusters import MAX_DEVICES
from ridgeline.units import parse

_LARGEST = 1e24  # no quantity of a machine comes near it, in any SI unit
_SMALLEST = {"byte": 1e3, "byte/s": 1e3, "FLOP/s": 1e6, "Hz": 1e3}
"""Below these a number lost its unit: 80 for 80 GB, 989 for 989 TFLOP/s, 1.98 for GHz. The slowest links between sites
and the smallest processors are far above."""


def _quantity(unit: str, *, zero: bool = False) -> BeforeValidator:
    """Accepts '80 GB' or a bare number in `unit`; positive and finite, or zero where that means none."""

    example = f"'80 G{unit.replace('byte', 'B')}'"

    def read(given: object) -> float:
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

    return BeforeValidator(read)


Bytes = Annotated[float, _quantity("byte")]
BytesOrNone = Annotated[float, _quantity("byte", zero=True)]
Rate = Annotated[float, _quantity("byte/s")]
RateOrNone = Annotated[float, _quantity("byte/s", zero=True)]
FlopRate = Annotated[float, _quantity("FLOP/s")]
Seconds = Annotated[float, _quantity("s", zero=True)]
Watts = Annotated[float, _quantity("W")]
WattsOrNone = Annotated[float, _quantity("W", zero=True)]
Hertz = Annotated[float, _quantity("Hz")]
Dollars = Annotated[float, _quantity("USD/h", zero=True)]
Carbon = Annotated[float, _quantity("kg/J", zero=True)]
Devices = Annotated[int, Field(strict=True, ge=1, le=MAX_DEVICES)]
Name = Annotated[str, Field(strict=True, min_length=1, max_length=100)]


class Table(BaseModel):
    """A table of the file; an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Peak(Table):
    """Dense matrix rates of the datasheet [FLOP/s], by number format."""

    fp64: FlopRate | None = None
    fp32: FlopRate | None = None
    tf32: FlopRate | None = None
    fp16: FlopRate | None = None
    bf16: FlopRate | None = None
    fp8: FlopRate | None = None
    int8: FlopRate | None = None
    fp4: FlopRate | None = None


class Sustained(Peak):
    """Rates that the person measured in a long run: matrix formats [FLOP/s] and hbm [byte/s]."""

    hbm: Rate | None = None


class Device(Table):
    """An accelerator by its datasheet."""

    name: Name = "custom"
    vendor: Name = "unknown"
    architecture: Name = "unknown"
    year: Annotated[int, Field(strict=True, ge=1990, le=2100)] | None = None
    peak: Peak
    vector: FlopRate | None = None
    memory: Bytes
    memory_bandwidth: Rate
    l2: Bytes | None = None
    sm_count: Annotated[int, Field(strict=True, ge=1, le=10_000_000)] | None = None
    boost: Hertz | None = None
    link: Name | None = None
    link_bandwidth: Rate | None = None
    host_bandwidth: Rate | None = None
    tdp: Watts | None = None
    sustained: Sustained = Sustained()


class TierTable(Table):
    """One level of the network, innermost first."""

    name: Name | None = None
    size: Annotated[int, Field(strict=True, ge=1, le=10**9)] | None = None
    bandwidth: Rate
    latency: Seconds | None = None
    topology: Literal["switch", "ring", "mesh", "torus", "bus"] = "switch"
    oversubscription: Annotated[float, Field(ge=1, le=1000, allow_inf_nan=False)] = 1.0
    in_network_reduction: Annotated[bool, Field(strict=True)] = False


class HostTable(Table):
    """The host of one node; what is left out is taken from the default machine."""

    devices: Devices | None = None
    dram: Bytes | None = None
    dram_bandwidth: Rate | None = None
    device_bandwidth: Rate | None = None
    nvme: BytesOrNone | None = None
    nvme_bandwidth: RateOrNone | None = None
    idle: WattsOrNone | None = None


class ClusterTable(Table):
    """The whole file, the accelerator left aside."""

    name: Name | None = None
    count: Devices | None = None
    machine: Name | None = None
    price: Dollars | None = None
    pue: Annotated[float, Field(ge=1, le=10, allow_inf_nan=False)] | None = None
    carbon: Carbon | None = None
    region: Name | None = None
    tier: Annotated[list[TierTable], Field(max_length=16)] = []
    host: HostTable = HostTable()
