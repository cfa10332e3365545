"""How a model is served: degrees, formats, batching and KV policy of one engine. Pure data.

Degrees: tp tensor, pp pipeline, dp attention data-parallel ranks of one instance (they share its experts), ep
expert-parallel ranks, over which the experts of an instance are divided. An instance uses tp * pp * dp
devices, and those of its experts where they have their own (`seams.serving.instance_devices`).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

from ridgeline.errors import PlanError
from ridgeline.plan.engine_options import EngineOptions


class Role(Enum):
    """What an instance does for a request."""

    WHOLE = "whole"  # prefill and decode
    PREFILL = "prefill"  # the prompt and its first token; the cache is then sent on
    DECODE = "decode"  # every token after the first


EVEN_LOADS = "experts' loads are even, for which replicas are placed; expert_loads, a file, says others"

AS_IT_IS = EngineOptions()

_AT_LEAST_ONE = ("tp", "pp", "dp", "ep", "kv_ranks", "instances")


@dataclass(frozen=True, kw_only=True)
class Deployment:
    """One way to serve a model with one engine; None leaves a choice to the engine's policy file.

    `weights` and `kv` are number formats; '' is the checkpoint's own (`with_formats`) and a cache of 16 bits,
    'bf16' asks for 16 bits. `other_weights` is the format of attention's products where it differs from that of the
    experts and feed-forwards, `out_weights` that of the last of them where it differs again. What the engine is told
    for itself are its `options`. `expert_skew` is the power of the law of experts' loads [1]: 0 even, None what
    measured models showed.

    Every context is divided over `kv_ranks` of the tensor-parallel ranks, token by token, which send each other
    queries and what their parts add up to; a cache that ranks would hold in common is so held once.

    Caches and adapters are copied to and from the host after an iteration or, with `swap_beside`, beside it.

    In a fleet of two kinds of devices `kind` is the accelerator of the instance, '' for that of the cluster, and
    `expert_kind` that of the devices that hold experts alone, where it is the other one.
    """

    engine: str = "vLLM"
    version: str = ""  # '' the newest that the policy file knows
    tp: int = 1
    pp: int = 1
    dp: int = 1
    ep: int = 1
    kv_ranks: int = 1
    instances: int = 1
    weights: str = ""
    other_weights: str = ""
    out_weights: str = ""
    kv: str = ""
    options: EngineOptions = AS_IT_IS
    role: Role = Role.WHOLE
    expert_skew: float | None = None
    swap_beside: bool = False
    kind: str = ""
    expert_kind: str = ""
    technique: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _check_ranges(self)

    @property
    def said(self) -> dict[str, Any]:
        """What it says, by name: its fields, and those of its options."""
        own = {name: value for name, value in vars(self).items() if name != "options"}
        return {**own, **vars(self.options)}


def _check_ranges(one: Deployment) -> None:
    """Raises `PlanError` for a value that cannot be."""
    for name in _AT_LEAST_ONE:
        value = getattr(one, name)
        if value < 1:
            raise PlanError(f"deployment: {name} = {value}, needs >= 1")
    if one.expert_skew is not None and not 0 <= one.expert_skew <= 4:
        raise PlanError(f"deployment: expert_skew = {one.expert_skew}, needs 0 (even) to 4")
    if (one.tp * one.dp) % one.ep:
        raise PlanError(f"deployment: ep = {one.ep} does not divide tp {one.tp} * dp {one.dp} = {one.tp * one.dp}")
    if one.tp % one.kv_ranks:
        raise PlanError(
            f"deployment: kv_ranks = {one.kv_ranks} does not divide tp {one.tp}; contexts are divided over ranks"
            " of one tensor-parallel group: take a divisor"
        )
