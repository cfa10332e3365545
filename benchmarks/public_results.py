"""Published results beside what is predicted for the same case: the page `public_results.md`.

    PYTHONPATH=src python benchmarks/public_results.py            # a minute on two cores

`public_results.toml` holds a result each: where it is published, what is printed there, the settings, the command that
asks for it, the metric and its value. No row is used to fit anything; a row that is refused counts and is shown.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import shlex
import statistics
import tempfile
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ridgeline.cli.main import run
from ridgeline.memory.stage import peak_interval

ROWS = Path(__file__).with_suffix(".toml")
PAGE = Path(__file__).with_suffix(".md")
SCENARIO = "SCENARIO"  # stands in a command for the file that holds the row's `scenario_toml`
GIB = 2**30
Reading = tuple[float, float | None, float | None]  # value, and the ends of its 80 % interval where it has one


@dataclass(frozen=True, kw_only=True)
class Result:
    """One published result."""

    id: str
    group: str
    source: str
    published: str
    settings: str
    command: str
    metric: str
    value: float
    scenario_toml: str = ""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What was predicted for a result, or why nothing was."""

    result: Result
    found: Reading | None
    refused: str = ""

    @property
    def error(self) -> float | None:
        """Signed error of the prediction, as a share of the published value [1]; None where refused."""
        return None if self.found is None else self.found[0] / self.result.value - 1

    @property
    def inside(self) -> bool | None:
        """Whether the published value lies in the 80 % interval; None where there is none."""
        if self.found is None or self.found[1] is None or self.found[2] is None:
            return None
        return self.found[1] <= self.result.value <= self.found[2]


def _step(said: Mapping[str, Any]) -> Reading:
    if "step_time_s" not in said:  # pictures: all steps of a batch, its words and its pixels
        return said["seconds"], said["low_s"], said["high_s"]
    step = said["step_time_s"]
    return step["value"], step["low"], step["high"]


def _of_step(key: str) -> Callable[[Mapping[str, Any]], Reading]:
    """A number that falls as the step grows, with the interval that the step's gives it."""

    def read(said: Mapping[str, Any]) -> Reading:
        step, low, high = _step(said)
        assert low is not None
        assert high is not None
        value = said[key]
        return value, value * step / high, value * step / low

    return read


def _allocated(said: Mapping[str, Any]) -> Reading:
    """Peak of the allocator on the fullest stage [GiB]: all that is held but the driver's context."""
    stage = max(said["memory"], key=lambda one: one["total_bytes"])
    held = {name: size / GIB for name, size in stage["categories_bytes"].items() if name != "context"}
    return (sum(held.values()), *peak_interval(held))


def _mean(kind: str) -> Callable[[Mapping[str, Any]], Reading]:
    def read(said: Mapping[str, Any]) -> Reading:
        if "intervals" not in said:  # a static batch whose weights lie elsewhere
            found = said[f"{kind}_s"]
            return found["value"], found["low"], found["high"]
        low, high = said["intervals"][f"{kind}_mean_s"]
        return said[kind]["mean_s"], low, high

    return read


def _rate(key: str) -> Callable[[Mapping[str, Any]], Reading]:
    def read(said: Mapping[str, Any]) -> Reading:
        if "intervals" not in said:
            whole = said["latency_s"]
            return said[key], *(said[key] * whole["value"] / whole[end] for end in ("high", "low"))
        low, high = said["intervals"].get(key, (None, None))
        return said[key], low, high

    return read


def _per_device(said: Mapping[str, Any]) -> Reading:
    devices = sum(one["instances"] * one["tp"] * one["pp"] * one["dp"] for one in said["deployments"])
    value, low, high = _rate("output_tokens_per_s")(said)
    return value / devices, None if low is None else low / devices, None if high is None else high / devices


def _decode(said: Mapping[str, Any]) -> Reading:
    """Tokens that sequences which decode together make in a second, by the median gap: prompts are not in it.

    Its interval is as wide as that of TPOT.
    """
    mean, low, high = _mean("tpot")(said)
    value = said["traffic"]["requests"] / said["itl"]["p50_s"] if "traffic" in said else said["batch"] / mean
    return value, value * mean / high if high else None, value * mean / low if low else None


def _prompts(said: Mapping[str, Any]) -> Reading:
    """Prompt tokens over the mean time to the first token of requests that start together."""
    tokens = said["traffic"]["requests"] * said["traffic"]["prompt_tokens_mean"]
    value, low, high = _mean("ttft")(said)
    return tokens / value, tokens / high if high else None, tokens / low if low else None


READ: dict[str, tuple[str, Callable[[Mapping[str, Any]], Reading]]] = {
    "step_s": ("s a step, or a batch of pictures", _step),
    "tokens_per_s": ("tokens/s", _of_step("tokens_per_s")),
    "tokens_per_s_per_device": ("tokens/s a device", _of_step("tokens_per_s_per_device")),
    "mfu": ("MFU", _of_step("mfu")),
    "mfu_causal": ("MFU of attended pairs", _of_step("mfu_causal")),
    "peak_allocated_gib": ("GiB", _allocated),
    "ttft_s": ("s TTFT", _mean("ttft")),
    "tpot_s": ("s TPOT", _mean("tpot")),
    "latency_s": ("s a request", _mean("latency")),
    "output_tokens_per_s": ("output tokens/s", _rate("output_tokens_per_s")),
    "output_tokens_per_s_per_device": ("output tokens/s a device", _per_device),
    "requests_per_s": ("requests/s", _rate("requests_per_s")),
    "decode_tokens_per_s": ("tokens/s decoding", _decode),
    "prompt_tokens_per_s": ("prompt tokens/s", _prompts),
}


def asked(result: Result) -> Answer:
    """The answer of the result's own command, run in this process."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "scenario.toml"
        path.write_text(result.scenario_toml, encoding="utf-8")
        words = [str(path) if word == SCENARIO else word for word in shlex.split(result.command)[1:]]
        out = io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
            run([*words, "--json"])
    said = json.loads(out.getvalue())
    if "error" in said:
        return Answer(result=result, found=None, refused=str(said["error"]).replace(str(path), SCENARIO))
    return Answer(result=result, found=READ[result.metric][1](said))


def _number(value: float) -> str:
    """Three digits, plain."""
    digits = 2 - math.floor(math.log10(abs(value))) if value else 0
    return f"{value:,.{max(digits, 0)}f}" if digits > 0 else f"{round(value, digits):,.0f}"


def _line(answer: Answer) -> str:
    result = answer.result
    unit = READ[result.metric][0]
    head = f"| {result.id} | {_number(result.value)} {unit} |"
    if answer.found is None:
        return f"{head} refused | | |"
    value, low, high = answer.found
    span = "none" if low is None or high is None else f"{_number(low)} to {_number(high)}"
    inside = {True: "", False: ", outside", None: ""}[answer.inside]
    return f"{head} {_number(value)} | {span}{inside} | {answer.error:+.0%} |"


def _summary(title: str, answers: Sequence[Answer]) -> str:
    errors = [each.error for each in answers if each.error is not None]
    judged = [each.inside for each in answers if each.inside is not None]
    if not errors:
        return f"| {title} | {len(answers)} | {len(answers)} | | | | |"
    sizes = sorted(abs(error) for error in errors)
    covered = f"{sum(judged) / len(judged):.0%} of {len(judged)}" if judged else "none has one"
    within = sum(size <= 0.25 for size in sizes) / len(sizes)
    return (
        f"| {title} | {len(answers)} | {len(answers) - len(errors)} | {statistics.median(sizes):.1%} |"
        f" {statistics.median(errors):+.1%} | {within:.0%} | {covered} |"
    )


def page(answers: Sequence[Answer], told: str) -> Iterator[str]:
    """The lines of the page."""
    yield "# Published results\n"
    yield "Written by `public_results.py` from `public_results.toml`: all rows are shown, none is used to fit.\n"
    yield f"{told.strip()}\n"
    yield "| group | results | refused | median error | bias (median) | within 25 % | inside the 80 % interval |"
    yield "|---|---|---|---|---|---|---|"
    groups: dict[str, list[Answer]] = {}
    for answer in answers:
        groups.setdefault(answer.result.group, []).append(answer)
    for title, members in groups.items():
        yield _summary(title, members)
    yield _summary("all", answers)
    for title, members in groups.items():
        yield f"\n## {title.capitalize()}\n"
        yield "| result | published | predicted | 80 % interval | error |"
        yield "|---|---|---|---|---|"
        yield from (_line(each) for each in members)
    yield "\n## Sources and commands\n"
    for answer in answers:
        result = answer.result
        yield f"**{result.id}**: {result.source}. Printed: {result.published}. {result.settings}"
        if answer.refused:
            yield f"Refused: {answer.refused}"
        yield f"\n    {result.command}\n"
        if result.scenario_toml:
            yield "\n".join(f"    {line}".rstrip() for line in result.scenario_toml.strip().splitlines()) + "\n"


def main() -> None:
    """Asks for every result and writes the page."""
    said = tomllib.loads(ROWS.read_text(encoding="utf-8"))
    results = [Result(**row) for row in said["result"]]
    with ProcessPoolExecutor() as pool:
        answers = list(pool.map(asked, results))
    PAGE.write_text("\n".join(page(answers, said["told"])) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
