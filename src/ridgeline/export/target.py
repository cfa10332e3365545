"""A target: a program whose config a plan becomes, and from which one is read.

A program is a file of this room with a `key`, its row of `data/exports/targets.toml`, and a table of its fields beside
it. What tables can say is said there alone; a target's own code writes what hangs on several fields at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar, cast

from ridgeline.errors import InputError
from ridgeline.export.fields import ConfigField, field_table
from ridgeline.export.forms import flags_text, flat, json_text, put, read_flags_text, yaml_text
from ridgeline.export.modules import module_text, read_module
from ridgeline.facts.store import read_toml
from ridgeline.graph.workload import Workload
from ridgeline.plan.plan import Plan
from ridgeline.seams.registry import in_room, keys_in_room
from ridgeline.seams.technique import Technique

_ROOM = "ridgeline.export"
Words = dict[str, Any]
"""Words of a scenario by section and name: {'plan.tp': 8, 'workload.seq_len': 4096, 'model.name': 'gpt2'}."""
Document = dict[str, Any]
Told = tuple[dict[str, Any], set[str]]
"""A document with the words that it says, or words with the fields that they were read from."""


@dataclass(frozen=True, kw_only=True)
class Exported:
    """What runs a plan: files by name, the command that starts it, and words that the program has no field for."""

    files: Mapping[str, str]
    command: str
    left_out: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Imported:
    """A program's config in our words: `idle` fields change nothing that is modelled, `unknown` ones are not its."""

    target: str
    words: Words
    fields: Mapping[str, Any]
    idle: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def tables(self) -> dict[str, dict[str, Any]]:
        """The words as the tables of a scenario."""
        found: dict[str, dict[str, Any]] = {}
        for word, value in self.words.items():
            section, _, name = word.partition(".")
            found.setdefault(section, {})[name] = value
        return found


@dataclass(frozen=True, kw_only=True)
class Target(Technique):
    """A program that runs plans. A subclass's docstring is its page: the releases read, the form, what it cannot say.

    `program` is the engine or framework whose policy file prices it, `task` 'serving' or 'training', `form` how its
    file is written and `file` the file's name. A scheduler's script around the file needs the rest: the `image` that
    its makers publish, the `port` it listens on, how it starts `on_nodes`, or that it is `for_cluster` itself.
    """

    family: ClassVar[str] = "targets"
    kinds: ClassVar[frozenset[str]] = frozenset({"config"})
    title: ClassVar[str] = ""
    program: ClassVar[str] = ""
    task: ClassVar[str] = "serving"
    form: ClassVar[str] = "yaml"  # yaml, json, flags or python
    file: ClassVar[str] = "config.yaml"
    start: ClassVar[str] = ""  # the command; {file}, {model}, {devices} are filled in
    release: ClassVar[str] = ""  # the newest that the table holds
    memory_of: ClassVar[str] = ""  # what its memory fraction is of: 'total', 'static', 'free'; '' it has none
    context_of_slots: ClassVar[bool] = False  # whether each slot has its own part of the cache
    pools: ClassVar[bool] = False  # whether prefill and decode can be files of their own
    image: ClassVar[str] = ""
    port: ClassVar[int] = 8000
    on_nodes: ClassVar[str] = ""  # {command}, {nodes}, {port} are filled in; NODE_RANK and MASTER_ADDR are there
    off: ClassVar[str] = ""  # what a flag that is off begins with, 'no-'; '' where it is left out
    for_cluster: ClassVar[bool] = False
    of_language: ClassVar[bool] = True  # whether what it trains are language models alone

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for name, value in read_toml("exports/targets.toml").get(cls.key, {}).items():
            setattr(cls, name, tuple(value) if isinstance(value, list) else value)

    def program_of(self, zero: int) -> str:
        """The framework whose policy holds for a stage of sharding."""
        return self.program

    def rows(self, release: str = "") -> tuple[ConfigField, ...]:
        """The fields of a release; '' the newest."""
        return tuple(row for row in field_table(self.key) if row.holds(release or self.release))

    @property
    def no_degrees(self) -> tuple[str, ...]:
        """Parallel degrees that the program's config has no field for: another plan would run without them."""
        return tuple(name for name in DEGREES if f"plan.{name}" not in {row.ours for row in field_table(self.key)})

    def pooled(self, roles: Sequence[Mapping[str, Any]], release: str = "") -> Exported:
        """The files of each pool's words, its role before their names; of one deployment, or a plan, its own alone."""
        if len(roles) == 1:
            return self.exported(roles[0], release)
        found = [(str(words["pool.role"]), self.exported(words, release)) for words in roles]
        return Exported(
            files={
                f"{words['pool.role']}-{name}": f"# {words['pool.role']}: {words['plan.instances']} instances\n{text}"
                for words, (_, made) in zip(roles, found, strict=True) for name, text in made.files.items()
            },
            command="\n".join(made.command.replace(self.file, f"{role}-{self.file}") for role, made in found),
            left_out=tuple(dict.fromkeys(word for _, made in found for word in made.left_out)),
            notes=tuple(f"{words['pool.role']}: {words['plan.instances']} instances" for words in roles),
        )  # fmt: skip

    def exported(self, words: Mapping[str, Any], release: str = "") -> Exported:
        """The files that run a plan; raises `InputError` for a value that the program would refuse."""
        document, left_out = self.filled(words, release)
        command = f"sh {self.file}" if self.form == "flags" else self.command(words)
        return Exported(files=self.written(document, words), command=command, left_out=left_out)

    def filled(self, words: Mapping[str, Any], release: str = "") -> tuple[dict[str, Any], tuple[str, ...]]:
        """The fields of words, and the words that have none; raises as `exported`."""
        document: dict[str, Any] = {}
        said: set[str] = set()
        ours, unsaid = _without_adapters(words), self.unsaid(words)
        for row in self.rows(release):
            if not row.ours or row.ours not in ours or row.ours in unsaid:
                continue
            value = row.theirs(ours[row.ours])
            if value is None:
                if row.default:
                    put(document, row.name, row.absent)
                continue
            problem = row.check(value)
            if problem:
                raise InputError(f"{self.title} refuses {row.name}: {problem}", field=row.ours, value=value)
            said.add(row.ours)
            put(document, row.name, value)
        if "plan.micro_batches" in said:
            said.add("workload.global_batch")
        document, own = self.finished(document, words, release)
        return document, tuple(word for word in words if word not in said | own and self.matters(word, words))

    def unsaid(self, words: Mapping[str, Any]) -> Set[str]:
        """The words that no field says, as theirs means something beside another alone."""
        return frozenset()

    def finished(self, document: Document, words: Mapping[str, Any], release: str) -> Told:
        """The document with what hangs on several words at once, and the words that this said."""
        return document, set()

    def matters(self, word: str, words: Mapping[str, Any]) -> bool:
        """Whether a word that has no field changes the run: one that is not at its default."""
        section, _, name = word.partition(".")
        record = {"plan": Plan, "workload": Workload}.get(section) if self.task == "training" else None
        nothing = getattr(record, name, None) if record else None
        nothing = nothing.value if isinstance(nothing, Enum) else None if name in _ALWAYS else nothing
        known = section == "plan" or (record is not None and name in _CHOSEN)
        follows = self.task == "training" and word in _FOLLOWS
        said = words[word] not in (None, "", False, (), [], nothing)
        return known and said and not follows and word not in _NOT_A_FIELD

    def written(self, document: dict[str, Any], words: Mapping[str, Any]) -> dict[str, str]:
        """The files of a document, by name."""
        match self.form:
            case "yaml":
                return {self.file: yaml_text(document)}
            case "json":
                return {self.file: json_text(document)}
            case "python":
                return {self.file: module_text(document, self.imports(document))}
            case _:
                return {self.file: "#!/bin/sh\n" + flags_text(self.command(words), document)}

    def imports(self, document: Mapping[str, Any]) -> tuple[str, ...]:
        """The import lines of a Python module that holds a document."""
        return ()

    def command(self, words: Mapping[str, Any]) -> str:
        """The command that starts the program on the files."""
        return self.start.format(
            file=self.file, model=words.get("model.id", words.get("model.name", "MODEL")),
            devices=words.get("devices", 1),
        )  # fmt: skip

    def fields_of(self, document: Any, text: str) -> dict[str, Any] | None:
        """Fields by name of a file that was read, in our table's names; None where it is no file of this program."""
        known = frozenset(row.name for row in field_table(self.key))
        if self.form == "python":
            return read_module(text) if document is None else None
        if self.form == "flags":
            flags = [row for row in field_table(self.key) if row.type == "bool"]
            switches = frozenset(name for row in flags for name in (row.name, *row.alias.split("|"), f"no-{row.name}"))
            return read_flags_text(text, switches) if document is None else None
        return flat(document, known) if isinstance(document, Mapping) else None

    def spelt(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Fields under their names in the table: other spellings, `_` for `-`, and `no-` before a switch."""
        table = field_table(self.key)
        names = {row.name for row in table}
        others = {other: row.name for row in table for other in row.alias.split("|") if other}
        switches = {row.name for row in table if row.type == "bool"}
        found: dict[str, Any] = {}
        for name, value in fields.items():
            dashed = name if name in names or name in others else name.replace("_", "-")
            full = dashed if dashed in names else others.get(dashed, dashed)
            off = full.removeprefix("no-")
            if full not in names and off in switches and isinstance(value, bool):
                full, value = off, not value
            found[full if full in names else name] = value
        return found

    def share(self, fields: Mapping[str, Any]) -> float:
        """The share of a file's fields that the program has [1]."""
        names = {row.name for row in self.rows()}
        return sum(name in names for name in self.spelt(fields)) / len(fields)

    def imported(self, fields: Mapping[str, Any], release: str = "") -> Imported:
        """The words that fields stand for; raises `InputError` for a value that the program would refuse."""
        fields = self.spelt(fields)
        known = {row.name: row for row in self.rows(release)}
        words: Words = {}
        idle: list[str] = []
        for name, value in fields.items():
            row = known.get(name)
            if row is None:
                continue
            problem = row.check(value) if value is not None else ""
            if problem:
                raise InputError(f"{self.title} refuses it: {problem}", field=name, value=value)
            ours = row.our_value(value) if row.ours and value is not None else None
            if ours is None:
                idle.append(name)
            else:
                words[row.ours] = ours
        for row in known.values():
            if row.default and row.ours not in words:
                words[row.ours] = row.our_value(row.absent)
        words, used = self.understood(words, fields)
        words = dict(_without_adapters(words))
        unknown = tuple(name for name in fields if name not in known and name not in used)
        return Imported(
            target=self.key, words=words, fields=fields, idle=tuple(name for name in idle if name not in used),
            unknown=unknown,
        )  # fmt: skip

    def understood(self, words: Words, fields: Mapping[str, Any]) -> Told:
        """The words with what several fields say together, and the fields that this read."""
        return words, set()


_NOT_A_FIELD = frozenset({"plan.engine", "plan.engine_file", "plan.instances", "plan.framework"})
_FOLLOWS = frozenset({"plan.dp", "plan.micro_batches"})
"""Words of a training plan that follow from others and the number of devices."""
DEGREES = ("tp", "pp", "cp", "ep", "etp")
_ALWAYS = frozenset({"precision", "optimizer"})  # told also at our default, which need not be the program's
_CHOSEN = _ALWAYS | {"task", "seq_len", "global_batch", "attention_kernel", "lora_rank"}
"""Words of a workload that a program must say to train the same; the others describe its data."""


def _without_adapters(words: Mapping[str, Any]) -> Mapping[str, Any]:
    """Words less those of adapters where none are trained."""
    if words.get("workload.task") in ("lora", "qlora"):
        return words
    return {word: value for word, value in words.items() if not word.startswith("workload.lora_")}


def targets() -> tuple[str, ...]:
    """Keys of all targets."""
    return keys_in_room(_ROOM)


def target(key: str) -> Target:
    """The target of a key; raises `UnknownNameError` with the nearest."""
    return cast(Target, in_room(_ROOM, "target", key))
