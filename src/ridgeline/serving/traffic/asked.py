"""Traffic drawn from laws, as Python or the words of a scenario describe it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ridgeline.errors import WorkloadError
from ridgeline.plan.deployment import Deployment
from ridgeline.seams.serving import with_inputs
from ridgeline.serving.traffic import arrivals
from ridgeline.serving.traffic.arrivals import SEED, burst
from ridgeline.serving.traffic.lengths import Fixed, LengthLaw, LogNormal, Uniform
from ridgeline.serving.traffic.named import named_traffic
from ridgeline.serving.traffic.sessions import Agents, Spans, at_once
from ridgeline.serving.traffic.traffic import Floats, Traffic, traffic

_ROUNDS, _FEWEST = 10, 200  # requests of a closed loop for each user; and at least, when nothing is said
_USUAL_PROMPT, _USUAL_OUTPUT, _USUAL_TOOL = 1024, 256, 256
_OF_TURNS = ("tool_time", "tool_tokens", "shared_prompt")
_LONGEST_S = 1e8  # of arrivals: three years
_UNUSED = {  # words that an arrival process has no use for
    "burst": ("rate", "duration", "cv"), "closed": ("rate", "duration", "cv"), "poisson": ("cv",), "constant": ("cv",),
}  # fmt: skip


def asked_traffic(words: Mapping[str, Any], deployments: Sequence[Deployment] = ()) -> tuple[Traffic, tuple[str, ...]]:
    """The traffic of the workload's words, and what was assumed; raises `WorkloadError` for words that conflict.

    Prompts have what the techniques of `deployments` put beside their words, as images, in tokens.
    """
    found, assumed = _asked(words)
    found = with_inputs(found, deployments)
    last_s = float(found.arrival_s[-1])
    if last_s > _LONGEST_S:
        raise WorkloadError(f"the last request arrives at {last_s:.3g} s, at most {_LONGEST_S:g} s can be replayed")
    return found, assumed


def _asked(words: Mapping[str, Any]) -> tuple[Traffic, tuple[str, ...]]:
    seed = words.get("seed", arrivals.SEED)
    if "trace" in words:
        return _traced(words, seed)
    for name in ("sessions", "think"):
        if name in words:
            raise WorkloadError(f"{name} is said, but no trace; give --trace, or sessions of your own with --turns")
    assumed = [
        f"{name} of {usual} tokens, as none was given"
        for name, usual in (("prompt", _USUAL_PROMPT), ("output", _USUAL_OUTPUT))
        if name not in words
    ]
    prompt, output = _law(words, "prompt", _USUAL_PROMPT), _law(words, "output", _USUAL_OUTPUT)
    if "turns" in words:
        return _sessions(words, prompt, output, seed), tuple(assumed)
    for name in _OF_TURNS:
        if name in words:
            raise WorkloadError(f"{name.replace('_', '-')} is said, but no turns of sessions; give --turns, e.g. 8")
    kind = words.get("arrivals", "closed" if "concurrency" in words else "poisson")
    if "concurrency" in words and kind not in ("closed", "burst"):
        raise WorkloadError(f"arrivals {kind} and a concurrency are said; a closed loop sends when an answer ends")
    for name in _UNUSED.get(kind, ()):
        if name in words:
            raise WorkloadError(
                f"{name} is said, which arrivals '{kind}' do not have; leave it out, or take other arrivals"
            )
    if kind == "closed":
        users = words.get("concurrency")
        if users is None:
            raise WorkloadError("a closed loop needs users; give --concurrency")
        count = words.get("requests", max(_ROUNDS * users, _FEWEST))
        found = synthetic(arrivals.burst(count), prompt, output, seed=seed, name=f"closed loop of {users}")
        return found.closed(users), tuple(assumed)
    found = synthetic(_times(kind, words, seed), prompt, output, seed=seed, name=_named(kind, words))
    return (found.closed(words["concurrency"]) if "concurrency" in words else found), tuple(assumed)


def _named(kind: str, words: Mapping[str, Any]) -> str:
    rate = f" at {words['rate']:g}/s" if "rate" in words else ""
    users = f", at most {words['concurrency']} at once" if "concurrency" in words else ""
    return (f"{kind} arrivals{rate}" if kind != "burst" else "a burst") + users


def _times(kind: str, words: Mapping[str, Any], seed: int) -> Floats:
    count, duration = words.get("requests"), words.get("duration")
    if kind == "burst":
        return arrivals.burst(count or _FEWEST)
    rate = words.get("rate")
    if rate is None:
        raise WorkloadError("no traffic is said; give --rate, --concurrency, --trace, or --arrivals burst")
    if count is None and duration is None:
        count = max(_FEWEST, int(rate * 600))
    if kind == "constant" and count is None:
        return arrivals.constant(rate, duration_s=duration)
    if duration is not None:  # as many as the rate means in that time, no draw of their number
        count = min(count or arrivals.MOST_REQUESTS + 1, max(1, round(min(rate * duration, 1e18))))
    if kind == "constant":
        return arrivals.constant(rate, requests=count)
    if kind == "poisson":
        return arrivals.poisson(rate, requests=count, seed=seed)
    make = arrivals.gamma if kind == "gamma" else arrivals.weibull
    return make(rate, cv=words.get("cv", 1.0), requests=count, seed=seed)


def _traced(words: Mapping[str, Any], seed: int) -> tuple[Traffic, tuple[str, ...]]:
    for name in ("arrivals", "cv", "prompt", "output", "turns", *_OF_TURNS):
        if name in words:
            raise WorkloadError(f"{name} is said beside a trace, which has its own; leave one of them out")
    if "rate" in words and "concurrency" in words:
        raise WorkloadError("rate and concurrency are said; a closed loop sends when an answer ends, at no given rate")
    found = named_traffic(
        words["trace"], sessions=words.get("sessions", "written"), think_s=words.get("think", 0.0), seed=seed
    )
    if "duration" in words:
        found = found.between(0.0, words["duration"])
    if "requests" in words:
        found = found.first(words["requests"])
    span = float(found.arrival_s[-1])
    if "rate" in words and span > 0:
        found = found.scaled(words["rate"] * span / max(found.requests - 1, 1))
    if "concurrency" in words:
        users = words["concurrency"]
        found = at_once(found, users) if (found.after >= 0).any() else found.closed(users)
    return found, tuple(found.notes)


def _sessions(words: Mapping[str, Any], prompt: LengthLaw, output: LengthLaw, seed: int) -> Traffic:
    """Sessions of agents: `rate`, `requests` and `concurrency` count them, `prompt` is that of a first turn."""
    users, turns = words.get("concurrency"), _any_law(words["turns"])
    kind = words.get("arrivals", "poisson")
    if users is not None and ({"rate", "duration", "cv"} & words.keys() or kind not in ("poisson", "closed")):
        raise WorkloadError(
            "concurrency of sessions is said beside a law of arrivals; a user begins when one has ended"
        )
    if users is None and kind == "closed":
        raise WorkloadError("a closed loop needs users; give --concurrency")
    times = _times(kind, words, seed) if users is None else np.zeros(words.get("requests", max(4 * users, 50)))
    law = Agents(
        turns=turns, prompt=prompt, output=output, tool=_any_law(words.get("tool_tokens", (_USUAL_TOOL,) * 2)),
        waits=Spans(**words.get("tool_time", {})), shared_tokens=words.get("shared_prompt", 0),
    )  # fmt: skip
    name = f"sessions, {users} at once" if users else f"sessions, {_named(kind, words)}"
    found = law.drawn(times, _streams(seed, 5), name)
    return found if users is None else at_once(found, users)


def _any_law(value: Any) -> LengthLaw:
    """A law of lengths: as it is, or of its two ends."""
    if not isinstance(value, tuple):
        return LogNormal(**value)
    return Fixed(tokens=value[0]) if value[0] == value[1] else Uniform(low=value[0], high=value[1])


def _law(words: Mapping[str, Any], name: str, usual: int) -> LengthLaw:
    return _any_law(words.get(name, (usual, usual)))


def synthetic(
    arrival_s: ArrayLike, prompt: LengthLaw, output: LengthLaw, *, seed: int = SEED, name: str = "synthetic"
) -> Traffic:
    """Requests at given times with prompt and answer lengths drawn apart from each other.

    Prompts and answers have streams of their own: another law of answers leaves the prompts as they are.
    """
    times = np.asarray(arrival_s, dtype=np.float64)
    prompts, outputs = _streams(seed, 2)
    return traffic(
        times, prompt.draw(prompts, len(times)), output.draw(outputs, len(times)), name=name, source=f"seed {seed}"
    )


def closed_loop(concurrency: int, requests: int, prompt: LengthLaw, output: LengthLaw, *, seed: int = SEED) -> Traffic:
    """Requests of which at most `concurrency` are in flight; the next starts when one ends."""
    name = f"closed loop of {concurrency}"
    return synthetic(burst(requests), prompt, output, seed=seed, name=name).closed(concurrency)


def resampled(seen: Traffic, arrival_s: ArrayLike, *, seed: int = SEED) -> Traffic:
    """Requests at given times whose lengths are pairs drawn with replacement from another traffic.

    A prompt keeps the answer that it had; prefixes and sessions are left out, since they belong to an order.
    """
    times = np.asarray(arrival_s, dtype=np.float64)
    (rng,) = _streams(seed, 1)
    chosen = rng.integers(0, seen.requests, len(times))
    return traffic(
        times,
        seen.prompt_tokens[chosen],
        seen.output_tokens[chosen],
        client=seen.client[chosen],
        client_names=seen.client_names,
        priority=seen.priority[chosen],
        name=f"lengths of {seen.name}",
        source=f"{seen.source}; seed {seed}",
    )


def _streams(seed: int, count: int) -> list[np.random.Generator]:
    # The root sequence of the seed drives the arrivals; its children are independent of it.
    return [np.random.default_rng(child) for child in np.random.SeedSequence(seed).spawn(count)]
