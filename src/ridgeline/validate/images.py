"""Rows of networks that are built by name, of images, sentences, utterances and categories: which one, in which layout
it runs, and what a step of it holds."""

from __future__ import annotations

import re
from dataclasses import replace
from math import log2

from ridgeline.errors import InputError
from ridgeline.facts.readings import reading
from ridgeline.graph.detection import DETECTORS, REGION_NETWORKS, detector, region_network
from ridgeline.graph.diffusion import UNETS, unet
from ridgeline.graph.lstm import RECURRENT, UTTERANCE, recurrent
from ridgeline.graph.networks import PADDED, SENTENCE, classifier, sample_tokens
from ridgeline.graph.recommendation import RECOMMENDERS, recommender
from ridgeline.graph.transformer_xl import SIZES as SEGMENTS
from ridgeline.graph.transformer_xl import transformer_xl
from ridgeline.graph.translation import TRANSLATORS, translator
from ridgeline.graph.vision import Turned
from ridgeline.graph.vision_transformer import vision_transformer
from ridgeline.graph.volumes import SIDE, VOLUMES, volume_unet
from ridgeline.graph.workload import PRECISIONS
from ridgeline.validate.models import ModelReading
from ridgeline.validate.notes import TrainingRow
from ridgeline.validate.recipes import Recipe, published_sharding
from ridgeline.validate.rows import Row

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


def meters_tokens(row: Row) -> bool:
    """Whether what a row calls samples are tokens."""
    return reading("meters_tokens", **row.cells_of()) is not None


def counted_times(row: Row) -> int:
    """How often a source's meter counts a sample [1]; raises `InputError` where it counts one for each device too.

    There a batch is that of all devices, yet counted once for each, and all devices together take longer than one.
    """
    found = reading("counted_times", **row.cells_of())
    if found is not None and (row.count("n_devices") or 1) > 1:
        why = "its batch is that of all devices, counted once for each: no rate of samples"
        raise InputError(f"'{row.text('model')}': {why}", field="n_devices")
    return 1 if found is None else int(found.number)


def in_sequences(row: Row, name: str) -> Row:
    """A row whose batch counts sentences: programs that fill batches by tokens state those of a device."""
    usual = None if row.count("global_batch") else reading("network_batch", model=name)
    batch = row.count("micro_batch") or (None if usual is None else int(usual.number))
    if batch is None:
        return row
    sentences = max(1, batch // SENTENCE[name]) if name in TRANSLATORS else batch
    return replace(row, cells={**row.cells, "micro_batch": str(sentences)})


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


def image_recipe(told: TrainingRow, recipe: Recipe, name: str) -> Recipe:
    """A recipe as these networks are trained: whole states, 16 bits where a program would take 8, momentum for images.

    Diffusion models take AdamW with the program's own states, on latents and texts that were encoded before; others
    Adam, or momentum for tables, which lie in parts on all devices.
    """
    row, said = told.row, told.said
    precision, plan = str(recipe.workload["precision"]), {**recipe.plan, "zero": 0}
    own = reading("network_precision", **row.cells_of(model=name))
    changes: dict[str, object] = {"optimizer": "sgd" if name in RECOMMENDERS else "adam"}
    if own is not None and own.value != precision:
        precision = own.text
        said.append(f"the released program computes in {precision}, whatever its table says")
    narrow = PRECISIONS[precision].quantize
    if name in (*RECURRENT, *TRANSLATORS, *RECOMMENDERS, "ncf"):  # of sentences, utterances or categories
        changes |= {"precision": "fp16-amp"} if narrow else {}
        plan |= {"ep": row.count("n_devices") or 1, "etp": 1} if name in RECOMMENDERS else {}
    elif name in SEGMENTS:
        changes |= {"fused_optimizer": False, "looped_optimizer": True}
        said.append("LAMB's states and traffic are Adam's")
    elif name in UNETS:
        said += ["diffusion models of public programs run in 16 bits"] if narrow else []
        said.append("latents and texts are encoded before training")
        changes = {"precision": "fp16" if narrow else precision, "attention_kernel": "flash2"}
        plan |= published_sharding(told)
    else:
        said += ["convolutions of public programs run in 16 bits"] if narrow else []
        changes = {"precision": "fp16-amp" if narrow else precision, "optimizer": "sgd-momentum"}
    if row.text("optimizer"):
        changes.pop("optimizer", None)
    return Recipe(workload={**recipe.workload, **changes}, plan=plan)


def _autocasts(recipe: Recipe) -> bool:
    """Whether PyTorch's autocast runs operators one by one, norms, softmax and sums in fp32."""
    return str(recipe.workload["precision"]).endswith("-amp") and recipe.workload["execution"] == "eager"


def read_image_model(told: TrainingRow, name: str, recipe: Recipe) -> ModelReading:
    """The network of a row, and what is assumed of its samples."""
    row, wide = told.row, _autocasts(recipe)
    devices, sequences, parts = (row.count(cell) or 1 for cell in ("n_devices", "micro_batch", PARTS))
    if name in TRANSLATORS:
        model, said = translator(name), [f"sentences of {SENTENCE[name]} tokens each way, without padding"]
    elif name in PADDED:
        words, model = SENTENCE[name], recurrent(name, words=PADDED[name])
        model = replace(model, dims={**model.dims, "counted_tokens": 2 * words})
        said = [f"sentences of {words} tokens each way, padded to {PADDED[name]}; its meter counts the tokens of both"]
    elif name in RECURRENT:
        model = recurrent(name)
        said = [f"utterances of {UTTERANCE.frames} frames and {UTTERANCE.tokens} tokens, without padding"]
    elif name in RECOMMENDERS:
        model = recommender(name, shards=devices)
        said = ["tables lie in equal parts on all devices, no row is looked up twice in a step"]
    elif name == "ncf":
        model, said = recommender(name, autocast=wide), []
    elif name in SEGMENTS:
        model = transformer_xl(name, sequences=sequences)
        said = [f"segments of {SEGMENTS[name].segment} tokens that attend to a memory as long, words of WikiText-103"]
    elif name in VOLUMES:
        model, said = volume_unet(name, parts=parts), [f"volumes of {SIDE} voxels a side"]
        shared = f"{parts} devices share a volume, their edges told in no time" if parts > 1 else "one device a volume"
        said += [f"{shared}; the devices that are left evaluate"] if row.count(PARTS) else []
    elif name in UNETS:
        side = UNETS[name].image
        model, said = unet(name), [f"images of {side} x {side} pixels"]
    elif name.startswith("vit-"):
        model, said = vision_transformer(name, autocast=wide), [f"images of {sample_tokens(name)} tokens, 1000 classes"]
    else:
        return _convolutional(row, name, recipe)
    return ModelReading(model=model, key=repr((name, devices, sequences, parts, wide)), assumptions=tuple(said))


def _convolutional(row: Row, name: str, recipe: Recipe) -> ModelReading:
    """A network of convolutions; matrix units read channels last, so another layout is turned around them."""
    where, execution = f"{row.text('precision')}; {row.text('source')}", recipe.workload["execution"]
    first = reading("channels_first", words=where)
    compute = PRECISIONS[str(recipe.workload["precision"])].compute
    turned = Turned.NONE if first is None else TURNED.get(compute, Turned.BOTH)
    bound = reading("host_bound", runs=where, model=name)
    if bound is not None:
        raise InputError(f"'{row.text('model')}': {bound.told}", field="model")
    boxed = name in DETECTORS or name in REGION_NETWORKS
    if boxed and row.asks_bytes:
        raise InputError("what decoding images on the device holds is not predicted", field="metric")
    fused = execution != "eager"
    counted = fused and reading("norm_statistics", runs=where, model=name) is not None
    if boxed:
        model = (detector if name in DETECTORS else region_network)(name, turned=turned, fused=fused)
    else:
        size = reading("image_pixels", runs=where, model=name)
        pixels = None if size is None else int(size.number)
        model = classifier(name, turned=turned, fused=fused, autocast=_autocasts(recipe), counted=counted, image=pixels)
    side, classes = model.dims["image"], model.dims["classes"]
    said = [f"images of {side} x {side} pixels, {classes} classes"]
    said += ["boxes are chosen and matched in no time"] if boxed else []
    if turned not in (Turned.NONE, Turned.FIRST):
        said.append(f"layouts are turned around convolutions: {'' if first is None else first.told}")
    return ModelReading(model=model, key=repr((name, turned, fused, counted, side)), assumptions=tuple(said))
