"""`predict` and `plan` of post-training: from words to an iteration's time, memory and split of devices."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from ridgeline.api.answer import Answer
from ridgeline.api.asking import asked_tables
from ridgeline.api.progress import busy
from ridgeline.errors import InputError, PlanError, WorkloadError
from ridgeline.predict.post_training import Models, PostTrainingQuestion, predict_post_training
from ridgeline.report.blocks import Block
from ridgeline.report.post_training import PostTrainingReport, iteration_blocks, splits_blocks
from ridgeline.scenario.post_training import PostTrainingScenario, post_training_of
from ridgeline.scenario.post_training_fields import POST_PLAN_FIELDS, POST_TRAINING_FIELDS
from ridgeline.search.post_training import roles_of, search_post_training
from ridgeline.units import bytes_text, time_text

_WIDTH = 100  # columns when piped


def asked_of(subject: str, on: str | None, words: Mapping[str, Any]) -> PostTrainingScenario:
    """The post-training that a command line describes; flags win over a scenario file."""
    fields = {"workload": POST_TRAINING_FIELDS, "plan": POST_PLAN_FIELDS}
    return post_training_of(*asked_tables(subject, on, words, fields, "post-training", example="64xH100-SXM"))


def _question(asked: PostTrainingScenario) -> PostTrainingQuestion:
    models = Models(policy=asked.model, critic=asked.critic, reward=asked.reward)
    return PostTrainingQuestion(
        models=models, cluster=asked.cluster, asked=asked.asked, job=asked.job, stated=asked.stated
    )


def _blamed(asked: PostTrainingScenario, error: PlanError | WorkloadError) -> InputError:
    section = "plan" if isinstance(error, PlanError) else "workload"
    return InputError(str(error).removeprefix(f"{section}: "), file=asked.file, field=section)


def predict_iteration(given: SimpleNamespace) -> Answer:
    """How long an iteration takes with given roles, what each holds, and what limits it."""
    asked = asked_of(given.subject, given.on, given.words)
    _refuse(given)
    question = _question(asked)
    try:
        roles, told = roles_of(question)
        found = predict_post_training(question.models, asked.cluster, asked.asked, roles, asked.job)
    except (PlanError, WorkloadError) as error:
        raise _blamed(asked, error) from None
    assumed = (*asked.assumed, *told)
    return Answer(
        lambda: {**found.as_dict(), "assumed": list(assumed)}, lambda: iteration_blocks(found, assumed), width=_WIDTH,
        value=found, impossible=None if found.fits else _too_large(found),
    )  # fmt: skip


def plan_iteration(given: SimpleNamespace) -> Answer:
    """The splits of the devices that take least of the aim; raises `NoPlanError` where none fits."""
    asked, aim = asked_of(given.subject, given.on, given.words), given.aim or "time"
    _refuse(given)
    try:
        with busy("searching splits"):
            found = search_post_training(_question(asked), top=given.top, aim=aim)
    except (PlanError, WorkloadError) as error:
        raise _blamed(asked, error) from None
    least = "none is left" if found.least_s is None else f"no other can take less than {time_text(found.least_s)}"
    if aim != "time":
        least = f"of these the least {aim}; no bound of {aim} is known of the others"
    account = f"{found.bounded} splits bounded, {found.predicted} predicted; {least}"

    def shown() -> list[Block]:
        newest = found.on_policy if aim == "time" else None
        return splits_blocks(found.best, asked.assumed, account=account, on_policy=newest, aim=aim)

    return Answer(
        lambda: {
            **found.best[0].as_dict(), "others": [one.as_dict() for one in found.best[1:]],
            "search": {"bounded": found.bounded, "predicted": found.predicted, "least_s": found.least_s, "aim": aim},
            "on_policy_s": None if found.on_policy is None else found.on_policy.step.value,
            "assumed": list(asked.assumed),
        },
        shown, width=_WIDTH,
        value=found, aside=f"searched for {found.seconds:.1f} s",
    )  # fmt: skip


def _refuse(given: SimpleNamespace) -> None:
    """Raises for options that say nothing of post-training."""
    flags = {"--serve": given.serve, "--longest": getattr(given, "longest", False),
             "--trace": getattr(given, "trace", None), "--layerwise": getattr(given, "layerwise", False),
             "--exhaustive": getattr(given, "exhaustive", False), "--rent": getattr(given, "rent", None),
             "--evidence": given.evidence == "datasheet"}  # fmt: skip
    for flag, said in flags.items():
        if said:
            raise InputError("says nothing of post-training; leave it out", field=flag)


def _too_large(found: PostTrainingReport) -> str:
    worst = max(found.memory, key=lambda one: one.bytes / one.capacity_bytes)
    return (
        f"the {worst.role} needs {bytes_text(worst.bytes)} of a device's {bytes_text(worst.capacity_bytes)};"
        " `ridgeline plan` looks for a split that fits"
    )
