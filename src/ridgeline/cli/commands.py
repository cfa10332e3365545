"""The group of commands: each is built, with its hundred flags, when it is named."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from enum import Enum
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from ridgeline.api import options as _options  # noqa: F401  (fills the table of questions)
from ridgeline.api.verb import REQUIRED, VERBS, Argument, Verb
from ridgeline.cli.screen import printed
from ridgeline.errors import InputError, RidgelineError
from ridgeline.scenario.fields import Field
from ridgeline.scenario.synonyms import called_here

DOORS: dict[str, Verb] = {
    "web": Verb(
        run="web.serve.serve",
        short_help="Open the local web app.",
        help="Ask questions on a page of this machine, with answers as one types; needs ridgeline[web].",
        own={
            "host": Argument(kind=str, flag="--host", default="127.0.0.1", help="address to listen on; this machine's"),
            "port": Argument(kind=int, flag="--port", default=8642, least=0, most=65535, help="0 takes a free one"),
            "limit": Argument(kind=float, flag="--limit", default=120.0, least=1, help="seconds for one question"),
            "memory": Argument(kind=str, flag="--memory", default="4GiB", help="memory for one question"),
            "browser": Argument(kind=bool, flag="--browser/--no-browser", default=True, help="open a browser"),
        },
    ),
    "mcp": Verb(
        run="mcp_server.serve.serve",
        short_help="Serve the questions to agents.",
        help="Serve the questions as tools of the Model Context Protocol, on standard input and output or on a port "
        "of this machine; needs ridgeline[mcp].",
        own={
            "root": Argument(kind=str, flag="--root", default=".", help="the only folder whose files are used"),
            "port": Argument(
                kind=int, flag="--port", least=1, most=65535, help="streamable HTTP on 127.0.0.1, not standard input"
            ),
            "limit": Argument(kind=float, flag="--limit", default=120.0, least=1, help="seconds for one question"),
            "memory": Argument(kind=str, flag="--memory", default="8GiB", help="memory for one question"),
            "processes": Argument(
                kind=int, flag="--processes", default=2, least=1, most=64, help="questions at a time"
            ),
        },
    ),
}


def start(name: str, words: Mapping[str, Any]) -> int:
    """The exit code of a way in; raises `InputError` where what it needs is not installed."""
    module, _, function = DOORS[name].run.rpartition(".")
    try:
        run = getattr(import_module(f"ridgeline.{module}"), function)
        code: int = run(**words)
    except ModuleNotFoundError as error:
        raise InputError(f"{error.name} is not installed; pip install 'ridgeline[{name}]'") from None
    return code


Misused: Any = typer.BadParameter.__mro__[1]
"""The class of all that Typer says of a command line; where it is kept differs between Typer's releases."""
SETTINGS = {"help_option_names": ["-h", "--help"]}


class _Unusable(typer.BadParameter):
    """A value that a parameter cannot have, kept for the JSON of the refusal, with the valid words near to it."""

    def __init__(self, message: str, *, ctx: Any, param: Any, value: object, nearest: tuple[str, ...] = ()) -> None:
        super().__init__(message, ctx=ctx, param=param)
        self.value, self.nearest = value, nearest


class _Reader:
    """Reads a parameter in place of Typer's own readers, which import pydantic: a tenth of a second of every start."""

    def __init__(self, kind: type, option: Argument | None) -> None:
        self.option = Argument(kind=kind, help="") if option is None else option

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """The value as the command's function gets it; a message with the words that are allowed where it has none."""
        if param.multiple or param.nargs == -1:
            return list(value or ())
        try:
            return self.option.read(value)
        except RidgelineError as error:
            raise _Unusable(
                str(error),
                ctx=ctx,
                param=param,
                value=value if error.value is None else error.value,
                nearest=error.nearest,
            ) from None


class _Plain:
    """Commands whose parameters read themselves; releases of Typer that read without pydantic are left alone."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Parameters of the command, `--help` among them."""
        found: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for parameter in found:
            described = getattr(parameter, "type_descriptor", None)
            if described is not None:
                reader = _Reader(described.annotation, getattr(described.parameter_info, "ridgeline_option", None))
                parameter.get_runtime_param = lambda reader=reader: reader
        return found


class Command(_Plain, TyperCommand):
    """One command; its help lists options under their headings, its own first. Of an option that is not there it names
    what that is called here, where another program has it."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Reads the arguments; raises Typer's error, with the options that are near, for those it cannot read."""
        try:
            rest: list[str] = super().parse_args(ctx, args)
        except Misused as error:
            if hasattr(error, "possibilities"):
                flags = {option[2:].replace("-", "_"): option for one in self.get_params(ctx) for option in one.opts}
                here = called_here(str(getattr(error, "option_name", "")), flags)
                error.possibilities = [flags[word] for word in here] or error.possibilities
            raise
        return rest

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Writes arguments, the command's own options and the most used words; `--help-all` writes all sections."""
        sections: dict[str, list[tuple[str, str]]] = {}
        left_out = 0
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            heading = getattr(parameter, "rich_help_panel", None)
            if record is None:
                continue
            if heading and not ctx.meta.get(_ALL):
                left_out += parameter.name not in MOST_USED
                heading = "Most used words" if parameter.name in MOST_USED else _ALL
            heading = heading or ("Arguments" if parameter.param_type_name == "argument" else "Options")
            sections.setdefault(heading, []).append(record)
        sections.pop(_ALL, None)
        for heading, records in sections.items():
            with formatter.section(heading):
                formatter.write_dl(records)
        if left_out:
            formatter.write_paragraph()
            formatter.write_text(f"{left_out} more words of the scenario: ridgeline {self.name} --help-all")


def _help_all(ctx: Any, asked: bool) -> None:
    if asked and not ctx.resilient_parsing:
        ctx.meta[_ALL] = True
        print(ctx.get_help())
        raise typer.Exit


_ALL = "ridgeline.help_all"
MOST_USED = frozenset(
    (
        *("task", "seq_len", "global_batch", "tokens", "precision", "optimizer", "micro_batch", "zero", "recompute"),
        *("tp", "pp", "dp", "ep", "cp", "schedule", "technique", "framework", "batch", "engine", "weights", "kv_cache"),
        *("trace", "rate", "requests", "concurrency", "prompt", "output", "slo", "prefill", "decode"),
    )
)
"""Words of a scenario that `--help` shows; the others are under `--help-all`."""


SHARED = "Training and serving"  # the heading of words that are in several tables of a command


def build(name: str, one: Verb) -> Any:
    """The command of a question, as Typer runs it."""
    own_words = one.own if name in DOORS else {**one.own, **_FORMS}
    shown = [_own(each, option) for each, option in own_words.items()]
    shown += [*flags_of(one.fields), *([_whole_help()] if one.fields else [])]

    def call(**words: Any) -> int:
        own = {each: words.pop(each) for each in one.own}
        own = {each: value.value if isinstance(value, Enum) else value for each, value in own.items()}
        if name in DOORS:
            return start(name, own)
        forms = {each: words.pop(each) for each in _FORMS}
        words.pop("help_all", None)
        return printed(one.answer(own, words), title=f"ridgeline {name} {own.get('subject') or ''}".strip(), **forms)

    call.__doc__ = one.help
    call.__annotations__ = {each.name: each.annotation for each in shown}
    setattr(call, "__signature__", inspect.Signature(shown))  # noqa: B010  (mypy knows no such attribute)
    alone = typer.Typer(
        add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False, context_settings=SETTINGS
    )
    alone.command(name, cls=Command, short_help=one.short_help, epilog=one.epilog)(call)
    return get_command(alone)


_FORMS = {
    "as_json": Argument(kind=bool, flag="--json", help="print JSON with stable keys and SI numbers", default=False),
    "html": Argument(kind=str, flag="--html", help="also write a page with charts", metavar="FILE"),
    "svg": Argument(kind=str, flag="--svg", help="also draw a chart, the first or by name", metavar="[CHART:]FILE"),
    "png": Argument(kind=str, flag="--png", help="the same as PNG; ridgeline[pictures]", metavar="[CHART:]FILE"),
}
"""Forms of an answer that every command has."""


def _enum(name: str, choices: tuple[str, ...]) -> Any:
    """Choices as the type that Typer's help lists them from."""
    return Enum(name, {each: each for each in choices}, type=str)


def _whole_help() -> inspect.Parameter:
    """`--help-all`, of commands with words of a scenario."""
    said = typer.Option("--help-all", callback=_help_all, is_eager=True, help="show every option, under headings")
    annotation = Annotated[bool, said]
    return inspect.Parameter("help_all", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=annotation)


def _names_of(name: str) -> Callable[[str], list[str]] | None:
    """What the shell completes a question's own word from, read when it asks: names of the catalog."""

    def models(incomplete: str) -> list[str]:
        from ridgeline.graph.load import catalog

        return [one for one in catalog() if one.startswith(incomplete)]

    def machines(incomplete: str) -> list[str]:
        from ridgeline.facts.accelerators import accelerator_names
        from ridgeline.facts.clusters import clusters

        count, times, rest = incomplete.rpartition("x") if incomplete[:1].isdigit() else ("", "", incomplete)
        known = (*accelerator_names(), *clusters())
        return [count + times + one for one in known if one.casefold().startswith(rest.casefold())]

    return {"subject": models, "on": machines}.get(name)


def _among(choices: tuple[str, ...]) -> Callable[[str], list[str]] | None:
    """What the shell completes a word of a scenario from."""
    return (lambda incomplete: [one for one in choices if one.startswith(incomplete)]) if choices else None


def _own(name: str, option: Argument) -> inspect.Parameter:
    """A question's own option as a parameter of its command."""
    kind: Any = list[str] if option.kind is list else option.kind
    if option.choices:
        kind = _enum(name, option.choices)
    default = inspect.Parameter.empty if option.default is REQUIRED else option.default
    if default is None:
        kind = kind | None
    if option.flag:
        said: Any = typer.Option(
            *filter(None, (option.flag, option.short)), help=option.help, metavar=option.metavar,
            show_default=option.shown, min=option.least, max=option.most, autocompletion=_names_of(name),
        )  # fmt: skip
    else:
        said = typer.Argument(help=option.help, metavar=option.metavar, autocompletion=_names_of(name))
    said.ridgeline_option = option
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, said])


def flags_of(groups: Mapping[str, tuple[Field, ...]]) -> list[inspect.Parameter]:
    """A parameter per field of some tables, under the heading of its table.

    A flag that is not given is None; one that is given is text (True or False for a switch), for
    the field's own reader. A word of two tables is one flag, under a heading of its own.
    """
    headings: dict[str, str] = {}
    fields: dict[str, Field] = {}
    for heading, table in groups.items():
        for field in table:
            headings[field.name] = SHARED if field.name in fields else heading
            fields.setdefault(field.name, field)
    return [_parameter(field, headings[name]) for name, field in fields.items()]


def _parameter(field: Field, heading: str) -> inspect.Parameter:
    kind: Any = bool | None if field.switch else str | None
    name = f"{field.flag}/--no-{field.flag[2:]}" if field.switch else field.flag
    metavar = None if field.switch else "|".join(field.choices) or "VALUE"
    option = typer.Option(
        name, help=field.help, metavar=metavar, show_default=False, rich_help_panel=heading,
        autocompletion=_among(field.choices),
    )  # fmt: skip
    return inspect.Parameter(
        field.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind, option]
    )


class Commands(_Plain, TyperGroup):
    """The commands of `VERBS` and `DOORS`, in their order; a name that is none of them builds all, for the nearest."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Writes each command's name and short help; none is built for it."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, one.short_help) for name, one in {**VERBS, **DOORS}.items()])

    def list_commands(self, ctx: Any) -> list[str]:
        """Names of all commands."""
        return [*VERBS, *DOORS]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of a name, built at its first use; None when there is none."""
        known = {**VERBS, **DOORS}
        for name in (cmd_name,) if cmd_name in known else known:
            if name not in self.commands:
                self.commands[name] = build(name, known[name])
        return self.commands.get(cmd_name)
