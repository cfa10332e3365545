"""The settings of one run, from the rules of public benchmarks (`facts.benchmark_settings`): what a recipe sets."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from ridgeline.facts.benchmark_settings import KINDS, UNUSED, BenchmarkSetting, Run, amount, benchmark_settings
from ridgeline.facts.readings import tell_recipe
from ridgeline.facts.records import Evidence

UNSAID = frozenset({Evidence.DERIVED, Evidence.ASSUMED})
"""Rungs below what a source states in so many words: these settings tell why they are believed."""

LIMITS = frozenset({"token_budget", "chunked", "mixed", "max_seqs", "fresh_kernels"})
"""Settings of an iteration: where they are assumed, an interval holds for the engine's own as well."""


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """What the sources say of a run: `values` by the keys of `KINDS`, each an attribute, None where they say nothing.

    `version` is the engine's release where the row gives none, or gives that of a container around it; `statistic` that
    of latencies whose row names none. `kv` is a number format, '' the model's own 16 bits. `token_budget` [token]
    bounds one iteration, `physical_batch` [token] one pass of llama.cpp inside it, `max_seqs` the sequences of an
    instance, of one attention rank under attention data parallelism. With `stream_interval` N a client hears of every
    Nth token and of the last; `stream_first`: and of the first at once. With `receive_interval` N a scheduler looks
    for new requests after N decode iterations or one prefill (a prefill weighs 1000, a decode or idle turn 1). Source:
    sglang, srt/managers/scheduler_recv_skipper.py, pull request 8947. `attention_ranks` and `expert_ranks` are degrees
    of an instance whose row tells others, `cache_tokens` [token] bounds the cache of an attention rank. `frontends`
    take requests in turn, and turns of their own among the instances of a pool. `requests_per_user` and
    `warmups_per_user` are per concurrent user. `tuned_limits` names the tool that works out `max_seqs` and
    `token_budget` where nothing states them. `told` holds assumptions with their sources, `assumed` the keys whose
    evidence is no more than that.
    """

    values: Mapping[str, Any] = field(default_factory=dict)
    told: tuple[str, ...] = ()
    assumed: frozenset[str] = frozenset()
    rules: Mapping[str, BenchmarkSetting] = field(default_factory=dict, compare=False, repr=False)

    def __getattr__(self, name: str) -> Any:
        if name in KINDS:
            return self.values.get(name)
        raise AttributeError(name)

    def without_assumed(self) -> RunSettings:
        """Without limits of an iteration that are assumed: those of the engine hold."""
        kept = {key: value for key, value in self.values.items() if key not in self.assumed & LIMITS}
        return replace(self, values=kept, assumed=frozenset())

    def without(self, keys: frozenset[str]) -> RunSettings:
        """Without the settings of some keys, and what is told of them."""
        found = {key: rule for key, rule in self.rules.items() if key not in keys}
        values = {key: value for key, value in self.values.items() if key not in keys}
        return replace(self, values=values, told=_told(found, values), rules=found, assumed=self.assumed - keys)

    @property
    def statistic_unsaid(self) -> bool:
        """Whether nobody says of a latency which statistic it is: the mean is assumed, and it may be the median."""
        return self.statistic is None or "statistic" in self.assumed

    @property
    def limits(self) -> dict[str, float]:
        """The limits that 99 % of requests keep to at the highest load, as the words of an objective [s]."""
        said = {"ttft_s": self.ttft_limit_s, "tpot_s": self.tpot_limit_s, "latency_s": self.latency_limit_s}
        return {name: limit for name, limit in said.items() if limit is not None}

    def waits(self, ranks: int) -> dict[str, Any]:
        """How a scheduler of attention `ranks` lets prompts wait, in the words of a deployment; none where it does not.

        TensorRT-LLM holds prompts back: of several ranks until each has one, of one rank until they and the decoding
        sequences fill a share of an iteration's budget. Source: tensorrt-llm, py_executor.py, _balance_adp_requests
        and _waiting_requests.
        """
        if self.receive_interval is not None:
            return {"receive_interval": self.receive_interval}
        if ranks > 1 and self.attention_wait_steps:
            return {"receive_interval": self.attention_wait_steps, "hold": "all"}
        if ranks == 1 and self.batch_wait_steps:
            share = {} if self.batch_wait_share is None else {"hold_share": self.batch_wait_share}
            return {"receive_interval": self.batch_wait_steps, "hold": "full"} | share
        return {}


def settings_of(names: Mapping[str, str], run: Run, *, version: str = "", then: str | None = None) -> RunSettings:
    """The settings of the run behind a row, as far as public sources tell them.

    `names` are those of serving rows: `code` of the source, `engine` by its usual name, `model`, `device`, `precision`
    of the weights. `run` holds numbers that settings depend on (`facts.benchmark_settings.VARIABLES`) and the `date`
    of the run as 2026-01-14, the `scenario`, the `role` of a pool; what is left out decides nothing. `version` is the
    release that the row states, `then` the one that the run had where neither its row nor a source tells one.
    """
    stated = version.strip()
    found = _chosen(names, stated, stated, run, keys=frozenset({"version"}))
    used = found["version"].value if "version" in found else then or stated
    found |= _chosen(names, stated, used, run, keys=frozenset({"max_seqs"}))
    if "max_seqs" in found:
        run = {**run, "max_seqs": _number(found["max_seqs"], run)}
    found |= _chosen(names, stated, used, run, keys=frozenset(KINDS) - {"version", "max_seqs"})
    values = {key: _value(setting, run) for key, setting in found.items()}
    assumed = frozenset(key for key, setting in found.items() if setting.evidence is Evidence.ASSUMED)
    return RunSettings(values=values, told=_told(found, values), assumed=assumed, rules=found)


@cache
def _table(keys: frozenset[str]) -> tuple[BenchmarkSetting, ...]:
    return tuple(setting for setting in benchmark_settings() if setting.key in keys)


def _chosen(
    names: Mapping[str, str], stated: str, version: str, run: Run, *, keys: frozenset[str]
) -> dict[str, BenchmarkSetting]:
    """The first setting of each key that fits the run and whose formula the run can answer."""
    found: dict[str, BenchmarkSetting] = {}
    for setting in _table(keys):
        if setting.key in found or not setting.fits(names, stated, version, run):
            continue
        if _value(setting, run) is not None:
            found[setting.key] = setting
            if setting.code:
                told = f"{setting.key} = {setting.value} ({setting.source})"
                tell_recipe(f"^{re.escape(setting.code)}$", names["code"], told)
    return found


def _value(setting: BenchmarkSetting, run: Run) -> bool | int | float | str | None:
    """The value of a setting for a run, in the type of its key."""
    kind = KINDS[setting.key]
    if kind == "flag":
        return setting.value == "yes"
    if kind == "text":
        return "" if setting.value == "auto" else setting.value
    return _number(setting, run)


def _number(setting: BenchmarkSetting, run: Run) -> float | None:
    """The number of a setting for a run, whole where its key counts."""
    number = amount(setting.value, run)
    return number if number is None or KINDS[setting.key] == "number" else round(number)


def _told(found: Mapping[str, BenchmarkSetting], values: Mapping[str, object]) -> tuple[str, ...]:
    """The settings in words, one line a source, then a line for each that no source states in so many words.

    Settings without influence on the prediction are told as such.
    """
    lines: dict[tuple[str, bool], list[str]] = {}
    more: list[str] = []
    for key, setting in found.items():
        shown = values[key]
        words = f"{key} {shown if shown != '' else 'of the model'}"
        unused = key in UNUSED
        if setting.evidence in UNSAID:
            more.append(_line([words], unused, f"{setting.evidence.label}: {setting.note}; {setting.source}"))
        else:
            lines.setdefault((setting.source, unused), []).append(words)
    return (*(_line(words, unused, source) for (source, unused), words in lines.items()), *more)


def _line(words: list[str], unused: bool, source: str) -> str:
    return f"{'known, not modelled: ' if unused else ''}{', '.join(words)} ({source})"
