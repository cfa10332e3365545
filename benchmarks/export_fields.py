"""Read the fields of a program's config out of the program itself, into its table in data/exports.

    python benchmarks/export_fields.py vllm 'vllm, vllm/engine/arg_utils.py of 0.33.0'
    python benchmarks/export_fields.py llamacpp 'llama.cpp, common/arg.cpp of ...' path/to/arg.cpp

Runs in an environment of its own where the program can be imported (vllm, sglang), or reads its source (llamacpp, tgi).
What the table says already of a field (ours, convert, since, range of numbers) stays; fields that are gone are told.
"""

from __future__ import annotations

import argparse
import csv
import re
import sys
from pathlib import Path

COLUMNS = ("name", "type", "range", "since", "until", "ours", "convert", "source", "alias", "default")
TABLES = Path(__file__).parents[1] / "src" / "ridgeline" / "data" / "exports"
Found = dict[str, tuple[str, str, list[str]]]
"""Type, range and other spellings, by name."""


def of_parser(parser: argparse.ArgumentParser) -> Found:
    """Flags of an argparse parser: a flag alone is a switch, JSON and unions may be anything."""
    found: Found = {}
    for action in parser._actions:
        spelt = [one.lstrip("-") for one in action.option_strings if not one.startswith("--no-")]
        long = [one[2:] for one in action.option_strings if one.startswith("--") and not one.startswith("--no-")]
        if not long or long[0] in ("help", "config"):
            continue
        choices = [str(one) for one in action.choices or () if one is not None]
        kind = getattr(action.type, "__name__", "")
        switch = action.nargs == 0 or isinstance(action, argparse.BooleanOptionalAction)
        told = "bool" if switch else kind if kind in ("int", "float") else "any"
        if told == "any" and (choices or kind == "str") and not action.nargs:
            told = "str"
        if choices and told == "int":
            choices = []
        name = long[0].replace("_", "-")
        others = [one for one in spelt if one.replace("_", "-") != name]
        found[name] = (told, "|".join(choices) if told == "str" and len(choices) < 80 else "", others)
    return found


def vllm() -> Found:
    """Fields of `vllm serve`, from its own parser."""
    from vllm import platforms  # type: ignore[import-not-found]
    from vllm.platforms.cpu import CpuPlatform  # type: ignore[import-not-found]

    platforms.current_platform = CpuPlatform()  # no GPU is asked for
    from vllm.entrypoints.common.cli_args import make_arg_parser  # type: ignore[import-not-found]
    from vllm.utils.argparse_utils import FlexibleArgumentParser  # type: ignore[import-not-found]

    return {"model": ("str", "", [])} | of_parser(make_arg_parser(FlexibleArgumentParser()))


def sglang() -> Found:
    """Fields of `sglang serve`, from its own parser."""
    from sglang.srt.server_args import ServerArgs  # type: ignore[import-not-found]

    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    return of_parser(parser)


def llamacpp(source: str) -> Found:
    """Flags of llama.cpp that its server takes, from `common/arg.cpp`: the type from the handler's arguments."""
    found: Found = {}
    for block in source.split("add_opt(common_arg(")[1:]:
        head = block[: block.find("add_opt(") if "add_opt(" in block else len(block)]
        examples = re.search(r"\.set_examples\(\{([^}]*)\}", head)
        if examples and not re.search(r"LLAMA_EXAMPLE_(SERVER|COMMON)", examples[1]):
            continue
        names = re.findall(r'"(-[^"]+)"', head[: head.find("}")])
        handler = re.search(r"\[[^\]]*\]\(\s*common_params\s*&[^,)]*,?\s*([^)]*)\)", head)
        taken = handler[1] if handler else ""
        kind = "int" if taken.startswith("int") else "bool" if not taken or taken.startswith("bool") else "any"
        plain = [one.lstrip("-") for one in names]
        long = [one[2:] for one in names if one.startswith("--")]
        name = (long or plain)[-1 if len(long) < 2 else 0]
        found[name] = (kind, "", [one for one in plain if one != name])
    return found


def tgi(source: str) -> Found:
    """Flags of text-generation-launcher, from the fields of `struct Args` in `launcher/src/main.rs`."""
    body = source[source.index("struct Args {") :]
    body = body[: body.index("\n}\n")]
    found: Found = {}
    kinds = {
        "usize": "int",
        "u16": "int",
        "u32": "int",
        "f32": "float",
        "f64": "float",
        "bool": "bool",
        "String": "str",
    }
    for name, rust in re.findall(r"^    (\w+): ([\w<>]+),", body, re.M):
        inner = rust.removeprefix("Option<").rstrip(">") if rust.startswith("Option") else rust
        kind = "str" if name == "sharded" else kinds.get(inner, "any")
        found[name.replace("_", "-")] = (kind, "", ["p"] if name == "port" else [])
    return found


def main(program: str, source: str, *paths: str) -> None:
    """Writes the table anew."""
    table = TABLES / f"{program}.tsv"
    head, before = "", {}
    if table.exists():
        lines = table.read_text(encoding="utf-8").splitlines(keepends=True)
        head = "".join(line for line in lines if line.startswith("#"))
        told = csv.DictReader(
            (line for line in lines if not line.startswith("#")), delimiter="\t", quoting=csv.QUOTE_NONE
        )
        before = {row["name"]: row for row in told}
    found = {"vllm": vllm, "sglang": sglang}[program]() if not paths else {"llamacpp": llamacpp, "tgi": tgi}[program](
        "\n".join(Path(path).read_text(encoding="utf-8") for path in paths)
    )  # fmt: skip
    with table.open("w", encoding="utf-8") as file:
        file.write(head + "\t".join(COLUMNS) + "\n")
        for name, (kind, choices, others) in found.items():
            old = before.get(name, {})
            row = {"name": name, "type": kind, "range": choices or old.get("range") or "", "source": source}
            row |= {key: old.get(key) or "" for key in ("since", "until", "ours", "convert", "default")}
            file.write("\t".join(row.get(key, "|".join(others)) for key in COLUMNS) + "\n")
    gone = [name for name in before if name not in found]
    print(f"{program}: {len(found)} fields", f"gone: {', '.join(gone)}" if gone else "")


if __name__ == "__main__":
    main(*sys.argv[1:])
