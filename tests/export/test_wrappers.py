"""Contracts of what runs exported files on a cluster: each wrapper around a server and around training."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

import ridgeline as rl
from ridgeline.errors import InputError, UnknownNameError
from ridgeline.export.wrapper import plain_name, wrapper, wrappers
from ridgeline.facts.store import sources

SERVED: dict[str, Any] = {"subject": "qwen3-32b", "on": "4xH100-SXM", "tp": 2, "to": "vllm"}
TRAINED: dict[str, Any] = {
    "subject": "llama-3.1-8b", "on": "16xH100-SXM", "zero": 3, "tokens": "10B", "to": "deepspeed"
}  # fmt: skip


@pytest.mark.parametrize("key", wrappers())
@pytest.mark.parametrize("asked", [SERVED, TRAINED], ids=["served", "trained"])
def test_its_file_stands_beside_the_programs_own(key: str, asked: dict[str, Any]) -> None:
    one = wrapper(key)
    assert set(one.source) <= sources().keys()
    answer = rl.export(**asked, around=key)
    assert one.file in answer["files"]
    assert answer["command"] == one.start.format(file=one.file)
    assert answer["command"] in answer["files"]["README.md"]


def _options(script: str) -> dict[str, str]:
    lines = [line.removeprefix("#SBATCH --") for line in script.splitlines() if line.startswith("#SBATCH")]
    return {name: value for name, _, value in (line.partition("=") for line in lines)}


def test_a_training_run_asks_slurm_for_its_nodes_and_the_time_of_its_whole_interval() -> None:
    answer = rl.export(**TRAINED, around="slurm")
    script = answer["files"]["job.sbatch"]
    found = _options(script)
    assert (found["nodes"], found["gpus-per-node"]) == ("2", "8")
    days, _, clock = found["time"].partition("-")
    limit_s = int(days) * 86400 + int(clock[:2]) * 3600
    step = answer["predicted"]["step_time_s"]
    longest_s = answer["predicted"]["run_time_s"] * step["high"] / step["value"]
    assert longest_s <= limit_s < longest_s + 3600
    assert "torchrun --nnodes 2 --nproc-per-node 8" in script
    assert "train.py --deepspeed_config ds_config.json" in script


def test_without_tokens_the_time_is_the_partitions() -> None:
    answer = rl.export("llama-3.1-8b", "8xH100-SXM", zero=3, to="deepspeed", around="slurm")
    assert "time" not in _options(answer["files"]["job.sbatch"])


def test_instances_are_an_array_of_jobs_or_replicas() -> None:
    assert _options(rl.export(**SERVED, around="slurm")["files"]["job.sbatch"])["array"] == "0-1"
    documents = list(yaml.safe_load_all(rl.export(**SERVED, around="kubernetes")["files"]["manifest.yaml"]))
    deployment = next(one for one in documents if one["kind"] == "Deployment")
    assert deployment["spec"]["replicas"] == 2
    container = deployment["spec"]["template"]["spec"]["containers"][0]
    assert container["resources"]["limits"] == {"nvidia.com/gpu": "2"}
    assert {"startupProbe", "readinessProbe", "livenessProbe"} <= container.keys()
    assert "/etc/run/vllm.yaml" in container["command"][-1]


def test_an_amd_fleet_asks_for_amd_devices() -> None:
    answer = rl.export("qwen3-32b", "8xMI300X", tp=1, to="vllm", around="kubernetes")
    assert "amd.com/gpu" in answer["files"]["manifest.yaml"]


def test_a_job_over_nodes_names_the_first_and_each_ones_rank() -> None:
    documents = list(yaml.safe_load_all(rl.export(**TRAINED, around="kubernetes")["files"]["manifest.yaml"]))
    job = next(one for one in documents if one["kind"] == "Job")
    assert job["spec"]["completions"] == job["spec"]["parallelism"] == 2
    env = {one["name"] for one in job["spec"]["template"]["spec"]["containers"][0]["env"]}
    assert env == {"MASTER_ADDR", "NODE_RANK"}
    headless = next(one for one in documents if one["kind"] == "Service")
    assert headless["metadata"]["name"] == job["spec"]["template"]["spec"]["subdomain"]


def test_an_instance_over_nodes_starts_on_each_and_is_no_deployment() -> None:
    asked: dict[str, Any] = {"subject": "qwen3-32b", "on": "16xH100-SXM", "tp": 8, "pp": 2, "to": "vllm"}
    script = rl.export(**asked, around="slurm")["files"]["job.sbatch"]
    assert "--nnodes 2 --node-rank $NODE_RANK" in script
    assert _options(script)["nodes"] == "2"
    with pytest.raises(InputError, match="over 2 nodes is no Deployment"):
        rl.export(**asked, around="kubernetes")


def test_a_launch_script_is_started_and_names_all_nodes() -> None:
    answer = rl.export("llama-3.1-8b", "16xH100-SXM", to="megatron", zero=1, around="slurm")
    assert "sh pretrain.sh" in answer["files"]["job.sbatch"]
    assert "--rdzv-endpoint $MASTER_ADDR:29500 pretrain_gpt.py" in answer["files"]["pretrain.sh"]


def test_two_files_are_no_one_job() -> None:
    with pytest.raises(InputError, match="starts one pool"):
        rl.export("qwen3-32b", "2x8xH100-SXM", to="vllm", prefill="2xtp4", decode="1xtp8", around="slurm")


def test_an_unknown_wrapper_names_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="slurm"):
        wrapper("slum")


@pytest.mark.parametrize(("text", "name"), [("llama-3.1-8b", "llama-3-1-8b"), ("..", "run"), ("A/b" * 30, None)])
def test_names_are_such_as_schedulers_take(text: str, name: str | None) -> None:
    found = plain_name(text)
    assert found == name or (name is None and len(found) <= 40 and found[-1] != "-")
