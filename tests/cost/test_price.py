"""Phases by hand: what the device takes, what the host takes, and what of the links shows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ridgeline.cost.compute import gemm_cost
from ridgeline.cost.formats import FORMS
from ridgeline.cost.machine import Machine
from ridgeline.cost.network import collective_seconds
from ridgeline.cost.price import Pricer
from ridgeline.errors import DomainError
from ridgeline.facts.frameworks import framework_policy
from ridgeline.facts.mechanisms import constant
from ridgeline.facts.records import Evidence, Fact
from ridgeline.graph.workload import Workload
from ridgeline.lower.work import Attention, Collective, CollectiveKind, Gemm, Layout, Phase, Stream

LONG = Stream(name="norm", phase=Phase.FORWARD, bytes=5e9)  # 10 ms at 0.5 TB/s
SHORT = Stream(name="norm", phase=Phase.FORWARD, bytes=5e3, kernels=3.0)  # 10 ns
PRODUCT = Gemm(name="up", phase=Phase.FORWARD, m=256, n=256, k=1024)
CORE = Attention(
    name="attention",
    phase=Phase.FORWARD,
    sequences=2,
    heads=4,
    kv_heads=4,
    q_tokens=1024,
    kv_tokens=1024,
    mean_context=512.5,
    qk_dim=64,
    v_dim=64,
    fused=False,
)

START_S = constant("collective.start")
HOST = 1.75  # hosts of Ampere devices take so many times what those of Hopper take for operators
ISSUE_S = 42e-6  # and 42 us to issue a collective, where those of Hopper take 21


def pricer(machine: Machine, **choices: object) -> Pricer:
    return Pricer(machine, Workload(seq_len=1024, global_batch=8, **choices))  # type: ignore[arg-type]


def link(behind: str = "", *, hidden: float = 1, name: str = "tensor.all_reduce", size: float = 80e6) -> Collective:
    """1.5 ms over four ranks of a node: 2 * 3/4 * 80 MB / 80 GB/s, and 4 us of hops."""
    return Collective(
        name=name,
        phase=Phase.FORWARD,
        kind=CollectiveKind.ALL_REDUCE,
        bytes=size,
        ranks=4,
        stride=1,
        hidden_behind=behind,
        hidden=hidden,
    )


# host and device -----------------------------------------------------------------------------------


def test_a_long_kernel_hides_the_host_and_pays_one_gap(machine: Machine) -> None:
    found = pricer(machine, framework="torch", execution="eager").phase([LONG], Layout())
    assert float(found.seconds) == pytest.approx(10e-3 + constant("launch.device"))
    assert float(found.parts["memory"]) == pytest.approx(10e-3)


def test_short_kernels_wait_for_the_host(machine: Machine) -> None:
    found = pricer(machine, framework="torch", execution="eager").phase([SHORT] * 10, Layout())
    # ten operators of three kernels each, dispatched by Python
    host_s = HOST * 10 * (constant("launch.host.eager") + 2 * constant("launch.host.kernel"))
    assert float(found.seconds) == pytest.approx(host_s)
    assert float(found.parts["launch"]) == pytest.approx(host_s - 10 * 10e-9)


def test_a_processor_issues_and_then_runs(machine: Machine) -> None:
    """Norms of 10 ms and of 10 ns, three kernels each; a chain's kernel is issued in 2 us here, in 8 us there."""
    fact = Fact(value=2e-6, unit="s", source="by hand", conditions="", evidence=Evidence.HERE)
    device = machine.device
    part = replace(device.accelerator, architecture="cpu", sustained={**device.accelerator.sustained, "dispatch": fact})
    own = replace(machine, device=replace(device, accelerator=part))
    one = pricer(own, framework="torch", execution="eager")
    slowness = 2e-6 / constant("launch.host.kernel")
    issued = slowness * (constant("launch.host.eager") + 2 * constant("launch.host.kernel"))
    found = one.phase([SHORT] * 10, Layout())
    assert float(found.parts["launch"]) == pytest.approx(10 * issued)
    assert float(found.seconds) == pytest.approx(10 * (issued + 10e-9))
    long = replace(LONG, kernels=3.0)
    assert float(one.phase([long], Layout()).seconds) == pytest.approx(10e-3 + issued)  # nothing is hidden
    product = one.phase([PRODUCT], Layout())
    assert float(product.parts["launch"]) == pytest.approx(slowness * constant("launch.host.eager") - 2e-6)
    unknown = replace(own, device=replace(device, accelerator=replace(part, sustained=device.accelerator.sustained)))
    usual = pricer(unknown, framework="torch", execution="eager").phase([SHORT], Layout())
    assert float(usual.parts["launch"]) == pytest.approx(issued / slowness)


def test_a_replayed_graph_launches_fastest(machine: Machine) -> None:
    found = pricer(machine, execution="graph").host_seconds(SHORT, 3)
    assert found == pytest.approx(HOST * 3 * constant("launch.host.graph"))


def test_compiled_code_launches_without_dispatch(machine: Machine) -> None:
    found = pricer(machine, framework="torch", execution="compiled").host_seconds(PRODUCT, 3)
    assert found == pytest.approx(HOST * 3 * constant("launch.host.compiled"))


def test_megatron_runs_a_module_around_each_product(machine: Machine) -> None:
    one = pricer(machine, framework="megatron", execution="compiled")
    assert one.host_seconds(PRODUCT, 3) == HOST * constant("launch.host.module")
    assert one.host_seconds(CORE, 3) == HOST * (
        2 * constant("launch.host.module") + 25 * constant("launch.host.kernel")
    )  # a module that chooses, one that runs, and unfused a chain
    assert one.host_seconds(SHORT, 3) == HOST * (constant("launch.host.eager") + 2 * constant("launch.host.kernel"))


def test_unfused_attention_of_megatron_is_a_chain_of_operators(machine: Machine) -> None:
    one = pricer(machine, framework="megatron", execution="eager")
    forward_s = HOST * (2 * 140e-6 + 25 * 8e-6)
    backward_s = HOST * (140e-6 + 9 * 8e-6)
    assert one.host_seconds(CORE, 3) == pytest.approx(forward_s)
    assert one.host_seconds(replace(CORE, phase=Phase.BACKWARD_INPUT), 3) == pytest.approx(backward_s)
    assert one.host_seconds(replace(CORE, fused=True), 3) == pytest.approx(HOST * 2 * 140e-6)


def test_deterministic_algorithms_fill_every_new_tensor(machine: Machine) -> None:
    usual = framework_policy("megatron")
    frameworks = (replace(usual, deterministic=True), usual)
    filling, plain = (pricer(machine, framework=one, execution="eager") for one in frameworks)
    norm = Stream(name="input_norm", phase=Phase.FORWARD, bytes=8.0)
    for work, tensors in ((PRODUCT, 1), (CORE, 3), (norm, 3), (replace(norm, name="residual"), 0)):
        more_s = filling.host_seconds(work, 1) - plain.host_seconds(work, 1)
        assert more_s == pytest.approx(HOST * tensors * 8e-6)


def test_gradients_of_each_tensor_are_kept_by_the_host(machine: Machine) -> None:
    one = pricer(machine, framework="megatron", execution="eager")
    assert one.weights_seconds(12) == pytest.approx(HOST * 12 * 2 * 8e-6)
    block, kept = (one.block([replace(SHORT, phase=Phase.BACKWARD_WEIGHT)], Layout(), tensors=n) for n in (0, 12))
    longer_s = float(kept.backward_weight.seconds) - float(block.backward_weight.seconds)
    assert longer_s == pytest.approx(HOST * 12 * 2 * 8e-6)
    assert pricer(machine, framework="torch", execution="eager").weights_seconds(12) == 0.0
    assert pricer(machine, framework="megatron", execution="graph").weights_seconds(12) == 0.0


def test_each_expert_has_a_product_and_a_cast_to_issue(machine: Machine) -> None:
    one = pricer(machine, framework="megatron", execution="eager", precision="fp8")
    experts = replace(PRODUCT, count=4)
    host_s = [float(one.host_seconds(work, 1)) for work in (PRODUCT, experts)]
    assert host_s[1] - host_s[0] == pytest.approx(HOST * 3 * 8e-6)
    cast = float(one.host_seconds(replace(experts, quantized=True), 1))
    assert cast - host_s[1] == pytest.approx(HOST * (140e-6 + 3 * 8e-6))  # a module in FP8 takes twice as long
    back = replace(experts, quantized=True, phase=Phase.BACKWARD_INPUT)
    assert float(one.host_seconds(back, 1)) - host_s[1] == pytest.approx(HOST * 3 * 8e-6)
    assert float(one.host_seconds(replace(experts, quantized=True, cast_layouts=0), 1)) == host_s[1]  # cast before
    whole = pricer(machine, framework="megatron", execution="eager", precision="int8")
    assert float(whole.host_seconds(replace(experts, quantized=True), 1)) - host_s[1] == pytest.approx(HOST * 3 * 8e-6)


def test_megatron_runs_python_around_each_layer(machine: Machine) -> None:
    one, plain = (pricer(machine, framework=name, execution="eager") for name in ("megatron", "torch"))
    assert one.python_seconds("layer") == pytest.approx(HOST * 140e-6)
    assert one.python_seconds("turn") == pytest.approx(HOST * 700e-6)
    assert plain.python_seconds("layer") == plain.python_seconds("turn") == 0.0
    assert pricer(machine, framework="megatron", execution="graph").python_seconds("layer") == 0.0
    alone, block = one.phase([SHORT], Layout()), one.block([SHORT], Layout(), recompute=["full"])
    assert float(block.forward.seconds) - float(alone.seconds) == pytest.approx(HOST * 140e-6)
    single = one.block([SHORT], Layout(), python={"layer": 1.0, "expert": 3.0}, recompute=["full"])
    longer_s = HOST * 3 * framework_policy("megatron").host_s["expert"]
    assert float(single.forward.seconds) - float(block.forward.seconds) == pytest.approx(longer_s)
    assert float(single.again["full"].seconds) - float(block.again["full"].seconds) == pytest.approx(longer_s)
    back = replace(SHORT, phase=Phase.BACKWARD_INPUT)
    assert float(one.block([back], Layout()).backward_input.seconds) == float(one.phase([back], Layout()).seconds)


def test_a_layer_run_again_keeps_the_state_of_random_numbers(machine: Machine) -> None:
    for framework, more_s in (("megatron", HOST * 430e-6), ("torch", 0.0)):
        block = pricer(machine, framework=framework, execution="eager").block([SHORT], Layout(), recompute=["full"])
        assert float(block.again["full"].seconds) - float(block.forward.seconds) == pytest.approx(more_s)


def test_a_device_with_much_to_do_is_behind_its_host(machine: Machine) -> None:
    one = pricer(machine, framework="torch", execution="eager")
    large = replace(PRODUCT, m=8192, n=8192, k=8192)
    busy_s = float(one.kernel(large).seconds) - float(one.host_seconds(large, 1))
    assert float(one.phase([large], Layout()).ahead) == pytest.approx(busy_s)
    assert float(one.phase([SHORT], Layout()).ahead) == 0.0
    assert float(one.phase([large], Layout()).times(2.0).ahead) == pytest.approx(2 * busy_s)
    assert float((one.phase([large], Layout()) + one.phase([SHORT], Layout())).ahead) == pytest.approx(busy_s)


def test_a_message_is_a_call_and_two_operators(machine: Machine) -> None:
    found = pricer(machine, framework="megatron", execution="eager").message_seconds()
    assert found == pytest.approx(HOST * 2 * 8e-6 + ISSUE_S)
    assert pricer(machine, framework="fsdp", execution="eager").message_seconds() == 0.0


def test_no_host_issues_what_does_not_run(machine: Machine) -> None:
    eager = pricer(machine, framework="torch", execution="eager")
    plans = np.array([0.0, 1.0, 3.0])  # kernels of three plans that are priced together
    operator_s, kernel_s = HOST * constant("launch.host.eager"), HOST * constant("launch.host.kernel")
    assert eager.host_seconds(SHORT, plans) == pytest.approx([0.0, operator_s, operator_s + 2 * kernel_s])


def test_megatron_issues_the_product_of_each_expert(machine: Machine) -> None:
    experts = replace(PRODUCT, count=8)
    found = pricer(machine, framework="megatron", execution="compiled").host_seconds(experts, 1)
    assert found == HOST * (constant("launch.host.module") + 7 * constant("launch.host.kernel"))


def test_ring_attention_issues_each_step_and_merges_its_result(machine: Machine) -> None:
    compiled = pricer(machine, framework="megatron", execution="compiled")
    issue_s, module_s = ISSUE_S, HOST * constant("launch.host.module")
    chain_s = HOST * (
        constant("launch.host.eager") + (constant("launch.host.ring") - 1) * constant("launch.host.kernel")
    )

    def host_s(layout: Layout) -> float:
        found = compiled.phase([replace(CORE, sequences=1e-9, fused=True)], layout)  # nothing for the device
        return float(found.seconds)

    assert host_s(Layout()) == pytest.approx(2 * module_s)
    assert host_s(Layout(cp=4)) == pytest.approx(module_s + 4 * (module_s + chain_s + 2 * issue_s))
    assert host_s(Layout(cp=4, context="ulysses")) == pytest.approx(2 * module_s)
    replayed = pricer(machine, execution="graph").phase([replace(CORE, sequences=1e-9)], Layout(cp=4))
    assert float(replayed.seconds) < module_s / 10


def test_a_collective_takes_the_host_too(machine: Machine) -> None:
    one = pricer(machine, framework="torch", execution="eager")
    alone, with_link = one.phase([SHORT], Layout()), one.phase([SHORT, link()], Layout(tp=4))
    assert float(with_link.parts["launch"] - alone.parts["launch"]) == pytest.approx(42e-6)
    pair = one.phase([SHORT, replace(link(), repeats=2.0)], Layout(tp=4))  # as often as it repeats
    assert float(pair.parts["launch"] - alone.parts["launch"]) == pytest.approx(2 * 42e-6)
    lonely = replace(link(), ranks=1)
    assert float(one.phase([SHORT, lonely], Layout()).parts["launch"]) == float(alone.parts["launch"])


def test_parts_add_up_to_the_phase(machine: Machine) -> None:
    found = pricer(machine).phase([PRODUCT, CORE, LONG, SHORT, link(), link("gemm")], Layout(tp=4))
    assert float(found.seconds) == pytest.approx(float(sum(np.asarray(p) for p in found.parts.values())))
    assert float(found.flop) == pytest.approx(2 * 256 * 256 * 1024 + 2 * 8 * 1024 * 1024 * 128)


# links ---------------------------------------------------------------------------------------------


def test_an_exposed_collective_adds_its_whole_time(machine: Machine) -> None:
    found = pricer(machine).phase([LONG, link()], Layout(tp=4))
    assert float(found.parts["tensor link"]) == pytest.approx(1.5e-3 + 4e-6 + START_S)


@pytest.mark.parametrize(
    ("name", "part"),
    [("tensor.x", "tensor link"), ("attention.ring", "context link"), ("moe.dispatch", "expert link")],
)
def test_each_family_of_collectives_has_its_part(machine: Machine, name: str, part: str) -> None:
    found = pricer(machine).phase([LONG, link(name=name)], Layout())
    assert {key for key, value in found.parts.items() if "link" in key and float(np.asarray(value)) > 0} == {part}


def test_a_pipelined_collective_shows_its_first_piece_and_slows_the_rest(machine: Machine) -> None:
    total = 1.504e-3 + START_S
    found = pricer(machine).phase([link("gemm")], Layout(tp=4), cover_s=np.asarray(10e-3))
    slow = constant("overlap.compute_slowdown")
    assert float(found.parts["tensor link"]) == pytest.approx(total / 4 + slow * total * 3 / 4)


def test_a_pipelined_collective_shows_what_its_cover_does_not_hold(machine: Machine) -> None:
    total, cover = 1.504e-3 + START_S, 0.5e-3
    found = pricer(machine).phase([link("gemm")], Layout(tp=4), cover_s=np.asarray(cover))
    assert float(found.parts["tensor link"]) == pytest.approx(
        total - cover + constant("overlap.compute_slowdown") * cover
    )


def test_a_collective_that_could_hide_but_is_not_asked_to_shows_all(machine: Machine) -> None:
    found = pricer(machine).phase([link("gemm", hidden=0)], Layout(tp=4), cover_s=np.asarray(10e-3))
    assert float(found.parts["tensor link"]) == pytest.approx(1.504e-3 + START_S)


def test_a_ring_hides_behind_attention(machine: Machine) -> None:
    one = pricer(machine, attention_kernel="unfused")
    core_s = float(one.kernel(CORE).seconds)
    work = link("attention", name="attention.ring", size=8e6)
    total = float(collective_seconds(work, machine))
    assert total < core_s
    found = one.phase([CORE, work], Layout(cp=2))
    expected = total / 2 + constant("overlap.compute_slowdown") * total / 2
    assert float(found.parts["context link"]) == pytest.approx(expected)


# blocks and formats --------------------------------------------------------------------------------


def test_a_block_splits_work_by_phase_and_recompute_is_its_forward(machine: Machine) -> None:
    backward = [
        Gemm(name="up", phase=Phase.BACKWARD_INPUT, m=256, n=1024, k=256),
        Gemm(name="up", phase=Phase.BACKWARD_WEIGHT, m=1024, n=256, k=256),
    ]
    block = pricer(machine).block([PRODUCT, CORE, LONG, *backward], Layout(), recompute=["full", "core-attention"])
    assert float(block.again["full"].seconds) == float(block.forward.seconds)
    assert float(block.forward.parts["memory"]) == pytest.approx(10e-3)
    assert float(block.backward_input.flop) == float(block.backward_weight.flop) == 2 * 256 * 256 * 1024
    # what selective recompute repeats is the unfused core alone
    assert float(block.again["core-attention"].flop) == 2 * 8 * 1024 * 1024 * 128


def test_selective_recompute_of_every_second_product(machine: Machine) -> None:
    gather = Collective(name="tensor.all_gather", phase=Phase.FORWARD, kind=CollectiveKind.ALL_GATHER, bytes=80e6,
                        ranks=4, stride=1, hidden_behind="gemm", hidden=0)  # fmt: skip
    scatter = replace(gather, name="tensor.reduce_scatter", kind=CollectiveKind.REDUCE_SCATTER)
    one = Pricer(machine, Workload(seq_len=1024, global_batch=8))
    found = one.block([PRODUCT, CORE, LONG, gather, scatter], Layout(tp=4), recompute=["every-second-matmul"]).again[
        "every-second-matmul"
    ]
    assert float(found.flop) == 256 * 256 * 1024  # half the product, no attention
    assert float(found.parts["memory"]) == pytest.approx(10e-3)
    assert float(found.parts["attention"]) == 0
    assert float(found.parts["tensor link"]) == pytest.approx(float(collective_seconds(gather, machine)))


def test_a_product_without_pauses_runs_at_the_rate_under_load(machine: Machine) -> None:
    long = replace(PRODUCT, m=4096, n=4096, k=4096)
    held = replace(machine, device=replace(machine.device, loaded={"bf16": 1e12}))
    assert float(pricer(held).kernel(long).seconds) == pytest.approx(2 * 4096**3 / 1e12)
    free = replace(machine, device=replace(machine.device, loaded={"bf16": 1e15}))
    assert float(pricer(free).kernel(long).seconds) == float(pricer(machine).kernel(long).seconds)


def test_eight_bit_recipes_need_a_device_that_has_them(machine: Machine) -> None:
    one = pricer(machine, precision="fp8")
    with pytest.raises(DomainError, match="no fp8 matrix rate"):
        one.kernel(Gemm(name="up", phase=Phase.FORWARD, m=256, n=256, k=256, quantized=True))
    # the logits stay in bf16
    plain = gemm_cost(PRODUCT, machine.device, FORMS["bf16"])
    assert float(one.kernel(PRODUCT).seconds) == float(plain.seconds)


def test_rows_price_each_piece(machine: Machine) -> None:
    rows = pricer(machine).rows([PRODUCT, LONG, link()])
    assert [piece for piece, _ in rows] == [PRODUCT, LONG, link()]
    assert [float(np.asarray(cost.flop)) for _, cost in rows] == [2 * 256 * 256 * 1024, 0.0, 0.0]
