"""What room in the memory of another instance costs: moving cache there, asking it, reading it there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ridgeline.cost.network import send_seconds
from ridgeline.errors import PlanError
from ridgeline.facts.engines import EnginePolicy
from ridgeline.facts.mechanisms import constant
from ridgeline.lower.pieces import Core, Recurrence, Served
from ridgeline.seams.serving import RemoteKV, preemption_of

if TYPE_CHECKING:
    from ridgeline.serving.step import StepModel

_LONG_CONTEXTS = 32_768.0, 65_536.0  # between which the time of one more token elsewhere is read [token]
_ANY = 2**40  # blocks: no limit


def loan_numbers(
    steps: StepModel, policy: EnginePolicy, asked: RemoteKV, *, blocks: int, stride: int, move_token_s: float
) -> dict[str, float]:
    """The numbers of `state.RULE` about room at an instance `stride` devices away.

    A step of those who borrow sends, in each layer, each head's query and takes back its sum, 16 bits each, with the
    weight of the part, 32 bits: two latencies a layer, and its bytes for each sequence. A token there is read at the
    rate of decode attention of one long sequence.

    Parameters
    ----------
    blocks : int [1]
        Of one instance's cache.
    move_token_s : float [s]
        A token's cache over the link between instances.

    Raises
    ------
    PlanError
        Engines that run prompts apart from decode steps or swap; windows and recurrent states.
    """
    one = steps.deployment
    if policy.scheduler != "mixed" or preemption_of(one, policy) == "swap":
        raise PlanError(
            f"deployment: borrows, but {policy.name} is {policy.scheduler} and its preemption is"
            f" {preemption_of(one, policy)}; room is borrowed where prompts mix with decode steps, and recomputed"
        )
    cores = _cores(steps.served)
    size = sum(many * core.heads * (2.0 * core.query_elements + 2.0 * core.result_elements + 4.0)
               for many, core in cores)  # fmt: skip
    none, some = (float(send_seconds(moved, stride, steps.machine)) for moved in (1e6, 1e6 + size))
    near, far = (sum(many * _read_s(steps, core, length) for many, core in cores) for length in _LONG_CONTEXTS)
    return {
        "borrows": 1,
        "owe": _ANY if asked.owe_share is None else int(asked.owe_share * blocks),
        "lend_share": constant("serve.lend_share") if asked.lend_share is None else asked.lend_share,
        "lend_token_s": move_token_s,
        "ask_start_s": 2.0 * sum(many for many, _ in cores) * float(send_seconds(1.0, stride, steps.machine)),
        "ask_s": some - none,
        "far_token_s": (far - near) / (_LONG_CONTEXTS[1] - _LONG_CONTEXTS[0]),
    }


def _read_s(steps: StepModel, core: Core, length: float) -> float:
    """Attention of one sequence over so many tokens in one layer [s]."""
    return float(steps.prices.decode(core, np.ones(1), np.array([length])).mid[0])


def _cores(served: Served) -> list[tuple[int, Core]]:
    """The attention of all layers and how many have it; raises where a part of a cache cannot lie elsewhere."""
    found = []
    for kind in served.kinds:
        for piece in kind.pieces:
            if isinstance(piece, Recurrence) or (isinstance(piece, Core) and piece.window):
                raise PlanError("deployment: borrows, but the model has windows or states; they are not divided")
            if isinstance(piece, Core):
                found.append((kind.count, piece))
    return found
