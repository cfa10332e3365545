"""Lanes between the tiers of one rank: what a step moves and updates, as tasks on links, drives and the host's memory.

A lane is an in-order queue of one rank. Where ranks share a resource of their host, each lane has its equal share.
"""

from __future__ import annotations

from dataclasses import dataclass

COMPUTE, NETWORK = "compute", "network"
UPLOAD, DOWNLOAD, READ, WRITE = "host to device", "device to host", "NVMe read", "NVMe write"
DRAM, PROCESSOR = "host DRAM", "host processor"
LANES = (COMPUTE, NETWORK, UPLOAD, DOWNLOAD, READ, WRITE, DRAM, PROCESSOR)
LINKS = (UPLOAD, DOWNLOAD, READ, WRITE)
Ends = tuple[int, ...]
"""Tasks that must have ended."""
LaneTask = tuple[float, str, int, str, Ends, int, int]
"""Seconds, lane, stage, label, tasks that must have ended, micro-batch and chunk."""


@dataclass(frozen=True, kw_only=True)
class LaneRates:
    """What one rank gets of each resource [byte/s]: its host link each way, and its share of drives and host memory.

    `update` is the traffic that its share of the processors reaches in an optimizer's update, `core` what one of them
    copies; `device` is the rate of the device's own memory. A rate of 0 is a resource that the machine has not.
    """

    upload: float
    download: float
    read: float
    write: float
    dram: float
    update: float
    core: float
    device: float

    def by_lane(self) -> dict[str, float]:
        """Rate of each lane that moves bytes [byte/s]."""
        return {
            UPLOAD: self.upload, DOWNLOAD: self.download, READ: self.read, WRITE: self.write, DRAM: self.dram,
            COMPUTE: self.device,
        }  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Part:
    """One layer, or the embedding or the head, of one rank.

    Forward, input and weight part of its backward [s], seconds to gather its weights and to reduce its gradients over
    the ranks that share them [s], `weight_bytes` of the whole and `kept_bytes` of one micro-batch's activations [byte].
    Of what the rank owns: trained `numbers` [1], its share of the weights `share_bytes`,
    what an update makes of it `new_bytes`, `gradient_bytes` and optimizer
    states with the master copy `state_bytes` [byte]. `perturbed_bytes` are traffic of perturbing and updating the whole
    layer in place, where a step has no backward [byte].
    """

    forward_s: float
    input_s: float
    weight_s: float
    gather_s: float
    reduce_s: float
    weight_bytes: float
    kept_bytes: float
    numbers: float
    share_bytes: float
    new_bytes: float
    gradient_bytes: float
    state_bytes: float
    perturbed_bytes: float = 0.0

    def cut(self, pieces: int) -> list[Part]:
        """The same layer in so many equal pieces."""
        return [Part(**{name: value / pieces for name, value in vars(self).items()})] * pieces

    @property
    def updated_bytes(self) -> float:
        """Memory traffic of its update [byte]: states both ways, gradients read, weights written."""
        return 2.0 * self.state_bytes + self.gradient_bytes + self.new_bytes


class Lanes:
    """Tasks of a step on the lanes of its stages, recorded in the order in which each lane runs them."""

    def __init__(self, rates: LaneRates) -> None:
        self.rates, self.rate = rates, rates.by_lane()
        self.stage = self.micro_batch = self.chunk = 0
        self.tasks: list[LaneTask] = []

    def add(self, lane: str, seconds: float, after: Ends, label: str) -> Ends:
        """A task of so many seconds on a lane of the present stage; its end."""
        self.tasks.append((seconds, lane, self.stage, label, after, self.micro_batch, self.chunk))
        return (len(self.tasks) - 1,)

    def move(self, lane: str, size: float, after: Ends, label: str, *, direct: bool = False) -> Ends:
        """Bytes over a link or a drive, which also pass the host's memory unless they go `direct`; the ends of both."""
        if size <= 0:
            return after
        ends = self.add(lane, size / self.rate[lane], after, label)
        return ends if direct else ends + self.add(DRAM, size / self.rates.dram, after, label)

    def fetch(self, size: float, stored: float, after: Ends, label: str, *, direct: bool = False) -> Ends:
        """Bytes to the device, of which `stored` come from the drives; drives that are `direct` skip host memory."""
        ends = self.move(READ, stored, after, label, direct=direct)
        return self.move(UPLOAD, size, ends, label, direct=direct)

    def store(self, size: float, stored: float, after: Ends, label: str, *, direct: bool = False) -> Ends:
        """Bytes from the device, of which `stored` go on to the drives."""
        ends = self.move(DOWNLOAD, size, after, label, direct=direct)
        return self.move(WRITE, stored, ends, label, direct=direct)

    def host_update(self, traffic: float, after: Ends, label: str = "update") -> Ends:
        """An update by the host's processors, as fast as they reach its memory: that much traffic [byte]."""
        ends = self.add(PROCESSOR, traffic / self.rates.update, after, label)
        return ends + self.add(DRAM, traffic / self.rates.dram, after, label)

    def host_copy(self, traffic: float, after: Ends, label: str) -> Ends:
        """A copy or cast by one core of the host: that much traffic, read and written [byte]."""
        ends = self.add(PROCESSOR, traffic / self.rates.core, after, label)
        return ends + self.add(DRAM, traffic / self.rates.dram, after, label)

    def device_update(self, traffic: float, after: Ends, label: str = "update") -> Ends:
        """An update by the device, bound by its memory: that much traffic [byte]."""
        return self.add(COMPUTE, traffic / self.rates.device, after, label)

    def span_s(self) -> float:
        """Seconds until all that is recorded has ended, each lane in its own order."""
        free: dict[tuple[str, int], float] = {}
        ends: list[float] = []
        for seconds, lane, stage, _, waits, _, _ in self.tasks:
            end = free.get((lane, stage), 0.0)
            for task in waits:
                end = max(end, ends[task])
            free[lane, stage] = end + seconds
            ends.append(end + seconds)
        return max(ends, default=0.0)

    def busy_s(self) -> dict[tuple[str, int], float]:
        """Seconds in which each lane of each stage works: no step is shorter than the longest."""
        found: dict[tuple[str, int], float] = {}
        for seconds, lane, stage, *_ in self.tasks:
            found[lane, stage] = found.get((lane, stage), 0.0) + seconds
        return found
