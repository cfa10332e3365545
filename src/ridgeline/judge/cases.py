"""The inputs a candidate is judged on: sizes, odd sizes, number formats, seeds and distributions."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from ridgeline.errors import InputError
from ridgeline.judge.kernel_file import KernelFile

SEEDS = 5  # random inputs of the first size
_LARGE, _TINY = 64.0, 2.0**-10  # factors that float16 still holds


@dataclass(frozen=True, kw_only=True)
class Case:
    """One question to a candidate; `build` makes equal inputs each time from the same secret seed."""

    kernel: KernelFile
    size: Any
    dtype: str
    distribution: str
    seed: int
    device: str

    @property
    def title(self) -> str:
        """The case in words."""
        return f"size {self.size}, {self.dtype}, {self.distribution}"

    def build(self) -> tuple[Any, ...]:
        """Fresh inputs of this case."""
        generator = torch.Generator().manual_seed(self.seed)
        made = _inputs(self.kernel, generator, self.size, self.distribution)
        dtype = getattr(torch, self.dtype)
        return tuple(
            one.to(device=self.device, dtype=dtype if one.is_floating_point() else one.dtype).contiguous()
            if isinstance(one, torch.Tensor)
            else one
            for one in (_changed(part, self.distribution, generator) for part in made)
        )


def _inputs(kernel: KernelFile, generator: Any, size: Any, distribution: str) -> tuple[Any, ...]:
    if distribution.startswith("special"):
        assert kernel.special is not None
        return tuple(list(kernel.special(generator, size))[int(distribution.split()[1])])
    made = kernel.inputs(generator, size)
    return tuple(made) if isinstance(made, tuple | list) else (made,)


def _changed(part: Any, distribution: str, generator: Any) -> Any:
    """A floating-point input as the distribution wants it; other inputs as they are."""
    if not isinstance(part, torch.Tensor) or not part.is_floating_point():
        return part
    if distribution == "zeros":
        return torch.zeros_like(part)
    if distribution == "ones":
        return torch.ones_like(part)
    if distribution == "large":
        return part * _LARGE
    if distribution == "tiny":
        return part * _TINY
    if distribution == "negative":
        return -part.abs() - 1.0
    if distribution == "mixture" and part.dim():
        rows = torch.randint(-4, 3, (part.shape[0],), generator=generator)
        return part * (2.0**rows).reshape(-1, *[1] * (part.dim() - 1)).to(part.dtype)
    if distribution == "spike" and part.numel():
        spiked = part.clone()
        spiked.reshape(-1)[int(torch.randint(part.numel(), (1,), generator=generator))] = 50.0
        return spiked
    return part


def cases(kernel: KernelFile, device: str) -> Iterator[Case]:
    """Every case, the plain ones first: seeds, sizes, number formats, then distributions and special inputs."""

    def case(size: Any, dtype: str, distribution: str = "random") -> Case:
        seed = secrets.randbits(48)
        return Case(kernel=kernel, size=size, dtype=dtype, distribution=distribution, seed=seed, device=device)

    first = kernel.sizes[0]
    for dtype in kernel.dtypes:
        if not hasattr(torch, dtype):
            raise InputError(f"'{dtype}' is no number format of torch", file=kernel.path, field="DTYPES")
        yield from (case(first, dtype) for _ in range(SEEDS))
        yield from (case(size, dtype) for size in kernel.sizes[1:])
    dtype = kernel.dtypes[0]
    yield from (case(size, dtype) for size in odd_sizes(kernel))
    yield from (case(first, dtype, one) for one in kernel.distributions)
    for place in range(len(list(kernel.special(torch.Generator(), first))) if kernel.special else 0):
        yield case(first, dtype, f"special {place}")


def odd_sizes(kernel: KernelFile) -> list[Any]:
    """Sizes beside the stated ones: the file's ODD_SIZES, or neighbours that the reference accepts."""
    if kernel.odd_sizes is not None:
        return list(kernel.odd_sizes)
    first = kernel.sizes[0]
    if isinstance(first, int):
        near: list[Any] = [first + 1, max(1, first // 2 - 1), 1]
    elif isinstance(first, tuple) and all(isinstance(one, int) for one in first):
        near = [(*first[:place], one + 1, *first[place + 1 :]) for place, one in enumerate(first)]
    else:
        near = []
    return [size for size in near if size not in kernel.sizes and _accepted(kernel, size)]


def _accepted(kernel: KernelFile, size: Any) -> bool:
    try:
        made = _inputs(kernel, torch.Generator().manual_seed(0), size, "random")
        kernel.reference(*made)
    except Exception:
        return False
    return True
