"""Records the operators that a call dispatches, and fills fresh memory with what no result may hold."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

_FRESH = ("aten.empty", "aten.new_empty")
_RANDOM = frozenset(
    [
        "rand",
        "randn",
        "randint",
        "randperm",
        "bernoulli",
        "normal",
        "uniform_",
        "normal_",
        "random_",
        "exponential_",
        "bernoulli_",
    ]
)


class Recorder(TorchDispatchMode):  # type: ignore[misc]
    """Operators in call order as 'aten.mm'; memory from torch.empty is filled, see `poison`."""

    def __init__(self, fill: float | None = None) -> None:
        super().__init__()
        self.operators: list[str] = []
        self.fill = fill

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(func).rsplit(".", 1)[0]
        self.operators.append(name)
        made = func(*args, **(kwargs or {}))
        if name.startswith(_FRESH) and isinstance(made, torch.Tensor):
            poison(made, self.fill)
        return made

    @property
    def random(self) -> str | None:
        """The first operator that drew random numbers, or None."""
        return next((one for one in self.operators if one.removeprefix("aten.") in _RANDOM), None)


def warm_up() -> None:
    """Loads what torch loads on the first recorded call, so that it is not taken for the candidate's doing."""
    with Recorder():
        torch.zeros(2) + 1


@contextmanager
def one_thread() -> Iterator[None]:
    """Small tensors are checked on one processor thread, which is faster where others compute too."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def poison(tensor: Any, fill: float | None = None) -> None:
    """Fills a tensor with `fill`; without one with NaN, or with the largest number of an integer format."""
    if fill is not None:
        tensor.fill_(fill)
    elif tensor.is_floating_point() or tensor.is_complex():
        tensor.fill_(float("nan"))
    elif tensor.dtype is torch.bool:
        tensor.fill_(True)
    else:
        tensor.fill_(torch.iinfo(tensor.dtype).max)


def poison_allocator(likes: list[Any]) -> None:
    """Leaves freed blocks full of NaN where the next tensors of these shapes will likely be placed."""
    blocks = [torch.empty_like(one) for one in likes for _ in range(3)]
    for block in blocks:
        poison(block)
    del blocks
