"""Rows of kernels and collectives, against hand-worked times and against the operator command's prices."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.cost.answer import Cost, Question
from ridgeline.cost.machine import Device, machine
from ridgeline.errors import DomainError, InputError
from ridgeline.facts.clusters import cluster
from ridgeline.facts.fits import own_fits
from ridgeline.facts.mechanisms import constant
from ridgeline.facts.records import Accelerator, Evidence
from ridgeline.facts.transfer import mechanism_spread, source_spread
from ridgeline.predict.operator import operator_cost
from ridgeline.validate.check import check
from ridgeline.validate.operator_cells import Priced, sizes
from ridgeline.validate.operators import SUSTAINED, TABULATED, own_source
from ridgeline.validate.rows import Row

KERNEL = ("id", "op", "shape", "dtype", "hardware", "library", "metric", "value", "unit", "source", "confidence")
GROUP = (
    *("id", "op", "bytes", "n_devices", "n_nodes", "topology", "hardware", "library", "metric", "value", "unit"),
    "notes",
)
GAP = constant("launch.device")
H100 = machine(cluster("1xH100-SXM")).device
MI300X = machine(cluster("1xMI300X")).device  # no kernel of which was fitted


def mechanism_alone(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Only the formulas on sustained rates answer, as where no kernel of any device was fitted."""

    def none(question: Question, part: Accelerator, **options: object) -> Cost:
        raise DomainError("no fits")

    monkeypatch.setattr("ridgeline.cost.price_list.laddered", none)
    return monkeypatch


def never(*arguments: object) -> Any:
    raise AssertionError("rows of operators need no plan")


def answers(path: Path, columns: tuple[str, ...], *rows: dict[str, str]) -> list[dict[str, Any]]:
    base = {"metric": "latency", "unit": "ms", "value": "1", "hardware": "H100 SXM5 80GB", "confidence": "high"}
    lines = ["\t".join(columns)]
    lines += ["\t".join((base | row).get(column, "") for column in columns) for row in rows]
    file = path / "rows.tsv"
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    report = check(file, completer=never, predictor=never, strict=True)
    json.dumps(report.as_json(), allow_nan=False)
    return list(report.rows)


def kernel(path: Path, op: str, shape: str, dtype: str = "bfloat16", **cells: str) -> dict[str, Any]:
    (row,) = answers(path, KERNEL, {"op": op, "shape": shape, "dtype": dtype, **cells})
    assert row["status"] == "scored", row["reason"]
    return row


def group(path: Path, op: str, size: int | str, devices: int, nodes: int = 1, **cells: str) -> dict[str, Any]:
    words = {"op": op, "bytes": str(size), "n_devices": str(devices), "n_nodes": str(nodes)}
    (row,) = answers(path, GROUP, {**words, "topology": "NVSwitch", "library": "nccl-tests", **cells})
    assert row["status"] == "scored", row["reason"]
    return row


def milliseconds(kind: str, shape: str, on: str = "H100-SXM", dtype: str = "bf16", **options: Any) -> float:
    return operator_cost(kind, shape, dtype, cluster(on), **options).seconds * 1e3


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("m=64 n=8192 k=8192", {"m": 64, "n": 8192, "k": 8192}),
        ("m,n,k=2048,5120,6144", {"m": 2048, "n": 5120, "k": 6144}),
        ("m=n=k=8000", {"m": 8000, "n": 8000, "k": 8000}),
        ("512 x 16 x 4096", {"m": 512, "n": 16, "k": 4096}),
        ("W=14 H=7 pad_w=1 opA=N causal=False", {"w": 14, "h": 7, "pad_w": 1}),
        ("not stated in the table", {}),
    ],
)
def test_shapes_are_read_as_sources_write_them(text: str, found: dict[str, float]) -> None:
    assert sizes(text) == found


@given(st.text(max_size=60))
def test_any_text_is_a_shape_or_a_named_error(text: str) -> None:
    try:
        found = sizes(text)
    except InputError:
        found = {}
    assert all(0 <= value <= 2.0**40 for value in found.values())


def test_a_product_is_the_operator_command_s_in_every_unit(tmp_path: Path) -> None:
    wanted, shape = milliseconds("gemm", "4096x8192x2048"), "m=4096 n=8192 k=2048"
    found = kernel(tmp_path, "gemm", shape)
    assert (found["predicted"], found["scenario"]) == (pytest.approx(wanted), "gemm")
    assert found["low"] < found["predicted"] < found["high"]
    rate = kernel(tmp_path, "gemm", shape, metric="tflops", unit="TFLOPs/s", value="500")
    assert rate["predicted"] == pytest.approx(2 * 4096 * 8192 * 2048 / wanted * 1e3 / 1e12)
    assert rate["high"] / rate["predicted"] == pytest.approx(found["predicted"] / found["low"])
    assert rate["ape"] == pytest.approx(abs(rate["predicted"] - 500) / 500)


@pytest.mark.parametrize(("device", "engine"), [(MI300X, "TRTLLM 1.3.0rc20 torch_flow"), (H100, "vLLM 0.24.0")])
def test_a_serving_layer_pays_the_cast_that_a_library_s_product_does_not(
    tmp_path: Path, device: Device, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def priced(library: str) -> float:
        found = kernel(tmp_path, "gemm", shape, "fp8", library=library, hardware=device.accelerator.name)
        return float(found["predicted"])

    shape, moved = "m=8192 n=8192 k=8192", 8192 * 8192 * 3  # 16-bit activations in, 8-bit ones out
    if device is MI300X:
        mechanism_alone(monkeypatch)
    cast = (priced(engine) - priced("DeepGEMM")) / 1e3
    if device is MI300X:
        assert cast == pytest.approx(moved / (device.memory_bytes_per_s * device.stream_share) + device.kernel_s)
    else:
        assert moved / device.accelerator.memory_bytes_per_s < cast < 3 * moved / device.memory_bytes_per_s


def test_small_weights_are_read_at_their_own_size(tmp_path: Path) -> None:
    moved = 16384 * 16384 * (0.5 + 1 / 32) + 2 * 16384 * 2  # four bits and an 8-bit scale for 32 values
    found = kernel(tmp_path, "gemm", "m=1 n=16384 k=16384", "int4_wo", hardware="MI355X")
    memory = (moved / machine(cluster("1xMI355X")).device.memory_bytes_per_s + GAP) * 1e3
    assert memory <= found["predicted"] < 1.05 * memory
    assert (found["scenario"], found["rung"]) == ("weight-only gemm", "mechanism")
    four, two = (
        kernel(tmp_path, "gemm", "m=1 n=16384 k=16384", form, hardware="A100 SXM 80GB", library="TRTLLM 1.0.0")
        for form in ("int4_wo", "bf16")
    )
    part = cluster("1xA100-SXM-80GB").accelerator
    floor = (moved - (part.l2_bytes or 0)) / part.memory_bytes_per_s * 1e3
    assert floor <= four["predicted"] < 0.6 * two["predicted"]
    assert (four["scenario"], four["rung"]) == ("weight-only gemm", "fitted")


def test_groups_count_every_product(tmp_path: Path) -> None:
    shape = "groups=4 m_per_group=1024 n=4096 k=7168"
    found = kernel(tmp_path, "grouped gemm masked", shape, "bf16", hardware="MI300X")
    assert found["predicted"] == pytest.approx(milliseconds("gemm", "4x1024x4096x7168", "MI300X"))
    eight, four = (kernel(tmp_path, "grouped gemm", shape.replace("=4 m", f"={n} m"), "bf16") for n in (8, 4))
    assert eight["predicted"] / four["predicted"] == pytest.approx(2, rel=0.05)


@pytest.mark.parametrize(
    ("library", "kind", "on"), [("", "attention", "MI300X"), ("vLLM 0.24.0", "prefill", "H100-SXM")]
)
def test_prefill_is_the_operator_command_s(tmp_path: Path, library: str, kind: str, on: str) -> None:
    shape, cells = "batch=2 isl=4096 heads=32 kv_heads=8 head_dim=128 kv_past=0", {"hardware": on, "library": library}
    found = kernel(tmp_path, "attention prefill (causal)", shape, "bfloat16/kv bfloat16", **cells)
    assert found["predicted"] == pytest.approx(milliseconds(kind, "2x4096x32x8x128", on, library=library))
    assert found["rung"] == ("fitted" if library else "mechanism")
    longer = kernel(tmp_path, "attention prefill (causal)", shape.replace("past=0", "past=4096"), "bfloat16", **cells)
    assert 2.5 < longer["predicted"] / found["predicted"] < 3.1  # 4096 + 2048 keys a query, not 2048


@pytest.mark.parametrize(("past", "window", "mean"), [(0, 8192, 2048.5), (0, 1024, 896.125), (4096, 1024, 1024.0)])
def test_a_window_cuts_the_keys_that_a_query_sees(tmp_path: Path, past: int, window: int, mean: float) -> None:
    assert sum(min(past + i, window) for i in range(1, 4097)) / 4096 == mean
    shape = "batch=8 isl=4096 heads=32 kv_heads=8 head_dim=128 kv_past={} window={}"
    found, whole = (
        kernel(tmp_path, "attention prefill (causal)", shape.format(*sizes), hardware="MI300X")["predicted"]
        for sizes in ((past, window), (0, 0))
    )
    share = (mean + 64) / (2048.5 + 64)  # and every tile fills and drains, however few keys it sees
    assert share * 0.999 <= found / whole < share * 1.12


def test_a_network_that_no_cell_states_spans_those_of_the_catalog(tmp_path: Path) -> None:
    shape = {"size": 2**26, "devices": 16, "nodes": 2, "library": "torch.distributed NCCL", "hardware": "A100 80GB"}
    silent = group(tmp_path, "all_reduce", **shape, topology="")
    told = group(tmp_path, "all_reduce", **shape, topology="8x HDR 200Gb/s IB per node")
    assert silent["predicted"] == pytest.approx(told["predicted"], rel=0.01)  # the catalog's default has HDR too
    assert silent["high"] / silent["predicted"] > 2 * told["high"] / told["predicted"]
    assert any("network not stated" in words for words in silent["assumptions"])
    assert not any("network not stated" in words for words in told["assumptions"])


def test_intervals_of_tables_hold_other_sources_but_not_their_own_rows(tmp_path: Path) -> None:
    shape = "m=4096 n=4096 k=4096"
    low, high = source_spread("tables", "gemm")
    other = kernel(tmp_path, "gemm", shape, library="vLLM 0.24.0", source="someone/else@1234567")
    own = kernel(tmp_path, "gemm", shape, library="vLLM 0.24.0", source="ai-dynamo/aiconfigurator@095f58a")
    assert other["predicted"] == own["predicted"]
    assert other["low"] == pytest.approx(other["predicted"] * low)  # other sources tell of each other alone
    assert other["high"] == pytest.approx(other["predicted"] * high)
    wide = kernel(tmp_path, "gemm", "m=4096 n=4096 k=33554432", library="vLLM 0.24.0", source="someone/else@1234567")
    assert wide["high"] / wide["predicted"] > 2  # a depth that nobody measured


def test_intervals_are_those_of_the_rung_that_answers() -> None:
    for rung, family in (("tables", "gemm"), ("tables", "quantize"), ("borrowed", "gemm"), ("borrowed", "quantize")):
        low, high = source_spread(rung, family)
        assert low < 1 < high
    assert source_spread("tables", "quantize") == source_spread("tables", "encoder")  # no three sources of either
    short, long = (mechanism_spread("gemm", seconds) for seconds in (1e-5, 1e-2))
    assert short is not None
    assert long is not None
    assert short != long
    assert mechanism_spread("frobnicate", 1e-2) is None


def test_flash_attention_s_rate_halves_causal_work_and_both_passes_add(tmp_path: Path) -> None:
    shape, rate = "batch=4 seq=4096 heads=16 head_dim=128 causal=True", {"metric": "tflops", "unit": "TFLOP/s"}
    flop = 4 * 4 * 16 * 4096**2 * 128 / 2
    seconds = milliseconds("attention", "4x4096x16x16x128", "MI300X", dtype="fp16") / 1e3
    other = kernel(tmp_path, "attention forward", shape, "fp16", hardware="MI300X", **rate)["predicted"]
    assert other == pytest.approx(flop / seconds / 1e12)
    forward = kernel(tmp_path, "attention forward: FlashAttention-3", shape, "fp16", **rate)["predicted"]
    older = kernel(tmp_path, "attention forward: FlashAttention-2", shape, "fp16", **rate)["predicted"]
    unfused = kernel(tmp_path, "attention forward: PyTorch standard", shape, "fp16", **rate)["predicted"]
    assert forward > older > unfused
    both = kernel(tmp_path, "attention fwd+bwd: FlashAttention-2", shape, "fp16", **rate)["predicted"]
    backward = kernel(tmp_path, "attention backward: FlashAttention-2", shape, "fp16", **rate)["predicted"]
    assert 3.5 / both == pytest.approx(1 / older + 2.5 / backward)


@pytest.mark.parametrize(("kv", "size"), [("bfloat16", 2), ("fp8", 1)])
def test_decode_reads_keys_and_values_once_at_their_own_size(tmp_path: Path, kv: str, size: int) -> None:
    shape = "batch=64 isl=1 heads=32 kv_heads=8 head_dim=128 kv_past=8191"
    found = kernel(tmp_path, "attention decode", shape, f"bfloat16/kv {kv}")["predicted"]
    moved = 2 * 64 * 8 * 8192 * 128 * size + 4 * 64 * 32 * 128
    floor = moved / H100.accelerator.memory_bytes_per_s * 1e3
    assert floor < found < 1.6 * floor
    wanted = milliseconds("decode", "64x8192x32x8x128", cache_dtype="fp8" if size == 1 else "")
    assert found == pytest.approx(wanted)


def test_latent_decode_reads_one_latent_for_all_heads(tmp_path: Path) -> None:
    shape, dtype = "batch=64 isl=1 heads=8 tp=16 step=8191", "bfloat16/kv bfloat16"
    moved = 64 * 8192 * 576 * 2 + 2 * 64 * 8 * (576 + 512)
    fitted, floor = kernel(tmp_path, "mla decode", shape, dtype), moved / H100.accelerator.memory_bytes_per_s * 1e3
    assert 0.9 * floor < fitted["predicted"] < 1.5 * floor  # a part of it stays in L2
    narrow = kernel(tmp_path, "mla prefill", "batch=1 isl=4096 heads=16 tp=8 step=0", "bfloat16/kv fp8")
    wide = kernel(tmp_path, "mla prefill", "batch=1 isl=4096 heads=32 tp=4 step=0", "bfloat16/kv fp8")
    assert narrow["rung"] == wide["rung"] == "fitted"
    assert 1.7 < wide["predicted"] / narrow["predicted"] < 2.1


def test_experts_reached_bound_the_weights_read(tmp_path: Path) -> None:
    shape = "tokens={} hidden=4096 inter=2048 topk=8 experts=256 moe_tp=1 moe_ep=1 dist=balanced"
    few = kernel(tmp_path, "moe ffn (grouped gemm)", shape.format(1), library="TRTLLM moe_torch_flow")
    weights = 8 * 3 * 4096 * 2048 * 2  # of the eight experts of one token
    assert few["predicted"] > weights / H100.memory_bytes_per_s * 1e3
    all_weights = 256 * 3 * 4096 * 2048 * 2
    many = kernel(tmp_path, "moe ffn (grouped gemm)", shape.format(64), library="TRTLLM moe_torch_flow")
    assert many["predicted"] > all_weights / H100.memory_bytes_per_s * 1e3
    half = kernel(tmp_path, "moe ffn (grouped gemm)", shape.format(64), library="moe_torch_flow_nongated")
    assert 0.6 < half["predicted"] / many["predicted"] < 0.75  # two of three matrices


def test_layer_operators_take_their_widths_from_the_shape(tmp_path: Path) -> None:
    shape = "tokens=2048 n_embd=8192 n_expanded_embd=28672 n_head=64 n_kv_head=8 tp=8 gated=True"
    for name, product in {
        "mlp_up_proj": "2048x7168x8192",
        "mlp_down_proj": "2048x8192x3584",
        "attn_pre_proj": "2048x1280x8192",
        "attn_post_proj": "2048x8192x1024",
    }.items():
        found = kernel(tmp_path, f"Llama-2-70b-hf layer op: {name}", shape, "fp16")
        assert found["predicted"] == pytest.approx(milliseconds("gemm", product, dtype="fp16"))
    for name, elements in {
        "mlp_act": 3 * 2048 * 3584,
        "attn_rope": 2 * 2048 * 8192 * 9 / 8 / 8,
        "input_layernorm": 3 * 2048 * 8192,  # read for the variance, read again to scale it, written
    }.items():
        found = kernel(tmp_path, f"Llama-2-70b-hf layer op: {name}", shape, "fp16")
        assert found["predicted"] == pytest.approx(milliseconds("stream", f"{elements * 2:.0f} B"))


def test_layers_are_named_as_modules_name_them_too(tmp_path: Path) -> None:
    """Qwen3-32B on two ranks: D 5120, F 25600, 64 heads of 128 wide and 8 of keys, which are wider than D together."""
    shape = "num_tokens=2048 hidden_size=5120 intermediate_size=25600 num_heads=64 num_kv_heads=8 head_dim=128 tp=2"
    for name, product in {
        "qkv_proj": "2048x5120x5120",  # (64 + 2 x 8) x 128 / 2 columns of 5120
        "o_proj": "2048x5120x4096",
        "gate_up_proj": "2048x25600x5120",
        "mlp.down_proj": "2048x5120x12800",
    }.items():
        found = kernel(tmp_path, name, shape, "bf16")
        assert found["predicted"] == pytest.approx(milliseconds("gemm", product, dtype="bf16"))
    for name, numbers in {"act_fn": 3 * 12800, "rotary_emb": 2 * 4608, "qk_norm": 3 * 4608}.items():
        found = kernel(tmp_path, name, shape, "bf16")
        assert found["predicted"] == pytest.approx(milliseconds("stream", f"{2 * 2048 * numbers} B"))


def test_a_mixed_batch_is_a_chunk_beside_sequences_that_decode(tmp_path: Path) -> None:
    heads = "heads=32 kv_heads=8 head_dim=128"

    def mixed(shape: str) -> float:
        return float(kernel(tmp_path, "attention mixed batch", f"{shape} {heads}", "bf16")["predicted"])

    both = mixed("prefill_chunk=512 kv_prefill=2048 n_decode=32 kv_decode=512")
    chunk = mixed("prefill_chunk=512 kv_prefill=2048 n_decode=0 kv_decode=0")
    rows = mixed("prefill_chunk=0 kv_prefill=0 n_decode=32 kv_decode=512")
    assert both == pytest.approx(chunk + rows)
    assert min(chunk, rows) > 0
    nothing = {"op": "attention mixed batch", "shape": f"prefill_chunk=0 n_decode=0 {heads}", "dtype": "bf16"}
    (row,) = answers(tmp_path, KERNEL, nothing)
    assert "has no work" in row["reason"]


def test_a_convolution_is_an_implicit_product(tmp_path: Path) -> None:
    shape = "W=56 H=56 C=64 N=16 K=128 {}pad_w=1 pad_h=1 P=56 Q=56"
    stated = kernel(tmp_path, "conv2d forward", shape.format("R=3 S=3 "), "bf16", hardware="MI300X")
    wanted = milliseconds("gemm", "50176x128x576", "MI300X", dtype="bf16")  # by the mechanism
    assert stated["predicted"] == pytest.approx(wanted)
    derived = kernel(tmp_path, "conv2d forward", shape.format(""), "bf16", hardware="MI300X")
    assert derived["predicted"] == stated["predicted"]
    assert "filter 3 x 3" in " ".join(derived["assumptions"])


def test_each_call_transforms_its_filters_anew(tmp_path: Path) -> None:
    """Images of 7 x 7 and many channels: most of the traffic is the filters', 9 points read and 36 written."""
    shape = "W=7 H=7 C=512 N=8 K=512 R=3 S=3 pad_w=1 pad_h=1 P=7 Q=7"
    found = kernel(tmp_path, "conv2d forward", shape, "Float", hardware="P100 PCIe")
    assert "36 products" in " ".join(found["assumptions"])
    filters_s = (9 + 36 + 36) * 512 * 512 * 4 / 732.2e9  # transformed, then read by the products
    assert found["predicted"] > filters_s * 1e3


def test_groups_of_a_convolution_are_products_of_their_own(tmp_path: Path) -> None:
    shape = "W=56 H=56 C=128 N=16 K=128 R=3 S=3 groups={} P=56 Q=56"
    times = {
        count: kernel(tmp_path, "conv2d forward", shape.format(count), "fp16", hardware="V100 SXM2 32GB")["predicted"]
        for count in (1, 32, 128)
    }
    streamed = milliseconds("stream", f"{2 * 2 * 16 * 56 * 56 * 128 + 2 * 9 * 128} B", "V100-SXM2-32GB", dtype="fp16")
    assert times[128] == pytest.approx(streamed, rel=0.35)  # loads of nine points take little longer than the stream
    assert times[1] < times[32]  # tiles of 4 filters are mostly empty
    assert times[128] < times[32]


def test_streams_copies_and_power_are_rates_of_the_machine(tmp_path: Path) -> None:
    rate = {"metric": "bandwidth", "unit": "TB/s", "value": "3"}
    triad = kernel(tmp_path, "stream triad", "BabelStream", "", **rate)
    assert triad["predicted"] == pytest.approx(H100.memory_bytes_per_s / 1e12)
    copy = kernel(tmp_path, "copy Host to Device", "nvbandwidth", "", **(rate | {"unit": "GB/s"}))
    assert copy["predicted"] == pytest.approx(63 * constant("efficiency.pcie.ring"))
    bits = kernel(tmp_path, "copy Host to Device", "nvbandwidth", "", **(rate | {"unit": "Gb/s"}))
    assert bits["predicted"] == pytest.approx(8 * copy["predicted"])
    peer = kernel(tmp_path, "copy Device to Device read", "nvbandwidth", "", **(rate | {"unit": "GB/s"}))
    assert peer["predicted"] == pytest.approx(450 * constant("efficiency.nvlink4.ring"))
    drawn = kernel(tmp_path, "card power during computation-BF16", "", "", metric="avg_board_power", unit="W")
    assert drawn["predicted"] == pytest.approx(700 * constant("power.matrix"))


@pytest.mark.parametrize(
    ("op", "kind", "factor", "on"),
    [
        ("all_reduce", "all_reduce", 14 / 8, "H100-SXM"),
        ("all_gather", "all_gather", 7 / 8, "H100-SXM"),
        ("reduce_scatter", "reduce_scatter", 7 / 8, "H100-SXM"),
        ("alltoall", "all_to_all", 7 / 8, "H100-SXM"),
        ("all_reduce", "all_reduce", 14 / 8, "MI300X"),
        ("send_recv", "send", 1.0, "MI300X"),
    ],
)
def test_collectives_are_the_operator_command_s_and_busbw_is_nccl_tests_s(
    tmp_path: Path, op: str, kind: str, factor: float, on: str
) -> None:
    wanted, cells = milliseconds(kind, f"{2**26} B", f"8x{on}"), {"hardware": on}
    found = group(tmp_path, op, 2**26, 8, **cells)
    assert found["predicted"] == pytest.approx(wanted)
    assert found["rung"] == ("fitted" if on == "H100-SXM" else "mechanism")
    assert group(tmp_path, op, 2**26, 8, unit="us", **cells)["predicted"] == pytest.approx(wanted * 1e3)
    algorithm = group(tmp_path, op, 2**26, 8, metric="algbw", unit="GB/s", **cells)["predicted"]
    assert algorithm == pytest.approx(2**26 / wanted * 1e3 / 1e9)
    bus = group(tmp_path, op, 2**26, 8, metric="busbw", unit="GB/s", **cells)["predicted"]
    assert bus == pytest.approx(factor * algorithm)


def test_calls_issued_one_by_one_take_the_host_s_time_at_least(tmp_path: Path) -> None:
    eager = group(tmp_path, "all_reduce", 1024, 8, unit="us")["predicted"]
    assert eager == pytest.approx(constant("collective.issue.hopper") * 1e6)
    replayed = group(tmp_path, "all_reduce", 1024, 8, unit="us", library="NCCL 2.29.2")["predicted"]
    assert replayed == pytest.approx(milliseconds("all_reduce", "1024 B", "8xH100-SXM") * 1e3)
    assert 5 < replayed < eager


@pytest.mark.parametrize(
    ("library", "notes", "waits"),
    [
        ("torch.distributed NCCL 2.29.2", "", True),
        ("torch.distributed NCCL 2.29.2", "1000x 4 MB", False),
        ("torch.distributed NCCL (profiler)", "", False),
        ("nccl-tests", "", False),
    ],
)
def test_a_call_timed_between_synchronisations_takes_its_issue_as_well(
    tmp_path: Path, library: str, notes: str, waits: bool
) -> None:
    """PyTorch's benchmarks wait for each call; loops of calls and profilers do not."""
    cells = {"unit": "us", "topology": "NVSwitch"}
    kernel_us = group(tmp_path, "all_reduce", 2**22, 8, **cells, library="NCCL 2.29.2 in-place")["predicted"]
    found = group(tmp_path, "all_reduce", 2**22, 8, **cells, library=library, notes=notes)
    issue_us = constant("collective.issue.hopper") * 1e6
    assert found["predicted"] == pytest.approx(kernel_us + issue_us if waits else kernel_us, rel=0.03)
    assert ("between synchronisations" in " ".join(found["assumptions"])) == waits


def test_nodes_pairs_and_the_switch_are_told_from_the_topology(tmp_path: Path) -> None:
    inside = group(tmp_path, "all_reduce", 2**28, 8)["predicted"]
    ring = group(tmp_path, "all_reduce", 2**28, 8, topology="NVSwitch, NVLS disabled (ring)")
    (fit,) = own_fits("collective", "H100-SXM", form="any")
    shares = fit.values["in_network_share_"] / fit.values["link_share_"]
    # a ring moves 14/8 of the buffer; a switch that adds 9/8 of it, at another share of the link
    assert ring["predicted"] / inside == pytest.approx(14 / 9 * shares, rel=0.1)
    assert ring["predicted"] > 1.1 * inside
    assert "no reduction in the switch, as stated" in ring["assumptions"]
    apart = group(tmp_path, "send_recv", 2**20, 2, nodes=2)["predicted"]
    assert apart > 3 * group(tmp_path, "send_recv", 2**20, 2)["predicted"]
    spread = group(tmp_path, "all_reduce", 2**28, 8, nodes=2)["predicted"]
    assert spread > 1.5 * inside  # four network cards a node instead of the switch
    paired = {"topology": "a100_pairwise_nvlink (4 devices per node)", "hardware": "A100"}
    pair = group(tmp_path, "all_reduce", 2**28, 2, **paired)["predicted"]
    four = group(tmp_path, "all_reduce", 2**28, 4, **paired)["predicted"]
    assert four > 3 * pair  # the pairs share PCIe


def test_a_large_payload_answers_bandwidth_only(tmp_path: Path) -> None:
    found = group(tmp_path, "all_reduce", "", 8, metric="busbw", unit="GB/s", topology="ring")
    assert found["predicted"] == pytest.approx(450 * constant("efficiency.nvlink4.ring"), rel=0.01)
    (row,) = answers(tmp_path, GROUP, {"op": "all_reduce", "n_devices": "8"})
    assert "a time needs a size" in row["reason"]


def test_expert_exchange_sends_a_token_once_to_each_place(tmp_path: Path) -> None:
    setting, on = "tokens=4096 hidden=7168 topk=8 experts=256", {"hardware": "MI300X"}
    normal = group(tmp_path, "moe dispatch (normal)", "", 8, topology=setting, **on)["predicted"]
    reached = 8 * (1 - (7 / 8) ** 8)
    size = 4096 * 7168 * (1 + 4 / 128) * reached
    assert normal == pytest.approx(milliseconds("all_to_all", f"{size:.0f} B", "8xMI300X"), rel=1e-6)
    each = group(tmp_path, "moe dispatch (low latency)", "", 8, topology=setting, **on)["predicted"]
    assert each / normal == pytest.approx(8 / reached, rel=0.05)
    back = group(tmp_path, "moe combine (normal)", "", 8, topology=setting, **on)["predicted"]
    assert back / normal == pytest.approx(2 / (1 + 4 / 128), rel=0.05)
    worded = "NVLink; 4K tokens hidden 7168 top-4 groups top-8 experts"
    said = group(tmp_path, "moe dispatch (normal)", "", 8, topology=worded, **on)["predicted"]
    assert said == pytest.approx(normal)


def test_a_fitted_exchange_takes_what_its_link_does_at_least(tmp_path: Path) -> None:
    setting = "tokens=4096 hidden=7168 topk=8 experts=256"
    rows = {
        op: group(tmp_path, f"moe {op} (normal)", "", 8, topology=setting, library="DeepEP")
        for op in ("dispatch", "combine")
    }
    leaving = 4096 * 8 * (1 - (7 / 8) ** 8) * 7 / 8  # copies to the other seven ranks
    for op, token_bytes in (("dispatch", 7168 * (1 + 4 / 128)), ("combine", 7168 * 2)):
        wire = leaving * token_bytes / 450e9 * 1e3
        assert wire < rows[op]["predicted"] < 4 * wire
        assert rows[op]["rung"] == "fitted"
    assert rows["combine"]["predicted"] > 1.5 * rows["dispatch"]["predicted"]


def test_rows_that_rates_come_from_are_marked_and_kept_apart(tmp_path: Path) -> None:
    best = {"op": "gemm (best shape found, MAMF)", "shape": "m,n,k=10240,15360,8192", "dtype": "bf16"}
    best |= {"hardware": "MI300X", "library": "torch 2.5.1+6.3.42131", "metric": "tflops", "unit": "TFLOP/s"}
    own, other = answers(tmp_path, KERNEL, best | {"value": "668.4"}, best | {"value": "600"})
    assert (own["status"], own["evidence"], own["scenario"]) == ("scored", "measured elsewhere", "gemm, own source")
    assert SUSTAINED in own["assumptions"]
    assert (other["scenario"], SUSTAINED in other["assumptions"]) == ("gemm", False)
    summary = check(tmp_path / "rows.tsv", completer=never, predictor=never).summary["metrics"]
    assert {name: found["scored"] for name, found in summary.items()} == {
        "tflops (gemm)": 1,
        "tflops (gemm, own source)": 1,
    }
    assert set(summary["tflops (gemm)"]["by_device"]) == {"MI300X"}
    assert set(summary["tflops (gemm)"]["by_evidence"]) == {other["evidence"]}


def test_a_rate_is_an_own_source_where_it_answers_and_not_where_fits_do(tmp_path: Path) -> None:
    base = {"op": "gemm (best shape found, MAMF)", "dtype": "bf16", "metric": "tflops", "unit": "TFLOP/s"}
    fitted = {"hardware": "H100 SXM5 80GB", "shape": "m,n,k=2048,2048,13312", "library": "torch 2.7.0+cu126"}
    borrowed = {"hardware": "RTX 4090", "shape": "m,n,k=14336,4096,4096", "library": "torch.matmul (Optuna search)"}
    rows = answers(tmp_path, KERNEL, base | fitted | {"value": "794.5"}, base | borrowed | {"value": "178.8"})
    assert [(row["rung"], row["scenario"]) for row in rows] == [("fitted", "gemm"), ("borrowed", "gemm, own source")]


def test_a_row_of_the_table_that_answers_is_marked() -> None:
    row = Row(line=1, id="1", cells={"source": "ai-dynamo/aiconfigurator", "unit": "ms"})
    found = Priced(family="gemm", seconds=1.0, evidence=Evidence.MEASURED, rung="table")
    assert own_source(row, H100.accelerator, found, 1.0) == TABULATED
    assert own_source(row, H100.accelerator, replace(found, rung="fitted"), 1.0) is None


def test_rows_that_constants_come_from_are_marked(tmp_path: Path) -> None:
    source = {"source": "stas00/ml-engineering@744d01e (CC-BY-SA-4.0)"}
    columns = (*GROUP, "source")
    row = {"op": "all_reduce", "n_devices": "8", "n_nodes": "1", "topology": "NVSwitch, algo Ring", "metric": "busbw"}
    row |= {"hardware": "H200", "unit": "GB/s", "value": "365.6", "bytes": "8589934592"}
    own, elsewhere, other = answers(tmp_path, columns, row | source, row, row | source | {"value": "450.29"})
    assert "efficiency.nvlink4.ring" in own["assumptions"][-1]
    assert (elsewhere["scenario"], other["scenario"]) == ("all_reduce", "all_reduce")


SORT = {"op": "radix sort", "shape": "n=2^26", "dtype": "u32", "hardware": "RTX 3090"}


def test_a_sort_passes_over_its_keys_for_each_digit(tmp_path: Path) -> None:
    """2^26 keys of 4 bytes are counted once and read and written four times: 36 bytes each; six kernels."""
    card = machine(cluster("1xRTX-3090")).device
    rate = card.memory_bytes_per_s * card.stream_share
    keys = 2.0**26
    alone, pairs, narrow, told = answers(
        tmp_path,
        KERNEL,
        SORT | {"op": "radix sort, 32-bit keys"},
        SORT | {"op": "radix sort, int32 key-value pairs"},
        SORT | {"op": "radix sort, int8 keys", "dtype": "int8"},
        SORT | {"metric": "throughput", "unit": "Gkeys/s", "value": "20", "shape": "n=67108864 uniform"},
    )
    assert alone["predicted"] == pytest.approx(1e3 * (36 * keys / rate + 6 * card.kernel_s))
    assert pairs["predicted"] == pytest.approx(1e3 * (68 * keys / rate + 6 * card.kernel_s))
    assert narrow["predicted"] == pytest.approx(1e3 * (3 * keys / rate + 3 * card.kernel_s))
    assert told["predicted"] == pytest.approx(keys / alone["predicted"] / 1e6)
    assert told["low"] < told["predicted"] < told["high"]


def test_a_call_of_pytorchs_sort_waits_for_the_hosts_launches(tmp_path: Path) -> None:
    """Few keys take an eager operator and its launches, many what the device takes after the first of them."""
    torch = SORT | {
        "op": "sort 1-D",
        "library": "torch.sort",
        "dtype": "not stated (32-bit)",
        "hardware": "H100 SXM5 80GB",
    }
    small, middle, large = answers(
        tmp_path, KERNEL, *(torch | {"shape": f"n={n}"} for n in ("1024", "5000", "64M"))
    )  # fmt: skip
    eager, launch = constant("launch.host.eager"), constant("launch.host.compiled")
    rate = H100.memory_bytes_per_s * H100.stream_share
    device_s = 64e6 * (4 + 4 * 2 * 12) / rate + 6 * H100.kernel_s
    assert small["predicted"] == pytest.approx(1e3 * (eager + 1024 * 24 / rate + H100.kernel_s))
    assert middle["predicted"] == pytest.approx(1e3 * (eager + 5 * launch))
    assert large["predicted"] == pytest.approx(1e3 * (eager + device_s))


@pytest.mark.parametrize(
    ("cells", "reason"),
    [
        ({"op": "sort 1-D", "shape": "m=64"}, "number of keys"),
        ({"op": "sort 1-D", "shape": "n=0", "dtype": "int32"}, "out of range"),
        ({"op": "sort 1-D", "shape": "n=1.5", "dtype": "int32"}, "whole number"),
        ({"op": "sort 1-D", "shape": "n=64", "dtype": "posit"}, "size of a key"),
        ({"op": "radix sort (self-written)", "shape": "n=64", "dtype": "u32"}, "by hand"),
        ({"op": "gemm", "unit": "Gkeys/s"}, "no rate in Gkeys/s"),
        ({"op": "rnn LSTM forward"}, "recurrent"),
        ({"op": "pointer-chase latency, DRAM"}, "latency of memory"),
        ({"op": "vector fma peak", "unit": "TFLOPs/s"}, "vector units"),
        ({"op": "tiled sgemm (hand-written kernel)"}, "written by hand"),
        ({"op": "frobnicate"}, "no operator that is predicted"),
        ({"shape": "n=4 k=4"}, "does not state m"),
        ({"shape": "not stated"}, "needs a size"),
        ({"dtype": "fp16 (CUDA cores)"}, "no rate of these units"),
        ({"dtype": "posit"}, "no number format"),
        ({"dtype": "nvfp4"}, "no fp4 matrix rate"),
        ({"hardware": "not stated"}, "not stated"),
        ({"hardware": "Voodoo 2"}, "names no accelerator"),
        ({"hardware": "RTX 3080 Ti Laptop"}, "laptop"),
        ({"unit": "cycles"}, "no unit"),
        ({"unit": "W", "metric": "avg_board_power"}, "power is not predicted"),
        ({"value": "OOM", "metric": "fits"}, "asks for a word"),
        ({"value": "-1"}, "not a positive number"),
        ({"op": "attention decode", "shape": "batch=1 heads=8 head_dim=1e9 kv_past=9"}, "head_dim"),
        ({"op": "conv2d forward", "shape": "W=14 H=14 C=8 N=8 K=8 pad_w=0 pad_h=0 P=7 Q=7"}, "filter"),
        ({"op": "conv2d forward", "shape": "W=7 H=7 C=8 N=8 K=8 pad_w=3 pad_h=3 P=7 Q=7"}, "of 1 x 1"),
        ({"op": "conv2d forward", "shape": "W=7 H=7 C=8 N=8 K=8 R=3 S=3 groups=3 P=7 Q=7"}, "groups"),
    ],
)
def test_what_cannot_be_priced_is_refused_with_the_reason(tmp_path: Path, cells: dict[str, str], reason: str) -> None:
    base = {"op": "gemm", "shape": "m=64 n=64 k=64", "dtype": "bf16"}
    (row,) = answers(tmp_path, KERNEL, base | cells)
    assert row["status"] == "refused"
    assert reason in row["reason"]


@pytest.mark.parametrize(
    ("cells", "reason"),
    [
        ({"n_devices": ""}, "number of devices"),
        ({"n_devices": "1"}, "at least 2 devices"),
        ({"n_devices": "0"}, "no count"),
        ({"bytes": "many"}, "no size in bytes"),
        ({"op": "all_reduce-style MPI, intra-server"}, "way of its own"),
        ({"library": "OSU Allreduce"}, "host memory"),
        ({"op": "compute/communication overlap slowdown", "unit": "x"}, "unit"),
    ],
)
def test_groups_that_cannot_be_priced_are_refused(tmp_path: Path, cells: dict[str, str], reason: str) -> None:
    base = {"op": "all_reduce", "bytes": "1024", "n_devices": "8", "n_nodes": "1", "library": "NCCL"}
    (row,) = answers(tmp_path, GROUP, base | cells)
    assert row["status"] == "refused"
    assert reason in row["reason"]


def test_fuzzed_operators_are_answered_or_refused_but_never_break(tmp_path: Path) -> None:
    chance = random.Random(20211122)
    shapes = (
        "m=64 n=64 k=64",
        "batch=2 isl=64 heads=8 kv_heads=2 head_dim=64 kv_past=0 step=3",
        "tokens=8 hidden=64 inter=64 topk=2 experts=8 moe_tp=2 moe_ep=2",
        "tokens=8 n_embd=64 n_expanded_embd=128 n_head=8 n_kv_head=2 tp=2 gated=True",
        "W=7 H=7 C=8 N=8 K=8 pad_w=1 pad_h=1 P=7 Q=7",
    )
    ops = ("gemm", "attention decode", "mla prefill", "moe ffn", "x layer op: attn_rope", "conv2d", "attention fwd+bwd")
    pieces = ("0", "9" * 30, "-", "=", ",", "é", "1e309", " ", "x")
    kernels, groups = [], []
    for _ in range(150):
        shape = list(chance.choice(shapes))
        for _ in range(chance.randrange(4)):
            shape[chance.randrange(len(shape))] = chance.choice(pieces)
        dtype, unit = (
            chance.choice(("bf16", "fp8/kv fp8", "int4_wo", "Float")),
            chance.choice(("ms", "TFLOP/s", "GB/s")),
        )
        kernels.append({"op": chance.choice(ops), "shape": "".join(shape), "dtype": dtype, "unit": unit})
        counts = [chance.choice(("", "0", "1", "2", "7", "64", "9" * 12, "x")) for _ in range(3)]
        words = chance.choice(
            ("NVLS", "ring", "pairwise_nvlink (2 devices per node)", "RDMA", "3 devices per node", "é")
        )
        groups.append(
            {"op": chance.choice(("all_reduce", "alltoall", "moe dispatch (low latency)", "p2p copy", "send_recv"))}
            | dict(zip(("bytes", "n_devices", "n_nodes"), counts, strict=True))
            | {
                "topology": words,
                "unit": unit,
                "hardware": chance.choice(("H100", "A40", "GB200", "MI300X", "TPU v5e")),
            }
        )
    for rows in (answers(tmp_path, KERNEL, *kernels), answers(tmp_path, GROUP, *groups)):
        assert {row["status"] for row in rows} == {"scored", "refused"}
        assert all(row["reason"] if row["status"] == "refused" else row["predicted"] > 0 for row in rows)


@pytest.mark.parametrize(
    ("op", "kind", "moves"),
    [
        ("softmax", "softmax", 2), ("layernorm", "norm", 3), ("RMS_norm", "norm", 3), ("gelu", "copy", 2),
        ("silu_and_mul", "activation", 3), ("swiglu", "activation", 3), ("rope", "rotary", 2), ("add", "add", 3),
        ("cumsum", "scan", 2),
    ],
)  # fmt: skip
def test_what_memory_binds_is_its_traffic_by_hand_and_the_operator_command_s_price(
    tmp_path: Path, op: str, kind: str, moves: int
) -> None:
    """8192 rows of 4096 elements of 2 bytes, read and written so often, at the device's sustained rate."""
    found = kernel(tmp_path, op, "8192x4096")
    assert found["predicted"] == pytest.approx(milliseconds(kind, "8192x4096"))
    bare = 1e3 * moves * 8192 * 4096 * 2 / H100.memory_bytes_per_s
    assert bare <= found["predicted"] < 2 * bare  # a short stream does not reach the sustained rate
    assert kernel(tmp_path, op, "rows=8192 cols=4096")["predicted"] == found["predicted"]


def test_a_backward_pass_of_a_norm_is_refused_not_taken_for_its_forward(tmp_path: Path) -> None:
    (found,) = answers(tmp_path, KERNEL, {"op": "layer norm backward", "shape": "8192x4096", "dtype": "bf16"})
    assert (found["status"], "backward passes" in found["reason"]) == ("refused", True)


def test_an_unknown_operator_is_refused_with_those_that_are_known(tmp_path: Path) -> None:
    (found,) = answers(tmp_path, KERNEL, {"op": "fft", "shape": "1048576", "dtype": "bf16"})
    assert "known: gemm, attention" in found["reason"]


@pytest.mark.parametrize(
    ("cell", "size"), [("64M", 64 * 2**20), ("64MB", 64 * 2**20), ("1 GiB", 2**30), ("67,108,864", 64 * 2**20)]
)
def test_sizes_of_collectives_with_a_unit_are_binary_as_nccl_tests_print_them(
    tmp_path: Path, cell: str, size: int
) -> None:
    assert group(tmp_path, "all_reduce", cell, 8)["predicted"] == group(tmp_path, "all_reduce", size, 8)["predicted"]


def test_shapes_by_other_spellings_are_the_same_product(tmp_path: Path) -> None:
    first = kernel(tmp_path, "gemm", "m=64 n=8192 k=4096")["predicted"]
    for shape in ("M=64,N=8192,K=4096", "64x8192x4096", "64 8192 4096", "64, 8192, 4096"):
        assert kernel(tmp_path, "linear", shape)["predicted"] == first


def test_latent_decode_of_rows_that_state_no_past_sees_its_own_tokens_alone(tmp_path: Path) -> None:
    """A blank past is none: a context of 4096 in one cell or in two is one context."""
    whole = kernel(tmp_path, "mla decode", "batch=32 heads=128 isl=4097", "bf16", library="vllm")
    parts = kernel(tmp_path, "mla decode", "batch=32 heads=128 kv_past=4096 isl=1", "bf16", library="vllm")
    assert whole["predicted"] == parts["predicted"]
