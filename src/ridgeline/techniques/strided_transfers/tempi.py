"""TEMPI: one kernel packs whatever strided type is sent, by the way that a model says is quickest."""

import json
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

from ridgeline.errors import InputError
from ridgeline.facts.records import Evidence
from ridgeline.facts.user_files import LOADS, read_user_file
from ridgeline.seams.strided import StridedRates, StridedTransfer
from ridgeline.seams.technique import param

SECTOR_BYTES = 32  # of device memory that a read of any part of it moves; source: nvidia-cuda-guide, device memory


@dataclass(frozen=True, kw_only=True)
class Tempi(StridedTransfer):
    """TEMPI: nested types are made one canonical form, packed by one kernel, and sent by the quickest of three ways.

    `lower.strided` makes the form: repetitions of one dropped, blocks without a gap joined, nested repetitions that
    fill each other's stride made one. Packing reads whole sectors of 32 bytes and writes what is dense. Sent are the
    packed bytes from device memory (`device`), from host memory that the kernel writes itself over the host link
    (`one-shot`), or through a copy to the host (`staged`); the paper's model is the sum of pack, message and unpack.
    With `measured`, the file perf.json that its program `measure-system` writes on a system, each part is interpolated
    from what was measured there, as the library does: between powers of two of bytes, and for packing of block lengths;
    beyond the largest size times grow with bytes. Without it parts are of the machine's rates. Checked: forms of random
    nested types have the same bytes, equivalent types one form; times and interpolation by hand; the choice against the
    three ways; a halo's messages against each byte of a small grid.

    Left out: how the kernel's words are chosen, placement of ranks, and all-to-all.
    """

    key: ClassVar[str] = "tempi"
    source: ClassVar[tuple[str, ...]] = ("tempi2021", "tempi-repo")
    claims: ClassVar[tuple[str, ...]] = (
        "MPI_Pack up to 242,000 times as fast, MPI_Send up to 59,000 times, a 3D halo exchange over 917 times",
    )
    device_start_s: float = param(
        10e-6, "s", "what a message from device memory takes to start beyond one from the host (assumed)", high=1.0
    )
    measured: str = param(
        "", "1", "perf.json of a system as TEMPI's measure-system writes it; else the machine's rates"
    )

    @property
    def evidence(self) -> Evidence:
        """How its times are known: measured where a file says so."""
        return Evidence.MEASURED if self.measured else Evidence.ASSUMED

    def pack_s(self, block: int, blocks: int, rates: StridedRates) -> float:
        """Issue of one kernel, its start, and sectors read and bytes written [s]; or as measured."""
        if self.measured:
            return _grid(self.measured, "packDevice", block, blocks)
        return rates.issue_s + rates.kernel_s + self._moved(block, blocks) / rates.memory_bytes_per_s

    @staticmethod
    def _moved(block: int, blocks: int) -> float:
        read = blocks * -(-block // SECTOR_BYTES) * SECTOR_BYTES
        return float(read + block * blocks)

    def ways(self, block: int, blocks: int, rates: StridedRates) -> dict[str, float]:
        """Time of each way to send [s]."""
        size = float(block * blocks)
        if self.measured:
            return _measured_ways(self.measured, block, blocks, near=rates.near)
        pack, message, link = self.pack_s(block, blocks, rates), rates.message_s(size), size / rates.link_bytes_per_s
        through = rates.issue_s + rates.kernel_s + max(link, self._moved(block, blocks) / rates.memory_bytes_per_s)
        return {
            "device": 2.0 * pack + message + self.device_start_s,
            "one-shot": 2.0 * through + message,
            "staged": 2.0 * (pack + rates.issue_s + link) + message,
        }

    def send_s(self, block: int, blocks: int, rates: StridedRates) -> float:
        """Time of the quickest way [s]."""
        return min(self.ways(block, blocks, rates).values())

    def message_s(self, size_bytes: float, rates: StridedRates) -> float:
        """Time of a message of packed bytes, from whichever memory it is quicker [s]."""
        return min(_messages(self.measured, size_bytes, rates.near)) if self.measured else rates.message_s(size_bytes)


_LINES = tuple(f"{where}Node{pair}Pingpong" for where in ("intra", "inter") for pair in ("CpuCpu", "GpuGpu"))
_GRIDS = ("packDevice", "unpackDevice", "packHost", "unpackHost")


@cache
def _tables(path: str) -> dict[str, Any]:
    """Arrays of a perf.json by name [s]: of 2^i bytes, and of 4^i x 64 bytes in blocks of 2^j bytes."""
    import numpy as np

    read, found = read_user_file(path, LOADS, field="measured"), {}
    try:
        told = json.loads(read.text())
        for name in ("d2h", "h2d", *_LINES):
            found[name] = np.array([float(one["time"]) for one in told[name]])
        for name in _GRIDS:
            found[name] = np.array([[float(one["time"]) for one in row] for row in told[name]])
        if not all(one.size and one.ndim in (1, 2) and np.all(np.isfinite(one) & (one > 0)) for one in found.values()):
            raise ValueError("a table is empty, or has times that are not above 0 s")
    except (ValueError, KeyError, TypeError) as error:
        wanted = f"no measured system; write it with TEMPI's bin/measure-system on two nodes ({error})"
        raise InputError(wanted, file=path, field="measured") from None
    return found


def _line(path: str, name: str, size: float) -> float:
    """Time of so many bytes between the measured sizes, in proportion beyond the largest [s]."""
    import numpy as np

    times = _tables(path)[name]
    sizes = 2.0 ** np.arange(len(times))
    return float(np.interp(size, sizes, times)) * max(1.0, size / float(sizes[-1]))


def _grid(path: str, name: str, block: int, blocks: int) -> float:
    """Time to pack blocks, between measured lengths and sizes, in proportion beyond the largest size [s]."""
    import numpy as np

    times, size = _tables(path)[name], float(block * blocks)
    sizes, lengths = 64.0 * 4.0 ** np.arange(len(times)), 2.0 ** np.arange(times.shape[1])
    of_length = [float(np.interp(block, lengths, row)) for row in times]
    return float(np.interp(size, sizes, of_length)) * max(1.0, size / float(sizes[-1]))


def _messages(path: str, size: float, near: bool) -> tuple[float, float]:
    """Time of a message from host memory and of one from device memory, within a node or to another [s]."""
    where = "intra" if near else "inter"
    return _line(path, f"{where}NodeCpuCpuPingpong", size), _line(path, f"{where}NodeGpuGpuPingpong", size)


def _measured_ways(path: str, block: int, blocks: int, *, near: bool) -> dict[str, float]:
    """Time of each way to send, of what was measured [s]."""
    size = float(block * blocks)
    pack, unpack, to_host, from_host = (_grid(path, name, block, blocks) for name in _GRIDS)
    host, device = _messages(path, size, near)
    return {
        "device": pack + device + unpack,
        "one-shot": to_host + host + from_host,
        "staged": pack + _line(path, "d2h", size) + host + _line(path, "h2d", size) + unpack,
    }
