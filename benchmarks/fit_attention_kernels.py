"""Fits the generations of attention kernels to public rates, and judges each on sequence lengths that it left out.

    PYTHONPATH=src python benchmarks/fit_attention_kernels.py KERNELS.tsv > src/ridgeline/data/attention_kernels.tsv

Reads the rows of FlashAttention's figures (github.com/Dao-AILab/flash-attention, assets) from a table of kernels. A
kernel's values are shared by its devices but for the shares of the matrix rate. Backwards are measured only together
with forwards: where no forward was measured alone, both take one share. Rows of one sequence length are left out in
turn; what is printed beside the values are the errors on those.
"""

from __future__ import annotations

import csv
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from scipy.optimize import least_squares

from ridgeline.cost.attention import attention_cost, unfused_attention_cost
from ridgeline.cost.machine import Device, device
from ridgeline.facts.accelerators import accelerator
from ridgeline.facts.mechanisms import AttentionKernel, constant
from ridgeline.lower.work import Attention, Phase

LIBRARIES = {
    "FlashAttention-1": "flash1",
    "FlashAttention-2": "flash2",
    "FlashAttention-3": "flash3",
    "cuDNN": "cudnn",
    "Triton": "triton",
    "PyTorch": "plain",
    "PyTorch standard": "plain",
}
PLAIN = "plain"
NORM = {"flash3": 2.0, "cudnn": 2.0}  # kernels that run softmax beside products
NARROW = {"flash1": 64.0}  # its tiles of wider heads do not fit in shared memory
BACKWARD_FLOP = 2.5
FIT = ("exposed_", "wide_", "fill_s_", "masked_")
START = {"exposed_": 0.6, "wide_": 0.2, "fill_s_": 1.5, "masked_": 0.05}  # fill_s_ in us while it is fitted
SOURCE = "Dao-AILab/flash-attention@0251105 assets"


@dataclass(frozen=True, kw_only=True)
class Row:
    """One measured rate: its kernel, passes, machine and time [s]."""

    kernel: str
    phases: tuple[Phase, ...]
    chip: Device
    work: Attention
    seconds: float

    @property
    def architecture(self) -> str:
        """Hopper, or any other."""
        found = self.chip.accelerator.architecture
        return found if found == "hopper" else "other"


def rows(path: Path) -> list[Row]:
    """The rows of the figures that hold a rate."""
    found = []
    lines = path.read_text(encoding="utf-8").splitlines()
    for row in csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE):
        kernel = LIBRARIES.get(row["library"])
        shape = dict(re.findall(r"(\w+)=(\w+)", row["shape"]))
        if kernel is None or "flash-attention" not in row["source"] or not re.fullmatch(r"[\d.]+", row["value"]):
            continue
        batch, tokens, heads, head = (int(shape[name]) for name in ("batch", "seq", "heads", "head_dim"))
        causal, both = shape["causal"] == "True", "bwd" in row["op"]
        flop = 4.0 * batch * heads * tokens**2 * head * (0.5 if causal else 1.0) * (1 + BACKWARD_FLOP * both)
        work = Attention(
            name="", phase=Phase.FORWARD, sequences=batch, heads=heads, kv_heads=heads, q_tokens=tokens,
            kv_tokens=tokens, mean_context=(tokens + 1) / 2 if causal else tokens, qk_dim=head, v_dim=head, fused=True,
        )  # fmt: skip
        phases = (Phase.FORWARD, Phase.BACKWARD_INPUT) if both else (Phase.FORWARD,)
        chip = device(accelerator(row["hardware"]))
        found.append(Row(kernel=kernel, phases=phases, chip=chip, work=work, seconds=flop / float(row["value"]) / 1e12))
    return found


def predicted(row: Row, values: AttentionKernel) -> float:
    """The time of a row by some values [s]."""
    total = 0.0
    for phase in row.phases:
        work = replace(row.work, phase=phase)
        cost = attention_cost(work, row.chip, dtype="fp16", kernel=values)
        total += float(cost.seconds) + cost.kernels * constant("launch.device")
    return total


def unpack(kernel: str, names: list[str], x: Iterable[float]) -> dict[str, AttentionKernel]:
    """Values by architecture from the vector that is fitted."""
    at = dict(zip(names, x, strict=True))
    found = {}
    for architecture in ("hopper", "other"):
        forward = at.get(f"forward {architecture}")
        if forward is None:
            continue
        found[architecture] = AttentionKernel(
            kernel=kernel, architecture=architecture, norm=NORM.get(kernel, 1.0), narrow=NARROW.get(kernel, 128.0),
            forward_share_=forward, backward_share_=at.get(f"backward {architecture}", forward),
            exposed_=at["exposed_"], wide_=at["wide_"], fill_s_=at["fill_s_"] * 1e-6, masked_=at["masked_"],
            low=1.0, high=1.0,
        )  # fmt: skip
    return found


def fit(chosen: list[Row]) -> dict[str, AttentionKernel]:
    """Least squares of the logarithm of time; residuals beyond 8 % count less and less."""
    kernel, names, start = chosen[0].kernel, list(FIT), [START[name] for name in FIT]
    for architecture in sorted({row.architecture for row in chosen}):
        of = [row for row in chosen if row.architecture == architecture]
        names.append(f"forward {architecture}")
        start.append(0.6)
        if {len(row.phases) for row in of} == {1, 2}:
            names.append(f"backward {architecture}")
            start.append(0.5)

    def residuals(x: np.ndarray) -> list[float]:
        values = unpack(kernel, names, x)
        return [float(np.log(predicted(row, values[row.architecture]) / row.seconds)) for row in chosen]

    bounds = (
        [0.0] * len(FIT) + [0.05] * (len(names) - len(FIT)),
        [2.0, 2.0, 10.0, 0.5] + [1.2] * (len(names) - len(FIT)),
    )
    found = least_squares(residuals, start, bounds=bounds, loss="soft_l1", f_scale=0.08)
    return unpack(kernel, names, found.x)


def plain_fit(chosen: list[Row]) -> tuple[float, float]:
    """Share of the stream rate and broadcast results a cycle and SM of PyTorch's operators one by one."""
    share, per_cycle = constant("attention.plain_share"), constant("elementwise.broadcast_per_cycle")

    def parts(row: Row) -> np.ndarray:
        found = np.zeros(3)
        for phase in row.phases:
            work = replace(row.work, phase=phase, fused=False)
            cost = unfused_attention_cost(work, row.chip, dtype="fp16", plain=True)
            streamed = float(cost.bytes) / row.chip.memory_bytes_per_s
            gaps = cost.kernels * constant("launch.device")
            found += (float(cost.compute_s) + gaps, streamed, (float(cost.memory_s) - streamed / share) * per_cycle)
        return found

    table, seconds = np.array([parts(row) for row in chosen]), np.array([row.seconds for row in chosen])

    def residuals(x: np.ndarray) -> np.ndarray:
        return np.asarray(np.log((table[:, 0] + table[:, 1] / x[0] + table[:, 2] / x[1]) / seconds))

    found = least_squares(residuals, (0.9, 1.1), bounds=((0.1, 0.1), (1.0, 10.0)), loss="soft_l1", f_scale=0.08)
    return float(found.x[0]), float(found.x[1])


def main() -> None:
    """Print the table; the values of plain operators as comments."""
    measured = rows(Path(sys.argv[1]))
    columns = "kernel architecture norm narrow forward_share_ backward_share_ exposed_ wide_ fill_s_ masked_"
    print(
        "# Generations of fused attention kernels; errors on lengths left out. By benchmarks/fit_attention_kernels.py"
    )
    print("\t".join([*columns.split(), "rows", "held_median", "held_p90", "held_bias", "low", "high", "source"]))
    plain = [row for row in measured if row.kernel == PLAIN]
    for named, some in (
        ("H100 and A100", plain),
        ("H100", [row for row in plain if row.architecture == "hopper"]),
        ("A100", [row for row in plain if row.architecture == "other"]),
    ):
        share, per_cycle = plain_fit(some)
        words = f"attention.plain_share {share:.2f}, elementwise.broadcast_per_cycle {per_cycle:.2f}"
        print(f"# plain operators, {named}: {words}")
    for kernel in dict.fromkeys(LIBRARIES.values()):
        if kernel == PLAIN:
            continue
        of = [row for row in measured if row.kernel == kernel]
        values = fit(of)
        ratios: dict[str, list[float]] = {architecture: [] for architecture in values}
        for tokens in sorted({float(row.work.q_tokens) for row in of}):
            others = fit([row for row in of if row.work.q_tokens != tokens])
            for row in of:
                if row.work.q_tokens == tokens:
                    ratios[row.architecture].append(row.seconds / predicted(row, others[row.architecture]))
        for architecture, found in values.items():
            ratio = np.asarray(ratios[architecture])
            error = np.abs(1 / ratio - 1)
            low, high = np.quantile(ratio, (0.1, 0.9))
            both = any(len(row.phases) == 2 for row in of if row.architecture == architecture)
            cells = [kernel, architecture, f"{found.norm:g}", f"{found.narrow:g}", f"{found.forward_share_:.3f}"]
            cells += [f"{found.backward_share_:.3f}" if both else "", f"{found.exposed_:.3f}", f"{found.wide_:.3f}"]
            cells += [
                f"{found.fill_s_ if found.fill_s_ > 1e-9 else 0:.3g}",
                f"{found.masked_:.3f}",
                str(len(ratio)),
                f"{np.median(error):.3f}",
            ]
            cells += [f"{np.quantile(error, 0.9):.3f}", f"{np.median(1 / ratio - 1):+.3f}"]
            print("\t".join([*cells, f"{min(low, 1):.3f}", f"{max(high, 1):.3f}", SOURCE]))


if __name__ == "__main__":
    main()
