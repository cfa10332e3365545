"""How devices are split between generation and training: every split bounded, the promising ones predicted."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import Any

import numpy as np

from ridgeline.cost.machine import machine
from ridgeline.errors import NoPlanError, PlanError
from ridgeline.graph.workload import Workload
from ridgeline.plan.deployment import Deployment
from ridgeline.plan.engine_options import EngineOptions
from ridgeline.plan.plan import Plan
from ridgeline.plan.post_training import Roles
from ridgeline.predict import Predictor
from ridgeline.predict.post_training import PostTrainingQuestion, check_roles, predict_post_training
from ridgeline.predict.post_training_memory import frozen_bytes
from ridgeline.predict.post_training_passes import batch_workload, mini_batch_lengths, sequence_lengths
from ridgeline.predict.rollouts import response_lengths
from ridgeline.report.aims import spent
from ridgeline.report.post_training import PostTrainingReport
from ridgeline.seams.rollout import rollout_schedule
from ridgeline.search.complete import complete
from ridgeline.search.ranked import TIME
from ridgeline.search.search import Searcher
from ridgeline.search.space import Space
from ridgeline.serving.engine import Engine, engine
from ridgeline.serving.metrics import decode_device_s
from ridgeline.serving.step import StepTables

_ENGINE, _OVERLAPPED = "vllm", "off-policy"
_SEARCHED = Space(
    schedules=("1f1b",), zero=(0, 1, 3), overlap_tensor=(False,), offload_optimizer=(False,), recompute_shares=(1.0,),
    max_cp=8, max_pp=16, max_micro_batch=4, context_style=("ring",), balance_stages=False,
)  # fmt: skip
_TRAINER_BUDGET, _PREDICTED = 8, 6  # plans of a trainer that are simulated, and splits that are predicted whole
_FLOW_POINTS = 24  # lengths between which a batch is taken to be even


@dataclass(frozen=True, kw_only=True)
class SplitSearch:
    """The best splits, that with least of the aim first, with the search's own account.

    `bounded` splits were bounded and `predicted` of them predicted; `least_s` [s] is the lowest bound of those that
    were not, None where none is left.
    """

    best: tuple[PostTrainingReport, ...]
    bounded: int
    predicted: int
    least_s: float | None
    seconds: float
    on_policy: PostTrainingReport | None = None  # the quickest split whose responses are all of the newest weights


def deployment_of(asked: PostTrainingQuestion, devices: int, tp: int) -> Deployment:
    """The engine's instances on some devices, at a tensor-parallel degree; raises `PlanError` where none fits."""
    said = asked.stated
    name, _, version = str(said.get("rollout_engine", _ENGINE)).partition(" ")
    pp, ep = int(said.get("rollout_pp", 1)), int(said.get("rollout_ep", 1))
    dp = max(1, ep // tp)  # experts over more devices than a group of tensor parallelism: groups attend side by side
    options = EngineOptions(memory_fraction=said.get("rollout_memory"))
    if devices < tp * pp * dp:
        asks = f"rollout_tp {tp} * rollout_pp {pp}" + (f" * {dp} for rollout_ep {ep}" if dp > 1 else "")
        raise PlanError(f"plan: {asks} = {tp * pp * dp} needs more than {devices} devices")
    return Deployment(
        engine=name, version=version.strip(), tp=tp, pp=pp, dp=dp, ep=ep,
        instances=devices // (tp * pp * dp), weights=said.get("rollout_weights", ""), options=options,
    )  # fmt: skip


def roles_of(asked: PostTrainingQuestion) -> tuple[Roles, tuple[str, ...]]:
    """The roles that a plan's words describe, made whole: the quickest trainer that keeps them, the least engine.

    Raises `PlanError` for roles that cannot be so, `NoPlanError` where no engine holds the policy.
    """
    said, cluster, told = asked.stated, asked.cluster, []
    apart, critic = said.get("rollout_devices"), int(said.get("critic_devices", 0))
    left = cluster.count - critic - (apart or 0)
    if left < 1:
        raise PlanError(
            f"plan: rollout_devices {apart or 0} and critic_devices {critic} leave the trainer none of"
            f" {cluster.count}; lower one of them"
        )
    train = trainer(asked, left)
    stated = {name: getattr(train, name) for name in ("tp", "pp", "dp", "zero") if name not in asked.of_trainer}
    if stated:
        told.append(", ".join(f"{name} {value}" for name, value in stated.items()) + ": the quickest found")
    if not asked.asked.online:
        return replace(_roles(asked, train, Deployment()), colocated=True, offload=False), tuple(told)
    critic_plan = critic_of(asked)
    devices = apart or cluster.count - critic
    if "rollout_tp" in said:
        engine_ = deployment_of(asked, devices, said["rollout_tp"])
    else:
        engine_ = _least_engine(asked, devices)
        told.append(f"rollout_tp = {engine_.tp}: the fewest devices that hold the policy and a cache")
    return _roles(asked, train, engine_, critic=critic_plan), tuple(told)


def critic_of(asked: PostTrainingQuestion) -> Plan | None:
    """The plan of PPO's critic on the devices that it has alone; None where it has none.

    Raises `NoPlanError` where none fits.
    """
    devices = int(asked.stated.get("critic_devices", 0))
    if not devices or asked.asked.task != "ppo":
        return None
    model = asked.models.critic or asked.models.policy
    said = {name: value for name, value in asked.of_trainer.items() if name != "dp"}
    where = replace(asked.cluster, count=devices)
    return complete(model, where, trainer_workload(asked, devices), said)


def _roles(asked: PostTrainingQuestion, train: Plan, deployment: Deployment, **more: Any) -> Roles:
    said = asked.stated
    words = {
        "offload": said.get("offload_trainer"), "mode": said.get("rollout_mode"),
        "collection": said.get("rollout_collection"), "packing": said.get("sequence_packing"),
    }  # fmt: skip
    given = {name: value for name, value in words.items() if value is not None}
    return Roles(train=train, rollout=deployment, colocated="rollout_devices" not in said, **{**given, **more})


def trainer_workload(asked: PostTrainingQuestion, devices: int) -> Workload:
    """An optimizer step as every division of some devices can run it, for the search of the trainer's plan.

    Rows are as long as they can become, and as many as divide over all devices: no plan holds more in memory.
    """
    lengths = mini_batch_lengths(sequence_lengths(asked.asked, response_lengths(asked.asked)), asked.asked)
    packing = asked.stated.get("sequence_packing", Roles().packing)
    longest = batch_workload(asked.job, lengths, Plan(tp=8, cp=8), packing)
    rows = -(-longest.global_batch // devices) * devices
    padding = 1.0 - float(lengths.sum()) / (rows * longest.seq_len)
    return replace(longest, global_batch=rows, padding=padding)


def trainer(asked: PostTrainingQuestion, devices: int) -> Plan:
    """The quickest plan of the trainer on some devices that keeps what is stated; raises `NoPlanError` for none.

    Frozen copies that stay on its devices are divided as the plan divides its weights, so that the room for a plan
    is known when there is one: it is searched again with less until copies and plan fit together.
    """
    part, work, kept = asked.cluster.accelerator, trainer_workload(asked, devices), 0.0
    stays = not asked.stated.get("offload_trainer", asked.asked.online)
    while True:
        room = replace(part, memory_bytes=part.memory_bytes - kept)
        where = replace(asked.cluster, count=devices, accelerator=room)
        found = complete(asked.models.policy, where, work, asked.of_trainer)
        frozen = frozen_bytes(asked.models.policy, asked.models.reward, asked.asked, found) if stays else {}
        if sum(frozen.values()) <= kept:
            return found
        kept = sum(frozen.values())


def _least_engine(asked: PostTrainingQuestion, devices: int) -> Deployment:
    """The engine on the fewest devices that hold the policy with cache for some long sequences."""
    where, most = machine(asked.cluster), asked.asked.prompt + asked.asked.response_max
    error: NoPlanError | None = None
    for tp in engine_degrees(asked, devices):
        one = deployment_of(asked, devices, tp)
        try:
            if engine(asked.models.policy, where, one, offline=True).capacity.cache_tokens >= 8 * most:
                return one
        except NoPlanError as why:
            error = why
    raise error or NoPlanError(
        f"no engine on up to {devices} devices keeps a cache of 8 sequences of {most:,.0f} tokens;"
        " say rollout_tp, or lower response_max"
    )


def engine_degrees(asked: PostTrainingQuestion, devices: int) -> list[int]:
    """Tensor-parallel degrees of an engine: powers of two within a node, then whole nodes."""
    node = asked.cluster.node_devices
    found = [1 << power for power in range(node.bit_length()) if (1 << power) <= min(node, devices)]
    return found + [many * node for many in (2, 4, 8) if many * node <= devices]


@dataclass(frozen=True, kw_only=True)
class _Split:
    """A split with a lower bound of its iteration, and its rollouts where sequences flow evenly [s]."""

    bound_s: float
    flow_s: float
    train_devices: int
    deployment: Deployment
    colocated: bool
    mode: str


class _SplitSearcher:
    """One search over splits."""

    def __init__(self, asked: PostTrainingQuestion) -> None:
        self.asked, self.machine = asked, machine(asked.cluster)
        self.output = response_lengths(asked.asked)
        self.trainers: dict[int, Plan | None] = {}
        self.passes: dict[Any, Any] = {}  # of trainers and engines, which splits share
        self.steps_s: dict[int, float] = {}  # of the trainer by its devices [s]
        self.engines: dict[Deployment, tuple[Engine, StepTables]] = {}
        self.whole = self._searcher(asked.cluster.count)
        self.device_s = self._device_s()
        self.critic = critic_of(asked)

    def _searcher(self, devices: int) -> Searcher:
        """The search of the trainer's plan on some devices, its plans bounded."""
        it = self.asked
        where = replace(it.cluster, count=devices)
        predictor = Predictor(it.models.policy, where, trainer_workload(it, devices))
        searcher = Searcher(predictor, replace(_SEARCHED, fixed=it.of_trainer))
        searcher.bound()
        return searcher

    def _device_s(self) -> float:
        """Device seconds that the updates of an iteration take at least [s]."""
        used = 1.0 - self.whole.predictor.workload.padding  # the rest is of rows that no batch has
        return self.whole.device_s * used * self.asked.asked.updates

    def rollout_s(self, one: Deployment) -> tuple[float, float]:
        """The least time of the rollouts, and what they take when sequences flow evenly [s].

        Least: the longest response alone, or all tokens at the widest decode batch; a step of more sequences takes no
        less, and makes more tokens a second. The flow adds up steps at the batch that is left when so many tokens
        have been made; what does not fit at once follows at the widest batch. Prompts are left out of both.
        """
        made, tables = self._engine(one)
        prompt, ordered = max(1.0, round(self.asked.asked.prompt)), np.sort(self.output).astype(float)
        context, each = prompt + 0.5 * ordered.mean(), len(ordered) / one.instances
        widest = max(1.0, min(made.policy.max_seqs, made.capacity.cache_tokens / context, each))
        places = np.unique(np.quantile(ordered, np.linspace(0.0, 1.0, _FLOW_POINTS)))
        begun = np.concatenate(([0.0], places[:-1]))
        middle = 0.5 * (begun + places)
        live = np.maximum(1.0, each * (len(ordered) - np.searchsorted(ordered, middle, side="right")) / len(ordered))
        batches = np.concatenate(([widest, 1.0], np.minimum(live, widest)))
        wide_s, alone_s, *steps_s = decode_device_s(
            tables, batches, np.concatenate(([context, prompt + 1.0], prompt + middle))
        ).tolist()
        wide_s, alone = wide_s / widest, alone_s * (ordered[-1] - 1.0)
        flow = float(((places - begun) * (np.array(steps_s) + (live - batches[2:]) * wide_s)).sum())
        return max(alone, each * float(ordered.mean()) * wide_s), flow

    def _engine(self, one: Deployment) -> tuple[Engine, StepTables]:
        """An engine and its tables; those of more instances are the same."""
        alike = replace(one, instances=1)
        if alike not in self.engines:
            made = engine(self.asked.models.policy, self.machine, alike, offline=True)
            prompt = max(1, round(self.asked.asked.prompt))
            longest = prompt + int(self.output.max())
            self.engines[alike] = (made, made.tables(longest_prompt=prompt, longest=longest))
        return self.engines[alike]

    def splits(self) -> Iterator[_Split]:
        """Every split with its bound: all devices in turn, or whole nodes for the engine."""
        asked, said = self.asked, self.asked.stated
        total = asked.cluster.count - int(said.get("critic_devices", 0))
        unit = min(asked.cluster.node_devices, max(1, total // 8)) if total > 1 else 1
        counts = [said["rollout_devices"]] if "rollout_devices" in said else list(range(unit, total, unit))
        ways = [(total, True, said.get("rollout_mode", "synchronous"))] if "rollout_devices" not in said else []
        ways += [(count, False, said.get("rollout_mode", _OVERLAPPED)) for count in counts]
        for devices, colocated, mode in ways:
            if colocated and _overlaps(mode):
                continue
            train = total if colocated else total - devices
            work = self.device_s / train
            degrees = [said["rollout_tp"]] if "rollout_tp" in said else engine_degrees(asked, devices)
            for tp in degrees:
                try:
                    one = deployment_of(asked, devices, tp)
                    least, flow = self.rollout_s(one)
                except (NoPlanError, PlanError):
                    continue
                bound = max(least, work) if _overlaps(mode) else least + work
                yield _Split(
                    bound_s=bound, flow_s=flow, train_devices=train, deployment=one, colocated=colocated, mode=mode
                )

    def train_plan(self, devices: int) -> Plan | None:
        """The trainer's plan on some devices; None where nothing fits."""
        if devices not in self.trainers:
            searcher = self.whole if devices == self.asked.cluster.count else self._searcher(devices)
            found = searcher.least(TIME, top=1, budget=_TRAINER_BUDGET).plans
            self.trainers[devices] = found[0][1] if found else None
            used = 1.0 - searcher.predictor.workload.padding
            self.steps_s[devices] = found[0][0] * used if found else np.inf
        return self.trainers[devices]

    def near_s(self, one: _Split) -> float:
        """What a split takes where sequences flow evenly and forwards take a third of a step [s].

        Infinite where its trainer does not fit; before the trainer is searched its devices compute without pause.
        """
        asked, devices = self.asked.asked, one.train_devices
        forwards = (asked.old_logprobs + asked.reference + (self.asked.models.reward is not None)) / 3.0
        known = self.steps_s.get(devices)
        step = self.device_s / asked.updates / devices if known is None else known
        work = step * (asked.updates + forwards * asked.updates / asked.epochs)
        return max(one.flow_s, work) if _overlaps(one.mode) else one.flow_s + work

    def in_order(self, splits: list[_Split]) -> Iterator[_Split]:
        """Splits whose trainer fits, from what is likely the quickest; trainers are searched as they come up."""
        left = list(splits)
        while left:
            split = min(left, key=self.near_s)
            if split.train_devices not in self.steps_s:
                self.train_plan(split.train_devices)
                continue
            left.remove(split)
            if self.trainers[split.train_devices] is not None:
                yield split

    def report(self, split: _Split) -> PostTrainingReport | None:
        """A split predicted whole; None where its trainer or engine does not fit.

        Where nobody says so, roles of a trainer apart wait in host memory only if its devices do not hold them all.
        """
        it = self.asked
        train = self.train_plan(split.train_devices)
        if train is None:
            return None
        roles = _roles(it, train, split.deployment, critic=self.critic)
        roles = replace(roles, colocated=split.colocated, mode=split.mode)
        open_ = "offload_trainer" not in it.stated and not split.colocated
        for offload in (False, True) if open_ else (roles.offload,):
            try:
                check_roles(it.cluster, it.asked, roles)
                ways = replace(roles, offload=offload)
                found = predict_post_training(it.models, it.cluster, it.asked, ways, it.job, self.passes)
            except (PlanError, NoPlanError):
                return None
            if found.fits:
                return found
        return None


def _overlaps(mode: str) -> bool:
    """Whether generation and training run beside each other."""
    schedule = rollout_schedule(mode)
    return schedule.versions_behind() > 0 or schedule.pieces() > 1


def search_post_training(asked: PostTrainingQuestion, *, top: int = 5, aim: str = "time") -> SplitSearch:
    """The quickest splits of the devices between generation and training; raises `NoPlanError` where none fits.

    Splits whose lower bound is above the best found are dropped; the others are predicted in the order of what they
    take where sequences flow evenly, the devices in turn first, which trains on the newest weights. Of another `aim`
    (of `AIMS`) splits have no bound: those that are likely the quickest are predicted, and ordered by it.
    """
    started = time.perf_counter()
    if not asked.asked.online:
        roles, _ = roles_of(asked)
        found = predict_post_training(asked.models, asked.cluster, asked.asked, roles, asked.job)
        spent(found, aim)
        return SplitSearch(best=(found,), bounded=1, predicted=1, least_s=None, seconds=time.perf_counter() - started)
    searcher = _SplitSearcher(asked)
    splits = list(searcher.splits())
    turns = [one for one in splits if one.colocated]
    reports: list[PostTrainingReport] = []
    tried: list[_Split] = []
    for split in chain(islice(searcher.in_order(turns), 1), searcher.in_order(splits)):
        best = min((one.step.value for one in reports), default=np.inf)
        if split in tried or (aim == "time" and split.bound_s >= best):
            continue
        if len(tried) >= _PREDICTED and reports:
            break
        tried.append(split)
        found_ = searcher.report(split)
        reports += [found_] if found_ is not None else []
    if not reports:
        raise NoPlanError(
            f"no split of {asked.cluster.count} x {asked.cluster.accelerator.name} holds trainer and engine of"
            f" {asked.models.policy.name} ({len(splits)} bounded); add devices, or lower mini_batch or response_max"
        )
    reports.sort(key=lambda one: spent(one, aim))
    left = (one.bound_s for one in splits if one not in tried and searcher.steps_s.get(one.train_devices, 0.0) < np.inf)
    least = min((float(bound) for bound in left if bound < min(one.step.value for one in reports)), default=None)
    newest = (one for one in reports if not rollout_schedule(one.roles.mode).versions_behind())
    return SplitSearch(
        on_policy=next(newest, None), best=tuple(reports[:top]), bounded=len(splits), predicted=len(tried),
        least_s=least, seconds=time.perf_counter() - started,
    )  # fmt: skip


def measured_iteration(question: PostTrainingQuestion, searched: bool) -> PostTrainingReport:
    """The iteration that somebody measured; where it is not told how the devices were split, the quickest split.

    Raises `PlanError` or `NoPlanError` for what cannot be.
    """
    if searched:
        return search_post_training(question, top=1).best[0]
    roles, _ = roles_of(question)
    return predict_post_training(question.models, question.cluster, question.asked, roles, question.job)
