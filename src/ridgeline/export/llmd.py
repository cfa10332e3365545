"""llm-d: values of the modelservice Helm chart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any, ClassVar

from ridgeline.errors import InputError
from ridgeline.export.fleet import WHOLE, EnginePool, Fleet, tables_in
from ridgeline.export.forms import table_in
from ridgeline.export.wrapper import plain_name

_PARALLEL = {"tensor": "tensor-parallel-size", "data": "data-parallel-size"}
_TYPES = {"amd": "amd", "intel": "intel-gaudi", "google": "google"}
_OWN = ("model", "pipeline-parallel-size", *_PARALLEL.values())


@dataclass(frozen=True, kw_only=True)
class LlmD(Fleet):
    """Values of llm-d's modelservice chart: `decode` holds one pool, `prefill` the other.

    The chart writes vLLM's tensor and data degrees from `parallelism`; a tensor group stays in a node, and a pipeline
    has no field. Data ranks over several nodes are workers of a LeaderWorkerSet.
    """

    key: ClassVar[str] = "llm-d"

    def command(self, words: Mapping[str, Any]) -> str:
        """The chart's installation under the model's name."""
        return self.start.format(name=plain_name(str(words["model.name"])), file=self.file)

    def manifest(self, pools: Sequence[EnginePool], words: Mapping[str, Any]) -> dict[str, Any]:
        """The values; one pool is the chart's decode."""
        name = str(words["model.id"])
        found: dict[str, Any] = {
            "multinode": any(one.nodes > 1 for one in pools),
            "modelArtifacts": {"name": name, "uri": f"hf://{name}", "size": f"{_disk_gib(words)}Gi"},
            "accelerator": {"type": _TYPES.get(str(words.get("vendor", "")).casefold(), "nvidia")},
            "routing": {"servicePort": 8000, "proxy": {"enabled": len(pools) > 1}},
            "prefill": {"create": False},
        }  # fmt: skip
        return found | {"decode" if one.role == WHOLE else one.role: self._pool(one) for one in pools}

    def _pool(self, pool: EnginePool) -> dict[str, Any]:
        flags = dict(pool.flags)
        tensor, data = (int(flags.get(name, 1)) for name in _PARALLEL.values())
        if int(flags.get("pipeline-parallel-size", 1)) > 1:
            raise InputError(f"{self.title} has no pipeline degree; say --pp 1, or --to dynamo", field="--pp")
        if data % pool.nodes:
            said = f"{self.title} keeps a tensor group in one node, {tensor} is over {pool.nodes}; try --to dynamo"
            raise InputError(said, field="--tp", value=tensor)
        parallel = {"tensor": tensor, "data": data, "dataLocal": data // pool.nodes, "workers": pool.nodes}
        rest = {name: value for name, value in flags.items() if name not in _OWN}
        container = {
            "name": "vllm", "image": self.image, "modelCommand": "vllmServe", "args": self.arguments(rest),
            "mountModelVolume": True,
        }  # fmt: skip
        return {"create": True, "replicas": pool.instances, "parallelism": parallel, "containers": [container]}

    def pools_in(self, document: Mapping[str, Any]) -> list[EnginePool] | None:
        """Decode's pool, and prefill's where it is made."""
        if "modelArtifacts" not in document:
            return None
        model = table_in(document, "modelArtifacts")
        uri = str(model.get("uri", ""))
        name = uri.removeprefix("hf://") if uri.startswith("hf://") and "{{" not in uri else model.get("name", "")
        held = {role: table_in(document, role) for role in ("prefill", "decode")}
        made = [role for role, pool in held.items() if pool and pool.get("create", True)]
        found = []
        for role in made:
            pool = held[role]
            container = next(iter(tables_in(pool.get("containers"))), {})
            parallel = {flag: int(table_in(pool, "parallelism").get(ours, 1)) for ours, flag in _PARALLEL.items()}
            flags = {"model": name, **parallel, **self.flags_in(container.get("args") or [])}
            found.append(
                EnginePool(role=role if len(made) > 1 else WHOLE, instances=pool.get("replicas", 1), flags=flags)
            )
        return found


def _disk_gib(words: Mapping[str, Any]) -> int:
    """What the weights take on disk at 16 bits, an upper bound of narrower checkpoints [GiB]."""
    return ceil(2.0 * float(words.get("model.params", 0)) / 2**30) + 1
