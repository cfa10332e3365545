"""Rows of networks that are built by name, most of images: which one, in which layout it runs, what a step holds."""

from __future__ import annotations

import re
from dataclasses import replace
from math import log2

from ridgeline.errors import InputError
from ridgeline.facts.readings import reading
from ridgeline.graph.detection import DETECTORS, detector
from ridgeline.graph.diffusion import UNETS, unet
from ridgeline.graph.networks import classifier, sample_tokens
from ridgeline.graph.regions import REGION_NETWORKS, region_network
from ridgeline.graph.transformer_xl import SIZES as SEGMENTS
from ridgeline.graph.transformer_xl import transformer_xl
from ridgeline.graph.vision import Turned
from ridgeline.graph.vision_transformer import vision_transformer
from ridgeline.graph.volumes import SIDE, VOLUMES, volume_unet
from ridgeline.graph.workload import PRECISIONS
from ridgeline.validate.models import ModelReading
from ridgeline.validate.published_plans import published_sharding
from ridgeline.validate.recipes import Recipe
from ridgeline.validate.rows import Row
from ridgeline.validate.samples import (
    is_sample,
    sample_model,
    sample_recipe,
)

PARTS = "volume_parts"
"""The cell in which a row of volumes that are divided over devices says how many share one."""

IMAGES = 256  # images of one device and step when a row gives no batch (assumed; rates depend on it weakly)

TURNED = {"fp32": Turned.FIRST, "tf32": Turned.INPUTS}
"""What is turned to channels last by format; cuDNN's TF32 kernels ("nhwckrsc_nchw") write channels first themselves."""


def network(name: str, *, source: str = "") -> str | None:
    """The network that a model cell names in a source, None when it names none that can be built.

    >>> network("ResNet-50 train"), network("timm resnet101"), network("Mask R-CNN")
    ('resnet-50', 'resnet-101', 'mask-rcnn')
    """
    plain = re.sub(r"^timm | train$", "", name.strip(), flags=re.IGNORECASE)
    found = reading("network", runs=source, model=plain)
    return None if found is None else found.text.casefold()


def in_parts(row: Row, name: str) -> Row:
    """A row of fewer volumes than devices, its batch counted in parts of volumes, one for each device that trains.

    As many devices share a volume as the largest power of two that leaves none without; the rest evaluate beside them
    (MLPerf's NVIDIA submissions: 56 of 72 devices train 56 volumes, 336 of 432 and 672 of 768 train 84).
    """
    volumes, devices = row.count("global_batch"), row.count("n_devices")
    if name not in VOLUMES or volumes is None or devices is None or volumes >= devices:
        return row
    parts = 2 ** int(log2(devices / volumes))
    counts = {"global_batch": volumes * parts, "n_devices": volumes * parts, PARTS: parts}
    return replace(row, cells={**row.cells, **{field: str(count) for field, count in counts.items()}})


def image_recipe(row: Row, recipe: Recipe, name: str) -> Recipe:
    """A recipe as image classifiers are trained: momentum, whole states, 16 bits where a program would take 8.

    Diffusion models take AdamW with the program's own states, on latents and texts that were encoded before.
    """
    precision = str(recipe.workload["precision"])
    said = recipe.assumptions
    own = reading("network_precision", **row.cells_of(model=name))
    if own is not None and own.value != precision:
        precision = own.text
        said = (*said, f"the released program computes in {precision}, whatever its table says")
    if is_sample(name):
        if PRECISIONS[precision].quantize:
            recipe = replace(recipe, workload={**recipe.workload, "precision": "fp16-amp"})
        return sample_recipe(recipe, name, devices=row.count("n_devices") or 1)
    if name in SEGMENTS:
        workload = {**recipe.workload, "optimizer": "adam", "fused_optimizer": False, "looped_optimizer": True}
        said = (*said, "LAMB's states and traffic are Adam's")
        return replace(recipe, workload=workload, plan={**recipe.plan, "zero": 0}, assumptions=said)
    if name in UNETS:
        if PRECISIONS[precision].quantize:
            precision, said = "fp16", (*said, "diffusion models of public programs run in 16 bits")
        said = (*said, "latents and texts are encoded before training")
        workload = {**recipe.workload, "precision": precision, "attention_kernel": "flash2"}
        return replace(
            recipe, workload=workload, plan={**recipe.plan, "zero": 0, **published_sharding(row)}, assumptions=said
        )
    if PRECISIONS[precision].quantize:
        precision, said = "fp16-amp", (*said, "convolutions of public programs run in 16 bits")
    workload = {**recipe.workload, "precision": precision, "optimizer": "sgd-momentum"}
    return replace(recipe, workload=workload, plan={**recipe.plan, "zero": 0}, assumptions=said)


def _autocasts(recipe: Recipe) -> bool:
    """Whether PyTorch's autocast runs operators one by one, norms, softmax and sums in fp32."""
    return str(recipe.workload["precision"]).endswith("-amp") and recipe.workload["execution"] == "eager"


def read_image_model(row: Row, name: str, recipe: Recipe) -> ModelReading:
    """The network of a row; matrix units read channels last, so another layout is turned around convolutions."""
    if is_sample(name):
        devices = row.count("n_devices") or 1
        sampled, said = sample_model(name, devices=devices, autocast=_autocasts(recipe))
        return ModelReading(model=sampled, key=repr((name, devices)), assumptions=said)
    if name in SEGMENTS:
        sequences = row.count("micro_batch") or 1
        said = (f"segments of {SEGMENTS[name].segment} tokens that attend to a memory as long, words of WikiText-103",)
        model = transformer_xl(name, sequences=sequences)
        return ModelReading(model=model, key=repr((name, sequences)), assumptions=said)
    if name in VOLUMES:
        parts = row.count(PARTS) or 1
        said = (f"volumes of {SIDE} voxels a side",)
        if row.count(PARTS):
            share = (
                f"{parts} devices share a volume, their edges told in no time" if parts > 1 else "one device a volume"
            )
            said = (*said, f"{share}; the devices that are left evaluate")
        return ModelReading(model=volume_unet(name, parts=parts), key=repr((name, parts)), assumptions=said)
    if name in UNETS:
        side = UNETS[name].image
        return ModelReading(model=unet(name), key=name, assumptions=(f"images of {side} x {side} pixels",))
    if name.startswith("vit-"):
        said = (f"images of {sample_tokens(name)} tokens, 1000 classes",)
        wide = _autocasts(recipe)
        return ModelReading(model=vision_transformer(name, autocast=wide), key=repr((name, wide)), assumptions=said)
    compute = PRECISIONS[str(recipe.workload["precision"])].compute
    where = f"{row.text('precision')}; {row.text('source')}"
    first = reading("channels_first", words=where)
    turned = Turned.NONE if first is None else TURNED.get(compute, Turned.BOTH)
    bound = reading("host_bound", runs=where, model=name)
    if bound is not None:
        raise InputError(f"'{row.text('model')}': {bound.told}", field="model")
    found = DETECTORS.get(name)
    if (found is not None or name in REGION_NETWORKS) and row.asks_bytes:
        raise InputError("what decoding images on the device holds is not predicted", field="metric")
    fused = recipe.workload["execution"] != "eager"
    counted = fused and reading("norm_statistics", runs=where, model=name) is not None
    if found is not None:
        model = detector(name, turned=turned, fused=fused)
    elif name in REGION_NETWORKS:
        model = region_network(name, turned=turned, fused=fused)
    else:
        size = reading("image_pixels", runs=where, model=name)
        model = classifier(
            name,
            turned=turned,
            fused=fused,
            autocast=_autocasts(recipe),
            counted=counted,
            image=None if size is None else int(size.number),
        )
    pixels, classes = model.dims["image"], model.dims["classes"]
    turns = [f"images of {pixels} x {pixels} pixels, {classes} classes"]
    if found is not None or name in REGION_NETWORKS:
        turns.append("boxes are chosen and matched in no time")
    if turned not in (Turned.NONE, Turned.FIRST):
        turns.append(f"layouts are turned around convolutions: {'' if first is None else first.told}")
    return ModelReading(model=model, key=repr((name, turned, fused, counted, pixels)), assumptions=tuple(turns))
