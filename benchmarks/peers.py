"""Other planners on the same job: how many configurations a second they answer, and how near they come.

Each peer runs in its own interpreter, from a checkout that the person made; no code of a peer is kept here.

    git clone https://github.com/calculon-ai/calculon        # needs pandas and psutil
    git clone https://github.com/cli99/llm-analysis          # needs fire
    export CALCULON_HOME=.../calculon LLM_ANALYSIS_HOME=.../llm-analysis
    export PEER_PYTHON=.../python                            # an interpreter with those packages; default: this one
    python benchmarks/peers.py calculon|calculon-rows|llm-analysis   # one peer alone, prints JSON

The job is GPT-3 175B on 1,024 A100 80 GB, batch 1,536, sequences of 2,048.
"""

from __future__ import annotations

import json
import logging
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

HOMES = {
    "calculon": "CALCULON_HOME",
    "calculon-rows": "CALCULON_HOME",
    "llm-analysis": "LLM_ANALYSIS_HOME",
}
DEVICES, BATCH, SEQ_LEN = 1024, 1536, 2048
SAMPLE = 4_000  # of the whole space, drawn evenly
TRIES = 3

# The weak-scaling table of github.com/NVIDIA/Megatron-LM (README.md and images/model_table.png, Megatron-Core 0.8):
# billions of parameters, layers, hidden, heads, tp, pp, dp, global batch, measured TFLOP/s per H100; sequences of
# 4,096, vocabulary 131,072, bf16.
H100_VOCABULARY, H100_SEQ_LEN = 131_072, 4_096
H100_ROWS = (
    (1.7, 24, 2048, 16, 1, 1, 48, 192, 408.8),
    (7.1, 30, 4096, 32, 2, 1, 48, 192, 465.9),
    (16, 32, 6144, 48, 4, 1, 48, 192, 489.1),
    (32, 48, 7168, 56, 8, 1, 48, 192, 459.6),
    (70, 84, 8192, 64, 8, 2, 48, 384, 419.7),
    (119, 92, 10240, 80, 8, 4, 48, 768, 420.5),
    (177, 96, 12288, 96, 8, 6, 48, 1152, 432.8),
    (314, 96, 16384, 128, 8, 8, 48, 1536, 474.4),
    (462, 112, 18432, 144, 8, 16, 48, 3072, 459.9),
)


def run_peer(name: str) -> dict[str, Any] | None:
    """What a peer answers in its own interpreter; None when there is no checkout of it."""
    if HOMES[name] not in os.environ:
        return None
    python = os.environ.get("PEER_PYTHON", sys.executable)
    done = subprocess.run([python, __file__, name], check=True, capture_output=True, text=True)
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def commit_of(home: str) -> str:
    """Commit of a checkout, short."""
    return subprocess.check_output(["git", "-C", home, "rev-parse", "--short=8", "HEAD"], text=True).strip()


def best_s(call: Callable[[], object]) -> float:
    """Least wall-clock time of a few calls [s]."""
    taken = []
    for _ in range(TRIES):
        begin = time.perf_counter()
        call()
        taken.append(time.perf_counter() - begin)
    return min(taken)


def drawn(items: Iterator[tuple[Any, ...]], count: int) -> tuple[list[tuple[Any, ...]], int]:
    """An even sample of a stream, in one pass, and the stream's length (reservoir, seed 0)."""
    chance = random.Random(0)
    kept: list[tuple[Any, ...]] = []
    total = 0
    for total, item in enumerate(items, start=1):
        if total <= count:
            kept.append(item)
        elif (place := chance.randrange(total)) < count:
            kept[place] = item
    return kept, total


def calculon_rate(home: str) -> dict[str, Any]:
    """Calculon's own search over an even sample of its own space, as shipped and with logging switched off."""
    from calculon.llm import AllExecutions, Llm  # type: ignore[import-not-found]
    from calculon.system import System  # type: ignore[import-not-found]

    app = Llm.Application(json.loads(Path(home, "models/gpt3-175B.json").read_text()))
    system = System(json.loads(Path(home, "systems/a100_80g.json").read_text()))
    every = AllExecutions.all_executions(app, system, DEVICES, BATCH, "float16", [True])
    begin = time.perf_counter()
    sample, total = drawn(every, SAMPLE)
    enumerate_s = time.perf_counter() - begin
    few = sample[: SAMPLE // 4]  # logging makes it slow
    shipped_s = best_s(lambda: AllExecutions.search(app, system, few))
    logging.disable(logging.CRITICAL)
    silent_s = best_s(lambda: AllExecutions.search(app, system, sample))
    feasible = len(AllExecutions.search(app, system, sample)) / len(sample)
    return {
        "commit": commit_of(home),
        "space": total,
        "enumerate_s": enumerate_s,
        "feasible": feasible,
        "shipped_per_s": len(few) / shipped_s,
        "silent_per_s": len(sample) / silent_s,
    }


def model_flop(layers: int, hidden: int, batch: int) -> float:
    """FLOP of one step as the table counts them: forward and backward, all pairs of attention, and the logits [1].

    72 B S L D^2 (1 + S / 6 D + V / 12 L D); source: arXiv:2104.04473, section 5.1, without its recompute.
    """
    length, words = H100_SEQ_LEN, H100_VOCABULARY
    ratio = 1 + length / (6 * hidden) + words / (12 * layers * hidden)
    return 72.0 * batch * length * layers * hidden**2 * ratio


def calculon_rows(home: str) -> dict[str, Any]:
    """Calculon on the H100 rows: its fastest answer over what the table leaves open [TFLOP/s per device]."""
    from calculon.llm import Llm
    from calculon.system import System

    logging.disable(logging.CRITICAL)
    system_text = json.loads(Path(home, "systems/h100_80g_nvl8.json").read_text())
    found: list[float | None] = []
    for _, layers, hidden, heads, tp, pp, dp, batch, _ in H100_ROWS:
        app = Llm.Application(
            {
                "name": "row",
                "hidden": hidden,
                "feedforward": 4 * hidden,
                "seq_size": H100_SEQ_LEN,
                "attn_heads": heads,
                "attn_size": hidden // heads,
                "num_blocks": layers,
            }
        )
        seconds = []
        chunks = [c for c in range(1, layers // pp + 1) if layers % (pp * c) == 0] if pp > 1 else [1]
        micros = [m for m in (1, 2, 4, 8) if batch // dp % m == 0]
        hidings = ("none", "ring", "pipe") if tp > 1 else ("none",)
        for micro, chunk, again, parallel, hiding in product(
            micros, chunks, ("none", "attn_only", "full"), ("ar", "p2p_rs_ag", "rs_ag"), hidings
        ):
            choice = (
                *(tp * pp * dp, tp, pp, dp, 0, int(pp > 1), int(dp > 1), batch, micro, "float16", True, "multihead"),
                *(again, chunk, True, parallel, hiding, False, dp > 1, False, False, False, True),
            )
            try:
                one = Llm(app, logging.getLogger("peer"))
                one.compile(System(system_text), Llm.Execution(*choice))
                one.run(System(system_text))
                seconds.append(one.get_total_time())
            except Llm.Error:
                continue
        rate = model_flop(layers, hidden, batch) / (tp * pp * dp) / 1e12
        found.append(rate / min(seconds) if seconds else None)
    return {"commit": commit_of(home), "tflop_per_s": found}


def llm_analysis_rate(home: str) -> dict[str, Any]:
    """llm-analysis over a grid: its model is built and asked for a training step once per configuration."""
    from llm_analysis.analysis import ActivationRecomputation, DSZeRO, LLMAnalysis  # type: ignore[import-not-found]
    from llm_analysis.config import (  # type: ignore[import-not-found]
        ModelConfig,
        ParallelismConfig,
        get_dtype_config_by_name,
        get_gpu_config_by_name,
    )

    logging.disable(logging.CRITICAL)
    model = ModelConfig(
        name="gpt3-175b", num_layers=96, n_head=96, hidden_dim=12288, vocab_size=51200, max_seq_len=SEQ_LEN
    )
    device, precision = get_gpu_config_by_name("a100-sxm-80gb"), get_dtype_config_by_name("w16a16e16")
    grid = []
    for tp, pp, again, zero, micro in product(
        (1, 2, 4, 8), (1, 2, 4, 8, 16, 32), ActivationRecomputation, DSZeRO, (1, 2, 4, 8, 16)
    ):
        dp = DEVICES // (tp * pp)
        if BATCH % (dp * micro) == 0:
            grid.append((tp, pp, dp, again, zero, micro))

    def ask() -> int:
        answered = 0
        for tp, pp, dp, again, zero, micro in grid:
            layout = ParallelismConfig(tp_size=tp, pp_size=pp, dp_size=dp, sp_size=tp)
            try:
                LLMAnalysis(model, device, precision, layout).training(
                    batch_size_per_gpu=micro,
                    global_batch_size=BATCH,
                    seq_len=SEQ_LEN,
                    activation_recomputation=again,
                    ds_zero=zero,
                )
                answered += 1
            except AssertionError:
                continue  # its way to say that a configuration does not fit
        return answered

    return {"commit": commit_of(home), "grid": len(grid), "answered": ask(), "per_s": len(grid) / best_s(ask)}


ASK: dict[str, Callable[[str], dict[str, Any]]] = {
    "calculon": calculon_rate,
    "calculon-rows": calculon_rows,
    "llm-analysis": llm_analysis_rate,
}


def main(name: str) -> None:
    """Run one peer here and print what it answered as JSON."""
    home = os.environ[HOMES[name]]
    sys.path.insert(0, home)
    print(json.dumps(ASK[name](home)))


if __name__ == "__main__":
    main(sys.argv[1])
