"""What Megatron-LM's functional tests do not say in a row's cells but in their names, or by their defaults.

Source: Megatron-LM, tests/functional_tests/test_cases/*/*/model_config.yaml. A test's name is the
folder of its golden values: 'gpt3_mcore_te_tp2_pp2_cross_entropy_loss_fusion'.

Which machine ran a test is not said in its row: one of NVIDIA's clusters (.gitlab-ci.yml) or, where
tests/test_utils/recipes lists it for GitHub as well, a runner of AWS (.github/workflows/cicd-main.yml). The history of
its golden values tells for some (data/test_machines.tsv); the host of the others is their device's.
"""

from __future__ import annotations

import math
import re

from ridgeline.errors import InputError
from ridgeline.facts.benchmarks import ran_on
from ridgeline.facts.programs import TrainingProgram
from ridgeline.facts.readings import reading
from ridgeline.validate.notes import Notes
from ridgeline.validate.rows import Row

PROGRAM = "Megatron-Core (CI)"
PADDING = 128  # --make-vocab-size-divisible-by, default of Megatron-LM's arguments, times tp
NODE, TRAY = 8, 4  # devices of a test: one node; with '_1node' on GB200 one tray
FETCHED = "a step waits for its data, and the storage of the machine is not stated"
"""Why times of tests on one tray of GB200 are refused: AWS's runner alone has them ('_1node').

Of 42 such tests, in layouts of their own, the same steps are slow (median rank correlation of two tests 0.59; 0.02 on
two trays, 0.00 on H100): those that read the same samples. They take 58, 67 and 75 ms for each sample that a
data-parallel rank reads in a step (32, 16 and 8 of them). Source: `benchmarks/megatron_data.py`.
"""
LATENT_RANKS = {"q_lora_rank": 1536, "kv_lora_rank": 512}
"""Ranks of the tests with latent attention, DeepSeek-V3's (arXiv:2412.19437, section 4.2)."""


def is_test(engine: TrainingProgram) -> bool:
    """Whether the program is Megatron-LM in its functional tests."""
    return engine.name == PROGRAM


def refuse_unsaid(row: Row) -> None:
    """Raises `InputError` for tests that run more than the model of their row, or time what is not told."""
    refused = reading("test_refused", words=row.text("source_where"))
    if refused is not None:
        raise InputError(refused.text, field="model")
    if on_one_tray(row) and not row.asks_bytes:
        raise InputError(FETCHED, field="hardware")


def on_one_tray(row: Row) -> bool:
    """Whether a test ran on one tray of four devices."""
    return bool(re.search(r"_1node\b", row.text("source_where")) and re.search(r"GB[23]00", row.text("hardware")))


def named_machine(row: Row, accelerator: str) -> str:
    """The catalog's machine that ran a test, where its source tells; else nothing."""
    return ran_on(row.text("source_where"), accelerator) or ""


def named_devices(row: Row, notes: Notes, *, product: int, ranks: int, ep: int) -> int:
    """Devices of a test [1]: one node, more where the degrees need them.

    `product` is tp * pp * cp, `ranks` tp * cp. Experts are divided by tp as well unless the name
    says `etp1`. Raises `InputError` for release runs, whose world is of several nodes and in no public
    recipe, where the answer depends on it: times, and states sharded over data-parallel ranks.
    """
    where = row.text("source_where")
    sharded = "use-distributed-optimizer" in notes.switches or "distributed" in row.text("optimizer")
    if re.search(r"release", where) and (sharded or not row.asks_bytes):
        raise InputError("the number of devices of a release run is not stated", field="n_devices")
    world = TRAY if on_one_tray(row) else NODE
    etp = expert_width(row, row.count("tp") or 1)
    return product * max(1, world // product, math.ceil(ep * etp / ranks))


def expert_width(row: Row, tp: int) -> int:
    """Expert-tensor degree [1]: Megatron-LM's default is tp; names say `etp1` where it is not."""
    named = re.search(r"etp(\d+)", row.text("source_where"))
    return int(named[1]) if named else tp


def named_flags(row: Row, notes: Notes, *, width: int) -> dict[str, object]:
    """Keyword arguments of `from_dims` that a test's name and Megatron-LM's defaults give.

    Defaults are dropout, bias, layer norms and learned positions. Tests of newer models, which
    untie the embeddings and use SwiGLU or are releases, turn all of them over; context parallelism
    runs without dropout.
    """
    where, switches = row.text("source_where"), notes.switches
    stated = row.count("vocab") or notes.count("vocab-size")
    usual = reading("test_vocab", words=where)
    assert usual is not None  # the last row of the key is of any test
    vocab = stated or int(usual.number)
    unit = PADDING * width
    flags: dict[str, object] = {"vocab": math.ceil(vocab / unit) * unit}
    swiglu = "swiglu" in switches
    modern = "untie-embeddings-and-output-weights" in switches and (swiglu or "release" in where)
    if modern or re.search(r"rope", where):
        flags["positions"] = "rope"
    if modern or "disable_bias" in where:
        flags["bias"] = False
    if modern and swiglu:
        flags["norm"] = "rms"
    hidden = row.count("hidden")
    if "qk_layernorm" in where:
        flags["qk_norm"] = True
    if swiglu and hidden and notes.count("ffn-hidden-size") is None:
        flags["ffn"] = max(64, int(4 * hidden * 2 / 3 / 64) * 64)  # Megatron-LM's default with --swiglu
    if "multi-latent-attention" in switches:
        flags |= LATENT_RANKS
    flags["dropout"] = not modern and (row.count("cp") or 1) == 1
    return flags


def named_plan(row: Row, *, pp: int, ranks: int, layers: int, said: list[str]) -> dict[str, object]:
    """Plan fields that a test's name gives; `ranks` is dp * cp."""
    where = row.text("source_where")
    plan: dict[str, object] = {}
    if "multi_dist_optimizer_instances" in where and ranks % 2 == 0:
        plan["zero_group"] = ranks // 2
        said.append("multi_dist_optimizer_instances: states sharded within halves of the data-parallel group")
    if "fine_grained_offloading" in where:
        plan["offload_activations"] = True
        said.append("fine_grained_offloading: what forward keeps goes to the host (--offload-modules)")
    if "uneven_pipeline" in where and pp > 2 and (layers - 4) % (pp - 2) == 0:
        plan["layer_split"] = (2, *[(layers - 4) // (pp - 2)] * (pp - 2), 2)
        said.append("uneven_pipeline: two layers on the first and the last stage")
    return plan


def named_chunks(row: Row) -> int | None:
    """Layers of a virtual stage that a name gives: '_vp1_' is one, unless the split is uneven [1]."""
    where = row.text("source_where")
    return 1 if "_vp1_" in where and "uneven" not in where else None


def tested_experts(notes: Notes) -> dict[str, str]:
    """Workload fields of a test's mixture of experts; those of a dense model where it has none.

    Without --moe-grouped-gemm experts are modules of their own, without --moe-token-dispatcher-type tokens are
    gathered (megatron/core/transformer/transformer_config.py). Every test whose tokens take one expert balances them by
    --moe-router-load-balancing-type sinkhorn, and none of the others does
    (tests/functional_tests/test_cases/moe/*/model_config.yaml at d98e8a6).
    """
    if notes.count("num-experts") is None:
        return {}
    return {
        "expert_choice": "sinkhorn" if notes.count("moe-router-topk") == 1 else "top",
        "expert_dispatch": notes.word("moe-token-dispatcher-type") or "allgather",
        "expert_modules": "grouped" if "moe-grouped-gemm" in notes.switches else "single",
    }
