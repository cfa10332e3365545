"""Ray Serve LLM: a KubeRay RayService whose config builds vLLM deployments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any, ClassVar

from ridgeline.export.around.kubernetes import gpu_resource
from ridgeline.export.fleet import WHOLE, EnginePool, Fleet, tables_in
from ridgeline.export.forms import parsed, table_in, yaml_text
from ridgeline.export.wrapper import plain_name

_CONFIG = "serveConfigV2"
_RAY = "2.52.0"


@dataclass(frozen=True, kw_only=True)
class RayLLM(Fleet):
    """A KubeRay `RayService` with Ray Serve's config inside: an `LLMConfig` for one pool, two for prefill and decode.

    vLLM's flags are `engine_kwargs`, with underscores. The Ray cluster has as many GPU nodes as all instances need.
    """

    key: ClassVar[str] = "ray-llm"
    image: ClassVar[str] = f"rayproject/ray-llm:{_RAY}-py311-cu128"

    def manifest(self, pools: Sequence[EnginePool], words: Mapping[str, Any]) -> dict[str, Any]:
        """The service: Serve's config as a text, and the cluster under it."""
        args: dict[str, Any]
        if pools[0].role == WHOLE:
            builder, args = "build_openai_app", {"llm_configs": [_config(pools[0], words)]}
        else:
            builder, args = "build_pd_openai_app", {f"{one.role}_config": _config(one, words) for one in pools}
        serve = {"name": "llms", "route_prefix": "/", "import_path": f"ray.serve.llm:{builder}", "args": args}
        cluster = self._cluster(pools, str(words.get("vendor", "")))
        return {
            "apiVersion": "ray.io/v1", "kind": "RayService",
            "metadata": {"name": plain_name(str(words["model.name"]))},
            "spec": {_CONFIG: yaml_text({"applications": [serve]}), "rayClusterConfig": cluster},
        }  # fmt: skip

    def _cluster(self, pools: Sequence[EnginePool], vendor: str) -> dict[str, Any]:
        """A head without devices, and nodes with as many as an instance takes on one."""
        inside = max(one.devices for one in pools)
        nodes = ceil(sum(one.instances * one.nodes * one.devices for one in pools) / inside)
        head = {"name": "ray-head", "image": self.image}
        worker = {
            "name": "ray-worker", "image": self.image, "resources": {"limits": {gpu_resource(vendor): str(inside)}}
        }  # fmt: skip
        group = {
            "groupName": "gpu", "replicas": nodes, "minReplicas": nodes, "maxReplicas": nodes,
            "rayStartParams": {"num-gpus": str(inside)}, "template": {"spec": {"containers": [worker]}},
        }  # fmt: skip
        start = {"num-cpus": "0", "num-gpus": "0"}
        top = {"rayStartParams": start, "template": {"spec": {"containers": [head]}}}
        return {"rayVersion": _RAY, "headGroupSpec": top, "workerGroupSpecs": [group]}

    def opened(self, document: Mapping[str, Any]) -> Mapping[str, Any]:
        """The service with Serve's config read; a file that is Serve's config alone stays as it is."""
        spec = table_in(document, "spec")
        if not isinstance(spec.get(_CONFIG), str):
            return document
        return {**document, "spec": {**spec, _CONFIG: parsed(spec[_CONFIG], ".yaml", self.file)}}

    def pools_in(self, document: Mapping[str, Any]) -> list[EnginePool] | None:
        """The pools of the first application that serves a model."""
        if document.get("kind") != "RayService" and "applications" not in document:
            return None
        held = table_in(table_in(self.opened(document), "spec"), _CONFIG) or document
        for one in tables_in(held.get("applications")):
            args = table_in(one, "args")
            configs = {role: table_in(args, f"{role}_config") for role in ("prefill", "decode")}
            if all(configs.values()):
                return [_pool_of(role, config) for role, config in configs.items()]
            for config in tables_in(args.get("llm_configs")):
                return [_pool_of(WHOLE, config)]
        return None


def _config(pool: EnginePool, words: Mapping[str, Any]) -> dict[str, Any]:
    flags = {name.replace("-", "_"): value for name, value in pool.flags.items() if name != "model"}
    loading = {"model_id": words["model.name"], "model_source": words["model.id"]}
    return {
        "model_loading_config": loading, "deployment_config": {"num_replicas": pool.instances}, "engine_kwargs": flags
    }  # fmt: skip


def _pool_of(role: str, config: Mapping[str, Any]) -> EnginePool:
    loading = table_in(config, "model_loading_config")
    flags = {name.replace("_", "-"): value for name, value in table_in(config, "engine_kwargs").items()}
    source = loading.get("model_source") or loading.get("model_id", "")
    count = table_in(config, "deployment_config").get("num_replicas", 1)
    return EnginePool(role=role, instances=count if isinstance(count, int) else 1, flags={"model": source, **flags})
