"""A target whose one file starts all instances of an engine on a cluster, in one pool or in prefill and decode pools.

The engine's flags are those of its own target; such a file has a table for the fields around them. On an import a flag
is named with its pool: 'prefill tensor-parallel-size'.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, prod
from typing import Any, ClassVar

from ridgeline.errors import InputError
from ridgeline.export.forms import read_flags_text
from ridgeline.export.target import Exported, Imported, Target, Words, target

WHOLE = "whole"
ROLES = (WHOLE, "prefill", "decode")
_DEGREES = ("tp", "pp", "dp", "ep")


def together(read: Mapping[str, Imported], counts: Mapping[str, Any]) -> tuple[Words, list[str]]:
    """The words of one pool, or of two as a deployment has them, and what of prefill's is not taken."""
    if WHOLE in read:
        return {**read[WHOLE].words, "plan.instances": counts[WHOLE]}, []
    words: Words = {}
    notes = []
    for role in ("prefill", "decode"):
        if role not in read:
            continue
        said = dict(read[role].words)
        said.pop("pool.role", None)
        degrees = ",".join(f"{name}{said.pop(f'plan.{name}', 1)}" for name in _DEGREES)
        notes += [f"{role}'s {word} is {value}, prefill's {words[word]} is not taken" for word, value in said.items()
                  if words.get(word, value) != value]  # fmt: skip
        words = {**words, **said, f"plan.{role}": f"{counts[role]}x{degrees}"}
    return words, notes


_COUNT = "instances"
_KV = {"kv_connector": "NixlConnector", "kv_role": "kv_both"}


@dataclass(frozen=True, kw_only=True)
class EnginePool:
    """Instances of one role ('whole', 'prefill', 'decode'): `devices` on each of `nodes`, and the engine's flags."""

    role: str
    instances: int
    flags: Mapping[str, Any]
    nodes: int = 1
    devices: int = 1


@dataclass(frozen=True, kw_only=True)
class Fleet(Target):
    """A program that starts vLLM's instances. A subclass writes a manifest of pools, and reads them back."""

    program: ClassVar[str] = "vllm"
    memory_of: ClassVar[str] = "total"
    pools: ClassVar[bool] = True
    for_cluster: ClassVar[bool] = True
    start: ClassVar[str] = "kubectl apply -f {file}"

    @property
    def engine(self) -> Target:
        """The target whose flags the file holds."""
        return target(self.program)

    def manifest(self, pools: Sequence[EnginePool], words: Mapping[str, Any]) -> dict[str, Any]:
        """The document that starts pools."""
        raise NotImplementedError

    def pools_in(self, document: Mapping[str, Any]) -> list[EnginePool] | None:
        """The pools of a document; None where it is not of this program."""
        raise NotImplementedError

    def opened(self, document: Mapping[str, Any]) -> Mapping[str, Any]:
        """The document with texts in it that are documents themselves."""
        return document

    def pooled(self, roles: Sequence[Mapping[str, Any]], release: str = "") -> Exported:
        """The one file of all pools; raises `InputError` for a value that the engine or the program would refuse."""
        pools: list[EnginePool] = []
        missed: list[str] = []
        for words in roles:
            flags, left_out = self.engine.filled(words)
            pools.append(_pool(words, flags))
            missed += left_out
        document = self.manifest(pools, roles[0])
        rows = {row.name: row for row in self.rows(release)}
        for name, value in flat_lists(self.opened(document), frozenset(rows)).items():
            problem = rows[name].check(value)
            if problem:
                raise InputError(f"{self.title} refuses {name}: {problem}", field=rows[name].ours or name, value=value)
        files = self.written(document, roles[0])
        return Exported(files=files, command=self.command(roles[0]), left_out=tuple(dict.fromkeys(missed)))

    def exported(self, words: Mapping[str, Any], release: str = "") -> Exported:
        """The file of one pool."""
        return self.pooled([words], release)

    def fields_of(self, document: Any, text: str) -> dict[str, Any] | None:
        """Own fields by dotted name, and flags by pool."""
        parts = document if isinstance(document, list) else [document]
        for one in parts:
            pools = self.pools_in(one) if isinstance(one, Mapping) else None
            if not pools:
                continue
            found = flat_lists(self.opened(one), frozenset(row.name for row in self.rows()))
            for pool in pools:
                found[f"{pool.role} {_COUNT}"] = pool.instances
                found |= {f"{pool.role} {name}": value for name, value in pool.flags.items()}
            return found
        return None

    def spelt(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Fields as they are: names of Kubernetes have one spelling."""
        return dict(fields)

    def share(self, fields: Mapping[str, Any]) -> float:
        """The share of a file's fields that the program or its engine has [1]."""
        names = {row.name for row in self.rows()}
        return sum(name in names or " " in name for name in fields) / len(fields)

    def imported(self, fields: Mapping[str, Any], release: str = "") -> Imported:
        """The words of all pools; where two differ in more than degrees, decode's are taken and the others told."""
        rows = {row.name: row for row in self.rows(release)}
        own: dict[str, Any] = {}
        flags: dict[str, dict[str, Any]] = {}
        for name, value in fields.items():
            role, space, flag = name.partition(" ")
            if space and role in ROLES:
                flags.setdefault(role, {})[flag] = value
            else:
                own[name] = value
        for name, value in own.items():
            problem = rows[name].check(value) if name in rows else ""
            if problem:
                raise InputError(f"{self.title} refuses it: {problem}", field=name, value=value)
        counts = {role: said.pop(_COUNT) for role, said in flags.items()}
        read = {role: self.engine.imported(said) for role, said in flags.items()}
        words, notes = together(read, counts)
        idle = [name for name in own if name in rows and not rows[name].ours]
        return Imported(
            target=self.key, words=words, fields=fields, notes=tuple(notes),
            idle=(*idle, *(f"{role} {name}" for role, one in read.items() for name in one.idle)),
            unknown=(
                *(name for name in own if name not in rows),
                *(f"{role} {name}" for role, one in read.items() for name in one.unknown),
            ),
        )  # fmt: skip

    def arguments(self, flags: Mapping[str, Any]) -> list[str]:
        """Flags as a container's arguments."""
        found: list[str] = []
        for name, value in flags.items():
            if isinstance(value, bool):
                found += [f"--{name}"] if value else [f"--{self.engine.off}{name}"] if self.engine.off else []
            elif isinstance(value, Mapping):
                found += [f"--{name}", json.dumps(value)]
            else:
                found += [f"--{name}", *map(str, value if isinstance(value, list) else [value])]
        return found

    def flags_in(self, arguments: Sequence[Any]) -> dict[str, Any]:
        """Flags by name of a container's arguments; JSON as what it holds."""
        switches = [row for row in self.engine.rows() if row.type == "bool"]
        names = {name for row in switches for name in (row.name, f"no-{row.name}", *row.alias.split("|"))}
        found = read_flags_text(shlex.join(map(str, arguments)), frozenset(names))
        return self.engine.spelt({name: _opened(value) for name, value in found.items()})


def flat_lists(document: Mapping[str, Any], known: frozenset[str], before: str = "") -> dict[str, Any]:
    """Fields by dotted name, also of tables in lists, the first of each name; what is `known` stays whole."""
    found: dict[str, Any] = {}
    for name, value in document.items():
        full = f"{before}{name}"
        tables = [value] if isinstance(value, Mapping) else value if isinstance(value, list) else []
        if full in known or not tables or not all(isinstance(one, Mapping) and one for one in tables):
            found.setdefault(full, value)
            continue
        for one in tables:
            found = flat_lists(one, known, f"{full}.") | found
    return found


def tables_in(value: Any) -> list[Mapping[str, Any]]:
    """The tables of a list; none where it is no list."""
    return [one for one in value if isinstance(one, Mapping)] if isinstance(value, list) else []


def _opened(value: Any) -> Any:
    if not isinstance(value, str) or not value.startswith("{"):
        return value
    try:
        return json.loads(value)
    except ValueError:
        return value


def _pool(words: Mapping[str, Any], flags: dict[str, Any]) -> EnginePool:
    """The pool of a role's words; its nodes are filled evenly, or it raises `InputError`."""
    devices = prod(int(words.get(f"plan.{name}", 1)) for name in ("tp", "pp", "dp"))
    nodes = ceil(devices / int(words.get("devices_per_node", devices)))
    if devices % nodes:
        raise InputError(f"{devices} devices do not fill {nodes} nodes evenly", field="--tp", value=devices)
    role = str(words.get("pool.role", WHOLE))
    if role != WHOLE:
        flags = flags | {"kv-transfer-config": dict(_KV)}
    return EnginePool(
        role=role, instances=int(words.get("plan.instances") or 1), flags=flags, nodes=nodes, devices=devices // nodes
    )
