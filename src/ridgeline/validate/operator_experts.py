"""Feed-forwards of experts on one rank: grouped products, activation, gathering and combining of rows.

Shape letters: T tokens of the expert-parallel group, D hidden, F feed-forward, E experts.
"""

from __future__ import annotations

import math
import re

import numpy as np

from ridgeline.cost import questions
from ridgeline.cost.expert_tables import UNGATED
from ridgeline.errors import InputError
from ridgeline.validate.operator_cells import Ask, Priced, bill, laddered
from ridgeline.validate.operator_kernels import product_cost, stream

_INNER = ("inter", "ffn", "inner", "inter_size", "intermediate_size")


def experts(ask: Ask) -> Priced:
    """The feed-forward of one rank's experts when routing is balanced [s].

    Of T top_k rows, one rank of `moe_ep` gets its share; fewer rows than experts reach as many experts as there
    are rows. Two grouped products of F / moe_tp, the first twice as wide when gated, with the activation between
    them, the rows gathered before and combined after.
    """
    form = ask.format()
    tokens, hidden, inner = ask.size("tokens", "num_tokens"), ask.size("hidden", "hidden_size"), ask.size(*_INNER)
    top_k, count = ask.size("topk", "top_k"), ask.size("experts", "num_experts")
    inner /= ask.size("moe_tp", "tp", default=1.0)
    ranks = ask.size("moe_ep", "ep", default=1.0)
    if min(tokens, hidden, inner, top_k, count, ranks) <= 0:
        raise InputError(f"'{ask.words}' has a size of 0", field="shape")
    skewed = re.search(r"dist(?:ribution)?\s*=\s*power_law_([\d.]+)", ask.words)
    gate = not re.search(r"non-?gated", ask.library, re.IGNORECASE) and (hidden, ask.size(*_INNER)) not in UNGATED
    asked = questions.experts(
        tokens, hidden, inner, top_k, count, ranks=ranks, skew=float(skewed[1]) if skewed else 0.0, gated=gate,
        dtype=form.name,
    )  # fmt: skip
    told = f"rows of experts by a power law of {skewed[1]}" if skewed else "balanced routing over the experts (assumed)"
    priced = laddered("moe feed-forward", asked, ask, flop=float(np.asarray(asked.flop)), notes=[told])
    if priced is not None:
        return priced
    rows = max(1.0, tokens * top_k / ranks)
    reached = max(1.0, min(count / ranks, rows))
    each = math.ceil(rows / reached)
    gated = 1 if "nongated" in ask.library.casefold() else 2
    costs = [
        stream(2 * rows * hidden * 2, ask),
        product_cost(each, gated * inner, hidden, reached, form, ask),
        stream((gated + 1) * rows * inner * 2, ask),
        product_cost(each, hidden, inner, reached, form, ask),
        stream((rows + tokens / ranks) * hidden * 2, ask),
    ]
    flop = 2.0 * rows * hidden * inner * (gated + 1)
    notes = ["balanced routing over the experts (assumed)"]
    return bill("moe feed-forward", costs, ask, form.matrix, flop=flop, notes=notes)
