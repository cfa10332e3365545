"""Other simulators and planners of serving on the same job, each in its own interpreter; none of their code is here.

    git clone https://github.com/microsoft/vidur        # numpy pandas scikit-learn wandb ddsketch plotly_express
    git -C vidur show ee3dec76 > vidur/data/profiling/compute/a100/meta-llama/Llama-2-70b-hf/attention.csv
    export VIDUR_HOME=.../vidur PEER_PYTHON=.../python  # "plotly<6" kaleido==0.2.1 matplotlib seaborn fasteners pyyaml
    pip install aiconfigurator==0.12.0                  # in a virtual environment of its own
    export AICONFIGURATOR=.../bin/aiconfigurator
    python benchmarks/serving_peers.py vidur 10000      # one peer alone, prints JSON

The second line takes the table of attention that Vidur held before its last one (tp 2 of 64 heads, 8 of keys): some
copies of the repository lack the newest. Its forests are trained at the first run, over a grid of one (a minute).
"""

from __future__ import annotations

import json
import logging
import os
import platform
import re
import resource
import statistics
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TRIES = 3
VIDUR_TOKENS, VIDUR_BUDGET, VIDUR_BATCH, VIDUR_RATE = 4096, 512, 128, 1.0
_FOREST = "--random_forrest_execution_time_predictor_config_"
VIDUR_WORDS = f"""--replica_config_device a100 --replica_config_network_device a100_dgx
 --replica_config_model_name meta-llama/Llama-2-70b-hf --cluster_config_num_replicas 1
 --replica_config_tensor_parallel_size 2 --replica_config_num_pipeline_stages 1
 --request_generator_config_type synthetic
 --length_generator_config_type trace --trace_request_length_generator_config_max_tokens {VIDUR_TOKENS}
 --trace_request_length_generator_config_trace_file ./data/processed_traces/splitwise_conv.csv
 --interval_generator_config_type poisson --poisson_request_interval_generator_config_qps {VIDUR_RATE}
 --replica_scheduler_config_type sarathi --sarathi_scheduler_config_batch_size_cap {VIDUR_BATCH}
 --sarathi_scheduler_config_chunk_size {VIDUR_BUDGET} {_FOREST}num_estimators 250 {_FOREST}max_depth 16
 {_FOREST}min_samples_split 2 --no-metrics_config_store_plots --no-metrics_config_enable_chrome_trace"""

SYSTEMS = {
    "H100-SXM-80GB": "h100_sxm",
    "H200-SXM-141GB": "h200_sxm",
    "B200-SXM": "b200_sxm",
    "B300-SXM": "b300_sxm",
    "GB200": "gb200",
    "GB300": "gb300",
}
BACKENDS = {"TensorRT-LLM": "trtllm", "SGLang": "sglang", "vLLM": "vllm"}
# A row's model and format: the checkpoint that AIConfigurator knows, with formats where no checkpoint has them.
_BLOCK = {"gemm_quant_mode": "fp8_block", "moe_quant_mode": "fp8_block"}
CHECKPOINTS: Mapping[tuple[str, str], tuple[str, Mapping[str, str]]] = {
    ("Qwen3-32B", ""): ("Qwen/Qwen3-32B", {}),
    ("Qwen3-32B", "fp8"): ("Qwen/Qwen3-32B-FP8", {}),
    ("Qwen3-32B", "nvfp4"): ("Qwen/Qwen3-32B", {"gemm_quant_mode": "nvfp4"}),
    ("Llama-3.1-8B", ""): ("meta-llama/Meta-Llama-3.1-8B", {}),
    ("Llama-3.1-8B", "fp8"): ("meta-llama/Meta-Llama-3.1-8B", {"gemm_quant_mode": "fp8"}),
    ("Llama-3.1-8B", "fp8-block"): ("meta-llama/Meta-Llama-3.1-8B", {"gemm_quant_mode": "fp8_block"}),
    ("Llama-3.1-70B", "fp8"): ("nvidia/Llama-3.1-70B-Instruct-FP8", {}),
    ("Qwen3-235B-A22B", "fp8"): ("Qwen/Qwen3-235B-A22B-FP8", {}),
    ("Qwen3-235B-A22B", "fp8-block"): ("Qwen/Qwen3-235B-A22B-FP8", {}),
    ("Qwen3.5-397B-A17B", "bf16"): ("Qwen/Qwen3.5-397B-A17B", {}),
    ("Qwen3.5-397B-A17B", "fp8"): ("Qwen/Qwen3.5-397B-A17B", _BLOCK),
    ("Qwen3.5-397B-A17B", "nvfp4"): ("nvidia/Qwen3.5-397B-A17B-NVFP4", {}),
    ("MiniMax-M2.5", "fp8"): ("MiniMaxAI/MiniMax-M2.5", {}),
    ("MiniMax-M2.5", "nvfp4"): ("nvidia/MiniMax-M2.5-NVFP4", {}),
    ("DeepSeek-R1", "fp8"): ("deepseek-ai/DeepSeek-R1", {}),
    ("DeepSeek-V3", "fp8"): ("deepseek-ai/DeepSeek-V3", {}),
    ("DeepSeek-R1", "nvfp4"): ("nvidia/DeepSeek-V3.1-NVFP4", {}),
    ("DeepSeek-V3", "nvfp4"): ("nvidia/DeepSeek-V3.1-NVFP4", {}),
    ("DeepSeek-V3.1", "nvfp4"): ("nvidia/DeepSeek-V3.1-NVFP4", {}),
}


@dataclass(frozen=True, kw_only=True)
class Taken:
    """Wall-clock and processor time (user and system, all threads) of a call, each the median of a few [s]."""

    wall_s: float
    cpu_s: float


def taken(call: Callable[[], object], tries: int = TRIES) -> Taken:
    """What a call takes in this process [s]."""
    return _median(call, time.process_time, tries)


def command_taken(words: Sequence[str], tries: int = TRIES) -> Taken:
    """What a command takes in a new process [s]; its standard output is thrown away."""

    def used_s() -> float:
        spent = resource.getrusage(resource.RUSAGE_CHILDREN)
        return spent.ru_utime + spent.ru_stime

    usual = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return _median(lambda: subprocess.run(words, check=True, capture_output=True, env=usual), used_s, tries)


def _median(call: Callable[[], object], used_s: Callable[[], float], tries: int) -> Taken:
    wall, cpu = [], []
    for _ in range(tries):
        begun, used = time.perf_counter(), used_s()
        call()
        wall.append(time.perf_counter() - begun)
        cpu.append(used_s() - used)
    return Taken(wall_s=statistics.median(wall), cpu_s=statistics.median(cpu))


def machine_line() -> str:
    """The machine and what else it did, in words."""
    return (
        f"Python {platform.python_version()}, {os.cpu_count()} cores ({platform.machine()}) shared with other work:"
        f" {os.getloadavg()[0]:.1f} processes ran on average in the last minute"
    )


def prose(text: str) -> str:
    """A paragraph of a page, wrapped."""
    return textwrap.fill(text, 118, break_long_words=False, break_on_hyphens=False)


def aiconfigurator_command() -> str | None:
    """The command of AIConfigurator, None where nobody said where it is."""
    return os.environ.get("AICONFIGURATOR")


def ask(python: str, *words: str, given: object = None) -> dict[str, Any]:
    """What a peer answers in its own interpreter."""
    done = subprocess.run(
        [python, __file__, *words], input=json.dumps(given), check=True, stdout=subprocess.PIPE, text=True,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def vidur(requests: int) -> dict[str, Any] | None:
    """Vidur's own loop over so many requests; None without a checkout."""
    if "VIDUR_HOME" not in os.environ:
        return None
    return ask(os.environ.get("PEER_PYTHON", sys.executable), "vidur", str(requests))


def aiconfigurator_rows(rows: Sequence[Mapping[str, str]]) -> dict[str, Any] | None:
    """AIConfigurator's own prediction of rows of a truth file; None where it is not installed."""
    command = aiconfigurator_command()
    if command is None:
        return None
    return ask(str(Path(command).with_name("python")), "aiconfigurator-rows", given=list(rows))


def _vidur_here(words: Sequence[str]) -> dict[str, Any]:
    """Builds Vidur's simulator and runs its loop a few times, with its metrics and without."""
    home = os.environ["VIDUR_HOME"]
    os.environ["WANDB_MODE"] = "disabled"
    os.chdir(home)
    sys.path.insert(0, home)
    begun = time.perf_counter()
    from vidur.config import SimulationConfig  # type: ignore[import-not-found]
    from vidur.entities import Batch, Replica  # type: ignore[import-not-found]
    from vidur.simulator import Simulator  # type: ignore[import-not-found]
    from vidur.utils.random import set_seeds  # type: ignore[import-not-found]

    answer: dict[str, Any] = {"import_s": time.perf_counter() - begun, "loops": {}, "python": platform.python_version()}
    commit = ["git", "-C", home, "rev-parse", "--short=8", "HEAD"]
    answer["commit"] = subprocess.check_output(commit, text=True).strip()
    logging.disable(logging.CRITICAL)
    for name, more in (("as shipped", []), ("metrics off", ["--no-metrics_config_write_metrics"])):
        sys.argv = ["main", *VIDUR_WORDS.split(), "--synthetic_request_generator_config_num_requests", *words, *more]
        for _ in range(TRIES):
            config = SimulationConfig.create_from_cli_args()
            set_seeds(config.seed)
            Replica._id = -1  # its numbers run on through a process, its clusters count from 0
            begun = time.perf_counter()
            simulator = Simulator(config)
            answer["ready_s"] = time.perf_counter() - begun
            requests = [event._request for _, event in simulator._event_queue]
            before, begun, used = Batch._id, time.perf_counter(), time.process_time()
            simulator.run()
            loop = (time.perf_counter() - begun, time.process_time() - used)
            answer["loops"].setdefault(name, []).append(loop)
            answer["iterations"] = Batch._id - before
        answer["end_s"] = simulator._time
    (replica,) = simulator.scheduler._replica_schedulers.values()
    answer["cache_tokens"] = replica._config.num_blocks * replica._config.block_size
    names = ("arrived_at", "num_prefill_tokens", "num_decode_tokens", "prefill_completed_at", "completed_at")
    answer["requests"] = [[float(getattr(one, name)) for name in names] for one in requests]
    return answer


def _point(row: Mapping[str, str], ctx_tokens: int | None) -> dict[str, Any]:
    """The arguments of AIConfigurator's estimate for one row; raises KeyError for what it has no name for."""
    path, formats = CHECKPOINTS[row["model"], row["precision_weights"]]
    told = re.search(r"(?:^|; )dp(\d+)(?:;|$)", row["note"])
    dp, tp, ep = int(told[1]) if told else 1, int(row["tp"]), int(row["ep"] or 1)
    found: dict[str, Any] = {
        "model_path": path,
        "system_name": SYSTEMS[row["hardware"]],
        "backend_name": BACKENDS[row["engine"]],
        "backend_version": "current",
        "isl": int(row["isl"]),
        "osl": int(row["osl"]),
        "batch_size": max(1, -(-int(float(row["batch_or_concurrency"])) // dp)),
        "ctx_tokens": ctx_tokens,
        "tp_size": tp,
        "pp_size": int(row["pp"] or 1),
        "attention_dp_size": dp,
        **formats,
    }
    if re.search(r"-A\d+B|DeepSeek|MiniMax", row["model"]):
        found |= {"moe_ep_size": ep, "moe_tp_size": max(1, tp * dp // ep)}
    return found


def _rows_here(words: Sequence[str]) -> dict[str, Any]:
    """TTFT and TPOT of every configuration [ms], or why there is none, as shipped and with an engine's token budget."""
    from importlib.metadata import version

    from aiconfigurator.cli.api import cli_estimate  # type: ignore[import-not-found]

    logging.disable(logging.CRITICAL)
    rows = json.load(sys.stdin)
    answer: dict[str, Any] = {"version": version("aiconfigurator"), "predicted": {}, "refused": {}, "seconds": {}}
    for name, budget in (("ctx_tokens = prompt", None), ("ctx_tokens = 8192", 8192)):
        kept: dict[str, dict[str, float] | str] = {}
        predicted, refused = answer["predicted"].setdefault(name, {}), answer["refused"].setdefault(name, {})
        begun = time.perf_counter()
        for row in rows:
            try:
                point = _point(row, budget)
                key = json.dumps(point)
                if key not in kept:
                    found = cli_estimate(**point)
                    kept[key] = {"ttft_ms": float(found.ttft), "tpot_ms": float(found.tpot)}
                predicted[row["id"]] = kept[key][row["metric"]]
            except Exception as error:
                reason = f"no name for {error}" if isinstance(error, KeyError) else str(error).splitlines()[0]
                refused[row["id"]] = re.sub(r"'[^']*'|\d+", "..", reason)[:110]
        answer["seconds"][name] = time.perf_counter() - begun
        answer["points"] = len(kept)
    return answer


HERE: Mapping[str, Callable[[Sequence[str]], dict[str, Any]]] = {
    "vidur": _vidur_here,
    "aiconfigurator-rows": _rows_here,
}


if __name__ == "__main__":
    print(json.dumps(HERE[sys.argv[1]](sys.argv[2:])), flush=True)
    os._exit(0)  # Vidur draws its plots at the exit of the interpreter
