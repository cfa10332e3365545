"""Traffic by name or path: what `--trace` means."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, cast

from ridgeline.errors import UnknownNameError
from ridgeline.facts.trace_file import DEFAULT_BLOCK_TOKENS, TraceFile, read_trace
from ridgeline.facts.traces import shipped, shipped_trace, trace_names
from ridgeline.seams.registry import in_room
from ridgeline.serving.traffic.arrivals import SEED
from ridgeline.serving.traffic.mixes import servegen
from ridgeline.serving.traffic.sessions import as_asked
from ridgeline.serving.traffic.traffic import Traffic, traffic

MIXES = ("servegen",)
DRAWN = ("tree-search",)  # algorithms whose requests are drawn, with parameters in brackets


def traffic_names() -> tuple[str, ...]:
    """Names of the traffic that ships with the package."""
    return (*trace_names(), *MIXES, *DRAWN)


def named_traffic(
    text: str,
    *,
    sessions: str = "written",
    think_s: float = 0.0,
    block_tokens: int = DEFAULT_BLOCK_TOKENS,
    seed: int = SEED,
) -> Traffic:
    """The traffic that a name or the path of a trace file means.

    `sessions` says whether a session's turns wait for one another (`sessions.as_asked`).
    `block_tokens` [token] is the size of a prefix block of a file; `seed` draws the mix 'servegen', a whole day.
    """
    name = text.strip().casefold().replace("_", "-")
    if name.partition("(")[0] in DRAWN:
        return cast(Any, in_room("ridgeline.numerics", "trace", text)).traffic(seed)  # type: ignore[no-any-return]
    if name in MIXES:
        found = servegen(seed=seed)
    elif name in trace_names():
        found = from_trace(shipped_trace(name), name=name, source=shipped()[name].source)
    elif os.path.exists(text) or any(mark in text for mark in "/\\."):
        found = from_trace(read_trace(text, block_tokens=block_tokens), name=Path(text).name, source=text)
    else:
        raise UnknownNameError("trace", text, traffic_names(), hint="a path of a CSV file is also accepted")
    return as_asked(found, sessions, think_s)


def from_trace(trace: TraceFile, *, name: str = "", source: str = "") -> Traffic:
    """The requests of a trace file, arrivals as written."""
    return traffic(
        trace.arrival_s,
        trace.prompt_tokens,
        trace.output_tokens,
        prefix_start=trace.prefix_start,
        prefix_blocks=trace.prefix_blocks,
        prefix_block_tokens=trace.prefix_block_tokens,
        session=trace.session,
        client=trace.client,
        client_names=trace.client_names,
        priority=trace.priority,
        think_s=trace.wait_s,
        dropped=trace.dropped,
        notes=trace.notes,
        name=name or trace.name,
        source=source or trace.name,
    )
