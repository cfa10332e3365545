"""How published serving benchmarks were run: rows of `data/benchmark_settings.tsv`, a setting each."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache

from ridgeline.errors import InputError
from ridgeline.facts import store
from ridgeline.facts.engine_kernels import release_key
from ridgeline.facts.records import Evidence
from ridgeline.facts.store import evidence, sources

TABLE = "benchmark_settings.tsv"

KINDS: Mapping[str, str] = {
    "version": "text", "statistic": "text", "client": "text", "kv": "text", "graph_kind": "text", "doubt": "text",
    "preemption": "text", "expert_backend": "text", "product_backend": "text", "out_weights": "text",
    "tuned_limits": "text",
    "attention_ranks": "count", "expert_ranks": "count", "cache_tokens": "count", "token_budget": "count",
    "physical_batch": "count", "max_seqs": "count", "graph_max": "count",
    "stream_interval": "count", "receive_interval": "count", "beam_width": "count", "draft_tokens": "count",
    "block_tokens": "count", "requests": "count", "batch_wait_steps": "count", "attention_wait_steps": "count",
    "frontends": "count", "batch_wait_share": "number", "memory_fraction": "number", "requests_per_user": "number",
    "warmups_per_user": "number", "repeats": "number",
    "duration_s": "number", "ttft_limit_s": "number", "tpot_limit_s": "number",
    "latency_limit_s": "number", "most_prompt_tokens": "count",
    "most_output_tokens": "count", "chunked": "flag", "mixed": "flag", "prefix_cache": "flag", "graphs": "flag",
    "prefill_graphs": "flag", "stream_first": "flag", "attention_dp": "flag", "expert_parallel": "flag",
    "overlap": "flag", "all_reduce_fusion": "flag", "same_prompts": "flag", "greedy": "flag", "flash_attention": "flag",
    "tf32": "flag", "fresh_kernels": "flag",
}  # fmt: skip
"""Keys of settings and what their values are: text, a whole count or a number (formulas of the run), yes or no."""

UNUSED = frozenset({
    "physical_batch", "graph_kind", "flash_attention", "stream_interval", "stream_first", "attention_dp",
    "expert_parallel", "all_reduce_fusion", "warmups_per_user", "repeats", "most_prompt_tokens", "most_output_tokens",
})  # fmt: skip
"""Keys that no prediction takes into account: a row tells them as known and not modelled. Text tells all it has to."""

VARIABLES = ("concurrency", "isl", "osl", "devices", "instances", "ep", "dp", "disaggregated")
"""Numbers of a run that formulas and conditions may name; conditions may also name `date`, `scenario` and `role`."""

NUMBERS = (*VARIABLES, "max_seqs")
"""What formulas may name: `max_seqs`, a setting itself, where the value of another key follows from it."""

_FORMULA = re.compile(r"(?P<sum>[^ ]+)(?: up (?P<up>\d+))?(?P<power> power)?(?: least (?P<least>\d+))?")
_TERM = re.compile(r"(?:(?P<times>\d+)\*)?(?P<first>[a-z_]+|\d+(?:\.\d+)?)(?P<by>(?:/(?:[a-z_]+|[1-9]\d*))*)")
_CONDITION = re.compile(r"(?P<name>[a-z]+)(?P<sign>>=|<=|>|<|=)(?P<value>[\w.-]+)")
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_SIGNS: Mapping[str, Callable[[str | float, str | float], bool]] = {
    ">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt, "=": operator.eq,
}  # fmt: skip
Run = Mapping[str, float | str | None]


@dataclass(frozen=True, kw_only=True)
class BenchmarkSetting:
    """One setting of the runs that `code` published, with patterns of the runs it holds for ('' all).

    `engine`, `model`, `device` and `precision` are regular expressions from the start of a name. `versions` is a
    release, a range 'a..b' with either end open, or 'blank' where the run states none. `condition` joins comparisons
    of the run's numbers by ';'. `source` is a key of the bibliography and a place.
    """

    code: str
    engine: str
    versions: str
    model: str
    device: str
    precision: str
    condition: str
    key: str
    value: str
    unit: str
    source: str
    evidence: Evidence
    note: str

    def fits(self, names: Mapping[str, str], stated: str, version: str, run: Run) -> bool:
        """Whether the setting holds for a run; `stated` is the release its row gives, `version` the one it used."""
        if self.code not in ("", names["code"]):
            return False
        patterns = ("engine", "model", "device", "precision")
        if not all(re.match(getattr(self, name), names[name], re.IGNORECASE) for name in patterns):
            return False
        return release_fits(self.versions, stated, version) and all(
            _holds(part, run) for part in self.condition.split("; ") if part
        )


def amount(formula: str, run: Run) -> float | None:
    """The value of a formula such as '2*concurrency+isl+64 up 64 least 8192'; None where the run lacks a number.

    `up` rounds to the next multiple, `power` down to a power of two, 1 at least: 'concurrency/instances/dp power'.
    """
    match = _FORMULA.fullmatch(formula)
    if match is None:
        raise InputError(f"'{formula}' is no formula of {', '.join(NUMBERS)}", file=TABLE, field="value")
    parts = [_term(part, run) for part in match["sum"].split("+")]
    known = [part for part in parts if part is not None]
    if len(known) < len(parts):
        return None
    total = sum(known)
    step, least = int(match["up"] or 0), int(match["least"] or 0)
    if step:
        total = math.ceil(total / step) * step
    if match["power"]:
        total = 2 ** math.floor(math.log2(max(total, 1.0)))
    return max(total, least)


def _term(text: str, run: Run) -> float | None:
    """One term of a formula: a number of its own or of the run, a multiple of it, or its share, which rounds down."""
    term = _TERM.fullmatch(text)
    if term is None:
        raise InputError(f"'{text}' is no term of {', '.join(NUMBERS)}", file=TABLE, field="value")
    values = [_factor(name, run) for name in (term["first"], *term["by"].split("/")[1:])]
    known = [value for value in values if value is not None]
    if len(known) < len(values) or min(known[1:], default=1.0) <= 0:
        return None
    first, *by = known
    top = first * float(term["times"] or 1)
    return top // math.prod(by) if by else top


def _factor(name: str, run: Run) -> float | None:
    """A number of a formula: itself, or the run's of that name; None where the run lacks it."""
    if name[:1].isdigit():
        return float(name)
    if name not in NUMBERS:
        raise InputError(f"'{name}' is no number of {', '.join(NUMBERS)}", file=TABLE, field="value")
    value = run.get(name)
    return float(value) if isinstance(value, int | float) else None


@cache
def benchmark_settings() -> tuple[BenchmarkSetting, ...]:
    """All settings in the order of the table: of several that fit a run and share a key the first holds."""
    return tuple(_checked(row) for row in store.read_tsv(TABLE))


def _checked(row: Mapping[str, str]) -> BenchmarkSetting:
    """A row as a setting; raises `InputError` where a cell cannot be what its column says."""
    cells = {name: row[name] for name in row if name != "evidence"}
    setting = BenchmarkSetting(**cells, evidence=evidence(row["evidence"], file=TABLE))
    kind = KINDS.get(setting.key)
    if kind is None:
        raise InputError(f"'{setting.key}' is no setting; one of {', '.join(KINDS)}", file=TABLE, field="key")
    if kind == "flag" and setting.value not in ("yes", "no"):
        raise InputError(f"{setting.key} = '{setting.value}', needs yes or no", file=TABLE, field="value")
    if kind in ("count", "number"):
        amount(setting.value, dict.fromkeys(NUMBERS, 1.0))
    if not setting.value:
        raise InputError(f"{setting.key} has no value", file=TABLE, field="value")
    key, _, place = setting.source.partition(",")
    if key not in sources() or not place.strip():
        raise InputError(f"'{setting.source}' names no source and place", file=TABLE, field="source")
    if setting.evidence in (Evidence.DERIVED, Evidence.ASSUMED) and not setting.note:
        raise InputError(f"{setting.key} is {setting.evidence.label} without a note that says why", file=TABLE)
    for part in filter(None, setting.condition.split("; ")):
        match = _CONDITION.fullmatch(part)
        if match is None or match["name"] not in (*VARIABLES, "date", "scenario", "role"):
            raise InputError(f"'{part}' compares no number of a run", file=TABLE, field="condition")
    for name in ("engine", "model", "device", "precision"):
        re.compile(row[name])
    return setting


def release_fits(cell: str, stated: str, version: str) -> bool:
    """Whether a release is one that a cell of versions names."""
    if cell in ("", "blank"):
        return cell == "" or not stated
    if not version:
        return False
    low, dots, high = cell.partition("..")
    wanted = release_key(version)
    if not dots:
        return release_key(low) == wanted
    return (not low or release_key(low) <= wanted) and (not high or wanted <= release_key(high))


def _holds(part: str, run: Run) -> bool:
    """Whether a comparison holds; one of a number that the run does not give never does."""
    match = _CONDITION.fullmatch(part)
    value = run.get(match["name"]) if match else None
    if match is None or value is None or value == "":
        return False
    if isinstance(value, str):
        begins = match["sign"] == "=" and value.startswith(match["value"])
        return begins or _SIGNS[match["sign"]](value, match["value"])
    return bool(_NUMBER.fullmatch(match["value"])) and _SIGNS[match["sign"]](float(value), float(match["value"]))
