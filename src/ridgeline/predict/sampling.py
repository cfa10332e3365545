"""How long pictures take: words read, steps of a denoiser, pixels decoded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from ridgeline.energy.power import step_energy_j
from ridgeline.errors import ModelError, PlanError
from ridgeline.facts.records import Cluster, Evidence
from ridgeline.graph.decoders import DEEP_SHRINK, decoder, deep_decoder, film_decoder
from ridgeline.graph.denoiser_specs import DENOISERS, Picture, diffusion_model
from ridgeline.graph.denoisers import denoiser
from ridgeline.graph.diffusion import LATENT
from ridgeline.graph.load import load
from ridgeline.graph.model import Model
from ridgeline.graph.workload import PRECISIONS, Workload
from ridgeline.lower.sampling import check_division, forward
from ridgeline.lower.work import Layout
from ridgeline.memory.sampling import SamplingMemory
from ridgeline.plan.sampling import Division, Sampling
from ridgeline.predict.operator_mechanisms import host_cost
from ridgeline.predict.predictor import Predictor
from ridgeline.predict.sampling_steps import (
    PLAIN,
    least_seconds,
    pipeline_memory,
    pixels_precision,
    step_price,
    steps_of,
    stretch_price,
)
from ridgeline.predict.step_interval import step_interval


@dataclass(frozen=True, kw_only=True)
class SamplingCost:
    """Seconds of one batch of pictures, of a step, and of what surrounds the steps; low and high are the 80 % interval.

    `parts` splits the time of a step, `copied_s` is what weights that wait in host memory take to come and go, `memory`
    what one device holds, `told_bytes` what a device tells others in a step [byte].
    """

    seconds: float
    low_s: float
    high_s: float
    step_s: float
    words_s: float
    pixels_s: float
    parts: Mapping[str, float]
    evidence: Evidence
    assumptions: tuple[str, ...]
    memory: SamplingMemory
    copied_s: float = 0.0
    told_bytes: float = 0.0
    energy_j: float = 0.0  # of the batch, at the wall, by the devices that make it
    usd: float | None = None
    carbon_kg: float | None = None

    def share(self, seconds: float) -> tuple[float, float]:
        """The interval of a part of the time [s]."""
        return self.low_s / self.seconds * seconds, self.high_s / self.seconds * seconds


def sample(name: str, cluster: Cluster, asked: Sampling, by: Division | None = None) -> SamplingCost:
    """Time of one batch of pictures of a diffusion model by name on the devices of a cluster [s].

    t = words + sum of steps + pixels; guided models run twice a step. With a pipeline of p devices, each runs its L / p
    layers on p parts of the patches one after another: a step takes as long as all layers on one part. The first
    `warm` steps run the layers on the whole picture, one device after the other. Samplers make other steps of these
    (`Stretch`). Raises `PlanError` where the cluster has fewer devices than the division, there is no guidance to
    divide, or samplers do not go together, `UnknownNameError` for a model that is in no catalog.
    """
    name = diffusion_model(name)
    by = by or Division()
    if by.devices > cluster.count:
        raise PlanError(f"{name}: {by.devices} devices make one batch, the cluster has {cluster.count}")
    model = denoiser(name, Picture(width=asked.width, height=asked.height, frames=asked.frames))
    check_division(model, by)
    workload = _workload(asked, asked.precision)
    predictor = Predictor(model, cluster, workload)
    stretches = steps_of(name, asked, by)
    priced = [(one.steps, stretch_price(predictor, asked.batch, one)) for one in stretches]
    _, usual = max(priced, key=lambda one: one[0])
    stepped = sum(steps * price.seconds for steps, price in priced)
    drawn, pictures, said = _drawer(name, asked)
    words, pixels, least_of_ends, more = (
        _ends(name, drawn, pictures, cluster, asked) if asked.decoded else (0.0, 0.0, 0.0, ())
    )
    memory, held = pipeline_memory(name, model, drawn, part=cluster.accelerator, asked=asked, stretches=stretches)
    copied = _copied(memory, asked.steps, predictor)
    evidence = predictor.machine.device.evidence.get(
        f"matrix.{PRECISIONS[asked.precision].compute}", Evidence.DATASHEET
    )
    low, high = step_interval(usual.parts, usual.hosts, predictor=predictor, evidence=evidence)
    seconds = words + pixels + stepped + copied
    least = asked.steps * usual.least_s + least_of_ends
    busy = {name: each * stepped / usual.seconds for name, each in usual.parts.items()}
    busy["matrix"] = busy.get("matrix", 0.0) + words + pixels
    using = replace(cluster, count=by.devices)
    energy = step_energy_j({**busy, "host copies": copied}, using, held=predictor.stages.pricer.held)
    price, carbon = cluster.price_usd_per_device_h, cluster.carbon_kg_per_j
    return SamplingCost(
        seconds=seconds, low_s=min(seconds, max(seconds * low / usual.seconds, least)),
        high_s=seconds * high / usual.seconds, step_s=stepped / asked.steps, words_s=words, pixels_s=pixels,
        parts=usual.parts, evidence=evidence, assumptions=(*more, *(said if asked.decoded else ()), *held),
        memory=memory, copied_s=copied, told_bytes=usual.told_bytes,
        energy_j=energy, usd=None if price is None else price.value * by.devices * seconds / 3600,
        carbon_kg=None if carbon is None else carbon.value * energy,
    )  # fmt: skip


def _workload(asked: Sampling, precision: str) -> Workload:
    return Workload(
        seq_len=1,
        global_batch=asked.batch,
        precision=precision,
        execution=asked.execution,
        attention_kernel=asked.attention_kernel,
        framework="plain PyTorch",
    )


def _drawer(name: str, asked: Sampling) -> tuple[Model, int, tuple[str, ...]]:
    """The decoder of pixels, how many times it runs at once, and what is taken of it."""
    spec, said = DENOISERS.get(name), ()
    channels = LATENT if spec is None else spec.channels
    if asked.frames > 1 and spec is not None and spec.film:
        made = film_decoder(spec.film, channels, width=asked.width, height=asked.height, frames=asked.frames)
        return made, asked.batch, ("all frames are decoded at once, on one device",)
    if spec is not None and spec.shrink[1] > DEEP_SHRINK and asked.decoded:
        raise ModelError(f"{name}: no decoder is known of a latent pixel of {spec.shrink[1]}; write decoded = false")
    if spec is not None and spec.shrink[1] == DEEP_SHRINK:
        return deep_decoder(channels, width=asked.width, height=asked.height), asked.batch, said
    return decoder(channels, width=asked.width, height=asked.height), asked.batch * asked.frames, said


def _ends(
    name: str, drawn: Model, pictures: int, cluster: Cluster, asked: Sampling
) -> tuple[float, float, float, tuple[str, ...]]:
    """Seconds of the encoder of words and of the decoder of pixels, each on one device, the least of both that its
    peaks leave [s], and what is left out.
    """
    plain = replace(asked, precision=PLAIN if PRECISIONS[asked.precision].quantize else asked.precision)
    workload, said = _workload(plain, plain.precision), ["encoders of CLIP take no time"]
    spec, words, read = DENOISERS.get(name), 0.0, 0.0
    if spec is not None and spec.encoder:
        words, read = _words(load(spec.encoder), cluster, replace(workload, seq_len=spec.words))
    elif spec is not None:
        said.append("its encoder of words takes no time")
    shown = _workload(plain, pixels_precision(name, asked.precision))
    price = step_price(Predictor(drawn, cluster, shown), pictures, Division())
    return words, price.seconds, read + price.least_s, tuple(said)


def _copied(memory: SamplingMemory, steps: int, predictor: Predictor) -> float:
    """Time of weights that come from host memory, and of models that go back to it, once or each step [s].

    accelerate's hooks copy a model before its forward and back when the next one is called; layers come for each
    forward and are dropped after it. Nothing else runs meanwhile.
    """
    if memory.offload == "none":
        return 0.0
    whole, network = memory.moved_bytes, memory.parts["denoiser"].weights_bytes
    moved = 2.0 * whole if memory.offload == "model" else whole + (steps - 1) * network
    return float(host_cost("host_copy", moved, predictor.machine).seconds)


def _words(model: Model, cluster: Cluster, workload: Workload) -> tuple[float, float]:
    """Forward of an encoder's layers on one prompt of each picture, and the least that the peaks leave of it [s]."""
    predictor, graph, total, least = Predictor(model, cluster, workload), model.graph, 0.0, 0.0
    for name, count in Counter(graph.layers).items():
        block = graph.blocks[name]
        if block.encoder:
            work = forward(block, workload, copies=workload.global_batch, by=Division())
            priced = predictor.stages.pricer.phase(work, Layout(micro_batch=workload.global_batch))
            total += count * float(np.asarray(priced.seconds))
            least += count * least_seconds(predictor, priced)
    return total, least
