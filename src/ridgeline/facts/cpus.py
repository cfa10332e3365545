"""Processors of `data/cpus.tsv`: cores, memory rate and product rates of one socket."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from ridgeline.errors import UnknownNameError
from ridgeline.facts import store
from ridgeline.facts.records import Evidence, Fact


@dataclass(frozen=True, kw_only=True)
class Cpu:
    """One socket: `memory` [byte/s, nominal] and `peak` by format [FLOP/s], each rate a fact.

    `peak` has 'fp32' always, 'bf16' and 'int8' where instructions multiply them; rates are derived from
    cores, clock and operations of one cycle, so they are upper bounds. `assumed` says what stands for what nobody said.
    """

    name: str
    aliases: tuple[str, ...]
    vendor: str
    year: int
    cores: int
    clock_hz: float
    channels: int
    memory_type: str
    memory: Fact
    peak: Mapping[str, Fact]
    assumed: str = ""

    def peak_flop_per_s(self, name: str) -> float:
        """The rate of products in a format, that of fp32 where the socket has no instruction for it [FLOP/s]."""
        return (self.peak.get(name) or self.peak["fp32"]).value


@cache
def cpus() -> Mapping[str, Cpu]:
    """All processors by name, in table order."""
    found = store.records(Cpu, store.read_tsv("cpus.tsv"), _rates, memory_type="mem_type", clock_hz="clock_ghz")
    return {one.name: one for one in found}


def cpu(name: str) -> Cpu:
    """The processor of that name or alias, case ignored."""
    wanted = name.strip().casefold()
    for found in cpus().values():
        if wanted in (found.name.casefold(), *(alias.casefold() for alias in found.aliases)):
            return found
    raise UnknownNameError("processor", name[:80], cpus(), hint="`ridgeline catalog processors` shows all")


def _rates(row: store.TableRow) -> Mapping[str, object]:
    """Clock, names and the rates that a row derives from cores, clock and operations of one cycle."""
    assumed = store.evidence(row["evidence"], file=row.file) is Evidence.ASSUMED
    derived = row["evidence"] if assumed else "derived"
    words = f"{row['cores']} cores x {row['clock_ghz']} GHz x operations a cycle of {row['units']}; {row['conditions']}"
    columns = (("fp32", "fp32_tflops"), ("bf16", "bf16_tflops"), ("int8", "int8_tops"))
    peak = {
        name: store.fact(rate, "FLOP/s", row, conditions=words, evidence=derived)
        for name, column in columns
        if (rate := store.number(row, column, 1e12)) is not None
    }
    channels = f"{row['channels']} channels {row['mem_type']}, one socket"
    return {
        "aliases": store.listed(row["aliases"]),
        "clock_hz": float(row["clock_ghz"]) * 1e9,
        "memory": store.fact(float(row["mem_gbs"]) * 1e9, "byte/s", row, conditions=channels),
        "peak": peak,
    }


@cache
def cpu_constants() -> Mapping[str, Fact]:
    """Constants of products on processors by key, each with unit, source and evidence."""
    return store.facts("cpu_mechanisms.tsv")


def cpu_constant(key: str) -> float:
    """The value of one constant of processors, in its row's unit."""
    return cpu_constants()[key].value


@dataclass(frozen=True, kw_only=True)
class NeuronLaw:
    """How often a model's feed-forward neurons fire [1].

    `hot` of one block's neurons, and `hot_model` of all blocks', make up 80 % of the activations; a token uses
    `active` of them. `predictor`: predictors of which neurons fire, as a share of all weights. With `head_on_host`
    logits are never computed on the device.
    """

    hot: float
    hot_model: float
    active: float
    predictor: float
    head_on_host: bool


@cache
def neuron_law(model: str) -> NeuronLaw:
    """That of a model, by its name. Source: data/neurons.tsv; evidence: measured by PowerInfer's authors."""
    rows = store.read_tsv("neurons.tsv")
    row = next(row for row in rows if re.search(row["models"] or "", model.casefold()))
    values = {name: float(row[name]) for name in ("hot", "hot_model", "active", "predictor")}
    return NeuronLaw(**values, head_on_host=row["head"] == "host")
