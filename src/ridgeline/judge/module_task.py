"""Tasks in other forms than a kernel file's, brought to its names: modules as KernelBench has them, and gradients.

A module task defines `Model`, `get_inputs()` and `get_init_inputs()`; its solution `ModelNew`, made from the same
arguments. Both get the same weights. The contents of inputs are drawn anew from the judge's seed; their shapes are
fixed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from ridgeline.errors import InputError

MODEL, SOLUTION = "Model", "ModelNew"
_SEED = 20_250_217  # of weights, the same for both
_DROPS = (torch.nn.Dropout, torch.nn.Dropout1d, torch.nn.Dropout2d, torch.nn.Dropout3d, torch.nn.AlphaDropout)


def is_module_task(names: Mapping[str, Any]) -> bool:
    """Whether a file states its reference as a module."""
    return "reference" not in names and isinstance(names.get(MODEL), type) and callable(names.get("get_inputs"))


def of_module(names: Mapping[str, Any], solution: Mapping[str, Any], path: str) -> dict[str, Any]:
    """A module task under the names of a kernel file; without a solution the candidate is `unsolved`.

    Raises `InputError` for a module that cannot be made.
    """

    def made(kind: Any) -> Any:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(_SEED)
            given = names["get_init_inputs"]() if "get_init_inputs" in names else []
            words = given if isinstance(given, dict) else {}
            try:
                return _without_dropout(kind(**words) if words else kind(*given))
            except Exception as error:
                raise InputError(f"{kind.__name__} raised {type(error).__name__}: {error}", file=path) from None

    first = made(names[MODEL])
    kind = solution.get(SOLUTION) or names.get(SOLUTION)
    found = None if kind is None else made(kind)
    if found is not None and _shapes(found) == _shapes(first):
        found.load_state_dict(first.state_dict())

    def inputs(generator: Any, size: Any) -> tuple[Any, ...]:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(torch.randint(2**31, (1,), generator=generator)))
            return tuple(names["get_inputs"]())

    fixed = {"SIZES": ("stated",), "ODD_SIZES": (), "inputs": inputs}
    called = unsolved if found is None else _by_format(found)
    return {
        **fixed,
        "reference": _by_format(first),
        "candidate": called,
        "origin": names[MODEL].forward,
        **_stated(names),
    }


def unsolved(*given: Any) -> Any:
    """Stands where nobody wrote a candidate; raises NotImplementedError."""
    raise NotImplementedError


def _stated(names: Mapping[str, Any]) -> dict[str, Any]:
    """What a module's file may say as a kernel file does."""
    return {
        name: names[name] for name in ("TOLERANCES", "DISTRIBUTIONS", "FORBID", "CONTENT_DEPENDENT") if name in names
    }


def _without_dropout(model: Any) -> Any:
    """A module whose dropout keeps everything, so that it gives one answer."""
    for part in model.modules():
        if isinstance(part, _DROPS):
            part.eval()
    return model.requires_grad_(False)


def _shapes(model: Any) -> dict[str, Any]:
    return {name: tuple(each.shape) for name, each in model.state_dict().items()}


def _by_format(model: Any) -> Callable[..., Any]:
    """A module as a function: with weights in the format and on the device of the floating inputs that it gets."""
    kept: dict[tuple[Any, Any], Any] = {}

    def call(*given: Any) -> Any:
        from copy import deepcopy

        floats = [one for one in given if isinstance(one, torch.Tensor) and one.is_floating_point()]
        tensors = floats or [one for one in given if isinstance(one, torch.Tensor)]
        where = (floats[0].dtype if floats else torch.float32, tensors[0].device if tensors else "cpu")
        if where not in kept:
            kept[where] = deepcopy(model).to(dtype=where[0], device=where[1])
        return kept[where](*given)

    return call


def backward_of(names: Mapping[str, Any]) -> dict[str, Any]:
    """A task whose candidate computes gradients: of the reference's inputs, from those of its outputs.

    The candidate is called with the gradient of each output, then the inputs, and returns the gradient of each floating
    input. The reference's are those of PyTorch's autograd.
    """
    forward, made = names["reference"], names["inputs"]

    def inputs(generator: Any, size: Any) -> tuple[Any, ...]:
        given = made(generator, size)
        given = tuple(given) if isinstance(given, tuple | list) else (given,)
        with torch.no_grad():
            results = forward(*given)
        outputs = list(results) if isinstance(results, tuple | list) else [results]
        drawn = (torch.randn(one.shape, generator=generator, dtype=torch.float32) for one in outputs)
        return (*(one.to(other.dtype) for one, other in zip(drawn, outputs, strict=True)), *given)

    def reference(*given: Any) -> tuple[Any, ...]:
        with torch.enable_grad():
            count = len(given) - forward.__code__.co_argcount
            grads, rest = given[:count], given[count:]
            leaves = [
                one.detach().clone().requires_grad_()
                if isinstance(one, torch.Tensor) and one.is_floating_point()
                else one
                for one in rest
            ]
            results = forward(*leaves)
            outputs = list(results) if isinstance(results, tuple | list) else [results]
            wanted = [one for one in leaves if isinstance(one, torch.Tensor) and one.requires_grad]
            found = torch.autograd.grad(outputs, wanted, grads, allow_unused=True)
        return tuple(
            torch.zeros_like(one) if grad is None else grad.detach() for one, grad in zip(wanted, found, strict=True)
        )

    return {**names, "inputs": inputs, "reference": reference, "origin": forward}
