"""TokenRing's two directions, by hand, beside the ring's one."""

from __future__ import annotations

from ridgeline.facts.clusters import cluster
from ridgeline.graph.load import load
from ridgeline.graph.workload import Workload
from ridgeline.plan.plan import Plan
from ridgeline.seams.context import Attended, Exchange, context_style
from ridgeline.seams.setting import Setting


def sent(style: str, one: Attended, *, backward: bool) -> float:
    """Bytes that a rank's exchanges of one attention are of."""
    found = list(context_style(style).exchanges(one, backward=backward))
    assert all(isinstance(each, Exchange) and each.hidden for each in found)
    return sum(float(each.size_bytes) for each in found if isinstance(each, Exchange))


def attended(kv_heads: int) -> Attended:
    return Attended(
        tokens=100, heads=32, kv_heads=kv_heads, qk_dim=128, v_dim=128, element_bytes=2.0, tensor=2, ranks=4
    )


def test_results_with_their_log_sum_exp_are_the_fuller_direction() -> None:
    assert sent("token-ring", attended(32), backward=False) == 4 * 100 * 16 * (128 * 2 + 4)
    assert sent("token-ring", attended(32), backward=True) == 4 * 100 * 16 * (256 * 2 + 8)
    assert sent("ring", attended(32), backward=False) == 4 * 100 * 16 * 256 * 2


def test_it_sends_half_of_a_ring_and_more_of_one_whose_heads_are_shared() -> None:
    ratio = sent("token-ring", attended(32), backward=False) / sent("ring", attended(32), backward=False)
    assert 0.5 < ratio < 0.51
    assert sent("token-ring", attended(8), backward=False) > sent("ring", attended(8), backward=False)


def test_it_is_for_models_whose_heads_are_not_shared() -> None:
    said = {}
    for name in ("llama-2-7b", "llama-3.1-8b"):
        job, plan = Workload(seq_len=4096, global_batch=1), Plan(cp=4)
        setting = Setting(model=load(name), cluster=cluster("4xA10"), workload=job, plan=plan)
        said[name] = context_style("token-ring").applies(setting)
    assert said == {"llama-2-7b": "", "llama-3.1-8b": "queries of 4,096 numbers, a ring sends 2,048 of keys and values"}
