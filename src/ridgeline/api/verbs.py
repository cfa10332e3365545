"""The questions as functions: the command's words and defaults, `_` for `-`, values as text or as Python numbers.

    >>> import ridgeline as rl
    >>> answer = rl.predict("gpt2", on="1xA100-SXM-80GB", micro_batch=8, global_batch=8, seq_len=1024)
    >>> answer["fits"]
    True

Every function raises `ridgeline.errors.RidgelineError` (a word that is not there, a value that cannot be read), and
`NoPlanError` where nothing fits and there is nothing to show. What fits in part has `answer.impossible`.
"""

from __future__ import annotations

from typing import Any

from ridgeline.api.answer import Answer
from ridgeline.api.verb import ask


def predict(subject: str | None = None, on: str | None = None, **words: Any) -> Answer:
    """How one plan of `subject` (a model, a scenario file) runs `on` a cluster: step time [s], memory [byte], energy.

    `serve=True` asks for one batch of serving, or a queue that never runs dry. `value` is the report.
    """
    return ask("predict", subject=subject, on=on, **words)


def plan(subject: str | None = None, on: str | None = None, **words: Any) -> Answer:
    """The best plans of training, or with `serve=True` the best deployments; words of a plan (`tp=8`) are kept."""
    return ask("plan", subject=subject, on=on, **words)


def simulate(subject: str | None = None, on: str | None = None, **words: Any) -> Answer:
    """What a deployment does under traffic (`rate`, `users`, `trace`): TTFT and TPOT [s], goodput [request/s]."""
    return ask("simulate", subject=subject, on=on, **words)


def advise(subject: str | None = None, on: str | None = None, **words: Any) -> Answer:
    """What limits a scenario, and which techniques help, alone and together."""
    return ask("advise", subject=subject, on=on, **words)


def export(subject: str | None = None, on: str | None = None, *, to: str, **words: Any) -> Answer:
    """The config files that run a plan with the program `to` ('vllm', 'deepspeed'), written where `out` says."""
    return ask("export", subject=subject, on=on, to=to, **words)


def init(subject: str = "llama-3.1-8b", on: str = "8xH100-SXM", **words: Any) -> Answer:
    """A commented scenario file with the usual values, written where `out` says; `value` is its text."""
    return ask("init", subject=subject, on=on, **words)


def sweep(file: str, **words: Any) -> Answer:
    """One question for every case of a TOML file's grid, by processes; `value` holds a record a case."""
    return ask("sweep", file=file, **words)


def op(kind: str, shape: str, on: str = "H100-SXM", **words: Any) -> Answer:
    """The cost of one operator ('gemm', '4096x4096x4096') on each machine named [s, byte, FLOP, J]."""
    return ask("op", kind=kind, shape=shape, on=on, **words)


def check(table: str, **words: Any) -> Answer:
    """Predictions beside the measurements of a truth file, row by row, and how wrong they are [1]."""
    return ask("check", table=table, **words)


def claims(**words: Any) -> Answer:
    """What papers report beside what is predicted for their settings; `family`, `paper` choose some."""
    return ask("claims", **words)


def catalog(kind: str, name: str | None = None) -> Answer:
    """Facts that ship: 'models', 'accelerators', 'clusters', 'processors', or all of one `name`."""
    return ask("catalog", kind=kind, name=name)


def techniques(name: str | None = None, **words: Any) -> Answer:
    """Techniques in the registry, those of a `tag`, or the page of one."""
    return ask("techniques", name=name, **words)


def numerics(name: str | None = None, **words: Any) -> Answer:
    """An algorithm run on an array, with its error [1]; without a name, which there are."""
    return ask("numerics", name=name, **words)


def score(tables: list[str] | None = None, **words: Any) -> Answer:
    """A metric over tables of results or traces."""
    return ask("score", tables=tables, **words)


def calibrate(**words: Any) -> Answer:
    """What this machine can do, measured within a `budget` of time; needs ridgeline[measure]."""
    return ask("calibrate", **words)


def measure(subject: str | None = None, **words: Any) -> Answer:
    """A plan run for real beside its prediction, or kernels judged; needs ridgeline[measure]."""
    return ask("measure", subject=subject, **words)
