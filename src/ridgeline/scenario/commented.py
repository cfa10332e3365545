"""A scenario written out for a person to change: the usual values, and each word with its meaning and alternatives."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ridgeline.scenario.fields import Field
from ridgeline.scenario.training import Scenario, toml_value, workload_and_plan

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
