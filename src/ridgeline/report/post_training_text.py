"""The answer about post-training as text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from ridgeline.report.blocks import Block, Line, Table, blank
from ridgeline.units import bytes_text, time_text

if TYPE_CHECKING:
    from ridgeline.report.post_training import PostTrainingReport

_RIGHT = frozenset(
    {"time", "share", "80 % interval", "held", "of", "step", "on policy", "tokens/s", "rollouts", "tail"}
)


def iteration_blocks(it: PostTrainingReport, assumed: Sequence[str]) -> list[Block]:
    """One iteration in full."""
    step = it.step
    return [
        Line(text=f"{it.asked.task} of {it.model.name} on {it.cluster.name}: {_asked(it)}", strong=True),
        Line(text=divided(it)),
        Line(text=f"{time_text(step.value)} an iteration (80 % interval {time_text(step.low)} to"
                  f" {time_text(step.high)})"
                  f", {it.tokens_per_s:,.4g} tokens/s"),
        Line(text=f"limit: {it.limit}; {it.idle_share:.0%} of all device time is idle"),
        Line(text=_spent(it)),
        blank(),
        Table(columns=("phase", "time", "80 % interval", "share", "what"), right=_RIGHT, rows=tuple(
            (one.name, time_text(one.seconds), f"{time_text(one.low_s)} to {time_text(one.high_s)}",
             "beside" if one.beside else f"{one.seconds / step.value:.0%}", one.note) for one in it.phases)),
        blank(),
        *_tail(it),
        Table(columns=("role", "held", "of", "most of it"), right=_RIGHT, rows=tuple(
            (one.role, bytes_text(one.bytes), bytes_text(one.capacity_bytes) + ("" if one.fits else " DOES NOT FIT"),
             ", ".join(f"{name} {bytes_text(size)}" for name, size in
                       sorted(one.parts.items(), key=lambda part: -part[1])[:3])) for one in it.memory)),
        blank(),
        *(Line(text=f"assumed: {text}", indent=2, hang=2) for text in dict.fromkeys((*assumed, *it.assumptions))),
    ]  # fmt: skip


def splits_blocks(
    best: Sequence[PostTrainingReport], assumed: Sequence[str], *, account: str, on_policy: PostTrainingReport | None
) -> list[Block]:
    """The best splits in a table, the first in full."""
    from ridgeline.seams.rollout import rollout_schedule

    rows = tuple(
        (
            divided(one), time_text(one.step.value), f"{one.tokens_per_s:,.4g}",
            time_text(one.seconds_of("generation")),
            time_text(one.tail.cost_s) if one.tail else "",
            "no" if rollout_schedule(one.roles.mode).versions_behind() else "yes",
        )
        for one in best
    )  # fmt: skip
    found: list[Block] = [
        Table(columns=("split", "step", "tokens/s", "rollouts", "tail", "on policy"), rows=rows, right=_RIGHT)
    ]
    if on_policy is not None and on_policy is not best[0]:
        ratio = on_policy.step.value / best[0].step.value
        found.append(Line(text=f"on the newest weights alone an iteration takes {ratio:.2f}x as long: choose by what"
                               " staleness costs in accuracy"))  # fmt: skip
    return [*found, Line(text=account), blank(), *iteration_blocks(best[0], assumed)]


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


def _spent(it: PostTrainingReport) -> str:
    energy = "no power is known" if it.energy_j is None else f"{it.energy_j / 3.6e6:,.3g} kWh"
    money = "no price is known" if it.usd is None else f"${it.usd:,.3g}"
    carbon = "" if it.carbon_kg is None else f", {it.carbon_kg:,.3g} kg CO2e"
    return f"an iteration: {energy}, {money}{carbon}"


def _tail(it: PostTrainingReport) -> Iterable[Block]:
    tail = it.tail
    if tail is None:
        return
    cost = tail.cost_s / it.seconds_of("generation")
    yield Line(text=f"responses: {tail.mean:,.4g} tokens on average, 99 % within {tail.p99:,.0f}, longest"
                    f" {tail.most:,.0f}; {tail.mean_batch:,.3g} at a time an instance")  # fmt: skip
    yield Line(text=f"the long tail: half of the responses are there after {time_text(tail.half_s)}; if all were as"
                    f" long as the mean, rollouts would take {time_text(tail.alike_s)}: the tail costs"
                    f" {time_text(tail.cost_s)} ({cost:.0%} of the rollouts), and {tail.idle_share:.0%} of the"
                    " generating devices' time has nothing left to do", hang=2)  # fmt: skip
    if tail.again_tokens:
        yield Line(text=f"{tail.again_tokens:,} tokens of responses that were cut off are read again, and"
                        f" {tail.old_share:.0%} of trained tokens are of earlier versions", hang=2)  # fmt: skip
    yield blank()
