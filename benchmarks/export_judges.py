"""What judges the files that `ridgeline export` writes: each program's own parser, schema or classes.

Each is told in words for the table, and as the body of a function in which FILE is the file's path and SOURCE what the
judges' file names as `source` (a checkout, a program). It raises where the file is refused.
"""

from __future__ import annotations

NOT_A_PARSER = frozenset({"dynamo", "tgi"})
"""Targets judged by something else than what the program itself runs on the file."""

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

JUDGES: dict[str, tuple[str, str]] = {
    "vllm": (
        "`make_arg_parser(FlexibleArgumentParser())` of `vllm serve`, then `CacheConfig`",
        """
from vllm import platforms
from vllm.platforms.cpu import CpuPlatform
platforms.current_platform = CpuPlatform()
from vllm.config import CacheConfig
from vllm.entrypoints.common.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser
told = make_arg_parser(FlexibleArgumentParser()).parse_args(["serve", "--config", FILE])
CacheConfig(
    block_size=told.block_size, gpu_memory_utilization=told.gpu_memory_utilization,
    cache_dtype=told.kv_cache_dtype, enable_prefix_caching=told.enable_prefix_caching,
)
""",
    ),
    "sglang": (
        "`ConfigArgumentMerger` and the parser of `ServerArgs` (its checks after parsing ask for devices)",
        """
import argparse
from sglang.srt.server_args import ServerArgs
from sglang.srt.utils.server_args_config_parser import ConfigArgumentMerger
parser = argparse.ArgumentParser()
ServerArgs.add_cli_args(parser)
parser.parse_args(ConfigArgumentMerger(parser).merge_config_with_args(["--config", FILE]))
""",
    ),
    "llamacpp": (
        "`llama-server` built for a processor: it asks for the model's file only after it has taken its flags",
        """
import os, subprocess
found = {**os.environ, "PATH": os.path.dirname(SOURCE) + ":" + os.environ["PATH"]}
ran = subprocess.run(["sh", FILE], env=found, capture_output=True, text=True, timeout=120)
told = ran.stdout + ran.stderr
wrong = [one for one in told.splitlines() if one.startswith("error") or "invalid argument" in one]
assert not wrong and "failed to load model" in told, wrong or told[-160:]
""",
    ),
    "tgi": (
        "flags and Rust types of the launcher's `struct Args`, read from its source (it was not built)",
        """
import re, shlex
source = open(SOURCE + "/launcher/src/main.rs").read()
body = source[source.index("struct Args {"):]
types = dict(re.findall(r"^    (\\w+): (?:Option<)?([\\w<>]+?)>?,", body[: body.index("\\n}\\n")], re.M))
text = open(FILE).read().partition("text-generation-launcher")[2].replace(chr(92) + chr(10), " ")
kinds = {"usize": int, "u16": int, "u32": int, "f32": float, "f64": float}
name = ""
for part in shlex.split(text):
    if part.startswith("--"):
        name = part[2:].replace("-", "_")
        assert name in types, name
    else:
        kinds.get(types[name], str)(part)
""",
    ),
    "dynamo": (
        "pod templates by Kubernetes' own schema; the operator's fields by our table alone: its CRD was not at hand",
        """
import yaml, kubernetes_validate as of
for one in yaml.safe_load(open(FILE))["spec"]["components"]:
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, **one["podTemplate"]}
    of.validate(pod, of.latest_version(), strict=True)
""",
    ),
    "llm-d": (
        "the chart's `values.schema.json`, the file laid over its `values.yaml` (`helm template` did not run)",
        """
import json, jsonschema, yaml
chart = SOURCE + "/llm-d-modelservice/charts/llm-d-modelservice/"
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
        STRICT
        + 'of = "/kserve/config/crd/full/llmisvc/serving.kserve.io_llminferenceservices.yaml"\n'
        + "by_crd(document, SOURCE + of)\n",
    ),
    "ray-llm": (
        "KubeRay's CRD, unknown fields refused; Ray's `ServeDeploySchema` and `LLMConfig` (no engine was made)",
        STRICT
        + """
by_crd(document, SOURCE + "/kuberay/ray-operator/config/crd/bases/ray.io_rayservices.yaml")
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
        """
import yaml, kubernetes_validate as of
for one in yaml.safe_load_all(open(FILE)):
    of.validate(one, of.latest_version(), strict=True)
""",
    ),
    "slurm": (
        "`sbatch --test-only`, a controller of 16 nodes of 8 GPUs (it starts nothing)",
        """
import subprocess
ran = subprocess.run(["sbatch", "--test-only", FILE], capture_output=True, text=True, timeout=120)
assert ran.returncode == 0, ran.stderr.strip()
""",
    ),
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

SPOILT = {
    "vllm": ("max-num-seqs:", "max-num-seks:"),
    "sglang": ("page-size:", "page-sise:"),
    "llamacpp": ("--parallel", "--parralel"),
    "tgi": ("--num-shard", "--num-shart"),
    "dynamo": ("containers:", "contaners:"),
    "llm-d": ("replicas: 2", "replicas: two"),
    "kserve": ("replicas: 2", "replicas: two"),
    "ray-llm": ("import_path:", "imprt_path:"),
    "deepspeed": ('"stage": ', '"stage": 9'),
    "accelerate": ("num_machines:", "num_mashines:"),
    "trl": ("max_length:", "max_lenght:"),
    "axolotl": ("micro_batch_size:", "micro_bach_size:"),
    "torchtitan": ("seq_len=", "seq_lem="),
    "megatron": ("--seq-length", "--seq-lenght"),
    "maxtext": ("remat_policy:", "remat_polisy:"),
    "torchtune": ("_component_: torchtune.models.", "_component_: torchtune.modles."),
    "kubernetes": ("replicas: 2", "replicas: two"),
    "slurm": ("gpus-per-node=2", "gpus-per-node=9"),
}
"""What each judge must refuse: a part of a file that it accepted, and what is put in its place."""
