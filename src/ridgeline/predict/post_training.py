"""Post-training, composed: rollouts of the serving clock, passes of the training predictor, and moves between them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import sqrt
from typing import Any

from ridgeline.cost.machine import machine
from ridgeline.energy.power import step_energy_j
from ridgeline.errors import PlanError
from ridgeline.facts.mechanisms import constant
from ridgeline.facts.records import Cluster
from ridgeline.facts.transfer import joined, run_spread
from ridgeline.graph.model import Model
from ridgeline.graph.workload import Workload
from ridgeline.plan.post_training import PostTraining, Roles
from ridgeline.predict.post_training_memory import frozen_bytes, resident_bytes, role_memory
from ridgeline.predict.post_training_moves import loaded_s, offload_s, swap_s, transfer_s
from ridgeline.predict.post_training_passes import (
    forward_report,
    mini_batch_lengths,
    sequence_lengths,
    update_report,
)
from ridgeline.predict.rollouts import RolloutEngine, Rollouts, response_lengths
from ridgeline.report.post_training import IterationPhase, LongTail, PostTrainingReport
from ridgeline.report.report import Estimate, Report, StageMemory
from ridgeline.seams.rollout import period_s, rollout_schedule
from ridgeline.units import bytes_text

GENERATION, TRAINING, TRANSFER = "generation", "training", "transfer"
SWAP = "reference swapped in"


@dataclass(frozen=True, kw_only=True)
class Models:
    """The models of the roles; None where a role is as large as the policy."""

    policy: Model
    critic: Model | None = None
    reward: Model | None = None


_ROLE_WORDS = (
    "rollout_devices", "rollout_tp", "rollout_pp", "rollout_ep", "rollout_engine", "rollout_weights", "rollout_memory",
    "offload_trainer", "critic_devices", "rollout_mode", "rollout_collection", "sequence_packing",
)  # fmt: skip
"""Words of a plan that say how roles are divided; the others are of the trainer's plan."""


@dataclass(frozen=True, kw_only=True)
class PostTrainingQuestion:
    """An iteration whose roles are not settled: models, devices, and the words of the plan that are kept."""

    models: Models
    cluster: Cluster
    asked: PostTraining
    job: Workload
    stated: Mapping[str, Any] = field(default_factory=dict)

    @property
    def of_trainer(self) -> dict[str, Any]:
        """Words of the trainer's plan that are kept."""
        return {name: value for name, value in self.stated.items() if name not in _ROLE_WORDS}


def predict_post_training(
    models: Models, cluster: Cluster, asked: PostTraining, roles: Roles, job: Workload,
    passes: dict[Any, Any] | None = None,
) -> PostTrainingReport:  # fmt: skip
    """An iteration of post-training: time by phase, memory by role, and what limits it.

    `job` says how the trainer computes: precision, optimizer, kernels, framework; its lengths and batch are not read.
    `passes` keeps what was predicted of a trainer and of an engine for other splits of the same question.
    Raises `PlanError` for roles that cannot be so, `NoPlanError` where the engine will not start.
    """
    return _Iteration(models, cluster, asked, roles, job, {} if passes is None else passes).report()


class _Iteration:
    """One iteration, from its parts to the report."""

    def __init__(
        self, models: Models, cluster: Cluster, asked: PostTraining, roles: Roles, job: Workload,
        passes: dict[Any, Any],
    ) -> None:  # fmt: skip
        check_roles(cluster, asked, roles)
        self.models, self.cluster, self.asked, self.roles, self.job = models, cluster, asked, roles, job
        self.machine, self.passes = machine(cluster), passes
        self.trainer = replace(cluster, count=roles.train.devices)
        self.lengths = sequence_lengths(asked, response_lengths(asked))
        how = (roles.train, roles.packing)
        few = mini_batch_lengths(self.lengths, asked)
        self.update = self._once("update", lambda: update_report(models.policy, self.trainer, job, few, how))
        self.worst = max(self.update.memory, key=lambda one: one.total_bytes)
        self.frozen = frozen_bytes(models.policy, models.reward, asked, roles.train)
        self.critic: StageMemory | None = None
        self.engine: RolloutEngine | None = None
        self.rollouts: Rollouts | None = None
        if asked.online:
            behind = rollout_schedule(roles.mode).versions_behind()
            key = (self._deployment(), roles.collection, behind > 0)
            if key not in passes:
                made = RolloutEngine(models.policy, self.machine, key[0], apart=key[2])
                passes[key] = made, made.rollouts(asked, roles.collection)
            self.engine, self.rollouts = passes[key]
        self.reports: list[tuple[IterationPhase, Report, float]] = []

    def _deployment(self) -> Any:
        """The engine's deployment, beside what a trainer that stays leaves it."""
        one, roles = self.roles.rollout, self.roles
        if not roles.colocated or roles.offload or one.options.memory_fraction is not None:
            return one
        memory = self.cluster.accelerator.memory_bytes
        left = (memory - resident_bytes(self.worst)) / memory * 0.95
        if left <= 0.05:
            raise PlanError(
                f"plan: the trainer's states, {bytes_text(resident_bytes(self.worst))} a device, leave the engine"
                " nothing; say offload = true, or give it devices of its own with rollout_devices"
            )
        return replace(one, options=replace(one.options, memory_fraction=left))

    def _once(self, name: str, made: Callable[[], Report]) -> Report:
        """A report of the trainer's plan, made once."""
        key = (self.roles.train, self.roles.packing, name)
        if key not in self.passes:
            self.passes[key] = made()
        found: Report = self.passes[key]
        return found

    def _passes(self, name: str, report: Report, times: float, note: str = "", **more: Any) -> IterationPhase:
        step = report.step_time
        phase = IterationPhase(
            name=name, side=TRAINING, seconds=times * step.value, low_s=times * step.low, high_s=times * step.high,
            note=note, **more,
        )  # fmt: skip
        self.reports.append((phase, report, times))
        return phase

    def _forward(self, model: Model | None) -> Report:
        one, how = model or self.models.policy, (self.roles.train, self.roles.packing)
        return self._once(one.name, lambda: forward_report(one, self.trainer, self.job, self.lengths, how))

    def training_phases(self) -> list[IterationPhase]:
        """Scores and updates of an iteration; a critic with devices of its own runs beside."""
        asked, found = self.asked, []
        own = self._forward(None) if asked.old_logprobs or asked.reference else None
        if asked.old_logprobs and asked.online and own is not None:
            found.append(self._passes("old log-probabilities", own, 1.0, "a forward of the policy"))
        if asked.reference and asked.task not in ("sft", "reward") and own is not None:
            found.append(self._passes("reference", own, 1.0, "a forward of its frozen copy"))
            if asked.online and self.roles.offload:
                note = "the policy's weights to host memory, its copy's to the device, and back"
                found.append(self._move(SWAP, swap_s(self.machine, self.worst), note, side=TRAINING))
        if asked.online and self.models.reward is not None:
            found.append(self._passes("reward model", self._forward(self.models.reward), 1.0, self.models.reward.name))
            if self.roles.offload:
                seconds = loaded_s(self.machine, self.frozen["reward model"])
                found.append(self._move("reward model loaded", seconds, "from host memory", side=TRAINING))
        found.append(self._passes("updates", self.update, asked.updates, _steps(asked.updates)))
        return found + (self._critic(found) if asked.task == "ppo" else [])

    def _critic(self, others: list[IterationPhase]) -> list[IterationPhase]:
        """Values and updates of PPO's critic, in turn with the policy's or beside them."""
        asked, roles = self.asked, self.roles
        critic, beside = self.models.critic or self.models.policy, roles.critic is not None
        where, how = self.trainer, (roles.train, roles.packing)
        if roles.critic is not None:
            where, how = replace(self.cluster, count=roles.critic.devices), (roles.critic, roles.packing)
        few = mini_batch_lengths(self.lengths, asked)
        name = f"{critic.name} beside" if beside else critic.name  # in turn: a pass of the policy's size is known
        scores = self._once(name, lambda: forward_report(critic, where, self.job, self.lengths, how))
        name = "update" if critic is self.models.policy and not beside else f"update of {name}"
        step = self._once(name, lambda: update_report(critic, where, self.job, few, how))
        self.critic = max(step.memory, key=lambda one: one.total_bytes)
        total = scores.step_time.value + asked.updates * step.step_time.value
        longer = beside and total > sum(one.seconds for one in others)
        if longer:
            self.reports = [(replace(phase, beside=True), one, times) for phase, one, times in self.reports]
            others[:] = [replace(one, beside=True) for one in others]
        more = {"beside": beside and not longer}
        found = [
            self._passes("critic values", scores, 1.0, critic.name, **more),
            self._passes("critic updates", step, asked.updates, _steps(asked.updates), **more),
        ]
        if roles.offload and not beside:
            # Where the engine takes turns too, the policy's states make that way anyway: `moves`.
            states = (self.critic,) if roles.colocated else (self.critic, self.worst)
            seconds = sum(offload_s(self.machine, one) for one in states)
            found.append(
                self._move("critic swapped in", seconds, "its states and the policy's take turns", side=TRAINING)
            )
        return found

    def moves(self) -> list[IterationPhase]:
        """Weights to the engine, states to the host and back."""
        if self.engine is None:
            return []
        size = self.engine.made.capacity.weights_bytes
        model = self.models.policy
        sent = transfer_s(self.machine, self.roles, model, size)
        note = f"{model.graph.tensors:,} tensors, {bytes_text(size)} a device"
        found = [self._move("weights to the engine", sent, note)]
        if self.roles.colocated and self.roles.offload:
            note = "weights and optimizer states, each way"
            found.append(self._move("states to host and back", offload_s(self.machine, self.worst), note))
            found.append(
                self._move("engine to sleep and awake", constant("rollout.sleep_s"), "memory freed and mapped")
            )
        return found

    @staticmethod
    def _move(name: str, seconds: float, note: str, side: str = TRANSFER) -> IterationPhase:
        return IterationPhase(
            name=name, side=side, seconds=seconds, low_s=0.7 * seconds, high_s=3.0 * seconds, note=note
        )

    def report(self) -> PostTrainingReport:
        """The report of the iteration."""
        generation = self._generation()
        training = self.training_phases()
        phases = [*generation, *self._rule(), *training, *self.moves()]
        told = tuple(self._of_runs(one) for one in phases)
        step = self._step(phases, told)
        energy = self._energy(step.value)
        price, carbon = self.cluster.price_usd_per_device_h, self.cluster.carbon_kg_per_j
        devices = self.roles.devices if self.asked.online else self.roles.train.devices
        capacity, made = self.cluster.accelerator.memory_bytes, self.engine.made if self.engine is not None else None
        memory = role_memory(self.roles, capacity, self.worst, self.frozen, critic=self.critic, made=made)
        return PostTrainingReport(
            model=self.models.policy, cluster=self.cluster, asked=self.asked, roles=self.roles, step=step,
            phases=told, memory=tuple(memory), tail=self._tail(), tokens=int(self.lengths.sum()),
            updates=self.asked.updates, limit=self._limit(phases, step.value),
            idle_share=self._idle(phases, step.value), energy_j=energy,
            usd=None if price is None else price.value * devices * step.value / 3600.0,
            carbon_kg=None if carbon is None or energy is None else carbon.value * energy,
            engine="" if self.rollouts is None else self.rollouts.engine, assumptions=tuple(self._assumptions()),
        )  # fmt: skip

    def _generation(self) -> list[IterationPhase]:
        if self.rollouts is None:
            return []
        it, one = self.rollouts, self.roles.rollout
        many = f"{one.instances} instance{'s' if one.instances > 1 else ''} of tp {one.tp}"
        return [
            IterationPhase(name="rollouts", side=GENERATION, seconds=it.seconds, low_s=it.low_s, high_s=it.high_s,
                           note=f"{len(it.generated.ready_s):,} responses by {many}")
        ]  # fmt: skip

    def _rule(self) -> list[IterationPhase]:
        """What hosts do between phases while no device computes: rewards by a rule, and the program's own work."""
        if self.rollouts is None:
            return []
        rule, own = (
            self.asked.reward_s * self.asked.sequences,
            constant("rollout.response_host_s") * self.asked.sequences,
        )
        note = "responses decoded, scored by a simple rule, padded, divided over ranks and sent"
        found = [
            IterationPhase(
                name="host work between phases", side=TRAINING, seconds=own, low_s=own / 4, high_s=3 * own, note=note
            )
        ]
        if rule:
            note = f"a rule on the host, {self.asked.reward_s:g} s a response"
            found.append(
                IterationPhase(name="rewards", side=TRAINING, seconds=rule, low_s=rule, high_s=rule, note=note)
            )
        return found

    def _step(self, phases: list[IterationPhase], told: Sequence[IterationPhase]) -> Estimate:
        """The iteration's period with its interval: each side at its ends, sides independent of each other.

        Programs of post-training spend time outside these phases too, as whole runs of others show.
        """
        middle = {side: _sum(phases, side, "seconds") for side in (GENERATION, TRAINING, TRANSFER)}
        value = self._period(middle)
        ends = []
        for end, sign in (("low_s", -1.0), ("high_s", 1.0)):
            moved = [self._period({**middle, side: _sum(phases, side, end)}) - value for side in middle]
            ends.append(value + sign * sqrt(sum(max(0.0, sign * each) ** 2 for each in moved)))
        evidence = min(report.step_time.evidence for _, report, _ in self.reports)
        beyond = self._beyond("post-training")
        low, high = joined(value, [max(ends[0], 0.0), ends[1], *(value * end for end in beyond)])
        alone = [one for one in told if not one.beside]  # an iteration takes no less than any of its phases
        low, high = max(low, *(one.low_s for one in alone)), max(high, *(one.high_s for one in alone))
        return Estimate(value=value, low=low, high=high, unit="s", evidence=evidence)

    def _beyond(self, kind: str) -> tuple[float, float]:
        """What whole runs of others add to the ends of an iteration, or of each of its phases [1]."""
        return run_spread(kind) if self.asked.online else (1.0, 1.0)

    def _of_runs(self, phase: IterationPhase) -> IterationPhase:
        if phase.low_s == phase.high_s:  # stated
            return phase
        ends = [phase.low_s, phase.high_s, *(phase.seconds * end for end in self._beyond("post-training part"))]
        low, high = joined(phase.seconds, ends)
        return replace(phase, low_s=low, high_s=high)

    def _period(self, sides: Mapping[str, float]) -> float:
        if self.rollouts is None:
            return sum(sides.values())
        scale = sides[GENERATION] / self.rollouts.seconds
        ready = self.rollouts.generated.ready_s * scale
        mode = rollout_schedule(self.roles.mode)
        return period_s(mode, ready, sides[GENERATION], sides[TRAINING], sides[TRANSFER])

    def _idle(self, phases: list[IterationPhase], step_s: float) -> float:
        """Share of device seconds in which a device waits [1]: for the tail, for another role, or for moves."""
        roles, it = self.roles, self.rollouts
        if it is None:
            return 0.0
        busy = roles.rollout_devices * it.seconds * (1.0 - it.idle_share)
        busy += roles.train.devices * sum(one.seconds for one, _, _ in self.reports if "critic" not in one.name)
        busy += (roles.critic_devices or roles.train.devices) * sum(
            one.seconds for one in phases if "critic" in one.name
        )
        return max(0.0, 1.0 - busy / (roles.devices * step_s))

    def _limit(self, phases: list[IterationPhase], step_s: float) -> str:
        """The longest phases, with their share of an iteration; where both sides run at a time, those of the longer."""
        spans = {side: _sum(phases, side, "seconds") for side in (GENERATION, TRAINING)}
        together, waits = self.rollouts is not None and step_s < 0.999 * sum(spans.values()), ""
        if together:
            longer, shorter = sorted(spans, key=lambda side: -spans[side])
            phases = [one for one in phases if one.side == longer]
            waits = f"; {shorter} takes {spans[shorter] / step_s:.0%} beside"
        longest = sorted((one for one in phases if not one.beside), key=lambda one: -one.seconds)[:2]
        return ", then ".join(f"{one.name} {one.seconds / step_s:.0%}" for one in longest) + " of the iteration" + waits

    def _tail(self) -> LongTail | None:
        it = self.rollouts
        if it is None:
            return None
        ordered = sorted(it.output.tolist())
        return LongTail(
            half_s=it.half_s, alike_s=it.alike_s, cost_s=it.tail_s, idle_share=it.idle_share,
            mean=sum(ordered) / len(ordered), p99=float(ordered[int(0.99 * (len(ordered) - 1))]),
            most=float(ordered[-1]), mean_batch=it.batch, again_tokens=it.generated.again_tokens,
            old_share=it.generated.old_share,
        )  # fmt: skip

    def _energy(self, step_s: float) -> float | None:
        """Energy of an iteration at the wall [J]: busy phases, and devices that wait."""
        total = sum(times * report.energy_j_per_step for _, report, times in self.reports)
        if self.rollouts is None:
            return total
        if self.rollouts.power_w is None:
            return None
        total += self.rollouts.power_w * self.rollouts.seconds
        trained = sum(phase.seconds for phase, _, _ in self.reports if not phase.beside)
        waits = {self.roles.train.devices: max(0.0, step_s - trained)} if not self.roles.colocated else {}
        rest = step_s - self.rollouts.seconds - (trained if self.roles.colocated else 0.0)
        for devices, seconds in ((self.roles.rollout_devices, max(0.0, rest)), *waits.items()):
            total += step_energy_j({"bubble": seconds}, self.cluster, used=devices)
        return total

    def _assumptions(self) -> list[str]:
        asked, found = self.asked, []
        if self.rollouts is not None and not asked.responses:
            found.append(f"responses are lognormal with a coefficient of variation of {asked.response_cv:g}, cut at"
                         f" {asked.response_max:,} tokens, {asked.response:,.4g} on average")  # fmt: skip
        if self.models.reward is None and asked.online:
            said = "that takes no time" if not asked.reward_s else "on the host"
            found.append(f"rewards come of a rule {said}")
        if self.roles.offload and asked.online and self.roles.colocated:
            found.append("the engine's weights and cache are dropped while the trainer works")
        if asked.online and not self.roles.colocated and (self.frozen or self.critic is not None):
            where = "wait in host memory in turn" if self.roles.offload else "stay on its devices"
            found.append(f"roles of the trainer {where} (offload_trainer = {str(self.roles.offload).lower()})")
        return [*found, *(text for text in self.update.assumptions if not _of_a_step(text))]


def check_roles(cluster: Cluster, asked: PostTraining, roles: Roles) -> None:
    """Raises `PlanError` for roles that the devices do not hold, or that cannot overlap."""
    if not asked.online:
        return
    rollout_schedule(roles.mode).check(colocated=roles.colocated)
    if roles.devices > cluster.count:
        told = f"trainer {roles.train.devices}, engine {roles.rollout_devices}, critic {roles.critic_devices}"
        raise PlanError(
            f"plan: the roles take {roles.devices} devices ({told}), {cluster.name} has {cluster.count};"
            " lower rollout_devices, critic_devices or dp"
        )


def _steps(count: int) -> str:
    return f"{count} optimizer step{'s' if count > 1 else ''}"


def _of_a_step(text: str) -> bool:
    """Whether a training report's assumption says nothing of an iteration."""
    return "MFU" in text or "positions are padding" in text


def _sum(phases: list[IterationPhase], side: str, name: str) -> float:
    return float(sum(getattr(one, name) for one in phases if one.side == side and not one.beside))
