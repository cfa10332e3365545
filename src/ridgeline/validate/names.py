"""What a model cell says: whether it is a language model, its plain name, the size it names."""

from __future__ import annotations

import re

from ridgeline.errors import InputError
from ridgeline.validate.rows import Row

NOT_LANGUAGE: tuple[tuple[str, str], ...] = (
    (
        r"resn(?:et|ext)|rn50|efficientnet|mobilenet|vgg|inception|densenet|shufflenet|squeezenet",
        "image classification",
    ),
    (
        r"\bvit\b|swin|deit|levit|^timm|bigtransfer|mnasnet|ghostnet|regnet|convnext|beit|mixer\b",
        "image classification",
    ),
    (r"ssd\b|ssd300|retinanet|mask ?r-?cnn|faster_?rcnn|detr\b|yolo|centernet", "object detection"),
    (r"u-?net|unet|segment|deeplab", "image segmentation or diffusion"),
    (r"stable.?diffusion|\bsd ?v?[12]\b|diffusion|flux|\bdit\b", "diffusion"),
    (r"dlrm|\bncf\b|wide.?(?:and.?|&.?)?deep|deepfm|recommend", "recommendation"),
    (r"rnn-?t\b|tacotron|wav2vec|conformer|jasper|quartznet|waveglow|fastpitch|whisper|deepspeech", "speech"),
    (r"r-?gat|gnn|graph (?:net|att)|rgcn", "graph network"),
    (r"\bgan\b|stylegan|cyclegan|dcgan", "generative adversarial network"),
    (r"gnmt|seq2seq|lstm|\brnn\b", "recurrent network"),
    (r"transformer-?xl", "Transformer-XL"),
    (r"^transformer$|translation", "translation transformer"),
    (r"llava|mimo|multimodal|\bvlm\b|clip\b|blip", "multimodal"),
    (r"longformer", "Longformer"),
    (r"minigo|reinforce", "reinforcement learning"),
    (r"\bhybrid\b", "hybrid state-space"),
)
"""Families that are not language models of attention layers; their rows are refused by name."""

_TRIMMINGS = re.compile(
    r"\(.*?\)|\btruncated to.*$|"
    r"\b(?:squad|fine-?tun(?:e|ing)|finetune|pre-?train(?:ing)?|train|lora\s*r?\d*|qlora|model|"
    r"dense|custom|experimental|initial|final)\b|_finetune|-(?:megatron|deepspeed|flagscale)$",
    re.IGNORECASE,
)


CATALOG_NAMES: tuple[tuple[str, str], ...] = (
    (r"^llama 3 405b$", "Llama 3.1 405B"),
    (r"^bart(?:[-_ ]large)?$", "bart-large"),
    (r"^bert(?:_hf)?$", "bert-large"),
    (r"^deepseek-?v3(?:-685b)?$", "DeepSeek-V3"),
    (r"^qwen3-235b$", "Qwen3-235B-A22B"),
    (r"^qwen3-30b$", "Qwen3-30B-A3B"),
    (r"^qwen3\.5-35b-a3b$", "Qwen3.5-35B-A3B"),
    (r"^t5[-_ ]small$", "t5-small"),
    (r"^t0_3b$", "t5-3b"),
    (r"^mt0-xxl$", "mt5-xxl"),
)
"""Names in tables that people shorten; the catalog's own look-up does the rest."""


SOURCE_NAMES: tuple[tuple[str, str, str], ...] = (
    ("FlagPerf", r"^gpt2$", "gpt2-medium"),  # training/benchmarks/gpt2/pytorch/config/_base.py: 24 layers of 1024
)
"""Names that one source uses for another size: (source, name, what is meant)."""


def holds_whole_base(row: Row) -> bool:
    """Whether a row is an MLPerf LoRA run on Blackwell, whose memory holds the 8-bit base and all activations.

    Source: mlcommons/training_results_v5.0, llama2_70b_lora: 70e9 bytes of base beside 180 GB and more.
    """
    ours = "mlcommons/training_results" in row.text("source") and "LoRA" in row.text("model")
    return ours and re.search(r"Blackwell|B[23]00", row.text("hardware")) is not None


SOURCE_DEVICES: tuple[tuple[str, str, str], ...] = (
    ("OpenBMB/BMTrain", r"^V100$", "V100 SXM2 32GB"),  # memory not stated; eight of 32 GB to a server assumed
)
"""Devices that one source names in part: (source, cell, what is meant)."""


def meant_device(source: str, cell: str) -> str:
    """The device that a source means by a hardware cell."""
    for where, pattern, meant in SOURCE_DEVICES:
        if where in source and re.search(pattern, cell, re.IGNORECASE):
            return meant
    return cell


TEXT_FAMILIES = ("recurrent network", "Transformer-XL", "translation transformer", "Longformer", "hybrid state-space")
"""Families of `NOT_LANGUAGE` that read text all the same: their rows count among those of language models."""


def is_language(name: str) -> bool:
    """Whether a model cell names a language model, one that is refused included; a blank cell names none.

    >>> is_language("ResNet-50"), is_language("Transformer-XL Base"), is_language("Llama 3 8B")
    (False, True, True)
    """
    family = next((said for pattern, said in NOT_LANGUAGE if re.search(pattern, name, re.IGNORECASE)), None)
    return bool(name.strip()) and (family is None or family in TEXT_FAMILIES)


_RECURRENT = re.compile(r"mamba|rwkv|jamba|hyena|retnet|griffin|zamba|xlstm", re.IGNORECASE)
"""Names of families whose layers, or most of them, are recurrent."""


def as_attention(name: str) -> tuple[str, ...]:
    """What is assumed of a model that is built from its parameters alone though its layers are recurrent."""
    return ("its recurrent layers are taken for attention (assumed)",) if _RECURRENT.search(name) else ()


def meant_by(source: str, name: str) -> str:
    """The model that a source means by a name."""
    for where, pattern, meant in SOURCE_NAMES:
        if where in source and re.search(pattern, name, re.IGNORECASE):
            return meant
    return name


def refuse_unsupported(name: str) -> None:
    """Raises `InputError` naming the family when a model cell is no language model that can be built."""
    if not name.strip():
        raise InputError("the model is not stated", field="model")
    for pattern, family in NOT_LANGUAGE:
        if re.search(pattern, name, re.IGNORECASE):
            raise InputError(f"'{name}': {family} models are not predicted yet", field="model")
    if re.search(r"size not stated|\bexample\b", name, re.IGNORECASE):
        raise InputError(f"'{name}': the size is not stated", field="model")


def plain_name(name: str) -> str:
    """A model cell without organisation, parentheses and words about the job.

    >>> plain_name("Llama2-70B LoRA r16")
    'Llama2-70B'
    """
    text = _TRIMMINGS.sub(" ", name.rsplit("/", 1)[-1] if re.match(r"^[\w.-]+/", name) else name)
    return re.sub(r"\s+", " ", text).strip(" -_")


def catalog_spelling(name: str) -> str:
    """The name under which the catalog may know a plain name."""
    return next((known for pattern, known in CATALOG_NAMES if re.search(pattern, name, re.IGNORECASE)), name)


def named_params(name: str) -> float | None:
    """Parameters that a name states [1], e.g. 32e9 of 'custom dense 32B model'; None when it states none.

    >>> named_params("GPT-like 1T")
    1000000000000.0
    """
    found = re.findall(r"(?<![\d.])(\d+(?:\.\d+)?)\s?([MBT])(?![a-z])", name, re.IGNORECASE)
    if not found:
        return None
    size, unit = found[0]
    return float(size) * {"m": 1e6, "b": 1e9, "t": 1e12}[unit.casefold()]
