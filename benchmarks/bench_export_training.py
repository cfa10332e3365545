"""Do the programs take what `ridgeline export` writes for them? Their own parsers, schemas and classes judge.

    PYTHONPATH=src python benchmarks/bench_export_training.py --programs PYTHON [--path TARGET=FOLDER[:FOLDER] ...]

PYTHON is an interpreter in which the programs are installed; a FOLDER is put on its path for one target alone (a
checkout, or an older library beside it). Each training example of `examples/` is planned under the target's framework
where it has no plan of its own, exported, judged, and read back: the second export must be the first, byte for byte.
Writes export_training.md beside this file.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
import textwrap
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import ridgeline as rl
from ridgeline.errors import RidgelineError
from ridgeline.export.target import target, targets
from ridgeline.scenario.fields import PLAN_FIELDS

HERE = Path(__file__).parent
EXAMPLES = HERE.parent / "examples"

JUDGES: dict[str, tuple[str, str]] = {
    "deepspeed": (
        "`DeepSpeedConfig` (unknown keys pass it)",
        """
import json
from deepspeed.runtime.config import DeepSpeedConfig
told = json.load(open(FILE))
ranks = told["train_batch_size"] // (told["train_micro_batch_size_per_gpu"] * told["gradient_accumulation_steps"])
import deepspeed.runtime.config as of
of.dist.get_rank, of.dist.get_world_size = (lambda *given: 0), (lambda *given: ranks)
made = DeepSpeedConfig(told)
assert made.zero_config.stage == told["zero_optimization"]["stage"]
""",
    ),
    "accelerate": (
        "`load_config_from_file`, `ParallelismConfig`",
        """
from accelerate.commands.config.config_args import load_config_from_file
from accelerate.parallelism_config import ParallelismConfig
mesh = load_config_from_file(FILE).parallelism_config or {}
before = "parallelism_config_"
ParallelismConfig(**{name.removeprefix(before): size for name, size in mesh.items() if name.endswith("size")})
""",
    ),
    "trl": (
        "`TrlParser` of ScriptArguments, SFTConfig and ModelConfig (told that the device has bf16)",
        """
import transformers.training_args as of
for name in ("is_torch_bf16_gpu_available", "is_torch_tf32_available"):
    setattr(of, name, lambda *given, **named: True)
from trl import ModelConfig, ScriptArguments, SFTConfig, TrlParser
import yaml
told = yaml.safe_load(open(FILE))
told.pop("num_processes", None)  # of `accelerate launch`, which takes it from the same file
yaml.safe_dump(told, open(FILE + ".own", "w"))
words = ["--config", FILE + ".own", "--dataset_name", "x", "--output_dir", FILE + ".out"]
TrlParser((ScriptArguments, SFTConfig, ModelConfig)).parse_args_and_config(words, fail_with_unknown_args=True)
""",
    ),
    "axolotl": (
        "`AxolotlInputConfig` (pydantic), and no key that it has not",
        """
import yaml
from axolotl.utils.schemas.config import AxolotlInputConfig
told = yaml.safe_load(open(FILE))
unknown = [name for name in told if name not in AxolotlInputConfig.model_fields]
assert not unknown, unknown
AxolotlInputConfig(**told)
""",
    ),
    "torchtitan": (
        "the module run by Python: `Trainer.Config` made with its model's specification",
        """
import importlib.util
spec = importlib.util.spec_from_file_location("made", FILE)
made = importlib.util.module_from_spec(spec)
spec.loader.exec_module(made)
assert made.config().model_spec is not None
""",
    ),
    "megatron": (
        "the `ArgumentParser` of `add_megatron_arguments` (`validate_args` asks for devices, so it did not run)",
        """
import argparse, shlex, typing
if not hasattr(typing, "override"):
    typing.override = lambda one: one  # Python 3.11
from megatron.training import arguments
parser = argparse.ArgumentParser(allow_abbrev=False)
arguments.add_megatron_arguments(parser)
text = open(FILE).read().partition("pretrain_gpt.py")[2]
parser.parse_args(shlex.split(text.replace(chr(92) + chr(10), " ")))
""",
    ),
    "maxtext": (
        "`MaxTextConfig`'s fields one by one (pydantic); the rules between them ask for devices and did not run",
        """
import pydantic, yaml
from maxtext.configs.types import MaxTextConfig
told = yaml.safe_load(open(FILE))
told.pop("base_config")
for name, value in told.items():
    pydantic.TypeAdapter(MaxTextConfig.model_fields[name].annotation).validate_python(value)
""",
    ),
    "torchtune": (
        "`torchtune.config.validate`: the signature of every part",
        """
from omegaconf import OmegaConf
from torchtune.config import validate
validate(OmegaConf.load(FILE))
""",
    ),
}
"""What judges a target's file: in words for the table, and as a program in which FILE is the file's path."""


def training_examples() -> list[Path]:
    """The examples that train, by name."""
    found = []
    for path in sorted(EXAMPLES.glob("*.toml")):
        workload = tomllib.loads(path.read_text(encoding="utf-8")).get("workload", {})
        if "global_batch" in workload:
            found.append(path)
    return found


@cache
def planned(path: Path, framework: str) -> dict[str, Any]:
    """Words of the best plan of an example under a framework; none where it has its own plan."""
    if "plan" in tomllib.loads(path.read_text(encoding="utf-8")):
        return {}
    best = rl.plan(str(path), framework=framework).as_dict()["best"]
    if not best:
        raise RidgelineError("no plan fits")
    names = {field.name for field in PLAN_FIELDS}
    return {name: value for name, value in best[0]["plan"].items() if name in names and value not in (None, [], "")}


_EACH = """
import json, sys, traceback
def judge(FILE):
{judge}
for file in json.load(sys.stdin):
    try:
        judge(file)
        said = "accepted"
    except (Exception, SystemExit) as error:
        missing = isinstance(error, ImportError) or "is installed?" in str(error)
        lines = [line for line in str(error).strip().splitlines() if "errors.pydantic.dev" not in line] or [repr(error)]
        said = ("cannot run: " if missing else "refused: ") + lines[-1].strip()
    print("VERDICT " + json.dumps([file, said[:160]]), flush=True)
"""


def judged(key: str, files: list[str], python: str, path: str) -> dict[str, str]:
    """What a target's program says of files: 'accepted', or why not; one process judges them all."""
    judge = textwrap.indent(JUDGES[key][1], "    ")
    run = subprocess.run(
        [python, "-c", _EACH.replace("{judge}", judge)], input=json.dumps(files), capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": path, "DS_ACCELERATOR": "cpu", "CUDA_VISIBLE_DEVICES": ""}, check=False,
    )  # fmt: skip
    lines = [line.removeprefix("VERDICT ") for line in run.stdout.splitlines() if line.startswith("VERDICT ")]
    return dict.fromkeys(files, "cannot run") | dict(json.loads(line) for line in lines)


def exported(key: str, path: Path, folder: Path) -> tuple[str, str, str]:
    """The file of an example, or why there is none; the words left out; and whether it is read back the same."""
    try:
        answer = rl.export(str(path), to=key, **planned(path, target(key).program))
    except RidgelineError as error:
        return "", f"not written: {error}".replace(f"{path}: ", "")[:170], ""
    made = next(name for name in answer["files"] if name != "README.md")
    file = folder / f"{path.stem}-{made}"
    file.write_text(answer["files"][made], encoding="utf-8")
    left = ", ".join(one["word"].partition(".")[2] for one in answer["left_out"])
    try:
        again = rl.export(str(path), to=key, from_config=f"{key}:{file}")
    except RidgelineError as error:
        return str(file), left, f"not read back: {error}".replace(f"{path}: ", "")[:130]
    new = sorted(set(again["files"][made].splitlines()) - set(answer["files"][made].splitlines()))
    return str(file), left, "second says " + "; ".join(line.strip() for line in new) if new else "exact"


def main() -> None:
    """Judges every target and example, and writes the table."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--programs", required=True)
    options.add_argument("--path", action="append", default=[])
    options.add_argument("--only", default="")
    given = options.parse_args()
    paths = dict(one.split("=", 1) for one in given.path)
    keys = [key for key in targets() if key in JUDGES and given.only in ("", key)]
    rows: list[tuple[str, str, str, str]] = []
    with tempfile.TemporaryDirectory() as folder:
        for key in keys:
            written = {path.stem: exported(key, path, Path(folder)) for path in training_examples()}
            files = [one[0] for one in written.values() if one[0]]
            said = judged(key, files, given.programs, paths.get(key, ""))
            for name, (file, told, same) in written.items():
                verdict = said[file] + (f"; left out: {told}" if told else "") if file else told
                rows.append((key, name, verdict, same))
                print(*rows[-1], sep=" | ", flush=True)
    taken, trips = sum("accepted" in one[2] for one in rows), [one[3] for one in rows if one[3]]
    head = f"""# Exports for training, judged by the programs' own parsers

`bench_export_training.py` exports every training example to every training target. Of {len(rows)} pairs {len(trips)}
are written, {taken} accepted, and {trips.count("exact")} read back to the same file byte for byte; where a word
that was left out has a field, the second file says our default there. Examples without a plan take the best one of
`ridgeline plan` under the target's framework. What a program cannot say is left out, and named.

| target | what judged its files |
|---|---|
"""
    table = "\n".join(f"| {key} | {JUDGES[key][0]} |" for key in keys)
    lines = "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in one)} |" for one in rows)
    text = f"{head}{table}\n\n| target | example | its program says | round trip |\n|---|---|---|---|\n{lines}\n"
    if not given.only:
        (HERE / "export_training.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
