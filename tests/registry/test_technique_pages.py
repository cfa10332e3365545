"""What a technique lacks: page, sources, parameters, seam, place, test, mention; and the list in docs/techniques.md.

`python tests/registry/test_technique_pages.py` writes the list anew. With another package installed its techniques are
checked too: `pytest tests/registry/test_technique_pages.py -k KEY`.
"""

from __future__ import annotations

import inspect
import os
import re
import shlex
import subprocess
import sys
import tomllib
from dataclasses import fields
from importlib import import_module
from math import isfinite
from pathlib import Path
from typing import Any

import pytest

from ridgeline.api.techniques import ALWAYS, range_text, technique_as_dict, written
from ridgeline.facts.store import sources
from ridgeline.seams.registry import families, kind, names
from ridgeline.seams.serving import ServingTechnique
from ridgeline.seams.technique import Technique, shown

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "techniques.md"
MARK = "<!-- What follows is written by tests/registry/test_technique_pages.py. -->\n"
FOUND = [kind(family, key) for family in families() for key in names(family)]
OWN = [one for one in FOUND if one.__module__.startswith("ridgeline.")]
every = pytest.mark.parametrize("one", FOUND, ids=[one.key for one in FOUND])
built_in = pytest.mark.parametrize("one", OWN, ids=[one.key for one in OWN])


def seam(one: type[Technique]) -> type[Technique]:
    """The class of `ridgeline.seams` that a technique is made from."""
    seams = (Technique, ServingTechnique)
    return next(each for each in one.__mro__ if any(base in seams for base in each.__bases__) and each not in seams)


@every
def test_its_page_begins_with_what_it_does_in_one_sentence(one: type[Technique]) -> None:
    assert one.__doc__, f"{one.key} has no docstring, which is its page"
    assert one.summary().endswith((".", ")")), f"{one.key}: the first line of its page is no sentence"
    assert [each.key for each in FOUND if each.summary() == one.summary()] == [one.key]


@every
def test_its_sources_can_be_looked_up(one: type[Technique]) -> None:
    assert one.source, f"{one.key} names no source"
    for told in one.source:
        assert told in sources() or "https://" in told, f"{one.key}: '{told}' is no key of sources.bib, and no address"
    if one in OWN:
        assert all(told in sources() for told in one.source), f"{one.key}: a row of data/sources.bib for its source"


@every
def test_its_parameters_have_unit_range_and_help(one: type[Technique]) -> None:
    assert [each.name for each in fields(one)] == list(one.parameters()), "a field without a default; use param"
    for name, each in one.parameters().items():
        told, place = each.metadata, f"{one.key}: {name}"
        assert told.keys() == {"unit", "low", "high", "help", "whole", "word", "choices"}, f"{place} is no param"
        assert len(told["help"]) > 5, f"{place} has no help"
        if not isinstance(each.default, bool | str):
            assert told["unit"], f"{place} has no unit"
            assert isfinite(told["low"]) and told["low"] < told["high"] < float("inf"), f"{place} has no range"  # noqa: PT018
            numbers = each.default if isinstance(each.default, tuple) else (each.default,)
            assert each.default is None or all(told["low"] <= number <= told["high"] for number in numbers), (
                f"{place}: the default is out of its range"
            )


@every
def test_it_fills_what_its_seam_leaves_open(one: type[Technique]) -> None:
    asked = seam(one)
    assert asked.__module__.startswith("ridgeline.seams.")
    assert asked.family == one.family
    if issubclass(asked, ServingTechnique):
        return  # neutral where nothing is filled
    open_ = {name for name, own in vars(asked).items() if not name.startswith("_") and _is_open(own)}
    told = {each["method"]: each["says"] for each in technique_as_dict(one)["seams"]}
    assert open_, f"the seam {asked.__name__} leaves nothing open"
    assert open_ <= told.keys(), f"{one.key} does not fill {', '.join(sorted(open_ - told.keys()))}"
    assert all(told.values()), f"{one.key}: a method without a docstring"


def _is_open(own: object) -> bool:
    return inspect.isfunction(own) and "raise NotImplementedError" in inspect.getsource(own)


@every
def test_its_key_is_its_own(one: type[Technique]) -> None:
    assert re.fullmatch(r"[a-z0-9][a-z0-9._-]*", one.key), "write it in lower case, without blanks or brackets"
    assert [each.family for each in FOUND if each.key == one.key] == [one.family]


@built_in
def test_it_is_in_the_folder_of_its_family(one: type[Technique]) -> None:
    file = inspect.getsourcefile(one)
    assert file is not None
    assert Path(file).parent == ROOT / "src" / "ridgeline" / "techniques" / one.family


@built_in
def test_a_test_names_it(one: type[Technique]) -> None:
    named = re.compile(rf"""["'=(]{re.escape(one.key)}["'(]""")
    files = (path for path in (ROOT / "tests").rglob("*.py") if path != Path(__file__))
    assert any(named.search(path.read_text(encoding="utf-8")) for path in files), f"no test of '{one.key}'"


@built_in
def test_a_page_or_an_example_tells_of_it(one: type[Technique]) -> None:
    """Besides lists that are made from the registry: what it is good for, where it is described or used."""
    named = re.compile(rf"(?<![\w-]){re.escape(one.key)}(?![\w-])")
    pages = [page for page in (ROOT / "docs").rglob("*.md") if page.name not in (PAGE.name, "scenario.md")]
    texts = (path.read_text(encoding="utf-8") for path in (*pages, *(ROOT / "examples").glob("*.toml")))
    assert any(map(named.search, texts)), f"no page of docs/ and no example tells of '{one.key}'"


# the list of docs/techniques.md --------------------------------------------------------------------


def listed() -> str:
    """The built-in techniques as Markdown, a table for each family."""
    parts = []
    for family in families():
        own = [one for one in OWN if one.family == family]
        about = (import_module(f"ridgeline.techniques.{family}").__doc__ or "").strip()
        about = re.sub(rf"^[^:]*{family}: ", "", about, flags=re.IGNORECASE)
        lines = [f"## {family.capitalize()}", "", about[:1].upper() + about[1:], ""]
        if own:
            name = ALWAYS.get(family, "technique")
            section = written(own[0])[1].split("]")[0].strip("[")
            lines += [f"Written `--{name.replace('_', '-')} NAME`, or `{name}` in `[{section}]`.", ""]
            lines += ["| technique | what it does | parameters | sources |", "|---|---|---|---|", *map(_row, own)]
        else:
            lines += ["None is built in."]
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def _row(one: type[Technique]) -> str:
    page = technique_as_dict(one)
    parameters = "; ".join(
        f"`{each['name']}` = {shown(each['default'])} ({range_text(each)} {each['unit']}): {each['help']}"
        for each in page["parameters"]
    )
    cited = "; ".join(_cited(key) for key in one.source)
    return f"| `{one.key}` | {page['summary']} | {parameters} | {cited} |"


def _cited(key: str) -> str:
    found = sources()[key]
    return f"[{found.title}]({found.url})" if found.url else found.title


def test_the_page_lists_every_technique_that_is_built_in() -> None:
    told = PAGE.read_text(encoding="utf-8").partition(MARK)[2]
    assert told == "\n" + listed(), "run python tests/registry/test_technique_pages.py"


# its worked example --------------------------------------------------------------------------------


def block(language: str) -> str:
    """The first block of code of the page in a language."""
    return PAGE.read_text(encoding="utf-8").split(f"```{language}\n", 1)[1].split("```", 1)[0]


def test_the_example_of_the_page_is_found_priced_and_keeps_the_contracts(tmp_path: Path) -> None:
    """The page's file and its entry point are installed; its commands answer, and the tests that it names pass."""
    (tmp_path / "apollo.py").write_text(block("python"), encoding="utf-8")
    told: dict[str, Any] = tomllib.loads(block("toml"))["project"]
    package = tmp_path / f"{told['name']}-{told['version']}.dist-info"
    package.mkdir()
    (package / "METADATA").write_text(f"Name: {told['name']}\nVersion: {told['version']}\n", encoding="utf-8")
    points = [
        f"[{group}]\n" + "".join(f"{key} = {where}\n" for key, where in each.items())
        for group, each in told["entry-points"].items()
    ]
    (package / "entry_points.txt").write_text("\n".join(points), encoding="utf-8")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    programs = {
        "ridgeline": ["-c", "import sys; from ridgeline.cli.main import run; sys.exit(run(sys.argv[1:]))"],
        "pytest": ["-m", "pytest", "-p", "no:cacheprovider"],
    }
    answers = []
    for line in block("sh").splitlines():
        program, *words = shlex.split(line)
        done = subprocess.run(
            [sys.executable, *programs[program], *words], capture_output=True, text=True, timeout=300, cwd=ROOT,
            env={**os.environ, "PYTHONPATH": path},
        )  # fmt: skip
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr
        answers.append(done.stdout)
    page, report, checked = answers
    assert "1 to 65536  rank of the projected gradient" in page
    assert "optimizer" in report
    assert "skipped" not in checked


def renew() -> None:
    """Writes the list of the page."""
    head, _, _ = PAGE.read_text(encoding="utf-8").partition(MARK)
    PAGE.write_text(head + MARK + "\n" + listed(), encoding="utf-8")


if __name__ == "__main__":
    renew()
