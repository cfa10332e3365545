"""A device and a network with round numbers, so that prices can be worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ridgeline.cost.machine import Device, Machine
from ridgeline.facts.records import Accelerator, Cluster, Evidence, Host, Tier


@pytest.fixture
def accelerator() -> Accelerator:
    """Four SMs at 1 GHz: 4 TFLOP/s of bf16, 1 TB/s, rated at 400 W."""
    return Accelerator(
        name="Toy",
        vendor="NVIDIA",
        architecture="ampere",
        year=None,
        peak_flop_per_s={"bf16": 4e12},
        vector_flop_per_s=1e12,
        memory_bytes=16e9,
        memory_bytes_per_s=1e12,
        l2_bytes=None,
        sm_count=4,
        boost_hz=1e9,
        link_name=None,
        link_bytes_per_s=None,
        host_bytes_per_s=None,
        tdp_w=400.0,
    )


@pytest.fixture
def device(accelerator: Accelerator) -> Device:
    """1 TFLOP/s of bf16 on each of 4 SMs, 1 TB/s of which elementwise kernels get half."""
    return Device(
        accelerator=accelerator,
        matrix={"bf16": 4e12, "fp32": 1e12, "tf32": 1e12},
        vector_flop_per_s=1e12,
        memory_bytes_per_s=1e12,
        stream_share=0.5,
        l2_bytes=0.0,
        sm_count=4,
        clock_hz=1e9,
        evidence={"matrix.bf16": Evidence.MEASURED, "hbm": Evidence.DATASHEET},
    )


@pytest.fixture
def machine(device: Device) -> Machine:
    """Sixteen devices: nodes of 4 at 80 GB/s and 1 us; between them 10 GB/s x 0.5 / 2 = 2.5 GB/s a device and 5 us."""
    tiers = (
        Tier(name="inside", size=4, bytes_per_s=100e9, latency_s=1e-6, topology="switch"),
        Tier(name="between", size=16, bytes_per_s=10e9, latency_s=5e-6, topology="switch", oversubscription=2.0),
    )
    host = Host(
        devices=4,
        dram_bytes=1e12,
        dram_bytes_per_s=100e9,
        device_bytes_per_s=10e9,
        nvme_bytes=0.0,
        nvme_bytes_per_s=0.0,
        idle_w=200.0,
    )
    cluster = Cluster(name="16xToy", accelerator=device.accelerator, count=16, tiers=tiers, host=host)
    return Machine(
        cluster=cluster,
        device=device,
        tiers=tiers,
        efficiency=(0.8, 0.5),
        in_network_efficiency=(0.7, 0.5),
        link_evidence=Evidence.ASSUMED,
    )


@pytest.fixture
def reducing(machine: Machine) -> Machine:
    """The same machine with a switch inside the node that reduces at 70 GB/s."""
    inner = replace(machine.tiers[0], in_network_reduction=True)
    return replace(machine, tiers=(inner, *machine.tiers[1:]))
