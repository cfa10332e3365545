"""The answer about an iteration of post-training: its time by phase, memory by role, and what the tail costs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ridgeline.report.blocks import Block, Line, Table, blank, labelled
from ridgeline.report.report import Estimate
from ridgeline.units import bytes_text, time_text

if TYPE_CHECKING:
    from ridgeline.facts.records import Cluster
    from ridgeline.graph.model import Model
    from ridgeline.plan.post_training import PostTraining, Roles


@dataclass(frozen=True, kw_only=True)
class IterationPhase:
    """A phase of an iteration with its 80 % interval [s]; `side` is 'generation', 'training' or 'transfer'.

    `beside` says that it runs on devices of its own while another phase takes longer, and adds nothing.
    """

    name: str
    side: str
    seconds: float
    low_s: float
    high_s: float
    note: str = ""
    beside: bool = False


@dataclass(frozen=True, kw_only=True)
class RoleMemory:
    """What a device of one role holds at its peak [byte]."""

    role: str
    bytes: float
    capacity_bytes: float
    parts: Mapping[str, float]

    @property
    def fits(self) -> bool:
        """Whether the device holds it."""
        return self.bytes <= self.capacity_bytes


@dataclass(frozen=True, kw_only=True)
class LongTail:
    """What unlike responses cost an iteration.

    `half_s` [s] until half of the responses are there, `alike_s` [s] the rollouts if all had the mean length, `cost_s`
    [s] the difference to the rollouts; `idle_share` [1] of the generating devices' time with nothing left to do;
    `mean`, `p99` and `most` are lengths [token], `mean_batch` [sequence] of an instance's decode steps, `again_tokens`
    [token] read again of responses that were cut off, `old_share` [1] of trained tokens from earlier versions.
    """

    half_s: float
    alike_s: float
    cost_s: float
    idle_share: float
    mean: float
    p99: float
    most: float
    mean_batch: float
    again_tokens: int
    old_share: float


@dataclass(frozen=True, kw_only=True)
class PostTrainingReport:
    """One iteration of post-training, explained."""

    model: Model
    cluster: Cluster
    asked: PostTraining
    roles: Roles
    step: Estimate
    phases: tuple[IterationPhase, ...]
    memory: tuple[RoleMemory, ...]
    tail: LongTail | None
    tokens: int  # trained tokens of an iteration, prompts among them
    updates: int
    limit: str
    idle_share: float  # of all device seconds, in which a device waits for another role or for the tail
    energy_j: float | None
    usd: float | None
    carbon_kg: float | None
    engine: str
    assumptions: tuple[str, ...]

    @property
    def fits(self) -> bool:
        """Whether every role's devices hold what they must."""
        return all(one.fits for one in self.memory)

    @property
    def tokens_per_s(self) -> float:
        """Trained tokens, prompts among them [token/s]."""
        return self.tokens / self.step.value

    def seconds_of(self, side: str) -> float:
        """Time of the phases of a side that are not hidden beside others [s]."""
        return sum(one.seconds for one in self.phases if one.side == side and not one.beside)

    def as_dict(self) -> dict[str, Any]:
        """The report under stable keys, SI numbers."""
        asked = dict(vars(self.asked))
        roles = self.roles
        return {
            "task": self.asked.task, "model": self.model.name, "cluster": self.cluster.name,
            "devices": self.cluster.count, "workload": asked,
            "step_s": self.step.value, "low_s": self.step.low, "high_s": self.step.high,
            "evidence": self.step.evidence.label,
            "phases": [vars(one) for one in self.phases],
            "generation_s": self.seconds_of("generation"), "training_s": self.seconds_of("training"),
            "transfer_s": self.seconds_of("transfer"),
            "tokens": self.tokens, "tokens_per_s": self.tokens_per_s, "updates": self.updates,
            "long_tail": None if self.tail is None else vars(self.tail),
            "plan": {
                "mode": roles.mode, "collection": roles.collection, "packing": roles.packing,
                "colocated": roles.colocated, "offload": roles.offload, "devices": roles.devices,
                "train": {name: getattr(roles.train, name) for name in TRAIN_DEGREES},
                "train_devices": roles.train.devices, "critic_devices": roles.critic_devices,
                "rollout": {
                    "tp": roles.rollout.tp, "pp": roles.rollout.pp, "ep": roles.rollout.ep,
                    "instances": roles.rollout.instances, "devices": roles.rollout_devices, "engine": self.engine,
                } if self.asked.online else None,
            },
            "memory": [vars(one) | {"fits": one.fits} for one in self.memory], "fits": self.fits,
            "limit": self.limit, "idle_share": self.idle_share, "energy_j": self.energy_j, "usd": self.usd,
            "carbon_kg": self.carbon_kg, "assumptions": list(self.assumptions),
        }  # fmt: skip


TRAIN_DEGREES = ("tp", "pp", "cp", "dp", "ep", "etp", "zero", "micro_batch", "recompute", "sequence_parallel",
                 "offload_optimizer")  # fmt: skip
"""Fields of the trainer's plan that a report tells."""


_RIGHT = frozenset(
    {"time", "share", "80 % interval", "held", "of", "step", "on policy", "tokens/s", "rollouts", "tail"}
)


def iteration_blocks(it: PostTrainingReport, assumed: Sequence[str]) -> list[Block]:
    """One iteration in full."""
    step, each = it.step, it.tokens_per_s / it.cluster.count
    return [
        Line(text=f"{it.asked.task} of {it.model.name} on {it.cluster.name}: {_asked(it)}", strong=True),
        blank(),
        *labelled((
            ("split", divided(it)),
            ("step time", f"{time_text(step.value)} (80 % interval {time_text(step.low)} to {time_text(step.high)})"),
            ("throughput", f"{it.tokens_per_s:,.0f} tokens/s, {each:,.0f} per device"),
            ("limited by", f"{it.limit}; {it.idle_share:.0%} of all device time is idle"),
            *_spent(it),
            *_tail(it),
        )),
        blank(),
        Table(columns=("phase", "time", "80 % interval", "share", "what"), right=_RIGHT, rows=tuple(
            (one.name, time_text(one.seconds), f"{time_text(one.low_s)} to {time_text(one.high_s)}",
             "beside" if one.beside else f"{one.seconds / step.value:.0%}", one.note) for one in it.phases)),
        blank(),
        Table(columns=("role", "held", "of", "most of it"), right=_RIGHT, rows=tuple(
            (one.role, bytes_text(one.bytes), bytes_text(one.capacity_bytes) + ("" if one.fits else " DOES NOT FIT"),
             ", ".join(f"{name} {bytes_text(size)}" for name, size in
                       sorted(one.parts.items(), key=lambda part: -part[1])[:3])) for one in it.memory)),
        blank(),
        *(Line(text=f"assumed: {text}", indent=2, hang=2) for text in dict.fromkeys((*assumed, *it.assumptions))),
    ]  # fmt: skip


def splits_blocks(
    best: Sequence[PostTrainingReport], assumed: Sequence[str], *, account: str, on_policy: PostTrainingReport | None,
    aim: str = "time",
) -> list[Block]:  # fmt: skip
    """The best split in full, and all in a table, with what each takes of the aim."""
    from ridgeline.report.aims import AIMS
    from ridgeline.seams.rollout import rollout_schedule

    if not best[0].asked.online:
        return iteration_blocks(best[0], assumed)
    other = () if aim == "time" else (aim,)
    rows = tuple(
        (
            str(place), time_text(one.step.value), f"{one.tokens_per_s:,.0f}", time_text(one.seconds_of("generation")),
            time_text(one.tail.cost_s) if one.tail else "",
            "no" if rollout_schedule(one.roles.mode).versions_behind() else "yes",
            *(f"{AIMS[name].iteration(one):.4g}" for name in other), divided(one),
        )
        for place, one in enumerate(best, start=1)
    )  # fmt: skip
    spent = tuple(AIMS[name].titles[0] for name in other)
    columns = ("#", "step", "tokens/s", "rollouts", "tail", "on policy", *spent, "split")
    found = [
        *iteration_blocks(best[0], assumed), blank(), Line(text="Best splits", strong=True),
        Table(columns=columns, rows=rows, right=_RIGHT | {"#", *spent}), Line(text=account),
    ]  # fmt: skip
    if on_policy is not None and on_policy is not best[0]:
        ratio = on_policy.step.value / best[0].step.value
        found.append(Line(text=f"on the newest weights alone an iteration takes {ratio:.2f}x as long: choose by what"
                               " staleness costs in accuracy"))  # fmt: skip
    return found


def divided(it: PostTrainingReport) -> str:
    """How the devices are divided, in a line."""
    roles, train = it.roles, it.roles.train
    degrees = [f"{name} {getattr(train, name)}" for name in ("tp", "pp", "cp", "ep", "dp") if getattr(train, name) > 1]
    trained = " ".join(degrees) or "one device"
    trained += f" zero {train.zero}" if train.zero else ""
    if not it.asked.online:
        return f"{train.devices} devices train ({trained})"
    made = f"{roles.rollout.instances} x tp {roles.rollout.tp}"
    made += f" pp {roles.rollout.pp}" if roles.rollout.pp > 1 else ""
    critic = f", {roles.critic_devices} train the critic" if roles.critic_devices else ""
    if roles.colocated:
        return f"{roles.mode}: {roles.rollout_devices} devices generate ({made}) and train in turn ({trained}){critic}"
    return f"{roles.mode}: {roles.rollout_devices} devices generate ({made}), {train.devices} train ({trained}){critic}"


def _asked(it: PostTrainingReport) -> str:
    asked = it.asked
    what = f"{asked.prompts} prompts x {asked.samples} responses" if asked.online else f"{asked.sequences} sequences"
    return f"{what}, {it.updates} optimizer step{'s' if it.updates > 1 else ''}"


def _spent(it: PostTrainingReport) -> Iterable[tuple[str, str]]:
    yield "energy", "no power is known" if it.energy_j is None else f"{it.energy_j / 3.6e6:,.3g} kWh per step"
    if it.carbon_kg is not None:
        yield "carbon", f"{it.carbon_kg:,.3g} kg CO2e per step"
    yield "cost", "no price is known" if it.usd is None else f"${it.usd:,.3g} per step"


def _tail(it: PostTrainingReport) -> Iterable[tuple[str, str]]:
    tail = it.tail
    if tail is None:
        return
    cost = tail.cost_s / it.seconds_of("generation")
    yield (
        "responses",
        f"{tail.mean:,.4g} tokens on average, 99 % within {tail.p99:,.0f}, longest {tail.most:,.0f};"
        f" {tail.mean_batch:,.3g} at a time an instance",
    )
    yield (
        "long tail",
        f"costs {time_text(tail.cost_s)} ({cost:.0%} of the rollouts): if all were as long as the mean, rollouts"
        f" would take {time_text(tail.alike_s)}; half of the responses are there after {time_text(tail.half_s)}, and"
        f" {tail.idle_share:.0%} of the generating devices' time has nothing left to do",
    )
    if tail.again_tokens:
        yield (
            "cut off",
            f"{tail.again_tokens:,} tokens of responses that were cut off are read again, and {tail.old_share:.0%}"
            " of trained tokens are of earlier versions",
        )
