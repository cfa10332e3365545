"""What watches a candidate: replaced functions, generators, threads, frames, dispatched operators and fresh memory."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from inspect import unwrap
from pathlib import Path
from types import CodeType, FrameType, ModuleType
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

_GENERATOR_STATE = frozenset({"initial_seed", "get_state", "set_state", "manual_seed", "seed"})
_LOOKS = frozenset({"_getframe", "_current_frames", "get_objects", "get_referrers", "getprofile", "setprofile"})
_WATCHED_MODULES = ("time", "torch", "torch.nn.functional", "torch.cuda", "torch.random", "builtins", "math", "gc")
_OWN = "ridgeline.judge."


class Snapshot:
    """The functions of torch, time and the judge as they were; tells and undoes replacements."""

    def __init__(self) -> None:
        import torch

        owners: list[Any] = [sys.modules[name] for name in _WATCHED_MODULES if name in sys.modules]
        owners += [torch.Tensor, torch.cuda.Event, torch.Generator]
        owners += [module for name, module in sorted(sys.modules.items()) if name.startswith(_OWN)]
        named = [(owner, name, value) for owner in owners for name, value in vars(owner).items()]
        self._held = [each for each in named if callable(each[2]) and not isinstance(each[2], type | ModuleType)]
        self._codes = {id(value): value.__code__ for _, _, value in self._held if hasattr(value, "__code__")}

    def replaced(self) -> list[str]:
        """Names of functions that are no longer what they were; each is put back."""
        found = []
        for owner, name, value in self._held:
            now = vars(owner).get(name)
            if now is not value:
                found.append(f"{_title(owner)}.{name}")
                setattr(owner, name, value)
            code = self._codes.get(id(value))
            if code is not None and value.__code__ is not code:
                found.append(f"{_title(owner)}.{name}")
                value.__code__ = code
        return sorted(set(found))


def _title(owner: Any) -> str:
    return str(getattr(owner, "__qualname__", None) or owner.__name__)


@contextmanager
def watched(reference: Any) -> Iterator[dict[str, str]]:
    """Fills the findings of one call: runs of the reference, use of generators, looks at frames."""
    import torch

    found: dict[str, str] = {}
    reference_code: CodeType | None = getattr(reference, "__code__", None)
    home = str(Path(torch.__file__).parent)
    own = str(Path(__file__).parent)
    keepers = (torch.initial_seed, torch.seed, torch.manual_seed, torch.get_rng_state, torch.set_rng_state)
    seeds = {unwrap(one).__code__: unwrap(one).__name__ for one in keepers}  # torch's wrappers share one code

    def inside(frame: FrameType | None) -> bool:
        return frame is None or frame.f_code.co_filename.startswith((home, own))

    def hook(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call":
            if frame.f_code is reference_code:
                found.setdefault("reference", "the reference's own function was entered")
            elif frame.f_code in seeds:
                found.setdefault("seed", f"torch.{seeds[frame.f_code]} was called")
        elif event == "c_call" and not inside(frame):
            name = getattr(argument, "__name__", "")
            if name in _GENERATOR_STATE and isinstance(getattr(argument, "__self__", None), torch.Generator):
                found.setdefault("seed", f"Generator.{name} was called")
            elif name in _LOOKS:
                found.setdefault("inspects", f"{name} was called")

    threading.setprofile(hook)
    sys.setprofile(hook)
    try:
        yield found
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


@contextmanager
def quiet_threads() -> Iterator[list[str]]:
    """Names of threads that a call started and left running; they are waited for, one second each."""
    before = set(threading.enumerate())
    left: list[str] = []
    yield left
    for thread in threading.enumerate():
        if thread not in before and thread.is_alive():
            left.append(thread.name)
            thread.join(timeout=1.0)


def storages(tensors: Sequence[Any]) -> dict[int, int]:
    """Address of each tensor's memory that is not empty, and its place in the sequence."""
    return {
        one.untyped_storage().data_ptr(): place
        for place, one in enumerate(tensors)
        if one.untyped_storage().nbytes() and one.untyped_storage().data_ptr()
    }


_FRESH = ("aten.empty", "aten.new_empty")
_RANDOM = frozenset((
    "rand", "randn", "randint", "randperm", "bernoulli", "normal", "uniform_", "normal_", "random_", "exponential_",
    "bernoulli_",
))  # fmt: skip


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
