"""How a training framework holds memory on accelerators of one architecture, and what its libraries take for good."""

from __future__ import annotations

from dataclasses import dataclass, fields

from ridgeline.facts.frameworks import FrameworkPolicy, MemoryKeys, framework_policy

MIB = 2.0**20
KIB = 2.0**10

# PyTorch gives each cuBLAS handle a workspace through its allocator; forward and the autograd thread
# hold one each. Hopper: 4096 KiB x 8; others: 4096 KiB x 2 + 16 KiB x 8, though later releases count
# Blackwell with Hopper (aten/src/ATen/cuda/CublasHandlePool.cpp). CUBLAS_WORKSPACE_CONFIG=:4096:8,
# which deterministic runs set, makes it 4096 KiB x 8 anywhere.
CUBLAS_HANDLES = 2
CUBLAS_LARGE_BYTES = 8 * 4096 * KIB
CUBLAS_SMALL_BYTES = 2 * 4096 * KIB + 8 * 16 * KIB
# Transformer Engine holds its own: 32 MiB from Hopper on, 4 MiB before, and one for each of four
# streams where it runs grouped matrix products (transformer_engine/pytorch/module/base.py).
ENGINE_LARGE_BYTES = 32 * MIB
ENGINE_SMALL_BYTES = 4 * MIB
ENGINE_STREAMS = 4
NEW_ARCHITECTURES = ("hopper", "blackwell")


@dataclass(frozen=True, kw_only=True)
class Runtime(MemoryKeys):
    """Memory behaviour of one training framework on accelerators of one architecture."""

    architecture: str = "hopper"

    def workspace_bytes(self, *, grouped: bool = False) -> float:
        """Matrix library scratch taken through the allocator for good [byte]; a processor's library takes none there.

        >>> named_runtime("megatron").workspace_bytes() / 2**20
        96.0
        """
        if self.architecture == "cpu":
            return 0.0
        large = self.deterministic or self.architecture == "hopper"
        scratch = CUBLAS_HANDLES * (CUBLAS_LARGE_BYTES if large else CUBLAS_SMALL_BYTES)
        if not self.transformer_engine:
            return scratch
        engine = ENGINE_LARGE_BYTES if self.architecture in NEW_ARCHITECTURES else ENGINE_SMALL_BYTES
        return scratch + engine * (1 + (ENGINE_STREAMS if grouped else 0))


def runtime_of(policy: FrameworkPolicy, architecture: str = "hopper") -> Runtime:
    """The runtime that a framework's policy describes, on accelerators of `architecture`."""
    return Runtime(architecture=architecture, **{one.name: getattr(policy, one.name) for one in fields(MemoryKeys)})


def named_runtime(name: str) -> Runtime:
    """The runtime of the framework called `name`, on Hopper; raises `UnknownNameError` for an unknown one."""
    return runtime_of(framework_policy(name))
