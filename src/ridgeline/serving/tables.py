"""Tables of engines laid end to end, as the compiled clock reads them: one array, and where in it each table begins.

The loop hands its arguments from function to function: with one array in place of 22 it is a third faster.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ridgeline.seams.serving import RemoteKV, of
from ridgeline.serving.clock import Times
from ridgeline.serving.engine import Engine
from ridgeline.serving.nano import NanoTables
from ridgeline.serving.split import SplitTables
from ridgeline.serving.state import GRIDS, Array
from ridgeline.serving.step import StepTables


def times_of(engines: Sequence[Engine], tables: Sequence[StepTables]) -> tuple[Times, dict[str, list[int]]]:
    """The tables of several engines [s], with the fields of their rules that say where each begins and how long."""
    return end_to_end([_parts(one, table) for one, table in zip(engines, tables, strict=True)])


def end_to_end(kinds: Sequence[Mapping[str, Array]]) -> tuple[Times, dict[str, list[int]]]:
    """Tables by name of each kind in one array, and the fields of the rules [1]: their places, the sizes of grids."""
    names = list(dict.fromkeys(name for parts in kinds for name in parts))
    places: dict[str, list[int]] = {name: [] for name in names}
    places |= {f"{name}_size": [] for name in names if name in GRIDS}
    laid: list[Array] = []
    end = 0
    for parts in kinds:
        for name in names:
            part = parts.get(name, np.zeros(0))
            places[name].append(end)
            if name in GRIDS:
                places[f"{name}_size"].append(part.size)
            laid.append(np.ravel(part))
            end += part.size
    return np.concatenate(laid), places


def _parts(one: Engine, table: StepTables) -> dict[str, Array]:
    """What the clock reads of one engine; tables that its deployment has no use for are left out.

    Attention of a split device is that of any other, and so is that of micro-batches whose experts are elsewhere.
    """
    decode_shape, prompt_shape = (len(table.sequences), len(table.contexts)), (len(table.chunks), len(table.pasts))
    found = {
        "tokens": table.tokens,
        "lane": table.lane.mid + one.policy.exposed_host_s,
        "group": np.stack([table.experts(prompts=with_prompts).mid for with_prompts in (False, True)]),
        "sequences": table.sequences,
        "head": table.head.mid,
        "contexts": table.contexts,
        "decode": np.broadcast_to(table.decode.mid, decode_shape),
        "chunks": table.chunks,
        "pasts": table.pasts,
        "first": np.broadcast_to(table.first.mid, prompt_shape),
        "each": np.broadcast_to(table.each.mid, prompt_shape),
        "graphs": np.array(one.graphs, dtype=float),
    }
    waiting: NanoTables | SplitTables | None = table.nano or table.split
    if waiting is not None:
        for name in ("compute", "memory", "network", "head_compute", "head_memory", "head_network"):
            found[f"nano_{name}"] = getattr(waiting, name).mid
    if table.split is not None:
        found |= {"busy": table.split.busy.mid, "head_busy": table.split.head_busy.mid}
    if table.attention_ffn is not None:
        found["send"] = table.attention_ffn.send.mid
    lines = (
        table.split or table.attention_ffn or of(one.deployment, RemoteKV).applied
    )  # steps that more than one thing may bind
    decode = table.nano.decode if table.nano else table.decode if lines else None
    if decode is not None:
        found["nano_decode"] = np.broadcast_to(decode.mid, decode_shape)
    return found
