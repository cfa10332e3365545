"""One GPU: predicted from public facts before anything is measured, then measured; calibrated, predicted, measured.

    PYTHONPATH=src python benchmarks/bench_measure_gpu.py                    # writes measured_gpu.md, about 8 minutes
    PYTHONPATH=src python benchmarks/bench_measure_gpu.py --kind cpu --small --on H100-SXM   # a trial without a GPU

Needs `ridgeline[measure,fit]`. `--on` names the catalog's part where PyTorch's name for the device is not one,
`--budget` the time of calibration (150s), `--out` the report. Products, prompts and decode steps in bf16 are timed
alone by the clock of `ridgeline calibrate`, on shapes that it does not measure; training steps and a batch are run by
`ridgeline measure`. What the public rungs say is written to the report before the first kernel runs (of steps by
`ridgeline predict`, which counts a norm of the gradients that `measure` does not take). The profile is made in a folder
of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

COMMAND = [os.environ["RIDGELINE"]] if "RIDGELINE" in os.environ else [sys.executable, "-m", "ridgeline.cli.main"]
SLOT_S = 0.5  # of one operator's repeats
_HEAD = (
    "| what | predicted | 80 % interval | measured | error | interval | evidence |",
    "|---|---|---|---|---|---|---|",
)


@dataclass(frozen=True, kw_only=True)
class Operator:
    """A kernel in bf16: its kind, the shape as `ridgeline op` takes it, and its sizes by name."""

    kind: str
    shape: str

    @property
    def sizes(self) -> dict[str, float]:
        """Sizes as the kernels of calibration take them; attention's are B x S x H x K x D."""
        found = [float(part) for part in self.shape.split("x")]
        if self.kind == "gemm":
            return dict(zip("mnk", found, strict=True))
        batch, length, heads, kv_heads, head = found
        name = "tokens" if self.kind == "prefill" else "context"
        return {"batch": batch, name: length, "kv_heads": kv_heads, "group": heads / kv_heads, "head_dim": head}


OPERATORS = (
    *(Operator(kind="gemm", shape=one) for one in (
        "8192x8192x8192", "4096x11008x4096", "2048x2048x8192", "16384x5120x1280", "512x14336x4096", "128x4096x14336",
        "32x6144x4096", "8x8192x8192", "1x4096x14336",
    )),
    *(Operator(kind="prefill", shape=one) for one in (
        "1x8192x32x8x128", "4x2048x32x32x128", "8x1024x16x4x64", "2x3072x64x8x128",
    )),
    *(Operator(kind="decode", shape=one) for one in (
        "64x4096x32x8x128", "8x16384x32x8x128", "128x1024x16x16x64", "1x32768x64x8x128",
    )),
)  # fmt: skip
SMALL_OPERATORS = (
    Operator(kind="gemm", shape="320x448x576"),
    Operator(kind="gemm", shape="5x640x832"),
    Operator(kind="prefill", shape="1x192x8x4x64"),
    Operator(kind="decode", shape="2x640x8x4x64"),
)
_PURE = ("--precision", "bf16-pure", "--optimizer", "adamw-bf16")
TRAIN = ("--execution", "eager", "--tp", "1", "--pp", "1", "--dp", "1")
STEPS = (
    ("llama-3.2-1b", ("--seq-len", "2048", "--global-batch", "4", "--micro-batch", "2", "--precision", "bf16-amp")),
    ("llama-3.2-1b", ("--seq-len", "4096", "--global-batch", "4", "--micro-batch", "4", *_PURE)),
    ("opt-1.3b", ("--seq-len", "1024", "--global-batch", "8", "--micro-batch", "8", "--precision", "bf16-amp")),
    ("llama-3.2-3b", ("--seq-len", "2048", "--global-batch", "2", "--micro-batch", "2", *_PURE,
                      "--recompute", "full")),
)  # fmt: skip
SMALL_STEPS = (
    ("tiny", ("--seq-len", "64", "--global-batch", "2", "--micro-batch", "2", "--precision", "bf16-amp")),
    ("tiny", ("--seq-len", "64", "--global-batch", "2", "--micro-batch", "1", *_PURE)),
)
BATCHES = (("llama-3.2-1b", ("--serve", "--batch", "8", "--prompt", "512", "--output", "64")),)
SMALL_BATCHES = (("tiny", ("--serve", "--batch", "2", "--prompt", "16", "--output", "4")),)
TINY = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 128, "intermediate_size": 352,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 512,
    "max_position_embeddings": 2048, "tie_word_embeddings": False, "hidden_act": "silu", "rms_norm_eps": 1e-5,
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Line:
    """One row of a table: a time [s] or memory [byte] predicted with its ends, and the measured one."""

    name: str
    predicted: float
    low: float
    high: float
    measured: float | None
    unit: str
    evidence: str

    @property
    def error(self) -> float:
        """(predicted - measured) / measured [1]; NaN where nothing was measured."""
        return (self.predicted - self.measured) / self.measured if self.measured else float("nan")

    def text(self) -> str:
        """The row."""
        scale, unit = (
            (2.0**-20, "MiB") if self.unit == "byte" else (1e3, "ms") if self.predicted > 1e-3 else (1e6, "us")
        )
        low, mid, high = (f"{scale * one:,.1f}" for one in (self.low, self.predicted, self.high))
        if self.measured is None:
            return f"| {self.name} | {mid} {unit} | {low} to {high} | | | | {self.evidence} |"
        inside = "in" if self.low <= self.measured <= self.high else "out"
        seen = f"{scale * self.measured:,.1f} | {self.error:+.0%} | {inside}"
        return f"| {self.name} | {mid} {unit} | {low} to {high} | {seen} | {self.evidence} |"


def asked(words: Sequence[str], home: Path) -> dict[str, Any]:
    """What a command answers, with profiles under `home`; a refusal ends the run with its words."""
    environment = {**os.environ, "XDG_DATA_HOME": str(home)}
    run = subprocess.run([*COMMAND, *words, "--json"], env=environment, text=True, capture_output=True)
    if run.returncode:
        raise SystemExit(f"{' '.join(words)} ended with {run.returncode}: {run.stderr.strip() or run.stdout.strip()}")
    found: dict[str, Any] = json.loads(run.stdout)
    return found


def told(words: Sequence[str]) -> str:
    """The words of a run that differ between runs."""
    return " ".join(words).replace(" ".join(TRAIN), "").replace("--", "").strip()


def operators_of(some: Sequence[Operator], on: str, home: Path, seen: Mapping[Operator, float]) -> list[Line]:
    """Operators as a machine's facts price them, beside what was measured."""
    lines = []
    for one in some:
        row = asked(("op", one.kind, one.shape, "bf16", "--on", on), home)["rows"][0]
        lines.append(
            Line(
                name=f"{one.kind} {one.shape}",
                predicted=row["seconds"],
                low=row["low_s"],
                high=row["high_s"],
                measured=seen.get(one),
                unit="s",
                evidence=row["evidence"],
            )
        )
    return lines


def measured_operators(some: Sequence[Operator], kind: str) -> dict[Operator, float]:
    """Median times of operators on the device [s]; what PyTorch refuses is left out with its words."""
    from ridgeline.calibrate.here.benchmarks import LocalBench
    from ridgeline.calibrate.here.devices import find, import_torch

    torch = import_torch()
    bench = LocalBench(torch=torch, found=find(torch, kind), folder=Path())
    found = {}
    for one in some:
        try:
            call = (
                bench.kernels.product("bf16", one.sizes)
                if one.kind == "gemm"
                else bench.kernels.attention(one.kind, one.sizes)
            )
            found[one] = median(bench.clock.repeats(call, SLOT_S))
        except (RuntimeError, ValueError) as error:
            print(f"{one.kind} {one.shape}: torch says {str(error).splitlines()[0]}", file=sys.stderr)
    return found


def runs_of(some: Sequence[tuple[str, tuple[str, ...]]], on: str, kind: str, home: Path) -> list[Line]:
    """Training steps and batches that `measure` predicts from a machine's facts and runs."""
    lines = []
    for model, words in some:
        subject = str(home / "tiny.json") if model == "tiny" else model
        found = asked(("measure", subject, "--on", on, "--device", kind, *words), home)
        print(f"{model} {' '.join(words)}: done", file=sys.stderr)
        said = told(words)
        lines += [
            Line(
                name=f"{model} {said}, {phase['name']}",
                predicted=phase["predicted"],
                low=phase["low"],
                high=phase["high"],
                measured=phase["measured"],
                unit=phase["unit"],
                evidence=on,
            )
            for phase in found["phases"]
        ]
    return lines


def foretold(some: Sequence[tuple[str, tuple[str, ...]]], on: str, home: Path) -> list[Line]:
    """Whole training steps as `predict` has them, before anything runs."""
    lines = []
    for model, words in some:
        subject = str(home / "tiny.json") if model == "tiny" else model
        step = asked(("predict", subject, "--on", on, "--framework", "torch", *words), home)["step_time_s"]
        said = told(words)
        lines.append(
            Line(name=f"{model} {said}, step", predicted=step["value"], low=step["low"], high=step["high"],
                 measured=None, unit="s", evidence=step["evidence"])
        )  # fmt: skip
    return lines


def summary(lines: Sequence[Line]) -> str:
    """Median absolute error by kind of row, and how many intervals hold the measured value."""
    told = []
    groups = {"products": "gemm", "prompts": "prefill ", "decode steps": "decode ", "training steps": ", step",
              "batches": ", batch", "peak memory": ", peak memory"}  # fmt: skip
    for name, mark in groups.items():
        some = [one for one in lines if one.measured and (one.name.startswith(mark) or one.name.endswith(mark))]
        if some:
            inside = sum(one.low <= one.measured <= one.high for one in some if one.measured)
            told.append(f"{name} {median(abs(one.error) for one in some):.0%} ({inside} of {len(some)} inside)")
    return "Median error: " + ", ".join(told) + "."


def section(title: str, lines: Sequence[Line]) -> list[str]:
    """A titled table; with its summary once something was measured."""
    closing = ["", summary(lines)] if any(one.measured for one in lines) else []
    return ["", f"## {title}", "", *_HEAD, *(one.text() for one in lines), *closing]


def written(out: Path, text: Sequence[str]) -> None:
    """Puts the report so far into its file."""
    out.write_text("\n".join(text) + "\n", encoding="utf-8")
    print(f"written: {out}", file=sys.stderr)


def words_of() -> argparse.Namespace:
    """The command line."""
    reader = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    reader.add_argument("--kind", default="cuda", choices=("cuda", "cpu"))
    reader.add_argument("--on", default="")
    reader.add_argument("--budget", default="150s")
    reader.add_argument("--small", action="store_true", help="shapes and models for a trial on a processor")
    reader.add_argument("--out", default=str(Path(__file__).parent / "measured_gpu.md"))
    return reader.parse_args()


def main() -> None:
    """Foretells, measures, calibrates, and measures again."""
    from ridgeline.calibrate.here.devices import find, import_torch

    words = words_of()
    found = find(import_torch(), words.kind)
    on, out = words.on or found.name, Path(words.out)
    some = SMALL_OPERATORS if words.small else OPERATORS
    training = [(model, (*TRAIN, *more)) for model, more in (SMALL_STEPS if words.small else STEPS)]
    batches = SMALL_BATCHES if words.small else BATCHES
    text = [
        f"# {found.name}, predicted and measured",
        "",
        f"torch {found.versions['torch']}; by `bench_measure_gpu.py`.",
    ]
    with TemporaryDirectory() as folder:
        home = Path(folder)
        (home / "tiny.json").write_text(json.dumps(TINY), encoding="utf-8")
        before = [*operators_of(some, on, home, {}), *foretold(training, on, home)]
        text += section(f"Predicted from public facts of {on}, before the first kernel ran", before)
        written(out, text)
        seen = measured_operators(some, words.kind)
        public = [*operators_of(some, on, home, seen), *runs_of([*training, *batches], on, words.kind, home)]
        text += section(f"Public facts of {on} against this device", public)
        written(out, text)
        profile = asked(("calibrate", "--budget", words.budget, "--device", words.kind), home)
        own = [*operators_of(some, "here", home, seen), *runs_of([*training, *batches], "here", words.kind, home)]
        noise = profile["noise"]
        text += section(f"Calibrated in {profile['spent_s']:.0f} s, repeats {noise['spread_median']:.0%} apart", own)
        text += ["", *(f"Left out: {one}" for one in profile["left_out"])]
    written(out, text)


if __name__ == "__main__":
    main()
