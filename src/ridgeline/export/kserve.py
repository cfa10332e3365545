"""KServe: an LLMInferenceService."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from ridgeline.errors import InputError
from ridgeline.export.around.kubernetes import gpu_resource
from ridgeline.export.fleet import WHOLE, EnginePool, Fleet, tables_in
from ridgeline.export.forms import table_in
from ridgeline.export.wrapper import plain_name

_FLAGS = "VLLM_ADDITIONAL_ARGS"


@dataclass(frozen=True, kw_only=True)
class KServe(Fleet):
    """An `LLMInferenceService` of API v1alpha2: `spec` is the decode pool, or the only one, `spec.prefill` the other.

    vLLM's flags are the variable that KServe's own templates add to its command line. An instance stays on one node.
    """

    key: ClassVar[str] = "kserve"

    def manifest(self, pools: Sequence[EnginePool], words: Mapping[str, Any]) -> dict[str, Any]:
        """The service with a route, a gateway and a scheduler as KServe has them."""
        name, vendor = str(words["model.id"]), str(words.get("vendor", ""))
        spec: dict[str, Any] = {
            "model": {"uri": f"hf://{name}", "name": name}, "router": {"route": {}, "gateway": {}, "scheduler": {}}
        }  # fmt: skip
        for one in pools:
            if one.role == "prefill":
                spec["prefill"] = self._workload(one, vendor)
            else:
                spec |= self._workload(one, vendor)
        return {
            "apiVersion": "serving.kserve.io/v1alpha2", "kind": "LLMInferenceService",
            "metadata": {"name": plain_name(str(words["model.name"]))}, "spec": spec,
        }  # fmt: skip

    def _workload(self, pool: EnginePool, vendor: str) -> dict[str, Any]:
        if pool.nodes > 1:
            said = f"{self.title} starts an instance on one node here, this takes {pool.nodes}; try --to dynamo"
            raise InputError(said, field="--to", value=self.key)
        flags = {name: value for name, value in pool.flags.items() if name != "model"}
        container = {
            "name": "main", "env": [{"name": _FLAGS, "value": shlex.join(self.arguments(flags))}],
            "resources": {"limits": {gpu_resource(vendor): str(pool.devices)}},
        }  # fmt: skip
        return {"replicas": pool.instances, "template": {"containers": [container]}}

    def pools_in(self, document: Mapping[str, Any]) -> list[EnginePool] | None:
        """The spec's own pool, and prefill's."""
        if document.get("kind") != "LLMInferenceService":
            return None
        spec = table_in(document, "spec")
        model = table_in(spec, "model")
        name = str(model.get("uri", "")).removeprefix("hf://") or model.get("name", "")
        held = {"prefill": table_in(spec, "prefill"), "decode": spec} if "prefill" in spec else {WHOLE: spec}
        found = []
        for role, workload in held.items():
            containers = tables_in(table_in(workload, "template").get("containers"))
            env = [one for each in containers for one in tables_in(each.get("env")) if one.get("name") == _FLAGS]
            flags = self.flags_in(shlex.split(str(env[0].get("value", ""))) if env else [])
            flags = {**_degrees(table_in(workload, "parallelism")), **flags}
            found.append(EnginePool(role=role, instances=workload.get("replicas", 1), flags={"model": name, **flags}))
        return found


def _degrees(parallel: Mapping[str, Any]) -> dict[str, Any]:
    """Flags that KServe's templates write from `parallelism`."""
    names = {"tensor": "tensor-parallel-size", "pipeline": "pipeline-parallel-size", "data": "data-parallel-size"}
    found = {flag: parallel[ours] for ours, flag in names.items() if ours in parallel}
    return found | ({"enable-expert-parallel": True} if parallel.get("expert") is True else {})
