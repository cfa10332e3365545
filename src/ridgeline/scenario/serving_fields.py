"""The words of a serving scenario: the traffic, the objective and the deployment that a person may write."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ridgeline.errors import UnitError
from ridgeline.facts.engine_kernels import expert_backends
from ridgeline.scenario.fields import TECHNIQUES, Field, count, number, pick, shown, whole, yes
from ridgeline.scenario.serving_words import word_fields
from ridgeline.units import parse, whole_number

ARRIVALS = ("poisson", "gamma", "weibull", "constant", "burst", "closed")
_MOST_TOKENS = 10_000_000
_UNWRITTEN = {"acceptance", "draft_tree", "next_acceptance", "draft_bytes", "draft_token_bytes"} | {
    "expert_imbalance", "expert_inside", "expert_between",
}  # fmt: skip  # or found, or read above
_POOL = re.compile(r"^(\d{1,5})x((?:(?:tp|pp|dp|ep|kv|experts)\d{1,5},?)+)$")
_DEGREE = re.compile(r"(tp|pp|dp|ep|kv|experts)(\d+)")
_FIELDS = {"experts": "expert_devices", "kv": "kv_ranks"}  # of a deployment, where a pool's word is another
_BARE = re.compile(r"^\s*[-+0-9._]+(?:[eE][-+]?\d+)?\s*$")  # a number without a unit
_BOUNDS = ("ttft", "tpot", "latency")  # of every request
_LATENCIES = (*_BOUNDS, "itl")
_STATISTIC = re.compile(r"^(?:mean|p(\d{1,2}(?:\.\d{1,4})?))$")
_AN_SLO = "write ttft=1s, tpot.p90=50ms, itl.p99=80ms, latency.mean=20s, kept=95% or goodput=4"


@dataclass(frozen=True, kw_only=True)
class Pool:
    """Instances of one role and their degrees [1]."""

    instances: int
    degrees: Mapping[str, int]
    kind: str = ""  # of devices, where there are two


def _lengths(value: object) -> tuple[int, int]:
    """A length in tokens, or two between which lengths are drawn evenly."""
    parts = value.split("-") if isinstance(value, str) else [value]
    if not 1 <= len(parts) <= 2 or (len(parts) > 1 and not all(str(part).strip() for part in parts)):
        raise ValueError(f"{shown(value)} is no length in tokens; write 1024, or 800-1200 for a range")
    found = [count(1, _MOST_TOKENS)(part.strip() if isinstance(part, str) else part) for part in parts]
    if found[0] > found[-1]:
        raise ValueError(f"{shown(value)} ends before it begins")
    return found[0], found[-1]


def _objective(value: object) -> dict[str, Any]:
    """Bounds such as 'ttft=1s,tpot.p90=50ms,kept=95%': of every request, of percentiles [s], and shares and rates."""
    found: dict[str, Any] = {}
    percentiles: dict[tuple[str, str], float] = {}
    for word in str(value).split(","):
        name, _, bound = word.partition("=")
        key, amount = name.strip().casefold(), bound.strip()
        metric, dot, statistic = key.partition(".")
        known = metric in _LATENCIES and (_STATISTIC.match(statistic) if dot else metric in _BOUNDS)
        if not amount or not (known or key in ("kept", "goodput")):
            least = "; ITL is of tokens, so say of which: itl.p99=80ms" if key == "itl" else ""
            raise ValueError(f"{shown(word)} is no bound; {_AN_SLO}{least}")
        field, read = _bound_of(key)
        if field in found or (metric, statistic) in percentiles:
            raise ValueError(f"{shown(value)} bounds {key} twice")
        if read is _BOUND_S and _BARE.match(amount):
            raise ValueError(f"{shown(word)} has no unit; write {key}={amount}s or {key}={amount}ms")
        if dot:
            percentiles[metric, statistic] = read(amount)
        else:
            found[field] = read(amount)
    if percentiles:
        found["percentiles"] = tuple((*name, most) for name, most in percentiles.items())
    if "least_share" in found and not any(f"{name}_s" in found for name in _BOUNDS):
        raise ValueError(f"{shown(value)} says how many requests are kept, but no bound of every request; add ttft=1s")
    return found


def _bound_of(key: str) -> tuple[str, Callable[[object], float]]:
    """The field of an objective that a word names, and its reader."""
    if key == "kept":
        return "least_share", number("1", 1e-6, 1.0, ends=True)
    if key == "goodput":
        return "least_goodput_rps", number("1", 1e-9, 1e9)
    return f"{key}_s", _BOUND_S


_BOUND_S = number("s", 1e-9, 1e9)


def _pool(value: object) -> Pool:
    text, _, kind = str(value).partition("@")
    match = _POOL.match(text.replace(" ", "").casefold())
    if match is None or int(match[1]) < 1:
        raise ValueError(f"{shown(value)} is no pool; write a count and degrees such as 2xtp4 or 1xtp1,dp8,ep8")
    degrees = {_FIELDS.get(name, name): int(degree) for name, degree in _DEGREE.findall(match[2])}
    return Pool(instances=int(match[1]), degrees=degrees, kind=kind.strip())


def _fleet(value: object) -> tuple[Pool, ...]:
    """Groups of whole instances, as '4xtp2@H100-SXM+8xtp1@H20'."""
    found = tuple(map(_pool, str(value).split("+")))
    if len(found) > 16:
        raise ValueError(f"{shown(value)} has {len(found)} groups, at most 16")
    return found


def _named(value: object, names: Mapping[str, Callable[[object], Any]], example: str) -> dict[str, Any]:
    """Named values such as 'high=16,low=4'."""
    found: dict[str, Any] = {}
    for word in str(value).split(","):
        name, _, amount = word.partition("=")
        key = name.strip().casefold()
        if key not in names or not amount:
            raise ValueError(f"{shown(word)} is none of {', '.join(names)}; write {example}")
        found[key] = names[key](amount.strip())
    return found


def _autoscale(value: object) -> dict[str, Any]:
    load = number("1", 0.0, 1e6)
    names = {"high": load, "low": load, "period": _seconds, "start": _seconds, "fewest": count(1)}
    found = _named(value, names, "high=16,low=4,period=10s,start=60s,fewest=1")
    if not {"high", "low"} <= found.keys():
        raise ValueError(f"{shown(value)} leaves out the load at which instances start or stop; write high=16,low=4")
    return {f"{name}_s" if name in ("period", "start") else name: amount for name, amount in found.items()}


def _failures(value: object) -> dict[str, Any]:
    names: dict[str, Callable[[object], Any]] = {"up": _seconds, "down": _seconds, "on": _text}
    found = _named(value, names, "up=30d,down=10min, or up=6h,down=10min,on=L40S")
    if not {"up", "down"} <= found.keys():
        raise ValueError(f"{shown(value)} needs both; write up=30d,down=10min")
    return {name if name == "on" else f"mean_{name}_s": amount for name, amount in found.items()}


def _tree(value: object) -> tuple[int, ...]:
    """Candidates after each of the place before, such as '4x2x1'."""
    found = tuple(whole_number(part) or 0 for part in str(value).casefold().split("x"))
    if not 1 <= len(found) <= 16 or not all(1 <= part <= 64 for part in found):
        raise ValueError(f"{shown(value)} is no tree; write candidates after each one of the place before, as 4x2x1")
    return found


def _acceptance(value: object) -> tuple[float, ...]:
    """The probability of a draft, or of each candidate of a place, most likely first."""
    parts = value.split(",") if isinstance(value, str) else value if isinstance(value, list) else [value]
    if not 1 <= len(parts) <= 64:
        raise ValueError(f"{shown(value)} is no probability, nor some of them; write 0.7, or 0.6,0.15 of a tree")
    return tuple(number("1", 0.0, 1.0, ends=True)(part.strip() if isinstance(part, str) else part) for part in parts)


def _text(value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{shown(value)} is not a text")
    return value.strip()


def _seconds(value: object) -> float:
    if not isinstance(value, int | float | str) or isinstance(value, bool):
        raise UnitError(f"{shown(value)} is not a time")
    found = parse(value, "s")
    if not 0 <= found < 1e9:
        raise ValueError(f"{shown(value)} is out of range; needs 0 s to 1e9 s")
    return found


TRAFFIC_FIELDS: tuple[Field, ...] = (
    Field(name="trace", read=_text, help="azure-conv, azure-code, mooncake, servegen, or a CSV file of requests"),
    Field(name="rate", read=number("1", 1e-9, 1e9), help="requests per second; of a trace, its mean is scaled to this"),
    pick("arrivals", ARRIVALS, "how requests come where no trace says it"),
    Field(
        name="cv",
        read=number("1", 0.02, 40.0, ends=True),
        help="burstiness of gamma and weibull arrivals; 1 is Poisson",
    ),
    whole("concurrency", "users of a closed loop: requests in flight at most"),
    whole("requests", "requests to replay; of a trace, the first so many", most=10_000_000),
    Field(name="duration", read=_seconds, help="time over which requests arrive, e.g. 10min"),
    Field(name="prompt", read=_lengths, help="prompt tokens, 1024 or 800-1200; without a trace"),
    Field(name="output", read=_lengths, help="output tokens, 256 or 100-400; without a trace"),
    pick("sessions", ("written", "chained"), "a trace's turns come as written, or each after the one before"),
    Field(name="think", read=_seconds, help="wait between the turns of a chained session"),
    Field(name="seed", read=count(0), help="of everything that is drawn"),
    Field(
        name="slo",
        read=_objective,
        help="objective, e.g. ttft=1s,tpot=50ms or latency=20s; of percentiles ttft.p99=1s,itl.p95=60ms",
    ),
)

BATCH_FIELDS: tuple[Field, ...] = (
    whole("batch", "sequences of one static batch; when absent, a queue that never runs dry", most=1_000_000),
    *(entry for entry in TRAFFIC_FIELDS if entry.name in ("prompt", "output", "seed")),
)

_DEPLOYMENT_FIELDS: tuple[Field, ...] = (
    Field(name="engine", read=_text, help="vllm, sglang, trtllm, llama.cpp ..., and perhaps a version: 'vllm 0.11'"),
    Field(name="recipe", read=_text, help="settings of a public benchmark, under those said here: `catalog recipes`"),
    Field(name="engine_file", read=_text, help="a policy file of your own for the engine"),
    whole("tp", "tensor-parallel degree of an instance"),
    whole("pp", "pipeline-parallel degree of an instance"),
    whole("dp", "attention data-parallel ranks of an instance, which share its experts"),
    whole("ep", "ranks over which the experts of an instance are divided"),
    whole("kv_ranks", "ranks of tp over which every context is divided; 1 when absent"),
    whole("instances", "instances; when absent, as many as the devices hold"),
    Field(name="prefill", read=_pool, help="prefill instances of a disaggregated fleet, e.g. 2xtp4"),
    Field(name="decode", read=_pool, help="decode instances of a disaggregated fleet, e.g. 1xtp8"),
    Field(name="fleet", read=_fleet, help="groups of whole instances, each on its kind: 4xtp2@H100-SXM+8xtp1@H20"),
    Field(
        name="weights",
        read=_text,
        help="number format: bf16, fp8, fp8_block, nvfp4, int4_wo, w2.5a16 ...; else the checkpoint's",
    ),
    Field(name="attention_weights", read=_text, help="that of attention's projections, if another"),
    Field(name="kv", read=_text, help="number format of the KV cache: bf16 or fp8"),
    whole("token_budget", "tokens of one iteration", most=_MOST_TOKENS),
    whole("max_seqs", "sequences that run at once on one attention rank"),
    yes("chunked", "prompts may be cut to the token budget"),
    yes("mixed", "prompts are computed in the iterations of running sequences, not before them"),
    yes("prefix_cache", "blocks of common prefixes are kept and found again"),
    yes("graphs", "decode batches replay captured graphs"),
    Field(
        name="memory_fraction",
        read=number("1", 0.01, 1.0, ends=True),
        help="share of device memory that the engine fills",
    ),
    next(one for one in word_fields() if one.name == "router"),
    whole("fronts", "front ends that each hand out requests in turns of their own; 1 when absent", most=4096),
    yes("swap_beside", "caches move to and from the host beside iterations, not between them"),
    yes("apart", "experts have devices of their own; a search tries how many"),
    whole("expert_devices", "devices of an instance that hold its experts alone; the others hold the rest"),
    whole("micro_batches", "parts of an iteration that go back and forth between both; 3 when absent", most=64),
    Field(name="beside", read=_text, help="devices of another kind that hold the experts: 8xH100-SXM, or FILE.toml"),
    Field(name="expert_loads", read=_text, help="a CSV file of layer, expert, load, for which experts are placed"),
    pick("expert_placement", ("balanced", "linear", "affinity"), "experts by load, in order, or by load and traffic"),
    Field(name="expert_traffic", read=_text, help="a CSV file of layer, expert, next, tokens: what passes to whom"),
    yes("tokens_stay", "tokens stay with their experts from layer to layer; every rank holds all caches"),
    whole("expert_redundant", "replicas of experts in each layer", least=0, most=4096),
    Field(
        name="expert_skew",
        read=number("1", 0.0, 4.0, ends=True),
        help="power law of experts' loads: 0 even, 1 as measured",
    ),
    pick("expert_backend", expert_backends(), "the engine's kernels for experts and their exchange, in its own word"),
    yes("alike", "requests are copies of one, greedily answered: a step's tokens choose the same experts"),
    yes("fresh_kernels", "the engine finds no kernel compiled by an earlier run, as in a container of its own"),
    Field(name="autoscale", read=_autoscale, help="instances by requests on each: high=16,low=4,start=60s"),
    Field(
        name="failures",
        read=_failures,
        help="instances fail and are repaired: mean times up=30d,down=10min; of one kind on=L40S",
    ),
    Field(name="draft_tree", read=_tree, help="a tree of drafts: candidates after each of the place before, as 4x2x1"),
    Field(
        name="acceptance",
        read=_acceptance,
        help="probability that a drafted token is accepted; of a tree's candidates each, as 0.6,0.15",
    ),
    Field(name="draft_model", read=_text, help="the model that drafts, by name or config.json: its time and memory"),
)
DEPLOYMENT_FIELDS: tuple[Field, ...] = (
    *_DEPLOYMENT_FIELDS,
    *(one for one in word_fields() if one.name not in _UNWRITTEN.union(entry.name for entry in _DEPLOYMENT_FIELDS)),
    TECHNIQUES,
)
OFFLOAD_FIELDS: tuple[Field, ...] = (
    pick(
        "offload",
        ("computed", "fetched", "streamed", "layers", "neurons", "host", "disk"),
        "weights that devices do not hold: experts computed by processors or fetched; layers streamed or computed;"
        " rarely used neurons computed; all of it on the host, or from disk",
    ),
    Field(
        name="cpu",
        read=_text,
        help="processors of the host: '2x EPYC 9654', or '32 cores, 3.1 GHz, 8 channels DDR5-4800, avx512'",
    ),
    Field(name="dram", read=number("byte", 1e6, 1e18), help="host memory, e.g. 512GB; when absent, the usual one"),
    Field(
        name="device_share",
        read=number("1", 0.0, 1.0, ends=True),
        help="share of experts, layers or neurons on devices; when absent, as much as fits",
    ),
    pick("device_order", ("uniform", "front", "frequent", "recent"), "which experts devices hold"),
    pick("storage", ("nvme", "sata", "ufs", "emmc", "card"), "the disk that weights are read from"),
    yes("layerwise", "long prompts run on devices, one layer's weights copied at a time"),
)
"""Where the weights of one static batch lie that devices do not hold (`predict --serve`)."""

HOST_FIELDS = tuple(entry for entry in OFFLOAD_FIELDS if entry.name in ("offload", "cpu", "dram", "storage"))
"""Those that a search takes: it finds the shares itself (`plan --serve --offload streamed`)."""
