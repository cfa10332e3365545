"""A row of a table of measured offloading, read as a job: model, device, host, where the weights are, what ran."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from ridgeline.cost.formats import by_bits, form
from ridgeline.errors import InputError
from ridgeline.facts.readings import reading
from ridgeline.facts.records import Accelerator
from ridgeline.graph.model import Model
from ridgeline.serving.hybrid_placement import OffloadMethod
from ridgeline.validate.machines import Machines, find, machines, without_accelerator
from ridgeline.validate.offload_host import SIZE, HostSide, host_of, sized_bytes
from ridgeline.validate.rows import Row
from ridgeline.validate.serving_formats import ServedPrecision, precision_of
from ridgeline.validate.serving_models import model_of
from ridgeline.validate.serving_words import engine_of, metric_of, number, whole

LAYERWISE_PREFILL = re.compile(r"layerwise GPU prefill", re.IGNORECASE)
WRITTEN_BITS = re.compile(r"\((\d(?:\.\d{1,2})?) ?bit\)")
HOST_LINK = re.compile(
    r"PCIe ?(?:Gen ?)?([345])\b(?:\.0)?(?: ?x ?(1|2|4|8|16)\b)?(?! ?(?:x ?\d+ )?(?:NVMe|SSD))", re.IGNORECASE
)
NO_DEVICE = ("none", "", "cpu", "-")
USUAL_DEVICE = "RTX-4090"  # where a row counts accelerators and names none (assumed)
KT_FORMATS = ("int8 cpu / int4 gpu",)


@dataclass(frozen=True, kw_only=True)
class OffloadedJob:
    """What a row of an offloading table ran and measured.

    `part` is None where no accelerator took part, `host` where the row names no processor. `device_share` [1] is the
    part of the experts or layers (`share_of`) that the device holds, None when memory decides. `experts_used` [1]
    is the number of experts that one token takes where it is not the model's own. `layerwise_prefill` says that long
    prompts run on the device, one layer's experts copied at a time. Formats, lengths and `unit_si` are those of
    `ServedJob`; `host_weights` is the host's format where it is another, `accepted` the share of drafts kept.
    """

    model: Model
    part: Accelerator | None
    devices: int
    host: HostSide | None
    technique: OffloadMethod
    device_share: float | None
    share_of: str
    experts_used: int | None
    layerwise_prefill: bool
    engine: str
    version: str
    weights: str
    host_weights: str
    kv: str
    batch: int | None
    prompt_tokens: float | None
    output_tokens: float | None
    context_tokens: float | None
    metric: str
    statistic: str
    speculative: float | None
    accepted: float | None
    assumptions: tuple[str, ...]
    unit_si: float
    key: tuple[str, ...]


def read_offloaded(row: Row, source: Machines | None = None) -> OffloadedJob:
    """The job of an offloading row; raises a Ridgeline error with the reason when it cannot be read."""
    if row.problem is not None:
        raise InputError(row.problem)
    metric = metric_of(row)
    technique = _technique(row)
    model, said = _model(row)
    part, about_part = _part(row, source or machines())
    host = host_of(row)
    if host is None and part is None:
        raise InputError("neither a processor nor an accelerator is named", field="cpu")
    engine = engine_of(row)[0]
    precision, host_weights = _precision(row, model, part, engine)
    devices, about_count = _devices(row, part)
    share, share_of = _share(row, technique, model, form(precision.weights).weight_bytes if precision.weights else 2.0)
    speculative, accepted = _draft(row.text("technique"))
    about = (about_part, about_count, precision.assumptions, () if host is None else host.assumptions)
    return OffloadedJob(
        model=model,
        part=part,
        devices=devices,
        host=host,
        technique=technique,
        device_share=share,
        share_of=share_of,
        experts_used=_experts_used(row, model),
        layerwise_prefill=LAYERWISE_PREFILL.search(row.text("technique")) is not None,
        engine=row.text("engine").strip()[:60] or engine,
        version=row.text("engine_version").strip()[:60],
        weights=precision.weights,
        host_weights=host_weights,
        kv=precision.kv,
        batch=whole(row, "batch"),
        prompt_tokens=number(row, "isl", zero=True),
        output_tokens=number(row, "osl", zero=True),
        context_tokens=number(row, "context_depth", zero=True),
        metric=metric.name,
        statistic=metric.statistic,
        speculative=speculative,
        accepted=accepted,
        assumptions=(*said, *(words for group in about for words in group), *_blanks(row, host)),
        unit_si=metric.unit_si,
        key=_key(row),
    )


def _technique(row: Row) -> OffloadMethod:
    technique, engine = row.text("technique").casefold(), row.text("engine").casefold()
    if not technique.strip():
        raise InputError("the technique is not stated", field="technique")
    alone = _device(row).casefold() in NO_DEVICE
    host = reading("offloading_host", words=technique) if alone else None
    if host is not None:
        return OffloadMethod(host.text)
    if re.search(r"cpu[- ]only|only (?:on )?(?:the )?cpu", technique):
        return OffloadMethod.HOST
    found = reading("offloading", words=technique, program=engine)
    if found is not None:
        return OffloadMethod(found.text)
    known = "experts on CPU, expert offload, layers streamed, -ngl N, neurons, disk offload, CPU only"
    raise InputError(f"'{technique[:60]}' is no known way of offloading; known: {known}", field="technique")


def _model(row: Row) -> tuple[Model, tuple[str, ...]]:
    name = row.text("model")
    if re.match(r"switch|nllb", name, re.IGNORECASE):
        raise InputError(f"'{name[:60]}': encoder-decoders with experts are not built yet", field="model")
    if re.match(r"deepseek-v4", name, re.IGNORECASE):
        raise InputError(f"'{name[:60]}': attention over compressed tokens is not built yet", field="model")
    return model_of(row)


def _part(row: Row, source: Machines) -> tuple[Accelerator | None, tuple[str, ...]]:
    cell = _device(row)
    if cell.casefold() in NO_DEVICE:
        return None, ()
    device = find(cell, source)
    if not row.text("gpu").strip():
        device = replace(device, assumptions=(*device.assumptions, f"accelerators not stated: {cell} assumed"))
    found = device.accelerator
    pcie = HOST_LINK.search(f"{row.text('host_mem')}; {row.text('note')}")
    if pcie:
        lanes = int(pcie[2] or 16)
        rate = {"3": 15.75e9, "4": 31.5e9, "5": 63e9}[pcie[1]] * lanes / 16
        found = replace(found, host_bytes_per_s=min(rate, found.host_bytes_per_s or rate))
        return found, (*device.assumptions, f"host link PCIe {pcie[1]}.0 x{lanes} as stated")
    return found, device.assumptions


def _device(row: Row) -> str:
    """The accelerator's name, the usual one where a row only counts them."""
    named = row.text("gpu").strip()
    return USUAL_DEVICE if not named and number(row, "n_gpu", zero=True) else named


def _precision(row: Row, model: Model, part: Accelerator | None, engine: str) -> tuple[ServedPrecision, str]:
    """Formats of device and host; '' for the host where it is the same."""
    cell = row.text("precision_weights").strip().casefold()
    anything = part or next(iter(machines().accelerators()))
    if cell in KT_FORMATS:
        return precision_of(_with(row, "int4"), model, anything, engine), "int8_wo"
    if not cell and re.search(r"ktransformers", row.text("engine"), re.IGNORECASE):
        said = "precision not stated: Q4_K_M assumed, the usual file of KTransformers"
        found = precision_of(_with(row, "Q4_K_M"), model, anything, engine)
        return replace(found, assumptions=(*found.assumptions, said)), ""
    found = precision_of(row, model, anything, engine)
    bits = WRITTEN_BITS.search(row.text("precision_weights"))
    if bits and float(bits[1]) > 0:
        said = f"{bits[1]} bits a weight as stated"
        found = replace(found, weights=by_bits(float(bits[1])), assumptions=(said,))
    return found, ""


def _with(row: Row, precision: str) -> Row:
    return replace(row, cells={**row.cells, "precision_weights": precision})


def _devices(row: Row, part: Accelerator | None) -> tuple[int, tuple[str, ...]]:
    if part is None:
        return 0, ()
    cell = row.text("n_gpu").strip()
    if re.fullmatch(r"\d{1,4}\s*-\s*\d{1,4}", cell):
        return 1, (f"'{cell}' accelerators: one assumed",)
    count = whole(row, "n_gpu")
    return (1, ("number of accelerators not stated: one assumed",)) if count is None else (count, ())


def _share(row: Row, technique: OffloadMethod, model: Model, weight_bytes: float) -> tuple[float | None, str]:
    """Share of experts or layers on the device, with the word for what is shared; a weight has `weight_bytes`."""
    text = f"{row.text('technique')}; {row.text('placement')}"
    if technique in (OffloadMethod.HOST, OffloadMethod.DISK):
        return 0.0, "layers"
    experts = model.dims.get("experts")
    percent = re.search(r"(\d{1,3}(?:\.\d+)?)% of experts on (?:the )?GPU", text, re.IGNORECASE)
    if percent and float(percent[1]) <= 100:
        return float(percent[1]) / 100, "experts"
    count = re.search(r"(\d{1,5}) experts per layer on (?:the )?GPU", text, re.IGNORECASE)
    if count and isinstance(experts, int) and 0 < int(count[1]) <= experts:
        return int(count[1]) / experts, "experts"
    layers = re.search(r"(\d{1,4}) of (\d{1,4}) layers on (?:the )?GPU", text, re.IGNORECASE)
    if layers and 0 < int(layers[1]) <= int(layers[2]):
        return int(layers[1]) / int(layers[2]), "layers"
    kept = re.search(r"\b(\d{1,4}) (?:of the )?layers (?:on (?:the )?GPU|in VRAM)", text, re.IGNORECASE)
    if kept and technique in (OffloadMethod.LAYERS, OffloadMethod.STREAMED):
        return min(1.0, int(kept[1]) / len(model.graph.layers)), "layers"
    placed = _placed(text, technique, model, weight_bytes)
    if placed is not None:
        return placed
    if technique is OffloadMethod.COMPUTED and re.search(r"experts on (?:the )?(?:cpu|host)", text, re.IGNORECASE):
        return 0.0, "experts"
    whose = {OffloadMethod.COMPUTED: "experts", OffloadMethod.FETCHED: "experts", OffloadMethod.NEURONS: "neurons"}
    return None, whose.get(technique, "layers")


def _placed(text: str, technique: OffloadMethod, model: Model, weight_bytes: float) -> tuple[float, str] | None:
    """The share that llama.cpp's flags, words for a whole model or each device's gigabytes tell; None without them."""
    layers = len(model.graph.layers)
    kept = re.search(r"n[-_]cpu[-_]moe[ =]+(\d{1,4})", text, re.IGNORECASE)
    if technique is OffloadMethod.COMPUTED and kept and int(kept[1]) > 0:
        return max(0.0, 1.0 - int(kept[1]) / layers), "experts"
    if technique is OffloadMethod.COMPUTED:
        away = re.search(r"\b(\d{1,4}) ?- ?(\d{1,4}) on (?:the )?CPU", text, re.IGNORECASE)
        if away and int(away[1]) <= int(away[2]) < layers:
            return 1.0 - (int(away[2]) - int(away[1]) + 1) / layers, "experts"
        whole_layers = re.search(r"\b(\d{1,4}) (?:ffn|expert) layers on (?:the )?GPU", text, re.IGNORECASE)
        if whole_layers:
            return min(1.0, int(whole_layers[1]) / layers), "experts"
    if technique is OffloadMethod.LAYERS:
        count = re.search(r"\bngl[ =]+(\d{1,4})(?: of (\d{1,4}))?", text, re.IGNORECASE)
        if count:
            return min(1.0, int(count[1]) / max(1, int(count[2] or layers))), "layers"
    on_host = re.search(r";.*\bweights (?:on )?(?:CPU|host|NVMe|disk)\b", text, re.IGNORECASE)  # of the placement
    if technique is OffloadMethod.STREAMED and on_host:
        return 0.0, "layers"
    held = [sized_bytes(*each) for each in re.findall(rf"\bGPU\d? {SIZE}", text, re.IGNORECASE)]
    if held:
        return min(1.0, sum(held) / (model.graph.params * weight_bytes)), "layers"
    whole_model = re.search(r"\ball on (?:the )?GPU", text, re.IGNORECASE)
    return (1.0, "layers") if technique is OffloadMethod.LAYERS and whole_model else None


def _experts_used(row: Row, model: Model) -> int | None:
    """Experts that one token takes where a row says that they are not the model's own number."""
    match = re.search(r"(?:^|[, ])(\d{1,3}) experts(?! per| on)", row.text("placement"))
    if match is None or int(match[1]) < 1 or int(match[1]) == model.dims.get("top_k"):
        return None
    return int(match[1])


def _draft(technique: str) -> tuple[float | None, float | None]:
    """Draft length [token] and the share of drafts that is kept, None where nothing is drafted or said."""
    if re.search(r"speculative off", technique) or not re.search(r"eagle|nextn|mtp|specul", technique, re.IGNORECASE):
        return None, None
    depth = re.search(r"depth (\d{1,2})", technique)
    kept = re.search(r"(\d{1,3})% accept", technique)
    return float(depth[1]) if depth else 1.0, float(kept[1]) / 100 if kept else None


def _blanks(row: Row, host: HostSide | None) -> tuple[str, ...]:
    said = []
    if host is None:
        said.append("processor and host memory not stated")
    if not row.text("isl") and not row.text("osl") and not row.text("context_depth"):
        said.append("lengths not stated")
    return tuple(said)


_RUN = (
    "source", "model", "gpu", "n_gpu", "gpu_mem_gb", "cpu", "host_mem", "disk", "technique", "engine",
    "engine_version", "precision_weights", "precision_kv", "placement", "batch", "isl", "osl", "context_depth",
)  # fmt: skip


def _key(row: Row) -> tuple[str, ...]:
    """What decides the prediction: the cells of the configuration."""
    return tuple(row.text(name) for name in _RUN)


_ENGINES = re.compile(r"llama\.?cpp|ollama", re.IGNORECASE)
_ALONE = ("single-stream", "fixed-batch")


def on_processors(row: Row) -> Row | None:
    """One batch of llama.cpp or ollama on processors, as a row of an offload table; None for every other row.

    Clusters of small computers and other engines are left to be refused: nobody measured their network or products.
    """
    cell = row.text("hardware")
    alone = row.text("scenario").casefold() in _ALONE and row.text("n_devices") in ("", "1")
    if not alone or not _ENGINES.search(row.text("engine")) or re.search(r"\bcluster\b", cell, re.IGNORECASE):
        return None
    if not without_accelerator(cell):
        return None
    memory = reading("host_memory", words=cell)
    said = {
        "gpu": "none", "cpu": cell, "host_mem": "" if memory is None else memory.text,
        "technique": "CPU only", "engine": "llama.cpp", "batch": row.text("batch_or_concurrency"),
    }  # fmt: skip
    return replace(row, cells={**row.cells, **said})
