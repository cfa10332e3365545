"""Rows of post-training: which iteration was measured, how its roles were divided, and what is asked of it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ridgeline.errors import InputError
from ridgeline.facts.frameworks import framework_policy
from ridgeline.facts.mechanisms import constant
from ridgeline.facts.programs import training_program
from ridgeline.facts.readings import reading
from ridgeline.graph.load import load
from ridgeline.graph.model import Model
from ridgeline.graph.workload import Workload
from ridgeline.plan.post_training import PostTraining, Roles
from ridgeline.predict.post_training import SWAP, Models, PostTrainingQuestion, predict_post_training
from ridgeline.report.post_training import PostTrainingReport
from ridgeline.validate.hardware import find_device
from ridgeline.validate.machines import Machines, machines, place
from ridgeline.validate.post_training_plan import packs, stated_plan, trainer
from ridgeline.validate.rows import Row
from ridgeline.validate.score import Memo, scored
from ridgeline.validate.serving_models import model_of

_PHASES = {
    "rollout_s": ("rollouts",), "train_s": ("updates", "critic updates"), "logprob_s": ("old log-probabilities",),
    "ref_s": ("reference", SWAP),
}  # fmt: skip
METRICS = ("step_s", *_PHASES, "tokens_per_s", "tokens_per_s_per_device")
_PHASES["logprobs_s"] = (*_PHASES["logprob_s"], *_PHASES["ref_s"])  # one span of both
PROMPT_TOKENS = (80.0, 256.0)  # low and middle of a row that does not say (assumed): problems of
# grade-school mathematics to those of competitions and code, each with its template
_PICTURES = re.compile(r"\bVL\b|vision|multimodal|omni", re.IGNORECASE)
_SIZE = r"(\d+(?:\.\d+)?[MB])\b"
GROUP = (5, 8)  # low and middle of a group's responses where none is stated: row post_training_samples
_UNITS = {"s": 1.0, "min": 60.0, "h": 3600.0, "ms": 1e-3, "tokens/s": 1.0, "tokens/s/GPU": 1.0}


@dataclass(frozen=True, kw_only=True)
class Other:
    """An end of something assumed: changed words of the iteration or of its roles.

    With `both` the other end is as far on the other side of the answer.
    """

    words: dict[str, Any]
    both: bool = True


@dataclass(frozen=True, kw_only=True)
class PostTrainingJob:
    """What a row measured: the question, whether its split has to be looked for, and what was assumed.

    `others` say what else an assumed thing may be, one assumption each; `joint_logprobs` says whether the program
    times the policy's log-probabilities together with the reference's: "always", "maybe" or "".
    """

    question: PostTrainingQuestion
    searched: bool
    assumptions: tuple[str, ...]
    device: str
    others: tuple[Other, ...] = ()
    joint_logprobs: str = ""


Iteration = Callable[[PostTrainingQuestion, bool], PostTrainingReport]


class PostTrainingRows:
    """Answers rows of a table of post-training one by one; rows that ask the same are predicted once.

    `iteration` predicts an iteration, and says whether the split of its devices has to be looked for.
    """

    def __init__(self, iteration: Iteration | None, source: Machines | None = None) -> None:
        self._iteration, self._source = iteration, source
        self._known = Memo[PostTrainingReport]()
        self._known_others = Memo[tuple[PostTrainingReport, ...]]()

    def answer(self, row: Row) -> dict[str, Any]:
        """One row's answer; raises a Ridgeline error with the reason when it has none."""
        metric = row.text("metric").strip()
        if metric not in METRICS:
            raise InputError(f"'{metric}' is not predicted; known: {', '.join(METRICS)}", field="metric")
        unit = row.text("unit").strip()
        if unit not in _UNITS:
            raise InputError(f"'{unit[:20]}' is no unit of {metric}; known: {', '.join(_UNITS)}", field="unit")
        job, iteration = read_job(row, self._source or machines()), self._iteration
        if iteration is None:
            raise InputError("iterations of post-training are not predicted here", field="metric")
        found = self._known.of(repr(job.question), lambda: iteration(job.question, job.searched))
        ends = self._known_others.of(
            repr((job.question, job.others)),
            lambda: tuple(_other(job.question, found, one.words) for one in job.others),
        )
        timed = "logprobs_s" if metric == "logprob_s" and job.joint_logprobs == "always" else metric
        value, low, high = (each / _UNITS[unit] for each in _wider(timed, found, ends, job.others))
        if metric == "logprob_s" and job.joint_logprobs == "maybe":
            high += sum(one.high_s for one in found.phases if one.name in _PHASES["ref_s"]) / _UNITS[unit]
        said = dict.fromkeys((*job.assumptions, *found.assumptions))
        named = {"model": found.model.name, "device": job.device, "assumptions": list(said)}
        return scored(row, value, low, high, evidence=found.step.evidence, **named)


def _read(metric: str, found: PostTrainingReport) -> tuple[float, float, float]:
    """Value, low and high of a metric; of a side's time in proportion to its phases' intervals."""
    step = found.step
    if metric == "step_s":
        return step.value, step.low, step.high
    if metric.startswith("tokens"):
        devices = found.roles.devices if metric.endswith("device") else 1
        made = float(found.tokens) / devices
        return made / step.value, made / step.high, made / step.low
    phases = [one for one in found.phases if one.name in _PHASES[metric] and not one.beside]
    if not phases:
        raise InputError(f"an iteration of {found.asked.task} has no such phase here", field="metric")
    middle, low, high = (sum(getattr(one, end) for one in phases) for end in ("seconds", "low_s", "high_s"))
    return middle, low, high


def _other(question: PostTrainingQuestion, found: PostTrainingReport, changed: Mapping[str, Any]) -> PostTrainingReport:
    """The same roles where something assumed is otherwise."""
    of_roles: dict[str, Any] = {name: changed[name] for name in ("collection", "packing") if name in changed}
    of_trainer = {name: changed[name] for name in ("recompute", "micro_batch") if name in changed}
    if of_trainer:
        of_roles["train"] = replace(found.roles.train, **of_trainer)
    of_engine = {name: changed[name] for name in ("graphs", "max_seqs") if name in changed}
    if of_engine:
        one = found.roles.rollout
        of_roles["rollout"] = replace(one, options=replace(one.options, **of_engine))
    of_iteration = {name: value for name, value in changed.items() if name in vars(question.asked)}
    asked = replace(question.asked, **of_iteration)
    return predict_post_training(
        question.models, question.cluster, asked, replace(found.roles, **of_roles), question.job
    )


def _wider(
    metric: str, found: PostTrainingReport, ends: Sequence[PostTrainingReport], others: Sequence[Other]
) -> tuple[float, float, float]:
    """Value, low and high of a metric, widened by what it is where assumptions are otherwise, each independently."""
    value, low, high = _read(metric, found)
    down, up = float(np.log(value / low)), float(np.log(high / value))
    for end, other in zip(ends, others, strict=True):
        moved = float(np.log(_read(metric, end)[0] / value))
        down = float(np.hypot(down, moved if other.both else min(moved, 0.0)))
        up = float(np.hypot(up, moved if other.both else max(moved, 0.0)))
    return value, value * float(np.exp(-down)), value * float(np.exp(up))


def read_job(row: Row, source: Machines) -> PostTrainingJob:
    """What a row measured; raises `InputError` where it lacks what the answer needs."""
    said: list[str] = []
    model, about = model_of(row)
    device = find_device(row.text("hardware"), source.accelerators(), source.usual)
    count = _whole(row, "n_devices")
    if count is None:
        raise InputError("the number of devices is not stated", field="n_devices")
    cluster, wiring = place(device.accelerator, count, (row.text("hardware"), row.text("notes")), source)
    others: list[Other] = []
    asked = _iteration(row, model.max_positions, said, others)
    stated, searched = stated_plan(row, said)
    question = PostTrainingQuestion(
        models=Models(policy=model, critic=_critic(row)), cluster=cluster, asked=asked, job=_job(row), stated=stated
    )
    usual = reading("post_training_collection", words=row.text("algorithm"), model=row.text("model"))
    if usual is not None:
        stated["rollout_collection"] = usual.text
        said.append(usual.told)
        other = next(one for one in ("dynamic-sampling", Roles.collection) if one != usual.text)
        others.append(Other(words={"collection": other}, both=False))
    question = replace(question, stated=stated)
    eager = reading("post_training_eager", program=row.text("rollout_engine"))
    if eager is not None and not re.search(r"cuda.?graph", row.text("notes"), re.IGNORECASE):
        others.append(Other(words={"graphs": False}, both=False))
        said.append(str(eager.told))
    again = reading("post_training_recompute_open", program=trainer(row))
    if (
        again is not None
        and "recompute" not in stated
        and not re.search(r"recompute", row.text("notes"), re.IGNORECASE)
    ):
        others.append(Other(words={"recompute": "full"}, both=False))
        said.append(again.told)
    padded = reading("post_training_padding_open", program=trainer(row))
    most = re.search(r"\b(?:max(?:imum)? prompt|prompt max(?:imum)?) (\d+)", row.text("notes"))
    limit = (int(most[1]) if most else round(asked.prompt)) + asked.response_max
    if stated.get("sequence_packing") == "padded-sequences":
        stated["sequence_packing"] = f"padded-sequences(tokens={limit})"
    elif padded is not None and not packs(row) and not any("response" in one.words for one in others):
        rows = max(1, round(padded.number) // limit)
        words = {"packing": f"padded-sequences(tokens={limit})", "micro_batch": rows}
        others.append(Other(words=words, both=False))
        said.append(padded.told)
    few = reading("post_training_device_batch_low", program=trainer(row))
    if few is not None and asked.mini_batch:
        each = round(few.number)
        others.append(Other(words={"mini_batch": min(asked.mini_batch, each * count), "max_seqs": each}))
    joint = reading("post_training_joint_logprobs", program=trainer(row))
    if searched:
        said.append("how many devices generated is not stated: the quickest split found")
    return PostTrainingJob(
        question=question, searched=searched, assumptions=(*device.assumptions, *about, *wiring, *said),
        device=device.accelerator.name, others=tuple(others), joint_logprobs="" if joint is None else joint.text,
    )  # fmt: skip


def _critic(row: Row) -> Model | None:
    """PPO's value model where a row names it, or its size: then the model of the policy's family that is as large."""
    named = row.text("critic_model").strip()
    said = re.fullmatch(_SIZE, named) or re.search(rf"\b(?:critic|value model)\b[^;.]*? {_SIZE}", row.text("notes"))
    family = re.match(r"[A-Za-z]+", row.text("model"))
    if named and not re.fullmatch(_SIZE, named):
        return load(named)
    return load(f"{family[0]}-{said[1]}".casefold()) if said and family else None


def _job(row: Row) -> Workload:
    """How the trainer computes: its framework's policy, and the precision that the row states."""
    named = reading("post_training_program", program=trainer(row))
    program = training_program(row.text("train_engine") if named is None else named.text, row.source)
    said = re.search(r"fp8|fp16", row.text("precision"), re.IGNORECASE)
    precision = said[0].casefold() if said else "bf16"
    policy = framework_policy(program.framework) if program.framework else ""
    return Workload(
        seq_len=1, global_batch=1, precision=precision, framework=policy, execution=program.execution,
        fused_optimizer=program.fused_optimizer,
    )  # fmt: skip


def _iteration(row: Row, context: int | None, said: list[str], others: list[Other]) -> PostTraining:
    """What an iteration asked for of a model of some context [token]; `others` gets the ends of what is assumed."""
    word = row.text("algorithm").strip()
    task = reading("post_training_task", words=word)
    if task is None:
        raise InputError(f"'{word[:40]}' is no algorithm that is predicted; e.g. GRPO, PPO, DPO", field="algorithm")
    prompts, samples = _whole(row, "prompts_per_step"), _whole(row, "samples_per_prompt")
    usual = reading("post_training_samples", words=word)
    if samples is None and usual is not None:
        samples = round(usual.number)
        said.append(str(usual.told))
        if usual.number == GROUP[1]:
            less = {"samples": GROUP[0], "mini_batch": _mini_batch(row, GROUP[0], (prompts or 0) * GROUP[0])}
            others.append(Other(words=less))
    if prompts is None:
        raise InputError("how many prompts an iteration has is not stated", field="prompts_per_step")
    if samples is None:
        raise InputError("how many responses a prompt gets is not stated", field="samples_per_prompt")
    prompt, mean, most = _lengths(row, context, said, others)
    frozen = reading("post_training_reference", words=word, program=trainer(row))
    if frozen is not None:
        said.append(str(frozen.told))
    return PostTraining(
        task=task.text, prompts=prompts, samples=samples, prompt=prompt, response=mean, response_max=most,
        mini_batch=_mini_batch(row, samples, prompts * samples, said), reference=frozen is None,
    )  # fmt: skip


def _lengths(row: Row, context: int | None, said: list[str], others: list[Other]) -> tuple[float, float, int]:
    """Mean prompt, mean response and longest response of a row [token].

    Where only the longest is stated, the logarithm of the mean lies anywhere between those of a short answer and of
    it, or of what the `context` that the model was made for leaves beside the prompt.
    """
    cell, notes = row.text("prompt_tokens").strip(), row.text("notes")
    whole = re.search(r"mean sequence \(prompt \+ answer\) ([\d.]+)", notes)
    mean, most = _number(row, "response_tokens_mean"), _whole(row, "response_tokens_max")
    if re.fullmatch(r"[\d.]+", cell):
        prompt = float(cell)
    else:
        ends = [min(one, 0.5 * float(whole[1])) if mean is None and whole else one for one in PROMPT_TOKENS]
        prompt = ends[1]
        said.append(f"prompts of {prompt:g} tokens on average (assumed), as the row states none")
        if not (mean is None and whole):
            others.append(Other(words={"prompt": ends[0]}))
    if most is not None and re.search(r"response_tokens_max is the training maximum sequence", notes):
        most = max(1, round(most - prompt))
    if mean is None and whole is not None:
        mean = float(whole[1]) - prompt
    if mean is None:
        if _PICTURES.search(row.text("model")):
            told = "neither the mean length of responses nor the tokens of a prompt's pictures are stated"
            raise InputError(told, field="response_tokens_mean")
        if most is None:
            raise InputError(
                "neither the mean length of responses nor their limit is stated", field="response_tokens_mean"
            )
        room = min(most, max(round(prompt), (context or most + round(prompt)) - round(prompt)))
        least = min(constant("rollout.least_mean"), 0.25 * room)
        mean, low = float(np.sqrt(least * room)), least * (room / least) ** 0.1
        others.append(Other(words={"response": low}))
        said.append(
            f"responses of {mean:,.0f} tokens on average (assumed: between {least:.0f} and {room:,} on a logarithmic"
            f" scale, {low:,.0f} to {mean * mean / low:,.0f} in the interval), as the row states the limit alone"
        )
    if most is None:
        most = round(4 * mean)
        said.append(f"responses of at most {most} tokens (assumed), as the row states no limit")
    others.append(Other(words={"response_cv": constant("rollout.response_cv.low")}))
    return prompt, mean, max(most, round(mean + 0.5))


def _mini_batch(row: Row, samples: int, sequences: int, said: list[str] | None = None) -> int | None:
    """Sequences of an optimizer step; a mini-batch of prompts counts all of their responses."""
    notes = row.text("notes")
    for pattern, factor in ((r"training batch (\d+)", 1), (r"global batch (\d+)", 1), (r"mini batch (\d+)", samples)):
        found = re.search(pattern, notes)
        if found:
            return min(sequences, max(1, int(found[1]) * factor))
    usual = reading("post_training_mini_batch", program=trainer(row))
    if usual is None:
        return None
    if said is not None:
        said.append(usual.told)
    size, _, of = usual.text.partition(" ")
    each = {"prompts": samples, "a device": _whole(row, "n_devices") or 1}.get(of, 1)
    return min(sequences, int(size) * each)


def _whole(row: Row, field: str) -> int | None:
    value = _number(row, field)
    return None if value is None else round(value)


def _number(row: Row, field: str) -> float | None:
    text = row.text(field).strip()
    if not text:
        return None
    if not re.fullmatch(r"\d{1,9}(\.\d+)?", text):
        raise InputError(f"'{text[:40]}' is not a number", field=field)
    return float(text)
