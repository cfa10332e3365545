"""Janus: whole activations in two phases to the experts' devices, and replicas chosen by how many experts are awake.

Letters: T tokens, E experts, R expert devices, d draws of a batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, ClassVar

from ridgeline.plan.deployment import Deployment
from ridgeline.seams.serving import SentActivations
from ridgeline.seams.technique import param
from ridgeline.techniques.disaggregation.attention_ffn import AttentionFFN

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ridgeline.cost.seconds import Seconds
    from ridgeline.lower.pieces import Experts

    Array = NDArray[np.float64]

_DRAWS = 32  # batches over which the fullest device is a mean


@dataclass(frozen=True, kw_only=True)
class Janus(AttentionFFN):
    """Attention and experts on devices of their own; experts' devices gate, and awake experts are balanced over them.

    Activations go whole, at once to each device of experts, or in two phases, the sooner: once to each of their nodes,
    then to all devices inside it. A layer takes as long as the device with most awake experts. The `spare` replicas
    of each device are of the experts that are likeliest awake, and lie where least is likely awake. Of an awake expert
    one replica computes: those with one have no choice, each of the others takes the device with fewest awake so far
    (`balanced`), or one by lot. Tokens choose on their own, popularity falling as rank^-skew. The gate's time is
    attention's.
    """

    key: ClassVar[str] = "janus"
    tags: ClassVar[tuple[str, ...]] = ("expert-parallelism", "expert-load-balance")
    word: ClassVar[str] = ""
    in_words: ClassVar[bool] = False
    source: ClassVar[tuple[str, ...]] = ("zhang2025janus",)
    devices: int = param(1, "devices", "devices of an instance that hold its experts alone", low=1, high=1_000_000)
    micro_batches: int = param(1, "1", "parts of an iteration that go back and forth between both", low=1, high=64)
    spare: int = param(0, "replicas", "replicas of experts that each device holds in a layer", high=4096)
    balanced: bool = param(True, "", "each layer's awake experts are balanced over devices, not drawn by lot")

    @property
    def replicas(self) -> int:
        """Replicas of experts in each layer [1]."""
        return self.spare * self.devices

    def one_way(self, sent: SentActivations) -> Seconds:
        """The sooner of all devices at once, and nodes first, then their devices [s]."""
        import numpy as np

        devices, nodes = self.devices, -(-self.devices // sent.node)
        whole = sent.rows * sent.row_bytes
        direct: Seconds = sent.over(np.maximum(whole * devices / sent.tp, whole * sent.dp))
        taken = whole * sent.dp / (devices / nodes)
        phased = sent.over(np.maximum(whole * nodes / sent.tp, taken))
        inside = min(devices, sent.node)
        phased = phased + sent.gathered(whole * sent.dp, inside) if inside > 1 else phased
        sooner = direct.mid <= phased.mid
        return type(direct)(
            **{name: np.where(sooner, one, getattr(phased, name)) for name, one in vars(direct).items()}
        )

    def uneven(self, piece: Experts, tokens: Array, skew: float) -> Array:
        """Awake experts of the fullest device over those of the mean one, (T,) [1]."""
        import numpy as np

        words = (piece.count - self.replicas, self.replicas, piece.ranks, piece.top_k)
        found = [awake_over_mean(*words, float(t), skew, self.balanced) for t in tokens.ravel()]
        return np.array(found).reshape(tokens.shape)

    def refusal(self, deployment: Deployment) -> str:
        """Experts' devices of another kind, and another placement beside its own."""
        if deployment.expert_kind:
            return "is modelled on devices of one kind; leave out beside"
        return super().refusal(deployment)


@cache
def awake_over_mean(
    experts: int, redundant: int, ranks: int, top_k: int, tokens: float, skew: float, balanced: bool
) -> float:
    """Awake experts of the fullest of R devices over those of the mean, as the mean of draws [1].

    >>> awake_over_mean(8, 0, 8, 8, 1.0, 0.0, True)  # all experts awake, one on each device
    1.0
    """
    import numpy as np

    popular = np.arange(1.0, experts + 1.0) ** -skew
    chance = 1.0 - (1.0 - np.minimum(1.0, top_k * popular / popular.sum())) ** tokens
    draw = np.random.default_rng(0)
    awake = draw.random((_DRAWS, experts)) < chance
    count = chosen(awake, placed(chance, redundant, ranks), draw.random if not balanced else None)
    mean = count.sum(axis=1) / ranks
    return float(count.max(axis=1).sum() / max(mean.sum(), 1e-30)) if mean.sum() else 1.0


def placed(chance: Array, redundant: int, ranks: int) -> Array:
    """Which devices hold a replica of each expert, (E, R) of bools: E experts by their chance to be awake [1].

    Replicas go, one by one, to the expert with the highest chance a copy; copies, the highest chance first, to the
    device with least of it that has a free slot and none of that expert. Devices have the same number of slots.

    >>> import numpy as np
    >>> placed(np.array([0.9, 0.5, 0.4, 0.2]), 0, 2).astype(int).tolist()
    [[1, 0], [0, 1], [0, 1], [1, 0]]
    """
    import numpy as np

    experts = len(chance)
    copies = np.ones(experts)
    for _ in range(redundant):
        open_ = np.where(copies < ranks, chance / copies, -1.0)
        copies[int(np.argmax(open_))] += 1.0
    slots = -(-(experts + redundant) // ranks)
    held, load, holds = np.zeros(ranks), np.zeros(ranks), np.zeros((experts, ranks), dtype=bool)
    for expert in np.argsort(-chance / copies, kind="stable"):
        for _ in range(int(copies[expert])):
            free = (held < slots) & ~holds[expert]
            if not free.any():  # what is left has this expert: its further copies are left out
                break
            rank = int(np.argmin(np.where(free, load, np.inf)))
            holds[expert, rank], held[rank] = True, held[rank] + 1
            load[rank] += chance[expert] / copies[expert]
    return holds


def chosen(awake: Array, holds: Array, lot: object = None) -> Array:
    """Awake experts on each device, (d, R) [1]: single copies first, then each on the device with fewest so far.

    With a `lot` (a function of a shape to numbers) any of its devices is as likely.
    """
    import numpy as np

    draws, copies = np.arange(len(awake)), holds.sum(axis=1)
    count: Array = (awake[:, copies == 1].astype(float)) @ holds[copies == 1].astype(float)
    for expert in np.flatnonzero(copies > 1):
        order = count if lot is None else lot(count.shape)  # type: ignore[operator]
        rank = np.argmin(np.where(holds[expert], order, np.inf), axis=1)
        count[draws, rank] += awake[:, expert]
    return count
