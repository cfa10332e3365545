"""Divides a decoder over ranks with PyTorch's own libraries, as an execution says.

Axes of the mesh: pipeline, data, tensor. Ranks that hold parts of one sequence are neighbours on the data axis, which
averages the gradients of all tokens."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import torch
from torch import nn
from torch.distributed import all_reduce, new_subgroups_by_enumeration
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)

from ridgeline.run.decoder import Decoder, LatentAttention, TorchExperts, loss_of
from ridgeline.run.mapping import Execution

_SCHEDULES: dict[str, Any] = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}


class Stopwatch:
    """Seconds of named work, added up until it is cleared; the device is done at both ends of each."""

    def __init__(self, device: Any) -> None:
        self.device = device
        self.seconds: dict[str, float] = {}

    def now(self) -> float:
        """Seconds on the clock once the device is done."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        return perf_counter()

    def timed(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """The call, whose time is added to a name."""

        def run(*words: Any, **named: Any) -> Any:
            begin = self.now()
            made = call(*words, **named)
            self.seconds[name] = self.seconds.get(name, 0.0) + self.now() - begin
            return made

        return run


class TimedStage(PipelineStage):  # type: ignore[misc]
    """A stage that adds the time of its own forwards and backwards to a stopwatch."""

    def __init__(self, watch: Stopwatch, *words: Any, **named: Any) -> None:
        super().__init__(*words, **named)
        self.watch = watch

    def forward_one_chunk(self, *words: Any, **named: Any) -> Any:
        """One micro-batch forward."""
        return self.watch.timed("forward", super().forward_one_chunk)(*words, **named)

    def backward_one_chunk(self, *words: Any, **named: Any) -> Any:
        """One micro-batch backward."""
        return self.watch.timed("backward", super().backward_one_chunk)(*words, **named)


def schedule_of(
    name: str, module: Any, *, watch: Stopwatch, stage: int, stages: int, group: Any, micro_batches: int, loss: Any
) -> Any:
    """The schedule that runs a stage; its forwards, losses and backwards are timed by `watch`."""
    part = TimedStage(watch, module, stage, stages, watch.device, group=group)
    return _SCHEDULES[name](part, n_microbatches=micro_batches, loss_fn=watch.timed("forward", loss))


AXES = ("pp", "dp", "tp")


@dataclass(kw_only=True)
class DividedModel:
    """One rank's part: `module` to call, its optimizer, the mesh, a clock, and a pipeline's schedule."""

    asked: Execution
    module: Any
    optimizer: Any
    mesh: Any
    device: Any
    watch: Stopwatch
    schedule: Any = None
    replicas: Any = None  # group of ranks that hold the same experts, where these are spread
    ends: Any = None  # group of the first and last stage, which share a tied embedding
    parts: tuple[tuple[Any, Any], ...] = ()  # divided weights, and what of each the optimizer updates in their place

    def coordinate(self, axis: str) -> int:
        """This rank's place on an axis: of the mesh, or 'cp' among the parts of one sequence."""
        if self.mesh is None:
            return 0
        if axis not in ("dp", "cp"):
            return int(self.mesh.get_local_rank(axis))
        place: int = self.mesh.get_local_rank("dp")
        return place % self.asked.cp if axis == "cp" else place // self.asked.cp

    def loss_context(self) -> AbstractContextManager[Any]:
        """What a forward and backward need around them: a loss over a divided vocabulary, and autocast."""
        return loss_parallel() if self.asked.tp > 1 else nullcontext()

    def cast(self) -> AbstractContextManager[Any]:
        """The autocast of a mixed-precision recipe."""
        if self.asked.precision != "bf16-amp":
            return nullcontext()
        cast: AbstractContextManager[Any] = torch.autocast(self.device.type, dtype=torch.bfloat16)
        return cast

    def exchange(self) -> None:
        """Sums a tied embedding's gradients over the stages that hold it; averages all over the data axis, where no
        library did it during backward.
        """
        if self.ends is not None:
            end = self.module.head if self.module.embed is None else self.module.embed
            all_reduce(local(_gradient(end.weight)), group=self.ends)
        if not self.asked.data.startswith("all-reduce"):
            return
        whole, own = _by_owner(self.module)
        ranks = self.asked.dp * self.asked.cp
        _average(whole, self.mesh.get_group("dp"), ranks)
        if own:  # a rank of experts has seen the tokens of all ranks that its group serves
            _average(own, self.replicas, ranks)
        for weight, part in self.parts:
            part.grad, weight.grad = local(_gradient(weight)), None


def _gradient(weight: Any) -> Any:
    """A weight's gradient, divided as the weight is: an embedding's may come whole."""
    if isinstance(weight, DTensor) and weight.grad.placements != weight.placements:
        weight.grad = weight.grad.redistribute(placements=weight.placements)
    return weight.grad


def _by_owner(module: Any) -> tuple[list[Any], list[Any]]:
    """Gradients of what every rank of the data axis holds, and of experts that are spread over it."""
    spread = {
        id(one) for part in module.modules() if isinstance(part, TorchExperts) and part.group is not None
        for one in part.experts.parameters()
    }  # fmt: skip
    held: tuple[list[Any], list[Any]] = ([], [])
    for one in module.parameters():
        if one.grad is not None:
            held[id(one) in spread].append(local(one.grad))
    return held


def _average(grads: list[Any], group: Any, ranks: int) -> None:
    """Sums gradients over a group and divides them by the ranks whose losses are averaged."""
    flat = torch.cat([one.reshape(-1) for one in grads])
    if group is not None:
        all_reduce(flat, group=group)
    flat /= ranks
    begin = 0
    for one in grads:
        one.copy_(flat[begin : begin + one.numel()].view_as(one))
        begin += one.numel()


def local(tensor: Any) -> Any:
    """The rank's own part of a tensor."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def divide(asked: Execution, device: Any, seed: int) -> DividedModel:
    """The rank's part of the model; all ranks draw the same weights before they are divided."""
    torch.manual_seed(seed)
    model = Decoder(asked.shape, recompute=asked.recompute)
    if asked.precision == "bf16-pure":
        model = model.to(torch.bfloat16)
    model = model.to(device)
    mesh: Any = None
    if asked.ranks > 1:
        mesh = init_device_mesh(device.type, (asked.pp, asked.dp * asked.cp, asked.tp), mesh_dim_names=AXES)
    stage = 0 if mesh is None else mesh.get_local_rank("pp")
    if asked.pp > 1:
        first = sum(asked.layer_split[:stage])
        model.keep(first, first + asked.layer_split[stage], asked.shape.layers)
    if asked.cp > 1:
        place = mesh.get_local_rank("dp") % asked.cp
        rows = _data_ranks(mesh).reshape(-1, asked.cp)  # neighbours on the data axis
        model.share_context(_group_of(rows), place * asked.seq_len // asked.cp)
    if asked.tp > 1:
        _tensor(model, mesh["tp"], asked)
    replicas = _spread_experts(model, mesh, asked) if asked.ep > 1 else None
    ends = _ends(mesh) if asked.pp > 1 and asked.shape.tied else None
    module = _data(model, mesh, asked)
    parts = _local_parts(module) if asked.data == "all-reduce-1" and asked.tp > 1 else ()
    divided = DividedModel(
        asked=asked,
        module=module,
        optimizer=_optimizer([part for _, part in parts] or list(module.parameters()), mesh, asked),
        parts=parts,
        mesh=mesh,
        device=device,
        watch=Stopwatch(device),
        replicas=replicas,
        ends=ends,
    )
    if asked.pp > 1:
        divided.schedule = schedule_of(
            asked.schedule, module, watch=divided.watch, stage=stage, stages=asked.pp, group=mesh.get_group("pp"),
            micro_batches=asked.micro_batches, loss=loss_of,
        )  # fmt: skip
    return divided


def _ends(mesh: Any) -> Any:
    """The group of this rank's first and last stage, None for a rank between them."""
    stages = mesh.mesh.flatten(1)
    return _group_of(torch.stack([stages[0], stages[-1]], dim=1))


def _data_ranks(mesh: Any) -> Any:
    """Ranks by every other place, and place on the data axis."""
    return mesh.mesh.movedim(1, -1).flatten(0, -2)


def _group_of(rows: Any) -> Any:
    """The group of this rank among rows of ranks."""
    group, _ = new_subgroups_by_enumeration(rows.tolist())
    return group


def _spread_experts(model: Any, mesh: Any, asked: Execution) -> Any:
    """Spreads experts over neighbours on the data axis; gives the group that holds what this rank holds, or None."""
    groups = _data_ranks(mesh).unflatten(-1, (-1, asked.ep))  # by other places, replica, and part of the experts
    group = _group_of(groups.reshape(-1, asked.ep))
    for layer in model.layers:
        layer.mlp.spread(group, mesh.get_local_rank("dp") % asked.ep, asked.ep)
    replicas = groups.movedim(1, -1)
    return _group_of(replicas.reshape(-1, replicas.shape[-1])) if replicas.shape[-1] > 1 else None


def _tensor(model: Any, mesh: Any, asked: Execution) -> None:
    """Columns and rows of the linear layers over the tensor axis, heads and ffn apart, logits by vocabulary."""
    along = asked.sequence_parallel
    edge = Shard(1) if along else Replicate()
    plan: dict[str, Any] = {}
    if model.embed is not None:
        plan["embed"] = RowwiseParallel(input_layouts=Replicate(), output_layouts=edge)
    if model.head is not None:
        plan["head"] = ColwiseParallel(input_layouts=edge, output_layouts=Shard(-1), use_local_output=False)
        if along:
            plan["norm"] = SequenceParallel()
    if plan:
        parallelize_module(model, mesh, plan)
    for layer in model.layers:
        parallelize_module(layer, mesh, _layer_plan(layer, edge, along))
        if isinstance(layer.attention, LatentAttention):
            layer.attention.tensor = mesh.get_group()
    model.tie()


def _layer_plan(layer: Any, edge: Any, along: bool) -> dict[str, Any]:
    """Columns and rows of a layer. What several columns read becomes one divided tensor, so backward sums it once."""
    whole = PrepareModuleInput(input_layouts=(edge,), desired_input_layouts=(Replicate(),))
    three = PrepareModuleInput(input_layouts=(edge, None, None), desired_input_layouts=(Replicate(), None, None))
    latent = isinstance(layer.attention, LatentAttention)  # its down-projections are whole on every rank
    plan: dict[str, Any] = {} if latent else {"attention": three}
    columns = ("query", "latent_up") if latent else ("query", "key", "value")
    plan |= {f"attention.{name}": ColwiseParallel() for name in columns}
    plan["attention.out"] = RowwiseParallel(output_layouts=edge)
    feeds = [name for name, part in layer.named_modules() if hasattr(part, "down")]
    for feed in feeds:
        plan[feed] = whole
        plan |= {f"{feed}.up": ColwiseParallel(), f"{feed}.down": RowwiseParallel(output_layouts=edge)}
        if layer.get_submodule(feed).gate is not None:
            plan[f"{feed}.gate"] = ColwiseParallel()
    if along:
        plan |= {"attention_norm": SequenceParallel(), "mlp_norm": SequenceParallel()}
    return plan


def _data(model: Any, mesh: Any, asked: Execution) -> Any:
    """The model as the data axis wants it."""
    if asked.data in ("ddp", "zero-1"):
        return nn.parallel.DistributedDataParallel(model, process_group=mesh.get_group("dp"))
    if not asked.data.startswith("shard"):
        return model
    words: dict[str, Any] = {"mesh": mesh["dp"], "reshard_after_forward": asked.data == "shard-3"}
    if asked.precision == "bf16":
        words["mp_policy"] = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in model.layers:
        fully_shard(layer, **words)
    fully_shard(model, **words)
    return model


def _local_parts(module: Any) -> tuple[tuple[Any, Any], ...]:
    """Each weight, and its part on this rank in the same memory: the sharded optimizer sends plain tensors alone."""
    return tuple((one, nn.Parameter(local(one.detach()))) for one in module.parameters())


def _optimizer(weights: list[Any], mesh: Any, asked: Execution) -> Any:
    kinds: dict[str, tuple[Any, dict[str, Any]]] = {
        "adamw": (torch.optim.AdamW, {"lr": 1e-3, "fused": asked.fused_optimizer}),
        "adamw-bf16": (torch.optim.AdamW, {"lr": 1e-3, "fused": asked.fused_optimizer}),
        "adam": (torch.optim.Adam, {"lr": 1e-3, "fused": asked.fused_optimizer}),
        "sgd": (torch.optim.SGD, {"lr": 1e-2}),
        "sgd-momentum": (torch.optim.SGD, {"lr": 1e-2, "momentum": 0.9}),
    }
    build, words = kinds[asked.optimizer]
    if asked.data in ("zero-1", "all-reduce-1"):
        from torch.distributed.optim import ZeroRedundancyOptimizer

        group = mesh.get_group("dp")
        return ZeroRedundancyOptimizer(weights, optimizer_class=build, process_group=group, **words)
    parts: tuple[list[Any], list[Any]] = ([], [])
    for one in weights:
        parts[isinstance(one, DTensor)].append(one)
    return build([{"params": part} for part in parts if part], **words)
