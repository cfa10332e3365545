"""A wrapper: the script or manifest of a cluster's scheduler around the files of any target.

A wrapper is a file of `ridgeline.export.around` with a `key`. It sees a `ClusterRun`: so many nodes with so many
devices each, and the command that starts the program on them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, prod
from typing import Any, ClassVar, cast

from ridgeline.errors import InputError
from ridgeline.export.target import Exported, Target
from ridgeline.seams.registry import in_room, keys_in_room
from ridgeline.seams.technique import Technique

_ROOM = "ridgeline.export.around"
_DEGREES = ("plan.tp", "plan.pp", "plan.cp", "plan.dp")
_TORCH = ("torchrun", "deepspeed")
PORT = 29500
"""Where the ranks of a training run find each other."""


@dataclass(frozen=True, kw_only=True)
class ClusterRun:
    """A run as a scheduler sees it: `copies` of it, each over `nodes` with `devices` each, for at most `wall_s` [s].

    `launch` starts it on each node, where NODE_RANK says which one it is and MASTER_ADDR which is the first; `files`
    are those of the program.
    """

    name: str
    nodes: int
    devices: int
    copies: int = 1
    vendor: str = ""
    wall_s: float | None = None
    launch: str
    files: Mapping[str, str]
    serves: bool


@dataclass(frozen=True, kw_only=True)
class Wrapper(Technique):
    """What a scheduler runs. A subclass's docstring is its page; `file` is the name of what it writes."""

    family: ClassVar[str] = "wrappers"
    kinds: ClassVar[frozenset[str]] = frozenset({"config"})
    title: ClassVar[str] = ""
    file: ClassVar[str] = ""
    start: ClassVar[str] = ""  # the command that hands {file} to the scheduler

    def script(self, one: Target, job: ClusterRun) -> str:
        """The script or manifest; raises `InputError` for a job that it cannot run."""
        raise NotImplementedError

    def notes(self, one: Target, job: ClusterRun) -> tuple[str, ...]:
        """What a person has to fill in before it runs."""
        return ()

    def wrapped(self, one: Target, made: Exported, job: ClusterRun) -> Exported:
        """The files with the scheduler's own beside them, and the command that hands it over."""
        return Exported(
            files={**job.files, self.file: self.script(one, job)}, command=self.start.format(file=self.file),
            left_out=made.left_out, notes=(*made.notes, *self.notes(one, job)),
        )  # fmt: skip


def wrappers() -> tuple[str, ...]:
    """Keys of all wrappers."""
    return keys_in_room(_ROOM)


def wrapper(key: str) -> Wrapper:
    """The wrapper of a key; raises `UnknownNameError` with the nearest."""
    return cast(Wrapper, in_room(_ROOM, "wrapper", key))


def run_of(one: Target, made: Exported, roles: Sequence[Mapping[str, Any]], wall_s: float | None = None) -> ClusterRun:
    """The job that runs a target's files; raises `InputError` for one that a scheduler cannot start.

    A deployment is a job for each instance, a training plan is one job.
    """
    if one.for_cluster:
        raise InputError(f"{one.title} is a manifest of a cluster already; leave it out", field="--around")
    if len(roles) > 1:
        said = "starts one pool; export each as a deployment of its own, or both with --to dynamo, llm-d or kserve"
        raise InputError(said, field="--around")
    words = roles[0]
    devices = prod(int(words.get(name, 1)) for name in _DEGREES)
    inside = int(words.get("devices_per_node", devices))
    nodes = ceil(devices / inside)
    if devices % nodes:
        raise InputError(f"{devices} devices do not fill nodes of {inside} evenly", field="--around", value=devices)
    serves = one.task == "serving"
    script = one.form == "flags"  # its file is a launch script, which begins with the command
    inner = made.files[one.file].splitlines()[1].removesuffix(" \\") if script else made.command
    on_each = inner if nodes == 1 else _on_each_node(one, inner, nodes, devices // nodes)
    files = {name: text.replace(inner, on_each, 1) if script else text for name, text in made.files.items()}
    return ClusterRun(
        name=plain_name(str(words.get("model.name", one.key))), nodes=nodes, devices=devices // nodes,
        copies=int(words.get("plan.instances") or 1) if serves else 1, vendor=str(words.get("vendor", "")),
        wall_s=wall_s, launch=made.command if script else on_each, files=files, serves=serves,
    )  # fmt: skip


def plain_name(text: str) -> str:
    """A name of letters, digits and dashes, at most 40 of them, as Kubernetes and Slurm take it."""
    return re.sub(r"[^a-z0-9]+", "-", text.casefold()).strip("-")[:40].rstrip("-") or "run"


def _on_each_node(one: Target, command: str, nodes: int, devices: int) -> str:
    """A command of one node as it is said on each of several."""
    if one.on_nodes:
        return one.on_nodes.format(command=command, nodes=nodes, port=PORT)
    first, *rest = command.split(" ")
    if first in _TORCH:
        at = next((place for place, part in enumerate(rest) if part.endswith(".py") or part in ("-m", "--module")), 0)
        meet = f"--rdzv-backend c10d --rdzv-endpoint $MASTER_ADDR:{PORT}"
        return f"torchrun --nnodes {nodes} --nproc-per-node {devices} {meet} {' '.join(rest[at:])}"
    if command.startswith("accelerate launch "):
        own = f"--num_machines {nodes} --num_processes {nodes * devices} --machine_rank $NODE_RANK"
        meet = f"--main_process_ip $MASTER_ADDR --main_process_port {PORT}"
        return f"accelerate launch {own} {meet} {command.removeprefix('accelerate launch ')}"
    raise InputError(
        f"how {one.title} starts on {nodes} nodes is not known; keep it on one node, or start it by hand",
        field="--around", value=nodes,
    )  # fmt: skip
