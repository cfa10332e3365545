"""What watches a candidate while it runs: replaced functions, calls of the reference, generators, threads, frames."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from inspect import unwrap
from pathlib import Path
from types import CodeType, FrameType, ModuleType
from typing import Any

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
        self._held = [(owner, name, value) for owner in owners for name, value in vars(owner).items() if _code(value)]
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


def _code(value: Any) -> bool:
    return callable(value) and not isinstance(value, type | ModuleType)


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
