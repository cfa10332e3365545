"""What one denoising step takes and holds, and of which steps a picture is made."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from ridgeline.cost.formats import ELEMENT_BYTES
from ridgeline.cost.network import collective_seconds
from ridgeline.cost.phases import PhaseCost
from ridgeline.errors import PlanError
from ridgeline.facts.records import Accelerator
from ridgeline.facts.store import read_toml
from ridgeline.graph.denoiser_specs import DENOISERS
from ridgeline.graph.denoisers import guided
from ridgeline.graph.diffusion import UNETS
from ridgeline.graph.load import load
from ridgeline.graph.model import Block, Model, op_params
from ridgeline.graph.ops import GemmOp
from ridgeline.graph.workload import PRECISIONS
from ridgeline.lower.sampling import PATCHED, exchanges, forward
from ridgeline.lower.work import Layout
from ridgeline.memory.sampling import PipelineModelMemory, SamplingMemory, clip_params, kept_elements, part_of
from ridgeline.plan.sampling import Division, Sampling
from ridgeline.predict.floor import peak_flop_per_s
from ridgeline.predict.predictor import Predictor
from ridgeline.seams.sampler import Stretch, stretched

PLAIN = "bf16"  # format of encoders and decoders beside a quantized network
LINKS = "tensor link"  # what devices tell each other, under the name of the parts that intervals know


@dataclass(frozen=True, kw_only=True)
class StepPrice:
    """Parts of one step's time [s].

    `hosts` are its launches on the quickest and the slowest host [s], `least_s` what the device's peaks leave of it
    [s], `told_bytes` the buffers of what devices tell each other, hidden or not [byte].
    """

    parts: Mapping[str, float]
    hosts: tuple[float, float]
    least_s: float
    told_bytes: float

    @property
    def seconds(self) -> float:
        """The time of the step [s]."""
        return sum(self.parts.values())


def steps_of(name: str, asked: Sampling, by: Division) -> tuple[Stretch, ...]:
    """The denoising steps of a model by name as its samplers make them; raises `PlanError` where they cannot."""
    twice = guided(name)
    if by.guidance > 1 and not twice:
        raise PlanError(f"{name} has no classifier-free guidance to run apart; needs guidance = 1")
    warm = min(by.warm, asked.steps) if by.pipeline > 1 else 0
    plain = Stretch(steps=asked.steps - warm, evaluations=2.0 if twice else 1.0, by=by)
    waiting = replace(plain, steps=warm, by=replace(by, pipeline=1))
    return stretched(tuple(one for one in (waiting, plain) if one.steps), by.technique)


def stretch_price(predictor: Predictor, batch: int, one: Stretch) -> StepPrice:
    """One step of a stretch; parameters that run beside the network's take as long as their share."""
    price = step_price(predictor, batch * one.evaluations / one.by.guidance, one.by, one.read, one.stale)
    longer = {name: (1.0 + one.added * (name != LINKS)) * each for name, each in price.parts.items()}
    return replace(price, parts=longer)


def step_price(predictor: Predictor, copies: float, by: Division, read: float = 1.0, stale: bool = False) -> StepPrice:
    """One step on `copies` pictures; what is `stale` of what devices tell each other comes beside the whole step."""
    graph, pricer, machine = predictor.model.graph, predictor.stages.pricer, predictor.machine
    size = predictor.stages.precision.activation_bytes
    ends = [Block(name=name, ops=ops, boundaries=()) for name, ops in (("in", graph.embedding), ("out", graph.head))]
    layers = [(graph.blocks[name], count) for name, count in Counter(graph.layers).items()]
    parts: defaultdict[str, float] = defaultdict(float)
    hosts, least, beside, told_bytes = np.zeros(2), 0.0, 0.0, 0.0
    for block, count in (*layers, *((end, 1) for end in ends)):
        work = forward(block, predictor.workload, copies=copies, by=by, read=read)
        cost = pricer.phase(work, Layout(micro_batch=copies))
        for name, part in cost.parts.items():
            parts[name] += count * float(np.asarray(part))
        least += count * least_seconds(predictor, cost)
        hosts += count * np.array([float(np.asarray(seconds)) for seconds in cost.hosts])
        attended = float(np.asarray(cost.parts["attention"]))
        for told in exchanges(block, copies=copies, by=by, element_bytes=size, read=read):
            seconds = float(np.asarray(collective_seconds(told, machine)))
            told_bytes += count * float(np.asarray(told.bytes))
            if told.hidden_behind:  # a step of the ring runs beside the attention of the last
                seconds = max(seconds / by.ring, seconds - attended)
            hidden = stale and told.name in PATCHED
            beside += count * seconds * hidden
            parts[LINKS] += count * seconds * (not hidden)
    parts[LINKS] += max(0.0, beside - sum(parts.values()))
    found = {name: seconds for name, seconds in parts.items() if seconds}
    return StepPrice(parts=found, hosts=(float(hosts[0]), float(hosts[1])), least_s=least, told_bytes=told_bytes)


def least_seconds(predictor: Predictor, cost: PhaseCost) -> float:
    """The longer of FLOP at the higher peak of both formats and bytes at that of the memory [s]."""
    precision = predictor.stages.precision
    peak = max(peak_flop_per_s(predictor, name) for name in (precision.compute, precision.attention))
    moved = float(np.asarray(cost.bytes)) / predictor.cluster.accelerator.memory_bytes_per_s
    return max(float(np.asarray(cost.flop)) / peak, moved)


_CLIP_L, _CLIP_H, _CLIP_G = (768, 12), (1024, 23), (1280, 32)  # width and layers that a pipeline runs
_CLIP = {768: (_CLIP_L,), 1024: (_CLIP_H,), 2048: (_CLIP_L, _CLIP_G)}
"""Text encoders of CLIP by the width of what a network reads of them. Source: config.json of each model's text_encoder
and text_encoder_2 on huggingface.co."""
_ENDS_BYTES = 2.0  # of a number of encoders, which are kept in 16 bits


def pipeline_memory(
    name: str, network: Model, pixels: Model, *, part: Accelerator, asked: Sampling, stretches: tuple[Stretch, ...]
) -> tuple[SamplingMemory, tuple[str, ...]]:
    """Bytes of each part of a pipeline on one device, and what is left out.

    Weights of the network are divided by `tensor` and `pipeline`, those of encoders and decoders are on every device.
    Keys and values of a step before are held from step to step, of all layers.
    """
    last = stretches[-1]
    by, copies = last.by, asked.batch * last.evaluations / last.by.guidance
    precision = PRECISIONS[asked.precision]
    element = ELEMENT_BYTES[precision.compute if precision.quantize else "fp32"]
    weight = element if precision.quantize else precision.activation_bytes
    found = part_of(
        network.graph, element_bytes=precision.activation_bytes, weight_bytes=weight * (1.0 + last.added),
        copies=copies / (by.parts * by.tensor), share=1 / (by.tensor * by.pipeline),
    )  # fmt: skip
    if last.stale:
        kept = kept_elements(network.graph) * (1.0 + last.read * (by.patches - 1)) / by.patches
        stale = precision.activation_bytes * copies * kept / by.tensor
        found = replace(found, working_bytes=found.working_bytes + stale)
    parts, said = {"denoiser": found}, ["memory: no kernel's workspace is counted"]
    if asked.decoded:
        ends = max(_ENDS_BYTES, 0.0 if precision.quantize else precision.activation_bytes)
        words, silent = _words(name, ends, asked.precision)
        parts |= words
        said += silent
        film = name in DENOISERS and bool(DENOISERS[name].film)
        whole = 0 if film else asked.batch  # diffusers, AutoencoderKLHunyuanVideo.enable_tiling: tiles of any size
        said += ["memory: the decoder of a video works in tiles, which are not counted"] * film
        drawn = PRECISIONS[pixels_precision(name, asked.precision)].activation_bytes
        parts["pixels"] = part_of(pixels.graph, element_bytes=drawn, weight_bytes=drawn, copies=whole)
    told = SamplingMemory(parts=parts, offload=asked.offload, capacity_bytes=part.memory_bytes)
    return told, tuple(said)


def pixels_precision(name: str, precision: str) -> str:
    """The precision that pixels are decoded in: that of a plain pipeline, or TF32 where fp16 is upcast."""
    spec = UNETS.get(name)
    if precision == "fp16" and spec is not None and spec.upcast:
        return "tf32"
    return PLAIN if PRECISIONS[precision].quantize else precision


def _words(name: str, element_bytes: float, precision: str) -> tuple[dict[str, PipelineModelMemory], list[str]]:
    """The encoders of words: T5's half that encodes, and CLIP's."""
    spec = DENOISERS.get(name)
    width = UNETS[name].context if spec is None else spec.pooled
    clip = sum(clip_params(*shape) for shape in _CLIP.get(width, ()))
    found = (
        {"CLIP": PipelineModelMemory(weights_bytes=element_bytes * clip, layer_bytes=0.0, working_bytes=0.0)}
        if clip
        else {}
    )
    if spec is None:
        return found, []
    if not spec.encoder:
        return found, [f"memory: the encoder of words of {name} is not counted"]
    graph = load(spec.encoder).graph
    layers = tuple(layer for layer in graph.layers if graph.blocks[layer].encoder)
    blocks = {layer: graph.blocks[layer] for layer in layers}
    half = replace(graph, layers=layers, blocks=blocks, head=())
    made = part_of(half, element_bytes=element_bytes, weight_bytes=element_bytes, copies=spec.words)
    roles = read_toml("networks.toml")["kept_in_fp32"].get(spec.encoder, []) if precision == "fp16" else []
    ops = [op for layer in layers for op in blocks[layer].ops if isinstance(op, GemmOp) and op.role.value in roles]
    wider = (ELEMENT_BYTES["fp32"] - element_bytes) * sum(op_params(op, 1) for op in ops)
    return {**found, "words": replace(made, weights_bytes=made.weights_bytes + wider)}, []
