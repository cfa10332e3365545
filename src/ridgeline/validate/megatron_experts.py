"""How experts run in Megatron-LM's functional tests: switches of a row, and the program's defaults without them."""

from __future__ import annotations

from ridgeline.validate.notes import Notes


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
