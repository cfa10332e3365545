"""Seconds of one optimizer update on one rank."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ridgeline.cost.machine import Machine
from ridgeline.graph.workload import OPTIMIZERS, PRECISIONS, Workload
from ridgeline.lower.work import Number


def optimizer_seconds(
    trained: Number, *, workload: Workload, machine: Machine, offload: Number = 0, orthogonal_flop: Number = 0.0
) -> NDArray[np.float64]:
    """Time to update `trained` numbers of one rank [s].

    Memory-bound: per number the gradient is read twice (norm, update) and cleared, states and the
    master copy are read and written, the computed copy is written. With `offload` (or paged
    states) the states live in host memory: the update runs at the host's memory rate shared by the
    devices of the node, and gradients and weights cross the host link, one after the other. Muon adds
    its Newton-Schulz iterations, `orthogonal_flop` each, on the matrix units.
    Lower bound: no launch cost. Source: Kingma and Ba 2015 (arXiv:1412.6980), Rajbhandari et al.
    2020 (arXiv:1910.02054) for the state sizes. Evidence: derived.
    """
    precision, optimizer = PRECISIONS[workload.precision], OPTIMIZERS[workload.optimizer]
    states = optimizer.state_bytes + precision.master_bytes
    moved = 3 * precision.grad_bytes + 2 * states + precision.weight_bytes * (1 if precision.master_bytes else 2)
    device_s = np.asarray(trained) * moved / machine.device.memory_bytes_per_s
    host = machine.cluster.host
    sharing = max(1, min(host.devices, machine.cluster.count))
    host_s = np.asarray(trained) * (
        (2 * states + precision.grad_bytes + precision.weight_bytes) * sharing / host.dram_bytes_per_s
        + (precision.grad_bytes + precision.weight_bytes) / host.device_bytes_per_s
    )
    away = np.asarray(offload).astype(bool) | optimizer.paged
    seconds = np.where(away, host_s, device_s)
    if optimizer.matrix_iterations:
        rate = machine.device.matrix_rate("bf16" if "bf16" in machine.device.matrix else "fp32")
        seconds = seconds + np.asarray(orthogonal_flop) * optimizer.matrix_iterations / rate
    return np.asarray(seconds, dtype=np.float64)
