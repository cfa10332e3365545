"""Rows of networks that are built by name, most of images: which one, in which layout it runs, what a step holds."""

from __future__ import annotations

import re
from dataclasses import replace
from math import log2

from ridgeline.errors import InputError
from ridgeline.graph.classifiers import classifier
from ridgeline.graph.detection import DETECTORS, detector
from ridgeline.graph.diffusion import UNETS, unet
from ridgeline.graph.regions import REGION_NETWORKS, region_network
from ridgeline.graph.transformer_xl import SIZES as SEGMENTS
from ridgeline.graph.transformer_xl import transformer_xl
from ridgeline.graph.vision import Turned
from ridgeline.graph.vision_transformer import vision_tokens, vision_transformer
from ridgeline.graph.volumes import SIDE, VOLUMES, volume_unet
from ridgeline.graph.workload import PRECISIONS
from ridgeline.validate.models import ModelReading
from ridgeline.validate.published_plans import published_sharding
from ridgeline.validate.recipes import Recipe
from ridgeline.validate.rows import Row
from ridgeline.validate.samples import (
    OWN_SAMPLES,
    SAMPLES,
    is_sample,
    sample_model,
    sample_recipe,
    sample_tokens,
)

NETWORKS: tuple[tuple[str, str], ...] = (
    (r"^se-?resnext-?101-32x4d", "se-resnext-101-32x4d"),
    (r"^resnext-?101-32x4d", "resnext-101-32x4d"),
    (r"^resnext-?50[-_]32x4d", "resnext-50-32x4d"),
    (r"^se-?resnet-?50$", "se-resnet-50"),
    (r"^wide[-_]resnet-?50[-_]2", "wide-resnet-50-2"),
    (r"^(?:resnet-?|rn)(18|34|50|101|152)(?: ?v1\.5)?$", r"resnet-\1"),
    (r"^(?:vit|deit)_(tiny|small|base|large)_patch(16|32)_(224|384)$", r"vit-\1-patch\2-\3"),
    (r"^vit$", "vit-base-patch16-224"),  # FlagPerf, training/benchmarks/vit: torchvision's ViT-B/16
    (r"^mobilenetv2(?:_100)?$", "mobilenet-v2"),
    (r"^mobilenetv3_large_100$", "mobilenet-v3-large"),
    (r"^mnasnet_100$", "mnasnet"),
    (r"^ghostnet_100$", "ghostnet"),
    (r"^(?:efficientnet )?efficientnet[-_](widese-)?(b[0-7])$", r"efficientnet-\1\2"),
    (r"^(?:tf_)?efficientnetv2_([sm])$", r"efficientnet-v2-\1"),
    (r"^vgg(16|19)$", r"vgg-\1"),
    (r"^densenet(121|169|201)$", r"densenet-\1"),
    (r"^regnety_(016|032|040|080)$", r"regnety-\1"),
    (r"^inception_v([34])$", r"inception-v\1"),
    (r"^xception$", "xception"),
    (r"^dpn92$", "dpn-92"),
    (r"^swin_(tiny|small|base|large)_patch4_window7_224$", r"swin-\1"),
    (r"^swin_transformer$", "swin-tiny"),  # FlagPerf, training/benchmarks/swin_transformer: model_params.py
    (r"^convnext_(tiny|small|base|large)$", r"convnext-\1"),
    (r"^beit_(base|large)_patch16_224$", r"beit-\1"),
    (r"^mixer_b16_224$", "mixer-base"),
    (r"^gmlp_s16_224$", "gmlp-small"),
    (r"^cait_s24_224$", "cait-small-24"),
    (r"^nfnet_l0$", "nfnet-l0"),
    (r"^mask[ _]?r-?cnn$", "mask-rcnn"),
    (r"^faster[ _]?r-?cnn$", "faster-rcnn"),
    (r"^retinanet$", "retinanet-resnet-50"),
    (r"^ssd(?:300)?(?: resnet-50)?$", "ssd-resnet-50"),
    (r"^3d.?u-?net$", "unet-3d"),
    (r"^transformer-xl (base|large)(?: model)?$", r"transformer-xl-\1"),
    (r"^stable.?diffusion ?v?([12])(?:\.\d)?(?:-base)?$", r"stable-diffusion-\1"),
)
"""Networks by their names in tables: (name, network). Undistilled DeiT has the layers of ViT."""

OWN_NETWORKS: tuple[tuple[str, str, str], ...] = (
    (r"mlcommons/", r"^retinanet(?: \(ssd\))?$", "retinanet-resnext-50"),
    (r"flagos-ai/FlagPerf", r"^bigtransfer$", "bit-r152x2"),  # training/benchmarks/bigtransfer: README, crop of 480
    (r"flagos-ai/FlagPerf", r"^efficientnet$", "efficientnet-v2-s"),  # training/benchmarks/efficientnet: create_model
    (r"lambdal/", r"^transformer-xl large$", "transformer-xl-large-plain"),
)
"""Names that a source gives to a network of its own: (source, name, network)."""

OWN_IMAGES: tuple[tuple[str, str, int], ...] = (
    (r"pytorch-image-models", r"efficientnet-b1$", 224),
    (r"pytorch-image-models", r"efficientnet-b2$", 256),
    (r"pytorch-image-models", r"efficientnet-b3$", 288),
    (r"pytorch-image-models", r"efficientnet-b4$", 320),
)
"""Pixels of a side that a source trains on: (source, network, pixels); timm's are `train_img_size` of its results."""

OWN_FORMATS: tuple[tuple[str, str, str], ...] = (
    (r"FlagPerf", r"vit-base-patch16-224$", "fp16-amp"),  # training/*/vit-pytorch/config/config_common.py: amp = True
)
"""What a source's program computes in where its table names another: (source, network, precision)."""

COUNTED: tuple[tuple[str, str], ...] = ((r"mlcommons/", r"resnet-50$"),)
"""Networks whose convolutions count the statistics of the norm after them: (source, network).

Source: mlcommons/training_results_v2.1, NVIDIA/benchmarks/resnet/implementations/mxnet, config_DGXA100*.sh:
NETWORK="resnet-v1b-stats-fl".
"""

HOST_BOUND: tuple[tuple[str, str, str], ...] = (
    (
        r"DeepLearningExamples",
        r"mask-rcnn$",
        "its proposals run on the host between kernels: by its own tables 16 bits are hardly quicker than 32",
    ),
)
"""Networks that wait for the host in a source, which is not predicted: (source, network, why)."""

PARTS = "volume_parts"
"""The cell in which a row of volumes that are divided over devices says how many share one."""

IMAGES = 256  # images of one device and step when a row gives no batch (assumed; rates depend on it weakly)

CHANNELS_FIRST: tuple[tuple[str, str], ...] = (
    (r"nchw", "the precision cell says nchw"),
    (r"lambdal/", "its training logs name no memory format, so PyTorch's default: channels first"),
    (r"FlagPerf", "PyTorch's default memory format: channels first"),
)
"""Rows whose tensors hold channels before pixels: (precision or source, known from); others hold them last."""

TURNED = {"fp32": Turned.FIRST, "tf32": Turned.INPUTS}
"""What is turned to channels last by format; cuDNN's TF32 kernels ("nhwckrsc_nchw") write channels first themselves."""


def network(name: str, *, source: str = "") -> str | None:
    """The network that a model cell names in a source, None when it names none that can be built.

    >>> network("ResNet-50 train"), network("timm resnet101"), network("Mask R-CNN")
    ('resnet-50', 'resnet-101', 'mask-rcnn')
    """
    plain = re.sub(r"^timm | train$", "", name.strip(), flags=re.IGNORECASE)
    own = [(pattern, known) for where, pattern, known in (*OWN_NETWORKS, *OWN_SAMPLES) if re.match(where, source)]
    for pattern, known in (*own, *NETWORKS, *SAMPLES):
        match = re.match(pattern, plain, re.IGNORECASE)
        if match:
            return match.expand(known).casefold()
    return None


def image_tokens(name: str) -> int:
    """Tokens of one image [token]: one for a convolutional network, patches and a class for a transformer.

    A text's segment has its own.
    """
    if name in SEGMENTS:
        return SEGMENTS[name].segment
    return vision_tokens(name) if name.startswith("vit-") else sample_tokens(name)


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
    for source, known, own in OWN_FORMATS:
        if re.search(source, row.text("source")) and re.match(known, name) and own != precision:
            precision, said = own, (*said, f"the released program computes in {own}, whatever its table says")
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
        said = (f"images of {image_tokens(name)} tokens, 1000 classes",)
        wide = _autocasts(recipe)
        return ModelReading(model=vision_transformer(name, autocast=wide), key=repr((name, wide)), assumptions=said)
    compute = PRECISIONS[str(recipe.workload["precision"])].compute
    where = f"{row.text('precision')}; {row.text('source')}"
    first = next((reason for pattern, reason in CHANNELS_FIRST if re.search(pattern, where)), None)
    turned = Turned.NONE if first is None else TURNED.get(compute, Turned.BOTH)
    for source, known, why in HOST_BOUND:
        if re.search(source, where) and re.match(known, name):
            raise InputError(f"'{row.text('model')}': {why}", field="model")
    found = DETECTORS.get(name)
    if (found is not None or name in REGION_NETWORKS) and row.asks_bytes:
        raise InputError("what decoding images on the device holds is not predicted", field="metric")
    fused = recipe.workload["execution"] != "eager"
    counted = fused and any(re.search(source, where) and re.match(known, name) for source, known in COUNTED)
    if found is not None:
        model = detector(name, turned=turned, fused=fused)
    elif name in REGION_NETWORKS:
        model = region_network(name, turned=turned, fused=fused)
    else:
        sizes = (own for source, known, own in OWN_IMAGES if re.search(source, where) and re.match(known, name))
        model = classifier(
            name, turned=turned, fused=fused, autocast=_autocasts(recipe), counted=counted, image=next(sizes, None)
        )
    pixels, classes = model.dims["image"], model.dims["classes"]
    turns = [f"images of {pixels} x {pixels} pixels, {classes} classes"]
    if found is not None or name in REGION_NETWORKS:
        turns.append("boxes are chosen and matched in no time")
    if turned not in (Turned.NONE, Turned.FIRST):
        turns.append(f"layouts are turned around convolutions: {first}")
    return ModelReading(model=model, key=repr((name, turned, fused, counted, pixels)), assumptions=tuple(turns))
