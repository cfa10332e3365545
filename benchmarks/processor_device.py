"""A processor in the place of a device: enough of `torch.cuda`, Triton and a group of ranks to run a training program.

`stand_in` lets Megatron-LM train where there is no GPU: tensors stay on the processor, streams and events do nothing,
kernels of Triton are never called, and collectives of PyTorch's fake group return at once. What such a run takes is the
host's own time and that of tiny operators; nothing else of it means anything.
"""

from __future__ import annotations

import collections
import importlib.machinery
import sys
import types
import typing
from typing import Any
from unittest.mock import MagicMock


class Nothing:
    """A stream, an event, a device or a generator that does nothing."""

    def __init__(self, *_: object, **__: object) -> None: ...

    def __enter__(self) -> Nothing:
        return self

    def __exit__(self, *_: object) -> None: ...

    def record_event(self, *_: object) -> Nothing:
        return Nothing()

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: None


class Imitation(types.ModuleType):
    """A module whose every name is there."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return MagicMock()


class Imitations:
    """Finds Triton and all below it."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> Any:
        return importlib.machinery.ModuleSpec(name, self) if name.split(".")[0] == "triton" else None  # type: ignore[arg-type]

    def create_module(self, spec: Any) -> types.ModuleType:
        module = Imitation(spec.name)
        module.__path__ = []
        module.__dict__["__version__"] = "3.0.0"
        return module

    def exec_module(self, module: Any) -> None:
        module.jit = lambda function=None, **_: function or (lambda other: other)
        module.autotune = module.heuristics = lambda *_, **__: lambda function: function


def stand_in(torch: Any, ranks: int, *, numbered: bool = False) -> None:
    """Let `torch` behave as if this process was the first of `ranks` with a device each, perhaps told by its number."""
    import torch._dynamo
    import torch._inductor.standalone_compile  # before Triton is imitated

    torch.compile = lambda function=None, *_, **__: function or (lambda other: other)
    if not hasattr(typing, "override"):
        typing.override = lambda function: function  # type: ignore[attr-defined]
    sys.meta_path.append(Imitations())  # type: ignore[arg-type]
    torch.set_num_threads(1)
    _device(torch, numbered)
    _tensors(torch)
    _ranks(torch, ranks)


def _device(torch: Any, numbered: bool) -> None:
    state, here = torch.zeros(16, dtype=torch.uint8), 0 if numbered else torch.device("cpu")
    facts = types.SimpleNamespace(major=9, minor=0, multi_processor_count=132, total_memory=80 << 30, name="H100")
    names: dict[str, Any] = dict.fromkeys(("Stream", "Event", "stream", "device"), Nothing)
    names |= {name: (lambda *_, **__: Nothing()) for name in ("current_stream", "default_stream")}
    nothing = ("set_device", "synchronize", "set_rng_state", "manual_seed", "manual_seed_all", "empty_cache", "init")
    names |= {name: (lambda *_, **__: None) for name in (*nothing, "_lazy_init", "reset_peak_memory_stats")}
    memory = ("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved")
    names |= {name: (lambda *_, **__: 0) for name in memory}
    names |= {name: (lambda *_, **__: True) for name in ("is_available", "is_initialized")}
    names |= {
        "current_device": lambda: here, "device_count": lambda: 8, "initial_seed": lambda: 1,
        "get_device_properties": lambda *_: facts, "get_device_capability": lambda *_: (9, 0),
        "get_device_name": lambda *_: facts.name, "get_rng_state": lambda *_, **__: state.clone(),
        "memory_stats": lambda *_: collections.defaultdict(int), "_lazy_call": lambda call, **_: call(),
        "default_generators": collections.defaultdict(Nothing),
    }  # fmt: skip
    for name, value in names.items():
        setattr(torch.cuda, name, value)
    torch.cuda.random.get_rng_state = torch.cuda.get_rng_state
    torch.cuda.random.set_rng_state = torch.cuda.set_rng_state
    torch._C._cuda_getDevice = lambda: 0
    for kind in ("Float", "Int", "Long", "BFloat16", "Byte", "Half", "Double"):
        setattr(torch.cuda, f"{kind}Tensor", getattr(torch, f"{kind}Tensor"))


def _tensors(torch: Any) -> None:
    def named(device: object) -> bool:
        return type(device) is int or "cuda" in str(device)

    def here(make: Any) -> Any:
        def made(*items: Any, **choices: Any) -> Any:
            if named(choices.get("device")):
                choices["device"] = "cpu"
            choices.pop("pin_memory", None)  # needs a device
            return make(*items, **choices)

        return made

    for name in ("tensor", "empty", "zeros", "ones", "full", "arange", "rand", "empty_like", "zeros_like"):
        setattr(torch, name, here(getattr(torch, name)))
    typed, moved = torch.Tensor.type, torch.Tensor.to
    torch.Tensor.cuda = torch.Tensor.pin_memory = torch.nn.Module.cuda = lambda self, *_, **__: self
    torch.Tensor.to = lambda self, *to, **how: (
        self if any(named(one) for one in (*to, *how.values())) else moved(self, *to, **how)
    )
    torch.Tensor.is_cuda = property(lambda self: True)
    torch.Tensor.type = lambda self, *kind: typed(self, *kind) if kind else typed(self).replace("torch.", "torch.cuda.")


def _ranks(torch: Any, ranks: int) -> None:
    from torch.testing._internal.distributed.fake_pg import FakeStore

    distributed = torch.distributed
    begin, group = distributed.init_process_group, distributed.new_group

    def grouped(*members: Any, **choices: Any) -> Any:
        return group(*members[:2], **{k: v for k, v in choices.items() if k not in ("backend", "pg_options")})

    distributed.init_process_group = lambda *_, **__: begin("fake", rank=0, world_size=ranks, store=FakeStore())
    distributed.new_group = distributed.distributed_c10d.new_group = grouped
