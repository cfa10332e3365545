"""NVIDIA Dynamo: a DynamoGraphDeployment for its operator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from ridgeline.export.around.kubernetes import gpu_resource
from ridgeline.export.fleet import WHOLE, EnginePool, Fleet, tables_in
from ridgeline.export.forms import table_in
from ridgeline.export.wrapper import plain_name

_MODE = "disaggregation-mode"


@dataclass(frozen=True, kw_only=True)
class Dynamo(Fleet):
    """A `DynamoGraphDeployment` of API v1beta1: a front end, and a component of vLLM for each pool.

    Instances over several nodes have `multinode.nodeCount`. The container's arguments are vLLM's flags, less those of
    its own HTTP server.
    """

    key: ClassVar[str] = "dynamo"

    def manifest(self, pools: Sequence[EnginePool], words: Mapping[str, Any]) -> dict[str, Any]:
        """The front end and a component of each pool."""
        front = {"name": "Frontend", "type": "frontend", "replicas": 1, "podTemplate": self._pod({})}
        vendor = str(words.get("vendor", ""))
        return {
            "apiVersion": "nvidia.com/v1beta1", "kind": "DynamoGraphDeployment",
            "metadata": {"name": plain_name(str(words["model.name"]))},
            "spec": {"backendFramework": "vllm", "components": [front, *(self._worker(one, vendor) for one in pools)]},
        }  # fmt: skip

    def _pod(self, more: Mapping[str, Any]) -> dict[str, Any]:
        return {"spec": {"containers": [{"name": "main", "image": self.image, **more}]}}

    def _worker(self, pool: EnginePool, vendor: str) -> dict[str, Any]:
        mode = [] if pool.role == WHOLE else [f"--{_MODE}", pool.role]
        pod = self._pod({
            "command": ["python3", "-m", "dynamo.vllm"], "args": [*self.arguments(pool.flags), *mode],
            "resources": {"limits": {gpu_resource(vendor): str(pool.devices)}},
        })  # fmt: skip
        kind = "worker" if pool.role == WHOLE else pool.role
        several = {"multinode": {"nodeCount": pool.nodes}} if pool.nodes > 1 else {}
        name = f"Vllm{'' if pool.role == WHOLE else pool.role.title()}Worker"
        return {"name": name, "type": kind, "replicas": pool.instances, **several, "podTemplate": pod}

    def pools_in(self, document: Mapping[str, Any]) -> list[EnginePool] | None:
        """A pool of each worker; its role is its type or its flag."""
        if document.get("kind") != "DynamoGraphDeployment":
            return None
        found = []
        for one in tables_in(table_in(document, "spec").get("components")):
            container = next(iter(tables_in(table_in(table_in(one, "podTemplate"), "spec").get("containers"))), {})
            if one.get("type") not in ("worker", "prefill", "decode"):
                continue
            flags = self.flags_in(container.get("args") or [])
            mode = flags.pop(_MODE, one["type"])
            role = mode if mode in ("prefill", "decode") else WHOLE
            found.append(EnginePool(role=role, instances=one.get("replicas", 1), flags=flags))
        return found
