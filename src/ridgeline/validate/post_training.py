"""Rows of post-training: which iteration was measured, how its roles were divided, and what is asked of it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ridgeline.errors import InputError
from ridgeline.facts.frameworks import framework_policy
from ridgeline.facts.programs import training_program
from ridgeline.facts.readings import reading
from ridgeline.graph.workload import Workload
from ridgeline.plan.post_training import PostTraining
from ridgeline.predict.post_training import Models, PostTrainingQuestion
from ridgeline.report.post_training import PostTrainingReport
from ridgeline.validate.hardware import find_device
from ridgeline.validate.machines import Machines, machines, place
from ridgeline.validate.rows import Row
from ridgeline.validate.score import Memo, scored
from ridgeline.validate.serving_models import model_of

METRICS = ("step_s", "rollout_s", "train_s", "tokens_per_s", "tokens_per_s_per_device")
PROMPT_TOKENS = 256.0  # of a row that does not say (assumed): mathematics problems with their template
_DEGREE = re.compile(r"(vpp|fsdp|tp|pp|cp|ep|sp|dp)\s*(\d+)", re.IGNORECASE)
_LISTED = re.compile(r"\[([A-Za-z, ]+)\]\s*\[([^\]]+)\]")
_FIELDS = {"vpp": "chunks", "sp": "cp"}
_UNITS = {"s": 1.0, "min": 60.0, "h": 3600.0, "ms": 1e-3, "tokens/s": 1.0, "tokens/s/GPU": 1.0}


@dataclass(frozen=True, kw_only=True)
class PostTrainingJob:
    """What a row measured: the question, whether its split has to be looked for, and what was assumed."""

    question: PostTrainingQuestion
    searched: bool
    assumptions: tuple[str, ...]
    device: str


Iteration = Callable[[PostTrainingQuestion, bool], PostTrainingReport]


class PostTrainingRows:
    """Answers rows of a table of post-training one by one; rows that ask the same are predicted once.

    `iteration` predicts an iteration, and says whether the split of its devices has to be looked for.
    """

    def __init__(self, iteration: Iteration | None, source: Machines | None = None) -> None:
        self._iteration, self._source = iteration, source
        self._known = Memo[PostTrainingReport]()

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
        value, low, high = (each / _UNITS[unit] for each in _read(metric, found))
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
    names = ("rollouts",) if metric == "rollout_s" else ("updates", "critic updates")
    phases = [one for one in found.phases if one.name in names and not one.beside]
    middle, low, high = (sum(getattr(one, end) for one in phases) for end in ("seconds", "low_s", "high_s"))
    return middle, low, high


def read_job(row: Row, source: Machines) -> PostTrainingJob:
    """What a row measured; raises `InputError` where it lacks what the answer needs."""
    said: list[str] = []
    model, about = model_of(row)
    device = find_device(row.text("hardware"), source.accelerators(), source.usual)
    count = _whole(row, "n_devices")
    if count is None:
        raise InputError("the number of devices is not stated", field="n_devices")
    cluster, wiring = place(device.accelerator, count, (row.text("hardware"), row.text("notes")), source)
    asked = _iteration(row, said)
    stated, searched = _plan(row, said)
    question = PostTrainingQuestion(
        models=Models(policy=model), cluster=cluster, asked=asked, job=_job(row), stated=stated
    )
    dropped = reading("post_training_collection", words=row.text("algorithm"))
    if dropped is not None:
        stated["rollout_collection"] = dropped.text
        said.append(str(dropped.told))
    question = replace(question, stated=stated)
    if searched:
        said.append("how many devices generated is not stated: the quickest split found")
    return PostTrainingJob(
        question=question, searched=searched, assumptions=(*device.assumptions, *about, *wiring, *said),
        device=device.accelerator.name,
    )  # fmt: skip


def _job(row: Row) -> Workload:
    """How the trainer computes: its framework's policy, and the precision that the row states."""
    program = training_program(row.text("train_engine"), row.source)
    precision = "fp8" if re.search(r"fp8", row.text("precision"), re.IGNORECASE) else "bf16"
    policy = framework_policy(program.framework) if program.framework else ""
    return Workload(seq_len=1, global_batch=1, precision=precision, framework=policy)


def _iteration(row: Row, said: list[str]) -> PostTraining:
    """What an iteration asked for."""
    word = row.text("algorithm").strip()
    task = reading("post_training_task", words=word)
    if task is None:
        raise InputError(f"'{word[:40]}' is no algorithm that is predicted; e.g. GRPO, PPO, DPO", field="algorithm")
    prompts, samples = _whole(row, "prompts_per_step"), _whole(row, "samples_per_prompt")
    usual = reading("post_training_samples", words=word)
    if samples is None and usual is not None:
        samples = round(usual.number)
        said.append(str(usual.told))
    if prompts is None:
        raise InputError("how many prompts an iteration has is not stated", field="prompts_per_step")
    if samples is None:
        raise InputError("how many responses a prompt gets is not stated", field="samples_per_prompt")
    prompt, mean, most = _lengths(row, said)
    frozen = reading("post_training_reference", words=word)
    if frozen is not None:
        said.append(str(frozen.told))
    return PostTraining(
        task=task.text, prompts=prompts, samples=samples, prompt=prompt, response=mean, response_max=most,
        mini_batch=_mini_batch(row, samples, prompts * samples), reference=frozen is None,
    )  # fmt: skip


def _lengths(row: Row, said: list[str]) -> tuple[float, float, int]:
    """Mean prompt, mean response and longest response of a row [token]."""
    cell, notes = row.text("prompt_tokens").strip(), row.text("notes")
    whole = re.search(r"mean sequence \(prompt \+ answer\) ([\d.]+)", notes)
    prompt = float(cell) if re.fullmatch(r"[\d.]+", cell) else PROMPT_TOKENS
    mean = _number(row, "response_tokens_mean")
    if not re.fullmatch(r"[\d.]+", cell):
        if mean is None and whole is not None:
            prompt = min(prompt, 0.5 * float(whole[1]))
        said.append(f"prompts of {prompt:g} tokens on average (assumed), as the row states none")
    if mean is None and whole is None:
        raise InputError("the mean length of responses is not stated", field="response_tokens_mean")
    if mean is None and whole is not None:
        mean = float(whole[1]) - prompt
    assert mean is not None
    most = _whole(row, "response_tokens_max")
    if most is not None and re.search(r"response_tokens_max is the training maximum sequence", notes):
        most = max(1, round(most - prompt))
    if most is None:
        most = round(4 * mean)
        said.append(f"responses of at most {most} tokens (assumed), as the row states no limit")
    return prompt, mean, max(most, round(mean + 0.5))


def _mini_batch(row: Row, samples: int, sequences: int) -> int | None:
    """Sequences of an optimizer step; a mini-batch of prompts counts all of their responses."""
    notes = row.text("notes")
    for pattern, factor in ((r"training batch (\d+)", 1), (r"global batch (\d+)", 1), (r"mini batch (\d+)", samples)):
        found = re.search(pattern, notes)
        if found:
            return min(sequences, max(1, int(found[1]) * factor))
    return None


def _plan(row: Row, said: list[str]) -> tuple[dict[str, Any], bool]:
    """Words of the plan that a row states, and whether the split of its devices has to be looked for."""
    notes, layout, mode = row.text("notes"), row.text("layout"), row.text("mode").strip()
    stated: dict[str, Any] = {}
    for part in layout.split(";"):
        degrees = _degrees(part)
        if re.match(r"\s*(generation|rollout)", part, re.IGNORECASE):
            stated |= {f"rollout_{name}": value for name, value in degrees.items() if name in ("tp", "pp", "ep")}
        elif re.match(r"\s*(train|training|actor)\b", part, re.IGNORECASE):
            stated |= _trainer(degrees, row)
    if row.text("rollout_engine"):
        stated["rollout_engine"] = row.text("rollout_engine")
    if re.search(r"fp8[^;]*generation", row.text("precision")):
        stated["rollout_weights"] = "fp8"
    if re.search(r"full recompute", layout) or re.search(r"full_recompute|recompute full", notes):
        stated["recompute"] = "full"
    usual = reading("post_training_recompute", program=row.text("train_engine"))
    if usual is not None and not re.search(r"recompute (FALSE|none)", notes, re.IGNORECASE):
        stated.setdefault("recompute", usual.text)
        said.append(str(usual.told))
    critic = re.search(r"(\d+) critic nodes? of (\d+)", layout)
    if critic:
        stated["critic_devices"] = int(critic[1]) * int(critic[2])
        return stated, False
    if mode == "colocated":
        return stated, False
    if mode not in ("async", "apart"):
        raise InputError(f"'{mode[:20]}' is no mode that is predicted; known: colocated, apart, async", field="mode")
    steps = re.search(r"(\d+)-step Off", notes)
    if mode == "async":
        behind = int(steps[1]) if steps else 1
        stated["rollout_mode"] = f"off-policy(staleness={behind})" if behind != 1 else "off-policy"
        if not steps:
            said.append("one step off-policy (assumed), as the row states no staleness")
    return stated, True


def _trainer(degrees: Mapping[str, int], row: Row) -> dict[str, Any]:
    """Words of the trainer's plan."""
    found: dict[str, Any] = {name: value for name, value in degrees.items() if name in ("tp", "pp", "cp", "ep")}
    sharded = "fsdp" in degrees or training_program(row.text("train_engine"), row.source).zero == 3
    if sharded:
        found["zero"] = 3
    if found.get("cp", 1) > 1 and sharded:
        found["context_style"] = "ulysses"
    if degrees.get("chunks", 1) > 1:
        found |= {"chunks": degrees["chunks"], "schedule": "interleaved"}
    return found


def _degrees(part: str) -> dict[str, int]:
    """Degrees of one role: a list of names and one of values, or words such as tp4pp2."""
    listed = _LISTED.search(part)
    if listed:
        names = [one.strip().casefold() for one in listed[1].split(",")]
        values = [one.strip() for one in listed[2].split(",")]
        pairs = [(name, value) for name, value in zip(names, values, strict=False) if value.isdecimal()]
    else:
        pairs = [(name.casefold(), value) for name, value in _DEGREE.findall(part)]
    return {_FIELDS.get(name, name): int(value) for name, value in pairs}


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
