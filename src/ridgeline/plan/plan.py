"""What we choose: degrees, schedule, recompute, sharding, offload. Pure data.

Degrees: tp tensor, pp pipeline, cp context, dp data, ep expert, etp expert-tensor. A job uses
tp * pp * cp * dp devices. Experts fold over the same devices: ep * etp * edp = tp * cp * dp.
"""

from __future__ import annotations

from dataclasses import dataclass

from ridgeline.errors import PlanError


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One way to run one training step.

    `micro_batch` [sequences] per data-parallel rank and pipeline slot. `zero` 0..3 shards optimizer
    states, then gradients, then weights, over `zero_group` ranks (None: the whole dp * cp group;
    smaller: hybrid sharding, replicated across groups). `chunks` is the number of model chunks per
    stage (virtual pipeline). `recompute_layers` limits full recompute to that many layers of each
    stage (None: all). `layer_split` gives the layers of each stage or chunk explicitly.
    """

    tp: int = 1
    pp: int = 1
    cp: int = 1
    dp: int = 1
    ep: int = 1
    etp: int = 1
    sequence_parallel: bool = False
    context_style: str = "ring"  # how context ranks exchange: a name, with parameters as of `schedule`
    micro_batch: int = 1
    schedule: str = "1f1b"  # a pipeline schedule's name, with parameters in brackets where they are not its own
    chunks: int = 1
    zero: int = 0
    zero_group: int | None = None
    recompute: str = "none"  # a rule's name, or 'selective': that which the framework's policy says
    recompute_layers: int | None = None
    layer_split: tuple[int, ...] | None = None
    offload_optimizer: bool = False
    offload_activations: bool = False
    offload_weights: bool = False  # weights, gradients and optimizer states in host memory (FSDP's CPU offload)
    optimizer_in_backward: bool = False  # each weight is updated as soon as its gradient is there
    loss: str = "whole"  # how the cross entropy is computed: a name, with parameters as of `schedule`
    overlap_gradients: bool = True  # reduce gradients under backward
    overlap_weights: bool = True  # gather weights under forward
    overlap_tensor: bool = False  # pipelined tensor-parallel collectives (async TP)
    length_balance: str = "packed"  # which ranks compute sequences of unlike lengths, as of `schedule`
    node_order: str = "in-order"  # which node stands at each place, where links differ: a name, as of `schedule`
    technique: tuple[str, ...] = ()  # others that are applied, each by name, with parameters in brackets

    def __post_init__(self) -> None:
        for name in ("tp", "pp", "cp", "dp", "ep", "etp", "micro_batch", "chunks"):
            value = getattr(self, name)
            if value < 1:
                raise PlanError(f"plan: {name} = {value}, needs >= 1")
        if self.zero not in (0, 1, 2, 3):
            raise PlanError(f"plan: zero = {self.zero}, needs 0, 1, 2 or 3")

    @property
    def devices(self) -> int:
        """Devices the plan uses [1]."""
        return self.tp * self.pp * self.cp * self.dp

    def micro_batches(self, global_batch: int) -> int:
        """Micro-batches that each pipeline runs in one step [1]; raises `PlanError` where they are no whole number."""
        per_round = self.dp * self.micro_batch
        if global_batch % per_round:
            raise PlanError(
                f"global batch {global_batch} is not a multiple of dp {self.dp} * micro-batch {self.micro_batch}"
                f" = {per_round}; nearest: {max(per_round, round(global_batch / per_round) * per_round)}"
            )
        return global_batch // per_round
