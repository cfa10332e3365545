"""Levers of serving: degrees, pools, number formats, batching, engines, and places of weights beside the devices."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from ridgeline.advise.cases import Change
from ridgeline.advise.training_levers import flag
from ridgeline.cost.formats import form
from ridgeline.errors import PlanError
from ridgeline.facts.engine_kernels import backends_of
from ridgeline.facts.records import Cluster, Fact
from ridgeline.graph.model import Model
from ridgeline.plan.checkpoint_formats import rates_of_both, with_formats
from ridgeline.plan.deployment import Deployment, Role
from ridgeline.predict.offloaded import TECHNIQUES, Offload
from ridgeline.scenario.serving import fitting_instances
from ridgeline.scenario.serving_fields import DEPLOYMENT_FIELDS, OFFLOAD_FIELDS
from ridgeline.scenario.serving_words import replaced
from ridgeline.seams.serving import instance_devices
from ridgeline.seams.technique import EXACT, accuracy
from ridgeline.serving.hybrid_placement import DeviceOrder

_HELP = {each.name: each.help for each in (*DEPLOYMENT_FIELDS, *OFFLOAD_FIELDS)}
_ENGINES = ("vllm", "sglang", "trtllm")
_WEIGHTS = {
    "fp8": ("fp8", "that of 16 bits, effectively lossless, abstract"),
    "int8": ("int8", "1 to 3 % less on benchmarks, abstract"),
    "int4_wo": ("", "near that of 8 bits, abstract"),
}  # formats by the matrix rate that they need, and what they cost
_OTHERS = {"nvfp4": "fp4"}
_BUDGETS = (0.5, 2.0, 4.0)


@dataclass(frozen=True, kw_only=True)
class GivenHost:
    """What weights beside the devices may use: processors by name, memory [byte] and a disk, as a person said them."""

    processors: str = ""
    dram_bytes: float | None = None
    storage: str = ""


@dataclass(frozen=True, kw_only=True)
class ServedChoice:
    """How a model is served: deployments, or one with weights beside its devices."""

    deployments: tuple[Deployment, ...]
    offload: Offload | None = None


def _each(**fields: Any) -> Callable[[ServedChoice], ServedChoice]:
    """Puts fields on every deployment of a fleet."""

    def put(on: ServedChoice) -> ServedChoice:
        if on.offload is not None and not fields.keys() <= {"weights", "kv", "other_weights"}:
            raise PlanError(f"{', '.join(fields)}: not modelled with weights beside the devices")
        return replace(on, deployments=tuple(replaced(one, **fields) for one in on.deployments))

    return put


def _lever(
    slot: str, put: Callable[[ServedChoice], ServedChoice], words: str, *, what: str = "", quality: Fact | None = EXACT
) -> Change[ServedChoice]:
    return Change(words=words, slot=slot, what=what or _HELP.get(slot, ""), put=put, quality=quality)


def levers(model: Model, cluster: Cluster, on: ServedChoice) -> Iterator[Change[ServedChoice]]:
    """Other values of the words of a deployment."""
    one = on.deployments[0]
    if len(on.deployments) == 1:
        yield from _degrees(model, cluster, one)
    yield from formats(model, cluster, one)
    for name in ("chunked", "mixed", "graphs", "prefix_cache"):
        for way in (True, False):
            if getattr(one.options, name) is not way:
                yield _lever(name, _each(**{name: way}), flag(name, way))
    for name, usual in (("token_budget", 8192), ("max_seqs", 256)):
        now = getattr(one.options, name) or usual
        for factor in _BUDGETS:
            value = max(1, int(now * factor))
            yield _lever(name, _each(**{name: value}), flag(name, value))
    for name in _ENGINES:
        if name != one.engine.casefold():
            yield _lever(
                "engine", _each(engine=name, version="", expert_backend=""), f"--engine {name}",
                what="another engine with its own batching, kernels and host times",
            )  # fmt: skip
    if any(block.experts for block in model.graph.blocks.values()):
        for backend in backends_of(one.engine):
            if backend != one.options.expert_backend:
                yield _lever("expert_backend", _each(expert_backend=backend), f"--expert-backend {backend}")


def _degrees(model: Model, cluster: Cluster, one: Deployment) -> Iterator[Change[ServedChoice]]:
    """Other degrees on as many devices, experts over all ranks, and pools for prompts and answers."""
    shapes: list[dict[str, int]] = []
    for factor in (2, 4, 8):
        shapes += [{"tp": one.tp * factor}, {"pp": one.pp * factor}]
        shapes += [{"tp": one.tp // factor}] if one.tp % factor == 0 else []
        shapes += [{"pp": one.pp // factor}] if one.pp % factor == 0 else []
    if any(block.experts for block in model.graph.blocks.values()):
        ranks = one.tp * one.dp
        shapes += [{"ep": ranks}, {"ep": 1}]
        for size in (ranks, 2 * ranks, 4 * ranks, 8 * ranks):
            shapes.append({"tp": 1, "dp": size, "ep": size})
    for shape in shapes:
        whole = {"tp": one.tp, "pp": one.pp, "dp": one.dp, "ep": one.ep}
        whole |= {"ep": 1, "dp": 1, **shape} if "tp" in shape and "dp" not in shape else shape
        if any(getattr(one, name) != size for name, size in whole.items()):
            told = " ".join(flag(name, size) for name, size in whole.items() if size > 1 or name == "tp")
            yield _lever(
                "degrees", _shaped(cluster, whole), told, what="parallel degrees of an instance, on all devices"
            )
    if one.role is Role.WHOLE and one.instances > 1:
        for share in (0.25, 0.5, 0.75):
            count = round(one.instances * share)
            if 0 < count < one.instances:
                each = f"tp{one.tp}" + "".join(
                    f",{n}{getattr(one, n)}" for n in ("pp", "dp", "ep") if getattr(one, n) > 1
                )
                told = f"--prefill {count}x{each} --decode {one.instances - count}x{each}"
                yield _lever("degrees", _pooled(one, count), told, what="prompts and answers on instances of their own")


def _shaped(cluster: Cluster, words: dict[str, int]) -> Callable[[ServedChoice], ServedChoice]:
    def put(on: ServedChoice) -> ServedChoice:
        made = replaced(on.deployments[0], **words)
        count = fitting_instances(made, cluster)
        if on.offload is not None or not count:
            raise PlanError(f"{instance_devices(made)} devices an instance, the cluster has {cluster.count}")
        return ServedChoice(deployments=(replace(made, instances=count, role=Role.WHOLE),))

    return put


def _pooled(shape: Deployment, count: int) -> Callable[[ServedChoice], ServedChoice]:
    degrees: dict[str, Any] = {name: getattr(shape, name) for name in ("tp", "pp", "dp", "ep")}

    def put(on: ServedChoice) -> ServedChoice:
        if on.offload is not None:
            raise PlanError("pools are not modelled with weights beside the devices")
        one = replace(on.deployments[0], **degrees)
        prefill = replace(one, instances=count, role=Role.PREFILL)
        decode = replace(one, instances=shape.instances - count, role=Role.DECODE)
        return ServedChoice(deployments=(prefill, decode))

    return put


def formats(model: Model, cluster: Cluster, one: Deployment) -> Iterator[Change[ServedChoice]]:
    """Narrower weights and caches than the deployment has, of formats that the devices multiply."""
    rates = rates_of_both(cluster)
    now = form(with_formats(one, model, cluster)[0].weights or "bf16").weight_bytes
    for name, (rate, told) in _WEIGHTS.items():
        if (not rate or rate in rates) and form(name).weight_bytes < now:
            quality = accuracy(f"{told}, Llama-3.1 models", "bf16-or-death-2024")
            yield _lever("weights", _each(weights=name, other_weights=""), f"--weights {name}", quality=quality)
    for name, rate in _OTHERS.items():
        if rate in rates and form(name).weight_bytes < now:
            yield _lever("weights", _each(weights=name, other_weights=""), f"--weights {name}", quality=None)
    if one.kv in ("", "bf16"):
        yield _lever("kv", _each(kv="fp8"), "--kv fp8", quality=None)


def offload_levers(model: Model, on: ServedChoice, host: GivenHost | None) -> Iterator[Change[ServedChoice]]:
    """Places of weights that the devices do not hold; of a static batch, where a host is known."""
    if host is None:
        return
    for name, method in TECHNIQUES.items():
        asked = Offload(technique=method, processors=host.processors, dram_bytes=host.dram_bytes, storage=host.storage)
        yield Change(
            words=f"--offload {name}", slot="offload", what=_PLACES[name], quality=EXACT,
            put=partial(_elsewhere, asked),
        )  # fmt: skip
    if on.offload is None:
        return
    for order in DeviceOrder:
        word = order.name.casefold()
        yield Change(
            words=f"--device-order {word}", slot="device_order", what=_HELP["device_order"], quality=EXACT,
            put=partial(_ordered, order),
        )  # fmt: skip
    for name, (_, told) in _WEIGHTS.items():
        quality = accuracy(f"{told}, Llama-3.1 models", "bf16-or-death-2024")
        yield _lever("weights", _each(weights=name, other_weights=""), f"--weights {name}", quality=quality)


def _elsewhere(asked: Offload, state: ServedChoice) -> ServedChoice:
    return ServedChoice(deployments=(replace(state.deployments[0], instances=1),), offload=asked)


def _ordered(order: DeviceOrder, state: ServedChoice) -> ServedChoice:
    if state.offload is None:
        raise PlanError("is about weights beside the devices")
    return replace(state, offload=replace(state.offload, order=order))


_PLACES = {
    "computed": "experts that devices do not hold lie in host memory, and processors compute them",
    "fetched": "experts that devices do not hold are copied from host memory when they are chosen",
    "streamed": "layers are copied from host memory or a disk, one after another",
    "layers": "some layers are computed by the host's processors",
    "neurons": "rarely used neurons are computed by the host's processors",
    "host": "all is computed by the host's processors", "disk": "all is read from a disk",
}  # fmt: skip
