"""The command line of each kind of damaged input: kind and seed say all of it."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import inputs

Dice = random.Random
_SERVED = ["gpt2", "--on", "1xH100-SXM", "--rate", "4", "--requests", "10", "--prompt", "64", "--output", "4"]
_TRAINED = ["gpt2", "--on", "4xH100-SXM", "--seq-len", "256", "--global-batch", "16"]


def _file(path: Path, text: str, dice: Dice, *, whole: bool) -> str:
    path.write_bytes(inputs.damaged(text, dice, whole=whole))
    return str(path)


def _scenario(folder: Path, dice: Dice, whole: bool) -> list[str]:
    command = "predict" if whole else dice.choice(["predict", "predict", "predict", "plan", "simulate"])
    return [command, _file(folder / "scenario.toml", inputs.SCENARIO, dice, whole=whole)]


def _serving(folder: Path, dice: Dice, whole: bool) -> list[str]:
    return ["simulate", _file(folder / "scenario.toml", inputs.SERVING, dice, whole=whole)]


def _diffusion(folder: Path, dice: Dice, whole: bool) -> list[str]:
    return ["predict", _file(folder / "scenario.toml", inputs.DIFFUSION, dice, whole=whole)]


def _advise(folder: Path, dice: Dice, whole: bool) -> list[str]:
    """Advice on a damaged scenario of any kind, or with flags that it has not."""
    kind = dice.choice([inputs.SCENARIO, inputs.SCENARIO, inputs.SERVING, inputs.DIFFUSION])
    path = _file(folder / "scenario.toml", inputs.SCENARIO if whole else kind, dice, whole=whole)
    asked = [] if whole else dice.choice([[], [], ["--for", dice.choice(["time", "memory", "goodput", "joules", "²"])]])
    return ["advise", path, *asked]


def _config(folder: Path, dice: Dice, whole: bool) -> list[str]:
    path = _file(folder / "config.json", inputs.CONFIG, dice, whole=whole)
    if dice.random() < 0.3:
        return ["simulate", path, *_SERVED[1:]]
    return ["predict", path, "--on", "8xH100-SXM", "--seq-len", "256", "--global-batch", "16"]


def _cluster(folder: Path, dice: Dice, whole: bool) -> list[str]:
    return ["predict", "gpt2", "--on", _file(folder / "machine.toml", inputs.MACHINE, dice, whole=whole), *_TRAINED[3:]]


def _profile(folder: Path, dice: Dice, whole: bool) -> list[str]:
    """A profile whose content is damaged is signed anew most times, as another version may have written it."""
    from ridgeline.facts import profiles

    body = json.loads(PROFILE.read_text(encoding="utf-8"))
    path = folder / "profile.json"
    text = inputs.damaged(json.dumps(body["profile"], indent=1), dice, whole=whole)
    try:
        body["profile"] = json.loads(text.decode("utf-8", "replace"))
        body["checksum"] = profiles._checksum(body["profile"])
        path.write_text(json.dumps(body), encoding="utf-8")
    except (ValueError, RecursionError):
        path.write_bytes(text)
    return ["predict", "gpt2", "--on", f"profile:{path}", "--seq-len", "64", "--global-batch", "4"]


def _truth(folder: Path, dice: Dice, whole: bool, kind: str) -> list[str]:
    lines = [
        "\t".join("" if word == "-" else word if place == 0 else word.replace("_", " ") for word in line.split(" "))
        for place, line in enumerate(inputs.TRUTH[kind].splitlines())
    ]
    return ["check", _file(folder / "rows.tsv", "\n".join(lines) + "\n", dice, whole=whole)]


def _trace(folder: Path, dice: Dice, whole: bool) -> list[str]:
    text = dice.choice([inputs.TRACE, inputs.TRACE, inputs.JSON_TRACE])
    return ["simulate", *_SERVED[:3], "--trace", _file(folder / "trace.csv", text, dice, whole=whole)]


def _engine(folder: Path, dice: Dice, whole: bool) -> list[str]:
    return ["simulate", *_SERVED, "--engine-file", _file(folder / "engine.toml", inputs.ENGINE, dice, whole=whole)]


def _framework(folder: Path, dice: Dice, whole: bool) -> list[str]:
    path = _file(folder / "framework.toml", inputs.FRAMEWORK, dice, whole=whole)
    return ["predict", *_TRAINED, "--framework", path]


def _loads(folder: Path, dice: Dice, whole: bool) -> list[str]:
    path = _file(folder / "loads.csv", inputs.LOADS, dice, whole=whole)
    return ["simulate", "mixtral-8x7b", "--on", "8xH100-SXM", *_SERVED[3:], "--tp", "8", "--expert-loads", path]


def _flags(folder: Path, dice: Dice, whole: bool) -> list[str]:
    """Flags of a command with values of others, or with none that anyone would say."""
    from ridgeline.api.flags import STATED_FIELDS
    from ridgeline.scenario.fields import WORKLOAD_FIELDS
    from ridgeline.scenario.serving_fields import DEPLOYMENT_FIELDS, TRAFFIC_FIELDS

    command = ["predict", *_TRAINED]
    if not whole:
        command = dice.choice([command, ["plan", *_TRAINED], ["simulate", *_SERVED], ["op"]])
    if command == ["op"]:
        from ridgeline.predict.operator_shapes import KINDS

        shape = "x".join(dice.choice([str(dice.randint(0, 9999)), "64", "²"]) for _ in range(dice.randint(1, 7)))
        return ["op", dice.choice(KINDS), shape, dice.choice(["bf16", "fp8", "nvfp4", "int4_wo", "tf32"])]
    fields = (*TRAFFIC_FIELDS, *DEPLOYMENT_FIELDS) if command[0] == "simulate" else (*WORKLOAD_FIELDS, *STATED_FIELDS)
    good = ["1", "2", "4", "8", "0.5", "10ms", "1GB", "bf16", "fp8", "full", "adamw", "2x2", "vllm", "azure-conv"]
    for _ in range(0 if whole else dice.randint(1, 3)):
        one = dice.choice(fields)
        command.append(one.flag)
        if not one.switch:
            value = dice.choice([*good, *good, *inputs.EVIL])
            command.append(value.replace("\x00", "").encode("utf-8", "replace").decode())
    return command


KINDS: Mapping[str, Callable[[Path, Dice, bool], list[str]]] = {
    "scenario": _scenario,
    "serving": _serving,
    "diffusion": _diffusion,
    "advise": _advise,
    "config": _config,
    "cluster": _cluster,
    "profile": _profile,
    **{f"truth-{kind}": partial(_truth, kind=kind) for kind in inputs.TRUTH},
    "trace": _trace,
    "engine": _engine,
    "framework": _framework,
    "loads": _loads,
    "flags": _flags,
}
PROFILE = Path(__file__).with_name("profile.json")


def words_of(kind: str, seed: int, folder: Path) -> list[str]:
    """The command line of one case, whose files are written; seed 0 leaves the input whole."""
    dice = random.Random(f"{kind} {seed}")
    words = KINDS[kind](folder, dice, seed == 0)
    return [*words, "--json"] if dice.random() < 0.5 else words
