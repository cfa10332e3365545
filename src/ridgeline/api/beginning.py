"""The command `init`: a commented scenario file with the usual values."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

from ridgeline.api.answer import Answer
from ridgeline.api.asking import cluster_words, is_folder
from ridgeline.errors import InputError
from ridgeline.report.blocks import Block, Line
from ridgeline.scenario.fields import Field
from ridgeline.scenario.training import (
    Place,
    Scenario,
    Table,
    cluster_in,
    scenario_from_words,
    toml_value,
    workload_and_plan,
)

if TYPE_CHECKING:
    from ridgeline.facts.records import Cluster


_WIDTH = 100  # columns of a comment
_INTRO = """\
# {title}: `{command}`.
# Lines behind a # are words that are not said; take the # away to say one. Flags win over this file."""
_MACHINE = """\
# price = 1.99      # your own price of a device for an hour [USD]; else the catalog's median
# region = "FR"     # where it stands, for its carbon; else the world's average"""


@dataclass(frozen=True, kw_only=True)
class Section:
    """A table of a scenario: its name, its fields, and the values that are said."""

    name: str
    fields: Sequence[Field]
    said: Mapping[str, object]


def commented(
    title: str, command: str, model: Mapping[str, object], cluster: Mapping[str, object], sections: Sequence[Section]
) -> str:
    """A scenario as TOML in which every word of `sections` stands with its help, as said or behind a '#'."""
    parts = [
        _INTRO.format(title=title, command=command),
        f"[model]   # name = \"NAME\" of the catalog, or config = \"config.json\"\n{_said(model)}",
        f"[cluster]   # name = \"COUNTxDEVICE\", or file = \"machine.toml\" of your own\n{_said(cluster)}\n{_MACHINE}",
    ]  # fmt: skip
    for section in sections:
        said = [one for one in section.fields if one.name in section.said]
        rest = [one for one in section.fields if one.name not in section.said]
        lines = [*(_line(one, section.said) for one in said), *(_line(one, section.said) for one in rest)]
        parts.append("\n".join([f"[{section.name}]", *lines]))
    return "\n\n".join(parts) + "\n"


def training_sections(scenario: Scenario) -> tuple[Section, ...]:
    """The tables of a training scenario, with what was assumed in it said."""
    from ridgeline.scenario.fields import PLAN_FIELDS, WORKLOAD_FIELDS

    said = workload_and_plan(scenario)
    fields = {"workload": WORKLOAD_FIELDS, "plan": PLAN_FIELDS}
    return tuple(Section(name=name, fields=table, said=said.get(name, {})) for name, table in fields.items())


def _said(table: Mapping[str, object]) -> str:
    return "\n".join(f"{name} = {toml_value(value)}" for name, value in table.items())


def _line(one: Field, said: Mapping[str, object]) -> str:
    """A word with its help above it; one that is not said has its first alternative behind a '#'."""
    options = ("true", "false") if one.switch else one.choices
    told = one.help + (f"; one of {', '.join(options)}" if options else "")
    about = textwrap.fill(told, _WIDTH, initial_indent="# ", subsequent_indent="#   ", break_on_hyphens=False)
    if one.name in said:
        return f"{about}\n{one.name} = {toml_value(said[one.name])}"
    example = "true" if one.switch else toml_value(options[0]) if options else "..."
    return f"{about}\n# {one.name} = {example}"


_TRAFFIC = {"rate": 1, "requests": 500, "prompt": "1024", "output": "256", "slo": "ttft=1s,tpot=50ms"}


def init(given: SimpleNamespace) -> Answer:
    """The scenario file and the commands that take it; raises `InputError` for a file that is there already."""
    command, text = _scenario(given)
    path = Path(given.out)
    try:
        with path.open("w" if given.force else "x", encoding="utf-8") as out:
            out.write(text)
    except FileExistsError:
        raise InputError("is there already; say --force, or another --out", field="--out", value=given.out) from None
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror}", field="--out", value=given.out) from None

    def blocks() -> list[Block]:
        return [Line(text=f"wrote {given.out}"), Line(text=f"next: {command}")]

    return Answer(lambda: {"path": given.out, "text": text, "next": command}, blocks, value=text)


def _scenario(given: SimpleNamespace) -> tuple[str, str]:
    """The command that takes a scenario, and the scenario as text."""
    from ridgeline.graph.denoiser_specs import find_diffusion, usual_sampling

    config = given.subject.endswith(".json") or is_folder(given.subject)
    model = {"config": str(Path(given.subject).resolve())} if config else {"name": given.subject}
    machine, pictures = cluster_words(given.on, {}), find_diffusion(given.subject)
    where = cluster_in({"cluster": machine}, Place(file=None, folder=Path(), lines={}))
    if pictures is not None:
        from ridgeline.scenario.sampling_fields import DIVISION_FIELDS, SAMPLING_FIELDS, TASK

        command = f"ridgeline predict {given.out}"
        sections = [
            Section(
                name="workload", fields=SAMPLING_FIELDS, said={"task": TASK, **usual_sampling(pictures), "batch": 1}
            ),
            Section(name="plan", fields=DIVISION_FIELDS, said={}),
        ]
        return command, commented("Pictures by a diffusion model", command, {"name": pictures}, machine, sections)
    if given.serve:
        return _serving(given, model, machine)
    plan = {"zero": 3} if where.count > 1 else {}
    asked = scenario_from_words({"model": model, "cluster": machine, "plan": plan})
    command = f"ridgeline predict {given.out}"
    return command, commented("Training", command, model, machine, training_sections(asked))


def _serving(given: SimpleNamespace, model: Table, machine: Table) -> tuple[str, str]:
    from ridgeline.scenario.serving import serving_from_words
    from ridgeline.scenario.serving_fields import DEPLOYMENT_FIELDS, TRAFFIC_FIELDS

    asked = serving_from_words({"model": model, "cluster": machine, "workload": _TRAFFIC, "plan": {}})
    degree = next((n for n in (1, 2, 4, 8) if _fits(asked.model.graph.params, n, asked.cluster)), 8)
    command = f"ridgeline simulate {given.out}"
    sections = [
        Section(name="workload", fields=TRAFFIC_FIELDS, said=_TRAFFIC),
        Section(name="plan", fields=DEPLOYMENT_FIELDS, said={"engine": "vllm", "tp": min(degree, asked.cluster.count)}),
    ]
    return command, commented("Serving", command, model, machine, sections)


def _fits(params: float, degree: int, where: Cluster) -> bool:
    """Whether weights in 16 bits take at most two thirds of `degree` devices, which leaves room for caches."""
    return 2.0 * params <= 2 / 3 * degree * where.accelerator.memory_bytes
