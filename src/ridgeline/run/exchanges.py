"""Exchanges inside a layer that gradients pass through, as PyTorch's blocking collectives.

A collective has ended when its function returns: nothing is in flight while a layer is computed again for backward.
PyTorch's own differentiable ones are asynchronous, and over gloo now and then corrupted memory in that case.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.autograd import Function
from torch.distributed import (
    all_gather_into_tensor,
    all_reduce,
    all_to_all_single,
    get_world_size,
    reduce_scatter_tensor,
)


class _Gather(Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, part: Any, group: Any) -> Any:
        ctx.group = group
        whole = part.new_empty((part.shape[0] * get_world_size(group), *part.shape[1:]))
        all_gather_into_tensor(whole, part.contiguous(), group=group)
        return whole

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        mine = grad.new_empty((grad.shape[0] // get_world_size(ctx.group), *grad.shape[1:]))
        reduce_scatter_tensor(mine, grad.contiguous(), group=ctx.group)
        return mine, None


def gather(part: Any, dim: int, group: Any) -> Any:
    """The parts of all ranks of a group side by side along `dim`; its gradient is the sum of theirs for one's part."""
    return _Gather.apply(part.movedim(dim, 0), group).movedim(0, dim)


class _Shared(Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, whole: Any, group: Any) -> Any:
        ctx.group = group
        return whole.view_as(whole)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        total = grad.clone(memory_format=torch.contiguous_format)
        all_reduce(total, group=ctx.group)
        return total, None


def shared_by(whole: Any, group: Any) -> Any:
    """What every rank of a group holds whole and uses for its own part; its gradient is the sum of theirs."""
    return _Shared.apply(whole, group)


class _Trade(Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, rows: Any, received: Sequence[int], sent: Sequence[int], group: Any) -> Any:
        ctx.received, ctx.sent, ctx.group = received, sent, group
        return _traded(rows, received, sent, group)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return _traded(grad, ctx.sent, ctx.received, ctx.group), None, None, None


def _traded(rows: Any, received: Sequence[int], sent: Sequence[int], group: Any) -> Any:
    here = torch.empty((sum(received), *rows.shape[1:]), dtype=rows.dtype, device=rows.device)
    all_to_all_single(here, rows.contiguous(), list(received), list(sent), group=group)
    return here


def trade(rows: Any, received: Sequence[int], sent: Sequence[int], group: Any) -> Any:
    """Rows that the ranks of a group sent here, `received` of each, for the `sent` first, next, ... of one's own."""
    return _Trade.apply(rows, received, sent, group)
