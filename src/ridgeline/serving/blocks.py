"""Experts whose weights have a scale for each block of numbers, divided over ranks: where an engine refuses to cut."""

from __future__ import annotations

from ridgeline.cost.formats import BLOCK, form
from ridgeline.lower.pieces import Experts
from ridgeline.serving.engine import Engine


def cut_blocks(one: Engine) -> str:
    """Why an engine would not load a deployment's experts: ranks that cut blocks of weights; '' where it does.

    A block is `formats.BLOCK` weights wide and high and has one scale. Ranks that hold a part of every expert hold
    inner / cut of its width, which must be a multiple of it; those that hold whole experts cut nothing.

    >>> from ridgeline.cost.machine import machine
    >>> from ridgeline.facts.clusters import cluster
    >>> from ridgeline.graph.load import load
    >>> from ridgeline.plan.deployment import Deployment
    >>> from ridgeline.serving.engine import engine
    >>> model, where = load("qwen3-235b-a22b"), machine(cluster("8xH200-SXM"))
    >>> shapes = [Deployment(tp=tp, ep=ep, weights="fp8_block") for tp, ep in ((4, 1), (8, 1), (8, 8))]
    >>> [bool(cut_blocks(engine(model, where, one))) for one in shapes]  # experts of 1536: 384, 192, whole
    [False, True, False]
    """
    if not one.policy.whole_blocks or form(one.formats.feed).name != "fp8_block":
        return ""
    held = [piece for kind in one.steps.served.kinds for piece in kind.pieces if isinstance(piece, Experts)]
    ranks = one.deployment.tp * one.deployment.dp
    if not any(piece.ranks < ranks and piece.inner % BLOCK for piece in held):
        return ""
    return (
        f"{one.policy.name} refuses ranks that cut blocks of {BLOCK} weights of each expert: hold experts whole"
        " (ep), or divide them over fewer ranks (tp)"
    )
