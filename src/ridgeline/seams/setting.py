"""What a technique is asked about: a model on a cluster, with what is done there and how."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from ridgeline.graph.workload import Workload
from ridgeline.plan.deployment import Deployment
from ridgeline.plan.plan import Plan

if TYPE_CHECKING:
    from ridgeline.facts.records import Cluster
    from ridgeline.graph.model import Model
    from ridgeline.graph.ops import AttentionOp
    from ridgeline.plan.sampling import Division, Sampling

TRAINING, SERVING, SAMPLING = "training", "serving", "sampling"


@dataclass(frozen=True, kw_only=True)
class Lengths:
    """Lengths of the prompts or answers of a traffic [token]."""

    total: int
    mean: float
    p50: float
    p90: float
    p99: float
    most: int


@dataclass(frozen=True, kw_only=True)
class Summary:
    """A traffic in a few numbers.

    `rate_per_s` is (N - 1) / span, None where all requests arrive at once. `burstiness` [1] is the coefficient of
    variation of the gaps between arrivals: 1 for Poisson, 0 for even spacing. `repeated_share` [1] is the share of
    prefix blocks that an earlier request named: the hit rate of a cache without limit. `waiting` counts requests
    that wait for another one's end.
    """

    requests: int
    span_s: float
    rate_per_s: float | None
    burstiness: float | None
    prompt: Lengths
    output: Lengths
    repeated_share: float | None
    sessions: int
    clients: int
    waiting: int
    dropped: int


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A model on a cluster, with what is done there and how: what techniques say whether they apply to.

    Training has a `Workload` and a `Plan`, serving the `Summary` of a traffic and a `Deployment`, sampling of pictures
    a `Sampling` and a `Division`; `plan` is None where it is being looked for. `objective` are bounds of a serving
    objective by name ('ttft_s', 'tpot_s', 'latency_s') [s]. `limit` says what limits it, by the kinds of `Share.kind`
    ('' where nobody asked): techniques may offer other values where another thing limits.
    """

    model: Model
    cluster: Cluster
    workload: Workload | Summary | Sampling
    plan: Plan | Deployment | Division | None = None
    objective: Mapping[str, float] = field(default_factory=dict)
    limit: str = ""

    @property
    def kind(self) -> str:
        """One of TRAINING, SERVING, SAMPLING."""
        return {Workload: TRAINING, Summary: SERVING}.get(type(self.workload), SAMPLING)

    @property
    def job(self) -> Workload | None:
        """The workload of training; None of anything else."""
        return self.workload if isinstance(self.workload, Workload) else None

    @property
    def traffic(self) -> Summary | None:
        """The traffic of serving; None of anything else."""
        return self.workload if isinstance(self.workload, Summary) else None

    @property
    def train_plan(self) -> Plan | None:
        """The plan of training; None of anything else, or where it is looked for."""
        return self.plan if isinstance(self.plan, Plan) else None

    @property
    def deployment(self) -> Deployment | None:
        """The deployment of serving; None of anything else, or where it is looked for."""
        return self.plan if isinstance(self.plan, Deployment) else None

    @property
    def experts(self) -> int:
        """Experts of a layer with the most of them [1]; 0 where the model has none."""
        return max((block.experts for block in self.model.graph.blocks.values()), default=0)

    @cached_property
    def attention(self) -> AttentionOp | None:
        """The first attention of the model's layers; None where it has none."""
        found = (block.attention for block in self.model.graph.blocks.values() if not block.encoder)
        return next((one for one in found if one is not None), None)

    @property
    def tokens(self) -> float:
        """Tokens of a sequence [token]: of training its length, of serving mean prompt and answer; 0 of pictures."""
        if self.job is not None:
            return float(self.job.seq_len)
        return 0.0 if self.traffic is None else self.traffic.prompt.mean + self.traffic.output.mean

    @property
    def slots(self) -> frozenset[str]:
        """Slots that degrees and techniques of the plan fill; empty where the plan is looked for."""
        from ridgeline.seams.resolve import filled_slots

        return frozenset() if self.plan is None else filled_slots(self.plan)
