"""llama.cpp: flags of `llama-server`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from ridgeline.export.target import Document, Target, Told, Words

_ALL = 999  # layers on devices: more than any model has
_FORMS = {"f16": "bf16", "f32": "bf16", "q8_0": "fp8"}
_GGUF = re.compile(r"^(?:.*/)?(?P<name>.+?)[-.](?P<form>i?q\d\w*|bf16|f16|f32)\.gguf$", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class LlamaCpp(Target):
    """A shell script of `llama-server`, whose flags these are.

    The model is a GGUF file whose name says its format: `NAME-q4_k.gguf`; eight bits are `q8_0`. Devices divide layers
    (`pp`, split mode layer) or each tensor (`tp`, split mode tensor). The context is of all slots together. Experts of
    the first layers on the host are `offload = "computed"` with the share on devices, layers on the host `offload =
    "layers"`. It has no memory fraction: the cache is as long as the context.
    """

    key: ClassVar[str] = "llamacpp"

    def finished(self, document: Document, words: Mapping[str, Any], release: str) -> Told:
        """The file of weights, how devices divide it, the context of all slots, and what lies on the host."""
        weights = str(words.get("plan.weights") or words.get("model.weights") or "bf16")
        weights = "q8_0" if weights.startswith("fp8") else weights
        document["model"] = f"{words.get('model.name', 'model')}-{weights}.gguf"
        said = {"plan.weights"}
        slots = words.get("plan.max_seqs", 1)
        if "workload.longest" in words:
            document["ctx-size"] = words["workload.longest"] * slots
        tp, pp = words.get("plan.tp", 1), words.get("plan.pp", 1)
        if tp == 1 or pp == 1:
            said |= {"plan.tp", "plan.pp"}
            document["split-mode"] = "tensor" if tp > 1 else "layer" if pp > 1 else "none"
            if tp * pp > 1:
                document["tensor-split"] = ",".join(["1"] * (tp * pp))
        return document, said | _offloaded(document, words)

    def understood(self, words: Words, fields: Mapping[str, Any]) -> Told:
        """The same backwards; how many layers the model has is looked up."""
        named = _GGUF.match(str(fields.get("model", "")))
        if named:
            form = named["form"].casefold()
            form = re.sub(r"^(q\d_k)_[sml]$", r"\1", form)
            words |= {"model.id": named["name"], "plan.weights": _FORMS.get(form, form)}
        slots = words.get("plan.max_seqs", 1)
        if isinstance(fields.get("ctx-size"), int) and fields["ctx-size"] > 0:
            words["workload.longest"] = fields["ctx-size"] // max(slots, 1)
        devices = len(str(fields.get("tensor-split", "1")).split(","))
        mode = fields.get("split-mode", "layer")
        words["plan.tp"], words["plan.pp"] = (devices, 1) if mode in ("tensor", "row") else (1, devices)
        words |= _on_host(fields, str(words.get("model.id", "")))
        return words, {"model", "tensor-split", "split-mode", "gpu-layers", "n-cpu-moe", "cpu-moe"}


def _offloaded(document: dict[str, Any], words: Mapping[str, Any]) -> set[str]:
    """Layers, or experts of layers, that processors compute; the words that this said."""
    document["gpu-layers"] = _ALL
    layers, share = words.get("model.layers"), words.get("plan.device_share")
    match words.get("plan.offload"):
        case "computed" if share is None:
            document["cpu-moe"] = True
        case "computed" if share is not None and layers:
            document["n-cpu-moe"] = round((1.0 - share) * layers)
        case "layers" if share is not None and layers:
            document["gpu-layers"] = round(share * layers)
        case "host":
            document["gpu-layers"] = 0
        case _:
            return set()
    return {"plan.offload", "plan.device_share"}


def _on_host(fields: Mapping[str, Any], model: str) -> Words:
    """What processors compute, in our words; nothing where all is on devices or the model is not known."""
    if fields.get("cpu-moe"):
        return {"plan.offload": "computed"}
    layers = _layers(model)
    on_devices = fields.get("gpu-layers")
    if on_devices == 0:
        return {"plan.offload": "host"}
    if layers and isinstance(fields.get("n-cpu-moe"), int) and 0 < fields["n-cpu-moe"] <= layers:
        return {"plan.offload": "computed", "plan.device_share": 1.0 - fields["n-cpu-moe"] / layers}
    if layers and isinstance(on_devices, int) and 0 < on_devices < layers:
        return {"plan.offload": "layers", "plan.device_share": on_devices / layers}
    return {}


def _layers(model: str) -> int:
    """Layers of a model of the catalog [1], 0 where it is not there."""
    from ridgeline.graph.load import catalog, load

    return len(load(model).graph.layers) if model.casefold() in catalog() else 0
