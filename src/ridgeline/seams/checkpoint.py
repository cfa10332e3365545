"""The seam of checkpoints: what a save stops, when it is safe, and how a run comes back from a failure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from ridgeline.seams.technique import Technique, param

if TYPE_CHECKING:
    from ridgeline.seams.setting import Setting


@dataclass(frozen=True, kw_only=True)
class SavedStates:
    """What is to be saved, and over what: bytes of all states, devices and hosts, and rates [byte/s] of one device."""

    state_bytes: float
    devices: int
    hosts: int
    storage_bytes_per_s: float
    host_bytes_per_s: float
    network_bytes_per_s: float
    step_s: float

    @property
    def device_bytes(self) -> float:
        """What one device saves, each state once [byte]."""
        return self.state_bytes / self.devices


@dataclass(frozen=True, kw_only=True)
class CheckpointRule(Technique):
    """How a run saves its states, and comes back. Parameters that are None are published or assumed values, told."""

    family: ClassVar[str] = "checkpoints"
    in_plan: ClassVar[bool] = True

    mtbf_h: float | None = param(None, "hour", "mean time between failures of one device", low=1.0, high=1e9)
    interval_s: float | None = param(None, "s", "work between two saves; the best where absent", low=1.0, high=1e7)
    restart_s: float | None = param(None, "s", "from a failure to work, reading the states apart", low=0.0, high=1e6)
    storage: float | None = param(None, "byte/s", "rate of storage for all devices together", low=1e6, high=1e15)
    spares: int | None = param(
        None, "host", "hosts that wait; replaced at once where absent", low=0, high=1e5, whole=True
    )
    repair_h: float | None = param(None, "hour", "until a failed host is back", low=0.0, high=1e4)
    slow_share: float = param(0.0, "1", "share of steps in which a host is slow", low=0.0, high=1.0)
    slowdown: float = param(0.0, "1", "how much longer a slow host's step takes", low=0.0, high=100.0)

    def axes(self, setting: Setting) -> tuple[str, ...]:
        """None: a step takes as long under all of them."""
        return ()

    def stops_s(self, saved: SavedStates) -> float:
        """Time that training stands still for one save [s]."""
        raise NotImplementedError

    def lasts_s(self, saved: SavedStates) -> float:
        """Time from the beginning of a save until it outlives a failure [s]."""
        return saved.device_bytes * saved.devices / saved.storage_bytes_per_s

    def load_s(self, saved: SavedStates) -> float:
        """Time to read the states back [s]."""
        return self.lasts_s(saved)

    def restarts_s(self, detection_s: float, restart_s: float) -> float:
        """Time from a failure until training goes on, reading the states apart [s]."""
        return detection_s + restart_s

    def throughput(self, saved: SavedStates, broken_hosts: float) -> float:
        """Share of the throughput that is left while so many hosts are missing [1]: replaced ones miss nothing."""
        return 1.0
