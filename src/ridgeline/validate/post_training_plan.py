"""Words of a row of post-training that say how its roles are divided, and habits of programs where it says nothing."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ridgeline.errors import InputError
from ridgeline.facts.readings import reading, settings
from ridgeline.validate.rows import Row

_APART = re.compile(r"(\d+) rollout\s*:\s*\d+ train|\btrain\b.*?,\s*(\d+) (?:[\w-]+ )?rollout\b")
_ROLES = re.compile(r";|,\s*(?=\d+ (?:[\w-]+ )?(?:rollout|train)\b)")  # 4 train (TP 2, DP 2), 4 rollout
_COUNT = r"\s*(?:\d+ (?:[\w-]+ )?)?"  # how many devices of which kind a role has
_FIELDS = {"vpp": "chunks", "sp": "cp"}
_LISTED = re.compile(r"\[([A-Za-z, ]+)\]\s*\[([^\]]+)\]")
_TOKENS_A_GPU = re.compile(
    r"(?<!log-prob )\b(\d+)(k?) tokens a GPU|max_token(?:s|_len)_per_gpu\W{0,3}(\d+)(k?)", re.IGNORECASE
)
_SEQUENCES = re.compile(r"(?<!log-prob )\bmicro[- ]batch (\d+)\b", re.IGNORECASE)
_NOT_FILLED = re.compile(r"dynamic batch FALSE|no dynamic batching", re.IGNORECASE)
_DEGREE = re.compile(r"(vpp|fsdp|tp|pp|cp|ep|sp|dp)\s*(\d+)", re.IGNORECASE)


_HABITS = ("zero", "tp", "pp", "cp", "ep", "micro_batch", "recompute", "schedule", "rollout_memory", "sequence_packing")
"""Words of the plan that programs set by themselves: rows `post_training_*` of the table of readings."""


def trainer(row: Row) -> str:
    """The program that trains: the engine that a row names, and what its notes say of whose it is."""
    engine, named = row.text("train_engine"), reading("post_training_named", words=row.text("notes"))
    known = named is None or reading("post_training_named", words=engine) is not None
    return engine if named is None or known else f"{engine}; {named.text}"


def packs(row: Row) -> bool:
    """Whether a row says that micro-batches hold a number of tokens."""
    said = r"tokens a GPU|max_token(?:s|_len)_per_gpu|dynamic batch TRUE|sequence packing"
    return bool(re.search(said, row.text("notes"), re.IGNORECASE))


def stated_plan(row: Row, said: list[str]) -> tuple[dict[str, Any], bool]:
    """Words of the plan that a row states, and whether the split of its devices has to be looked for."""
    notes, layout, mode = row.text("notes"), row.text("layout"), row.text("mode").strip()
    stated: dict[str, Any] = {}
    for part in _ROLES.split(layout):
        degrees = _degrees(part)
        if re.match(rf"{_COUNT}(?:generation|rollout)\b", part, re.IGNORECASE):
            stated |= {f"rollout_{name}": value for name, value in degrees.items() if name in ("tp", "pp", "ep")}
        elif re.match(rf"{_COUNT}(?:train|training|actor)\b|\s*[tpcdes]p ?\d", part, re.IGNORECASE):
            stated |= _of_trainer(degrees, row)
    tokens = _TOKENS_A_GPU.search(notes)
    if tokens:
        count = int(tokens[1] or tokens[3]) * (1000 if tokens[2] or tokens[4] else 1) * stated.get("cp", 1)
        stated["sequence_packing"] = f"packed-sequences(tokens={count})"
    apart = _APART.search(layout)
    if apart:
        stated["rollout_devices"] = int(apart[1] or apart[2])
    stated |= _fixed_batches(row, said)
    for name, value in _unsaid(row, said).items():
        stated.setdefault(name, value)
    if re.search(r"fp8[^;]*generation", row.text("precision")):
        stated["rollout_weights"] = "fp8"
    stated |= settings("post_training_notes", said, words=f"{layout}; {notes}")
    blocks = re.search(r"recompute (\d+) blocks", notes)
    if blocks:
        stated |= {"recompute": "full", "recompute_layers": int(blocks[1])}
    critic = re.search(r"(\d+) critic nodes? of (\d+)", layout)
    if critic:
        stated["critic_devices"] = int(critic[1]) * int(critic[2])
        return stated, False
    if mode == "colocated":
        return stated, False
    if mode not in ("async", "apart"):
        raise InputError(f"'{mode[:20]}' is no mode that is predicted; known: colocated, apart, async", field="mode")
    steps = re.search(r"(\d+)-step Off", notes)
    if mode == "async":
        behind = int(steps[1]) if steps else 1
        stated["rollout_mode"] = f"off-policy(staleness={behind})" if behind != 1 else "off-policy"
        if not steps:
            said.append("one step off-policy (assumed), as the row states no staleness")
        share, count = reading("post_training_rollout_share", program=trainer(row)), row.count("n_devices")
        if share is not None and count is not None and "rollout_devices" not in stated:
            stated["rollout_devices"] = max(1, round(share.number * count))
            said.append(share.told)
    return stated, "rollout_devices" not in stated


def _unsaid(row: Row, said: list[str]) -> dict[str, Any]:
    """Words of the plan that are habits of programs of post-training, where a row says nothing else."""
    found: dict[str, Any] = {}
    engine, notes = row.text("rollout_engine").strip(), row.text("notes")
    if engine:
        usual = None if re.search(r"\d", engine) else reading("post_training_engine", program=engine)
        found["rollout_engine"] = engine if usual is None else usual.text
        said += [usual.told] if usual is not None and usual.told else []
    for name in _HABITS:
        usual = reading(f"post_training_{name}", program=trainer(row), model=row.text("model"), words=notes)
        if usual is None or (name == "recompute" and re.search(r"recompute (FALSE|none)", notes, re.IGNORECASE)):
            continue
        if name == "rollout_memory" and row.text("mode").strip() != "colocated":
            continue
        found[name] = usual.value
        said += [usual.told] if usual.told else []
    return found


def _fixed_batches(row: Row, said: list[str]) -> dict[str, Any]:
    """Micro-batches of a fixed number of sequences, where a row says so of a program that removes padding from them."""
    usual = reading("post_training_sequences", program=trainer(row))
    stated = _SEQUENCES.search(row.text("notes"))
    if usual is None or not (stated or _NOT_FILLED.search(row.text("notes"))):
        return {}
    if not stated:
        said.append(usual.told)
    return {"sequence_packing": f"packed-sequences(sequences={stated[1] if stated else round(usual.number)})"}


def _of_trainer(degrees: Mapping[str, int], row: Row) -> dict[str, Any]:
    """Words of the trainer's plan."""
    found: dict[str, Any] = {name: value for name, value in degrees.items() if name in ("tp", "pp", "cp", "ep")}
    usual = reading("post_training_zero", program=trainer(row))
    sharded = "fsdp" in degrees or (usual is not None and usual.value == 3)
    if sharded:
        found["zero"] = 3
    if found.get("cp", 1) > 1 and sharded:
        found["context_style"] = "ulysses"
    if degrees.get("chunks", 1) > 1:
        found |= {"chunks": degrees["chunks"], "schedule": "interleaved"}
    return found


def _degrees(part: str) -> dict[str, int]:
    """Degrees of one role: a list of names and one of values, or words such as tp4pp2."""
    listed = _LISTED.search(part)
    if listed:
        names = [one.strip().casefold() for one in listed[1].split(",")]
        values = [one.strip() for one in listed[2].split(",")][-len(names) :]  # a longer list ends with those named
        pairs = [(name, value) for name, value in zip(names, values, strict=False) if value.isdecimal()]
    else:
        pairs = [(name.casefold(), value) for name, value in _DEGREE.findall(part)]
    return {_FIELDS.get(name, name): int(value) for name, value in pairs}
