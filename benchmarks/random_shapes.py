"""Training runs of small decoders drawn at random, as people run them on one processor; nobody chose a shape.

Every draw is uniform within RANGES (logarithmic where a range spans more than a factor of ten), by one seed that is
written here before anything is run. A draw beyond MOST_FLOP of a step, or that no plan can divide, is drawn again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

SEED = 20261123
COUNT = 24
RANGES: Mapping[str, tuple[int, ...]] = {
    "layers": (1, 12), "heads": (2, 16), "head_dim": (32, 64, 128), "hidden": (128, 1536), "ffn / hidden": (2, 4),
    "vocab": (256, 32768), "seq_len": (16, 512), "micro_batch": (1, 8), "micro_batches": (1, 4), "dp": (1, 2),
    "tp": (1, 2), "pp": (1, 2),
}  # fmt: skip
RECOMPUTE = ("none", "selective", "full")
FAMILIES = ("llama", "gpt2")
MOST_RANKS = 2
MOST_FLOP = 2.5e11
"""Of a step, 6 a weight and token [FLOP]: seconds on two cores."""


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """A run: the `config.json` of its model, what `measure` is asked, and the ranks."""

    name: str
    config: Mapping[str, Any]
    words: tuple[str, ...]
    ranks: int

    def write(self, folder: Path) -> Path:
        """The file of the model's config in a folder."""
        path = folder / f"{self.name}.json"
        path.write_text(json.dumps(dict(self.config)), encoding="utf-8")
        return path


def drawn(seed: int = SEED, count: int = COUNT) -> list[Drawn]:
    """So many runs of a seed."""
    chance = np.random.default_rng(seed)
    found: list[Drawn] = []
    while len(found) < count:
        one = _draw(chance, f"random {len(found) + 1}")
        if one is not None:
            found.append(one)
    return found


def _draw(chance: np.random.Generator, name: str) -> Drawn | None:
    """One draw, None where it is to be drawn again."""

    def whole(key: str) -> int:
        return int(chance.integers(RANGES[key][0], RANGES[key][1] + 1))

    def spread(key: str, step: int) -> int:
        low, high = np.log2(RANGES[key])
        return max(step, round(2 ** chance.uniform(low, high) / step) * step)

    family = str(chance.choice(FAMILIES))
    layers, heads, head_dim = whole("layers"), whole("heads"), int(chance.choice(RANGES["head_dim"]))
    kv_heads = (
        int(chance.choice([one for one in range(1, heads + 1) if heads % one == 0])) if family == "llama" else heads
    )
    hidden = heads * head_dim
    ffn = round(hidden * chance.uniform(*RANGES["ffn / hidden"]) / 32) * 32
    vocab, seq_len = spread("vocab", 64), spread("seq_len", 8)
    micro_batch, micro_batches = whole("micro_batch"), whole("micro_batches")
    dp, tp, pp = whole("dp"), whole("tp"), whole("pp")
    recompute = str(chance.choice(RECOMPUTE))
    weights = 2 * vocab * hidden + layers * hidden * (2 * hidden + 2 * kv_heads * head_dim + 3 * ffn)
    flop = 6.0 * weights * seq_len * micro_batch * micro_batches * dp
    inside = RANGES["hidden"][0] <= hidden <= RANGES["hidden"][1] and flop <= MOST_FLOP and dp * tp * pp <= MOST_RANKS
    if not inside or kv_heads % tp or layers < pp or (pp > 1 and micro_batches < pp):
        return None
    sizes = {"layers": layers, "heads": heads, "kv_heads": kv_heads, "hidden": hidden, "ffn": ffn, "vocab": vocab}
    words = (
        "--seq-len", str(seq_len), "--micro-batch", str(micro_batch), "--global-batch",
        str(micro_batch * micro_batches * dp), "--dp", str(dp), "--tp", str(tp), "--pp", str(pp),
        *(("--schedule", "1f1b") if pp > 1 else ()), "--recompute", recompute, "--precision", "fp32",
        "--execution", "eager",
    )  # fmt: skip
    return Drawn(name=name, config=_config(family, sizes), words=words, ranks=dp * tp * pp)


def _config(family: str, sizes: Mapping[str, int]) -> dict[str, Any]:
    """A `config.json` of a family with these sizes."""
    longest = RANGES["seq_len"][1]
    if family == "gpt2":
        return {
            "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_embd": sizes["hidden"],
            "n_inner": sizes["ffn"], "n_layer": sizes["layers"], "n_head": sizes["heads"],
            "vocab_size": sizes["vocab"], "n_positions": longest, "n_ctx": longest,
            "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5,
        }  # fmt: skip
    return {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": sizes["hidden"],
        "intermediate_size": sizes["ffn"], "num_hidden_layers": sizes["layers"],
        "num_attention_heads": sizes["heads"], "num_key_value_heads": sizes["kv_heads"],
        "vocab_size": sizes["vocab"], "max_position_embeddings": longest, "tie_word_embeddings": False,
        "hidden_act": "silu", "rms_norm_eps": 1e-5,
    }  # fmt: skip
