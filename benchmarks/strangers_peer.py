"""The serving rows of benchmarks/unseen asked of AIConfigurator, whose commands its successor AISimulate 0.12 keeps.

    python -m venv VENV && VENV/bin/pip install aiconfigurator==0.12.0
    VENV/bin/python benchmarks/strangers_peer.py [SIDE] > /dev/null      # writes unseen/peer-answers[-sealed].tsv

Runs in an interpreter of its own; nothing of Ridgeline is imported. Every row whose model, device and engine it has
tables for is asked with the row's lengths, degrees, formats and concurrency; a batch that its memory model refuses is
halved until it holds, as an engine would queue the rest. Models that it does not ship are given as the public config of
our catalog, where their architecture is one it knows. SIDE is `open` or, once, at the end, `sealed`.
"""

from __future__ import annotations

import csv
import json
import logging
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
SIDE = sys.argv[1] if len(sys.argv) > 1 else "open"
ROWS = HERE / "unseen" / f"serving-{SIDE}.tsv"
OUT = HERE / "unseen" / ("peer-answers.tsv" if SIDE == "open" else f"peer-answers-{SIDE}.tsv")
OWN = HERE.parent / "src" / "ridgeline" / "data" / "models"

SYSTEMS = (
    ("H100-SXM", "h100_sxm"), ("H200-SXM", "h200_sxm"), ("B200-SXM", "b200_sxm"), ("A100-SXM", "a100_sxm"),
    ("A100-PCIe", "a100_pcie"), ("L40S", "l40s"), ("GB200", "gb200"), ("B300", "b300_sxm"),
)  # fmt: skip
BACKENDS = (("vLLM", "vllm"), ("SGLang", "sglang"), ("TensorRT-LLM", "trtllm"))
SHIPPED = {
    "DeepSeek-R1": "deepseek-ai/DeepSeek-R1", "DeepSeek-V3": "deepseek-ai/DeepSeek-V3",
    "DeepSeek-V3.2": "deepseek-ai/DeepSeek-V3.2", "Qwen3-0.6B": "Qwen/Qwen3-0.6B", "Qwen3-8B": "Qwen/Qwen3-8B",
    "Qwen3-32B": "Qwen/Qwen3-32B", "Qwen3-30B-A3B": "Qwen/Qwen3-30B-A3B", "Qwen3-235B-A22B": "Qwen/Qwen3-235B-A22B",
    "Qwen3.5-35B-A3B": "Qwen/Qwen3.5-35B-A3B", "GPT-OSS-120B": "openai/gpt-oss-120b",
    "GPT-OSS-20B": "openai/gpt-oss-20b", "Llama-3.1-405B": "meta-llama/Meta-Llama-3.1-405B",
    "Llama-3.1-70B": "meta-llama/Meta-Llama-3.1-70B", "Llama-3.1-8B": "meta-llama/Meta-Llama-3.1-8B",
    "Gemma-4-26B-A4B": "google/gemma-4-26B-A4B",
}  # fmt: skip
ARCHITECTURES = {"qwen3": "Qwen3ForCausalLM", "llama": "LlamaForCausalLM", "glm4_moe": "Glm4MoeForCausalLM"}
FORMATS = {
    "fp8": {"gemm_quant_mode": "fp8_block", "moe_quant_mode": "fp8_block"},
    "int4": {"gemm_quant_mode": "int4_wo", "moe_quant_mode": "int4_wo"},
    "nvfp4": {"gemm_quant_mode": "nvfp4", "moe_quant_mode": "nvfp4"},
}
COLUMNS = ("id", "status", "predicted", "reason", "version")


class NoNameError(Exception):
    """What a row names and the peer has no tables for."""


def path_of(model: str, folder: Path) -> str:
    """The shipped name of a model, or a folder with its public config."""
    if model in SHIPPED:
        return SHIPPED[model]
    file = OWN / f"{model.casefold()}.json"
    config = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    if config.get("model_type") not in ARCHITECTURES:
        raise NoNameError(f"model {model}")
    own = folder / model
    own.mkdir(exist_ok=True)
    config |= {"architectures": [ARCHITECTURES[config["model_type"]]], "torch_dtype": "bfloat16"}
    (own / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return str(own)


def point(row: dict[str, str], folder: Path) -> dict[str, Any]:
    """The arguments of one estimate; raises `NoNameError` for what the peer does not know."""
    system = next((name for cell, name in SYSTEMS if row["hardware"].startswith(cell)), None)
    backend = next((name for cell, name in BACKENDS if row["engine"] == cell), None)
    if system is None:
        raise NoNameError(f"device {row['hardware']}")
    if backend is None and row["engine"]:
        raise NoNameError(f"engine {row['engine']}")
    precision = row["precision_weights"]
    if precision not in ("", "bf16", "fp16", "mxfp4", *FORMATS):
        raise NoNameError(f"format {precision}")
    tp = int(row["tp"] or row["n_devices"])
    instances = max(1, int(row["n_devices"]) // (tp * int(row["pp"] or 1)))
    batch = max(1, -(-int(float(row["batch_or_concurrency"] or 1)) // instances))
    found: dict[str, Any] = {
        "model_path": path_of(row["model"], folder), "system_name": system, "backend_name": backend or "vllm",
        "backend_version": "current", "isl": max(1, round(float(row["isl"]))), "osl": max(2, round(float(row["osl"]))),
        "batch_size": batch, "tp_size": tp, "pp_size": int(row["pp"] or 1),
    }  # fmt: skip
    own_fp8 = found["model_path"].startswith("deepseek-ai/")  # published in blocks of 8 bits
    found |= {} if own_fp8 else FORMATS.get(precision, {})
    if row["ep"]:
        found |= {"moe_ep_size": int(row["ep"]), "moe_tp_size": max(1, tp // int(row["ep"]))}
    elif re.search(r"-A\d+B|DeepSeek|GPT-OSS|GLM", row["model"]):
        found |= {"moe_ep_size": 1, "moe_tp_size": tp}
    return found | {"instances": instances}


def estimated(asked: dict[str, Any]) -> tuple[Any, int]:
    """The peer's estimate and the batch that it holds."""
    from aiconfigurator.cli.api import cli_estimate  # type: ignore[import-not-found]

    words = {name: value for name, value in asked.items() if name != "instances"}
    while True:
        try:
            return cli_estimate(**words), words["batch_size"]
        except RuntimeError as error:
            if not re.search("OOM|memory", str(error)) or words["batch_size"] == 1:
                raise
            words["batch_size"] = words["batch_size"] // 2


def value_of(row: dict[str, str], asked: dict[str, Any], found: Any, batch: int) -> float:
    """A row's metric from time to first token and per output token [ms]."""
    ttft, tpot, osl = float(found.ttft), float(found.tpot), asked["osl"]
    metric, each = row["metric"], ttft + (osl - 1) * tpot
    rate = 1e3 * asked["instances"] * batch / each
    values = {
        "ttft_ms": ttft, "ttft_mean_ms": ttft, "ttft_p50_ms": ttft, "tpot_ms": tpot, "tpot_mean_ms": tpot,
        "batch_latency_ms": each, "output_tok_s": rate * osl,
        "output_tok_s_per_gpu": rate * osl / int(row["n_devices"]),
        "decode_tok_s": 1e3 * batch / tpot if tpot else 0.0, "prefill_tok_s": 1e3 * batch * asked["isl"] / ttft,
        "samples_s": rate,
    }  # fmt: skip
    if metric not in values or values[metric] <= 0:
        raise NoNameError(f"metric {metric}")
    return values[metric]


def main() -> None:
    """Asks every row and writes the answers."""
    from importlib.metadata import version

    logging.disable(logging.CRITICAL)
    with ROWS.open(encoding="utf-8", newline="") as lines:
        rows = list(csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE))
    kept: dict[str, Any] = {}
    release = f"aiconfigurator {version('aiconfigurator')}"
    with tempfile.TemporaryDirectory() as folder, OUT.open("w", encoding="utf-8") as out:
        print("\t".join(COLUMNS), file=out)
        for row in rows:
            try:
                asked = point(row, Path(folder))
                key = json.dumps(asked)
                kept[key] = kept.get(key) or estimated(asked)
                cells = ("scored", f"{value_of(row, asked, *kept[key]):.6g}", "")
            except Exception as error:  # anything that a peer raises is a refusal with its words
                said = re.sub(r"/\S+/", "", " ".join(str(error).split()))
                cells = ("refused", "", said[:160] or type(error).__name__)
            print("\t".join((row["id"], *cells, release)), file=out)
            print(f"\r{row['id']}", end="", file=sys.stderr)


if __name__ == "__main__":
    main()
