"""Do clusters take what `ridgeline export` writes for them? Their schemas, classes and a Slurm controller judge.

    PYTHONPATH=src python benchmarks/bench_export_clusters.py --python PYTHON --ray PYTHON --checkouts FOLDER

The first PYTHON has kubernetes-validate, the second Ray Serve with pyarrow and transformers; FOLDER holds checkouts of
`kserve`, `kuberay` and `llm-d-modelservice`. `sbatch --test-only` asks the Slurm controller that SLURM_CONF names. A
judge that is not there is said to be absent. Every manifest of a cluster's own target is read back and exported again,
which must give the same file byte for byte. Writes export_clusters.md beside this file.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import ridgeline as rl
from ridgeline.errors import RidgelineError
from ridgeline.export.target import target, targets
from ridgeline.export.wrapper import wrapper, wrappers

HERE = Path(__file__).parent
SERVED: dict[str, dict[str, Any]] = {
    "qwen3-32b, 2 x tp 2": {"subject": "qwen3-32b", "on": "4xH100-SXM", "tp": 2},
    "qwen3-30b-a3b, tp 4, ep 4": {"subject": "qwen3-30b-a3b", "on": "4xH100-SXM", "tp": 4, "ep": 4},
    "qwen3-32b, tp 8, pp 2": {"subject": "qwen3-32b", "on": "16xH100-SXM", "tp": 8, "pp": 2},
    "qwen3-32b, MI300X": {"subject": "qwen3-32b", "on": "8xMI300X", "tp": 4},
}
POOLED: dict[str, dict[str, Any]] = {
    "qwen3-32b, 2 x tp 4 + tp 8": {"subject": "qwen3-32b", "on": "2x8xH100-SXM", "prefill": "2xtp4", "decode": "1xtp8"},
    "deepseek-v3, dp 16 ep 16 + dp 32 ep 32": {
        "subject": "deepseek-v3", "on": "6x8xH100-SXM", "prefill": "1xtp1,dp16,ep16", "decode": "1xtp1,dp32,ep32",
    },
}  # fmt: skip
TRAINED: dict[str, dict[str, Any]] = {
    "llama-3.1-8b, 8 devices": {"subject": "llama-3.1-8b", "on": "8xH100-SXM", "zero": 3},
    "llama-3.1-8b, 16 devices, 10B tokens": {"subject": "llama-3.1-8b", "on": "16xH100-SXM", "tokens": "10B"},
}

STRICT = """
import jsonschema, yaml
def strict(one):
    if isinstance(one, dict):
        open_ = one.get("x-kubernetes-preserve-unknown-fields") or "additionalProperties" in one
        if "properties" in one and not open_:
            one["additionalProperties"] = False
        for each in one.values():
            strict(each)
    elif isinstance(one, list):
        for each in one:
            strict(each)
def by_crd(document, crd):
    version = document["apiVersion"].rpartition("/")[2]
    found = next(one for one in yaml.safe_load(open(crd))["spec"]["versions"] if one["name"] == version)
    schema = found["schema"]["openAPIV3Schema"]
    strict(schema["properties"]["spec"])
    jsonschema.validate(document, schema)
document = yaml.safe_load(open(FILE))
"""
JUDGES: dict[str, tuple[str, str, str]] = {
    "dynamo": (
        "pod templates by Kubernetes' own schema; the operator's fields by our table alone: its CRD was not at hand",
        "python",
        """
import yaml, kubernetes_validate as of
for one in yaml.safe_load(open(FILE))["spec"]["components"]:
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, **one["podTemplate"]}
    of.validate(pod, of.latest_version(), strict=True)
""",
    ),
    "llm-d": (
        "the chart's `values.schema.json`, the file laid over its `values.yaml` (`helm template` did not run)",
        "python",
        """
import json, jsonschema, yaml
chart = CHECKOUTS + "/llm-d-modelservice/charts/llm-d-modelservice/"
def laid(over, under):
    both = isinstance(over, dict) and isinstance(under, dict)
    return {**under, **{name: laid(over[name], under.get(name)) for name in over}} if both else over
schema = json.load(open(chart + "values.schema.json"))
told = yaml.safe_load(open(FILE))
assert told.keys() <= schema["properties"].keys(), told.keys() - schema["properties"].keys()
jsonschema.validate(laid(told, yaml.safe_load(open(chart + "values.yaml"))), schema)
""",
    ),
    "kserve": (
        "the CRD's schema, unknown fields refused (its webhook did not run)",
        "python",
        STRICT
        + 'of = "/kserve/config/crd/full/llmisvc/serving.kserve.io_llminferenceservices.yaml"\n'
        + "by_crd(document, CHECKOUTS + of)\n",
    ),
    "ray-llm": (
        "KubeRay's CRD, unknown fields refused; Ray's `ServeDeploySchema` and `LLMConfig` (no engine was made)",
        "ray",
        STRICT
        + """
by_crd(document, CHECKOUTS + "/kuberay/ray-operator/config/crd/bases/ray.io_rayservices.yaml")
from ray.llm._internal.serve.core.configs.llm_config import LLMConfig
from ray.serve.schema import ServeDeploySchema
told = yaml.safe_load(document["spec"]["serveConfigV2"])
args = ServeDeploySchema.model_validate(told).applications[0].args
for one in args.get("llm_configs") or args.values():
    LLMConfig.model_validate(one)
""",
    ),
    "kubernetes": (
        "`kubernetes-validate`, strict",
        "python",
        """
import yaml, kubernetes_validate as of
for one in yaml.safe_load_all(open(FILE)):
    of.validate(one, of.latest_version(), strict=True)
""",
    ),
}


SPOILT = {
    "dynamo": ("containers:", "contaners:"),
    "llm-d": ("replicas: 2", "replicas: two"),
    "kserve": ("replicas: 2", "replicas: two"),
    "ray-llm": ("import_path:", "imprt_path:"),
    "kubernetes": ("replicas: 2", "replicas: two"),
    "slurm": ("gpus-per-node=2", "gpus-per-node=9"),
}
"""What each judge must refuse: a part of the first example's file, and what is put in its place."""


def judged(key: str, file: Path, given: argparse.Namespace) -> str:
    """What the judge of a kind says of a file."""
    if key == "slurm":
        if shutil.which("sbatch") is None:
            return "not judged: no sbatch"
        return _ran(["sbatch", "--test-only", file.name], file.parent)
    _, interpreter, code = JUDGES[key]
    python = getattr(given, interpreter)
    if python is None:
        return f"not judged: no --{interpreter}"
    return _ran([python, "-c", f"FILE, CHECKOUTS = {str(file)!r}, {given.checkouts!r}\n{code}"], file.parent)


def _ran(command: list[str], folder: Path) -> str:
    ran = subprocess.run(command, capture_output=True, text=True, cwd=folder, timeout=300, check=False)
    if ran.returncode == 0:
        return "accepted"
    lines = [line for line in ran.stderr.splitlines() if line.strip()] or ["it said nothing"]
    told = next((line for line in lines if "Error" in line), lines[-1])
    if told.startswith(("FileNotFoundError", "ModuleNotFoundError", "ImportError")):
        raise SystemExit(f"a judge is incomplete: {told}")  # which says nothing of the file
    return f"refused: {told[:160]}"


def row(key: str, example: str, file: str, asked: Callable[..., Any], given: argparse.Namespace) -> list[str]:
    """One row of the table: target and example, verdict, round trip."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            answer = asked(out=folder)
        except RidgelineError as error:
            return [key, example, f"not written: {str(error)[:150]}", ""]
        path = Path(folder) / file
        verdict = judged(given.kind, path, given)
        if given.kind in wrappers():
            return [key, example, verdict, ""]
        on = given.words["on"]
        again = rl.export(given.words["subject"], on, to=key, from_config=f"{key}:{path}")["files"][file]
        return [key, example, verdict, "exact" if again == answer["files"][file] else "differs"]


def rows(given: argparse.Namespace) -> list[list[str]]:
    """All rows: targets of a cluster's own on what is served, and wrappers around every other target."""
    found = []
    for key in targets():
        one = target(key)
        if one.for_cluster:
            for example, words in (SERVED | POOLED).items():
                given.kind, given.words = key, words
                found.append(
                    row(key, example, one.file, lambda out, k=key, w=words: rl.export(to=k, out=out, **w), given)
                )
    for kind in wrappers():
        for key in targets():
            if target(key).for_cluster:
                continue
            for example, words in (SERVED if target(key).task == "serving" else TRAINED).items():
                given.kind, given.words = kind, words
                asked = partial(rl.export, to=key, around=kind, **words)
                found.append(row(f"{key} --around {kind}", example, wrapper(kind).file, asked, given))
    return found


def refusals(given: argparse.Namespace) -> dict[str, str]:
    """What each judge says of a file that was spoilt."""
    found, words = {}, next(iter(SERVED.values()))
    for kind, (part, spoilt) in SPOILT.items():
        with tempfile.TemporaryDirectory() as folder:
            to = {"to": "vllm", "around": kind} if kind in wrappers() else {"to": kind}
            rl.export(out=folder, **words, **to)
            path = Path(folder) / (wrapper(kind) if kind in wrappers() else target(kind)).file
            text = path.read_text(encoding="utf-8")
            path.write_text(text.replace(part, spoilt), encoding="utf-8")
            verdict = judged(kind, path, given)
            found[kind] = f"`{spoilt}`: {verdict.partition(':')[0]}"
    return found


def main() -> None:
    """Judges all, and writes the table."""
    parser = argparse.ArgumentParser()
    for name in ("--python", "--ray", "--checkouts"):
        parser.add_argument(name)
    given = parser.parse_args()
    found = rows(given)
    written = [one for one in found if not one[2].startswith("not written")]
    accepted = sum(one[2] == "accepted" for one in written)
    trips = [one for one in written if one[3]]
    exact = sum(one[3] == "exact" for one in trips)
    slurm = f"`sbatch --test-only`, a controller of {_version('sbatch')} with 16 nodes of 8 GPUs (it starts nothing)"
    judges = {**{key: told for key, (told, _, _) in JUDGES.items()}, "slurm": slurm}
    spoilt = refusals(given)
    text = [
        "# Exports for clusters, judged by their own schemas", "",
        f"`bench_export_clusters.py`: of {len(found)} pairs {len(written)} are written, {accepted} accepted; "
        f"{exact} of {len(trips)} manifests read back to the same file byte for byte.", "",
        "| kind | what judged its files | a spoilt file |", "|---|---|---|",
        *(f"| {key} | {told} | {spoilt[key]} |" for key, told in judges.items()), "",
        "| target | example | verdict | round trip |", "|---|---|---|---|",
        *(f"| {' | '.join(cell.replace('|', '/') for cell in one)} |" for one in found), "",
    ]  # fmt: skip
    (HERE / "export_clusters.md").write_text("\n".join(text), encoding="utf-8")


def _version(program: str) -> str:
    if shutil.which(program) is None:
        return f"{program}, which is absent"
    return subprocess.run([program, "--version"], capture_output=True, text=True, check=False).stdout.strip()


if __name__ == "__main__":
    main()
