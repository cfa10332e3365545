"""How a serving row divides its model: stated degrees, those of notes, else what memory and engine force."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ridgeline.errors import InputError
from ridgeline.facts.readings import reading
from ridgeline.facts.records import Accelerator
from ridgeline.graph.model import Model
from ridgeline.validate.rows import Row
from ridgeline.validate.serving_words import whole

SHARE = 0.8
"""Share of device memory that weights may fill where a row leaves the degree open; the cache needs the rest. Source:
the rule of NVIDIA's MLPerf v4.1 code, 70 GB of weights on two devices of 80 GB or on one of more than 90 GB."""

_POOL = r"(\d+) x \(tp(\d+) dp(\d+) (?:moe_)?ep(\d+)\)"
_POOLS = re.compile(rf"(?:P|prefill) {_POOL}, (?:D|decode) {_POOL}")
_DP = re.compile(r"(?:^|; )dp(\d+)\b")


@dataclass(frozen=True, kw_only=True)
class PoolDegrees:
    """Degrees of one pool of instances."""

    tp: int
    pp: int
    dp: int
    ep: int
    instances: int

    @property
    def devices(self) -> int:
        """Devices of the pool [1]."""
        return self.tp * self.pp * self.dp * self.instances


@dataclass(frozen=True, kw_only=True)
class ServedLayout:
    """How `devices` devices are divided; `prefill` is the pool of prompts of a disaggregated row."""

    devices: int
    main: PoolDegrees
    prefill: PoolDegrees | None
    assumptions: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class DegreesAsked:
    """What the choice of degrees needs: model, device, size of one weight [byte], engine and whether one batch runs.

    A device of the row is `dies` of `part` [1], each a rank of its own.
    """

    model: Model
    part: Accelerator
    weight_bytes: float
    engine: str
    alone: bool  # one static batch: nothing to spread over several instances
    dies: int = 1


def layout_of(row: Row, ask: DegreesAsked) -> ServedLayout:
    """The layout of a serving row; raises `InputError` when its counts contradict each other."""
    count, note = whole(row, "n_devices"), row.text("note")
    if "disagg" in row.text("scenario").casefold():
        return _pools(count, note)
    tp, pp, ep = whole(row, "tp"), whole(row, "pp"), whole(row, "ep")
    said: list[str] = []
    count = None if count is None else count * ask.dies
    if tp is not None:
        tp = _chips(tp, count, ask, said) * ask.dies
    if count is None:
        count = (tp or _least(ask, 2**20)) * (pp or 1)
        said.append(f"device count not stated: {count}, the fewest that hold the weights")
    match = _DP.search(note)
    dp = int(match[1]) if match else None
    if dp is not None and dp < 1:
        raise InputError(f"dp{dp} in the note, needs >= 1", field="note")
    if tp is None:
        main = _open(count, pp, ep, dp, row, ask, said)
    else:
        main = _stated(count, tp, pp or 1, ep, dp, note, ask, said)
    return ServedLayout(devices=count, main=main, prefill=None, assumptions=tuple(said))


def _stated(
    count: int, tp: int, pp: int, ep: int | None, dp: int | None, note: str, ask: DegreesAsked, said: list[str]
) -> PoolDegrees:
    """Degrees where the row gives tensor parallelism."""
    if dp is None and re.search(r"attention DP", note) and tp > 1:
        said.append(f"attention data parallel over the {tp} devices of an instance")
        dp, tp = tp, 1
        if ep is None:
            ep = dp
            said.append(f"experts whole over the same {dp} devices (assumed: the page passes --ep, not its value)")
    dp = dp or 1
    ep = ep or 1
    if ask.model.dims.get("experts") in (None, 0) and ep > 1:
        said.append(f"ep = {ep} of a model without experts: ignored")
        ep = 1
    if dp == 1 and ep > 1 and tp * ep * pp == count:
        said.append(f"tp = {tp} counts the shards of an expert: attention on {tp * ep} devices")
        tp *= ep
    instances, rest = divmod(count, tp * pp * dp)
    if rest or instances < 1:
        raise InputError(
            f"{count} devices are no multiple of tp {tp} * pp {pp} * dp {dp} = {tp * pp * dp}", field="n_devices"
        )
    if (tp * dp) % ep:
        raise InputError(f"ep = {ep} does not divide tp {tp} * dp {dp}", field="ep")
    if instances > 1:
        said.append(f"{instances} instances of {tp * pp * dp} devices")
    return PoolDegrees(tp=tp, pp=pp, dp=dp, ep=ep, instances=instances)


def _open(
    count: int, pp: int | None, ep: int | None, dp: int | None, row: Row, ask: DegreesAsked, said: list[str]
) -> PoolDegrees:
    """Degrees where the row leaves tensor parallelism open."""
    if count > 1 and reading("splits_layers", program=ask.engine) is not None:
        said.append(f"tp not stated: layers over {count} devices, the default of {ask.engine}")
        return PoolDegrees(tp=1, pp=count, dp=1, ep=1, instances=1)
    tp = _submitted(row, ask, count)
    why = "rule of thumb of NVIDIA's v4.1 code, closed/NVIDIA/code/llama2-70b/tensorrt/README.md"
    width = max(1, count // (pp or 1))
    if tp is None and ask.alone and width & (width - 1) == 0:
        tp, why = width, "one batch on all devices"
    if tp is None:
        tp = _least(ask, count)
        why = f"the fewest devices whose memory holds the weights in {SHARE:.0%}"
    if count > 1:
        said.append(f"tp not stated: {tp}, {why}")
    return _stated(count, tp, pp or 1, ep, dp, row.text("note"), ask, said)


def _submitted(row: Row, ask: DegreesAsked, count: int) -> int | None:
    """Tensor parallelism that a benchmark's submissions have, by device and its gigabytes; None where nobody tells."""
    part = f"{ask.part.name} {int(ask.part.memory_bytes / 1e9)} GB"
    told = reading("submitted_tp", runs=row.source, model=ask.model.name, device=part)
    return None if told is None or count % int(told.number) else int(told.number)


def _least(ask: DegreesAsked, count: int) -> int:
    """The smallest power of two, a divisor of `count`, of devices whose memory holds the weights."""
    needed = ask.model.graph.params * ask.weight_bytes / (SHARE * ask.part.memory_bytes)
    width = 1
    while width < needed and width < count:
        width *= 2
    while count % width and width > 1 and count < 2**20:
        width //= 2
    return width


def _chips(tp: int, count: int | None, ask: DegreesAsked, said: list[str]) -> int:
    """Chips of a degree that counts their cores; of a degree over all chips each has as many as divide it evenly."""
    found = reading("cores", device=ask.part.name)
    cores = 1 if found is None else int(found.number)
    if cores == 1 or tp == 1:
        return tp
    if count and tp > count and not tp % count and not cores % (tp // count):
        cores = tp // count  # several cores of a chip may work as one
    said.append(f"tp = {tp} counts cores, {cores} to a chip")
    return max(1, tp // cores)


def _pools(count: int | None, note: str) -> ServedLayout:
    """Prefill and decode pools of a note such as 'P 4 x (tp1 dp4 ep4), D 1 x (tp8 dp1 ep8)'."""
    match = _POOLS.search(note)
    if match is None:
        raise InputError("a disaggregated row whose note gives no worker counts", field="note")
    numbers = [int(each) for each in match.groups()]
    if not all(1 <= each <= 4096 for each in numbers):
        raise InputError("worker counts of the note are out of range; needs 1 <= count <= 4096", field="note")
    for shared in (False, True):
        pools = [_pool(numbers[start : start + 4], shared=shared) for start in (0, 4)]
        total = sum(pool.devices for pool in pools)
        if count in (None, total):
            said = (f"prefill on {pools[0].devices} devices, decode on {pools[1].devices}",)
            return ServedLayout(devices=total, main=pools[1], prefill=pools[0], assumptions=said)
    raise InputError(f"the pools of the note have {total} devices, the row {count}", field="n_devices")


def _pool(numbers: list[int], *, shared: bool) -> PoolDegrees:
    """One pool; `shared` when tp counts all devices of a worker and dp ranks are a part of it (SGLang's words)."""
    instances, tp, dp, ep = numbers
    if shared and tp % dp == 0:
        tp //= dp
    return PoolDegrees(tp=tp, pp=1, dp=dp, ep=ep if (tp * dp) % ep == 0 else 1, instances=instances)
