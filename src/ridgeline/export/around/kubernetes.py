"""Kubernetes: plain manifests, with nothing installed in the cluster but a device plugin."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from ridgeline.errors import InputError
from ridgeline.export.forms import yaml_text
from ridgeline.export.target import Target
from ridgeline.export.wrapper import PORT, ClusterRun, Wrapper

GPU_RESOURCES = {"amd": "amd.com/gpu", "intel": "gpu.intel.com/i915", "google": "google.com/tpu"}
"""What a device plugin calls a vendor's devices; NVIDIA's is the default."""
_FILES = "/etc/run"


@dataclass(frozen=True, kw_only=True)
class Kubernetes(Wrapper):
    """A ConfigMap of the files, and a Deployment with a Service that serves them, or an indexed Job that trains.

    Containers hold whole devices and shared memory in RAM; a server has probes that wait half an hour for weights. An
    instance over several nodes needs more than a Deployment: llm-d or Dynamo.
    """

    key: ClassVar[str] = "kubernetes"
    source: ClassVar[tuple[str, ...]] = ("kubernetes",)
    title: ClassVar[str] = "Kubernetes"
    file: ClassVar[str] = "manifest.yaml"
    start: ClassVar[str] = "kubectl apply -f {file}"

    def script(self, one: Target, job: ClusterRun) -> str:
        """The manifests, one YAML document each."""
        job = replace(job, launch=_placed(job))
        files = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": _about(job), "data": dict(job.files)}
        if not job.serves:
            return yaml_text_of([files, *_job(one, job)])
        if job.nodes > 1:
            said = f"an instance over {job.nodes} nodes is no Deployment; say --to llm-d, dynamo or kserve, or more"
            raise InputError(f"{said} devices a node", field="--around", value=job.nodes)
        return yaml_text_of([files, *_deployment(one, job)])

    def notes(self, one: Target, job: ClusterRun) -> tuple[str, ...]:
        """The image, where the program's makers publish none."""
        return () if one.image else (f"put your own image in place of IMAGE in {self.file}",)


def yaml_text_of(documents: list[dict[str, Any]]) -> str:
    """Several manifests as one YAML text."""
    return "---\n".join(yaml_text(document) for document in documents)


def gpu_resource(vendor: str) -> str:
    """What Kubernetes calls a vendor's devices."""
    return GPU_RESOURCES.get(vendor.casefold(), "nvidia.com/gpu")


def _about(job: ClusterRun, name: str = "") -> dict[str, Any]:
    return {"name": name or job.name, "labels": {"app": job.name}}


def _placed(job: ClusterRun) -> str:
    """A command with the files where the pod has them."""
    return " ".join(f"{_FILES}/{part}" if part in job.files else part for part in job.launch.split(" "))


def _pod(one: Target, job: ClusterRun, **of_container: Any) -> dict[str, Any]:
    """The pod of a rank's node: the files at hand, whole devices, shared memory in RAM."""
    container = {
        "name": "main", "image": one.image or "IMAGE",
        "command": ["sh", "-c", job.launch], **of_container,
        "resources": {"limits": {gpu_resource(job.vendor): str(job.devices)}},
        "volumeMounts": [{"name": "files", "mountPath": _FILES}, {"name": "shm", "mountPath": "/dev/shm"}],
    }  # fmt: skip
    volumes = [
        {"name": "files", "configMap": {"name": job.name}}, {"name": "shm", "emptyDir": {"medium": "Memory"}}
    ]  # fmt: skip
    return {"containers": [container], "volumes": volumes}


def _deployment(one: Target, job: ClusterRun) -> list[dict[str, Any]]:
    alive = {"httpGet": {"path": "/health", "port": "http"}}
    pod = _pod(
        one, job, ports=[{"name": "http", "containerPort": one.port}],
        startupProbe={**alive, "periodSeconds": 10, "failureThreshold": 180},
        readinessProbe={**alive, "periodSeconds": 5}, livenessProbe={**alive, "periodSeconds": 10},
    )  # fmt: skip
    spec = {
        "replicas": job.copies, "selector": {"matchLabels": {"app": job.name}},
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}},
        "template": {"metadata": {"labels": {"app": job.name}}, "spec": pod},
    }  # fmt: skip
    service = {"selector": {"app": job.name}, "ports": [{"name": "http", "port": 80, "targetPort": "http"}]}
    return [
        {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": _about(job), "spec": spec},
        {"apiVersion": "v1", "kind": "Service", "metadata": _about(job), "spec": service},
    ]


def _job(one: Target, job: ClusterRun) -> list[dict[str, Any]]:
    several = job.nodes > 1
    rank = {"fieldRef": {"fieldPath": "metadata.annotations['batch.kubernetes.io/job-completion-index']"}}
    env = [
        {"name": "MASTER_ADDR", "value": f"{job.name}-0.{job.name}"}, {"name": "NODE_RANK", "valueFrom": rank}
    ] if several else []  # fmt: skip
    pod = {**_pod(one, job, **({"env": env} if several else {})), "restartPolicy": "Never"}
    if several:
        pod["subdomain"] = job.name
    spec: dict[str, Any] = {
        "backoffLimit": 0, "completions": job.nodes, "parallelism": job.nodes, "completionMode": "Indexed",
        "template": {"metadata": {"labels": {"app": job.name}}, "spec": pod},
    }  # fmt: skip
    if job.wall_s is not None:
        spec["activeDeadlineSeconds"] = 3600 * -int(-job.wall_s // 3600)
    found = [{"apiVersion": "batch/v1", "kind": "Job", "metadata": _about(job), "spec": spec}]
    if several:  # a name for each rank's pod, by which others find the first
        meet = {"clusterIP": "None", "selector": {"app": job.name}, "ports": [{"name": "rendezvous", "port": PORT}]}
        found.append({"apiVersion": "v1", "kind": "Service", "metadata": _about(job), "spec": meet})
    return found
