"""A scenario of post-training: policy, cluster, what an iteration asks for and how its roles are divided."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ridgeline.errors import InputError, RidgelineError
from ridgeline.facts.lengths import is_law
from ridgeline.facts.mechanisms import constant
from ridgeline.graph.workload import Task, Workload
from ridgeline.plan.post_training import ONLINE, PAIRED, TASKS, PostTraining
from ridgeline.scenario.assumed import fill_precision
from ridgeline.scenario.fields import near, read_fields
from ridgeline.scenario.post_training_fields import POST_PLAN_FIELDS, POST_TRAINING_FIELDS
from ridgeline.scenario.training import Place, Table, failing, guarded, model_and_cluster, task_in

if TYPE_CHECKING:
    from ridgeline.facts.records import Cluster
    from ridgeline.graph.model import Model

_OF_ITERATION = frozenset(vars(PostTraining()))
_ASSUMED = {"prompts": 128, "samples": 8, "prompt": 512.0, "response": 1024.0}


@dataclass(frozen=True, kw_only=True)
class PostTrainingScenario:
    """What to predict or plan for; `stated` are the words of the plan, `job` how the trainer computes."""

    model: Model
    cluster: Cluster
    asked: PostTraining
    job: Workload
    reward: Model | None = None
    critic: Model | None = None
    stated: Mapping[str, Any] = field(default_factory=dict)
    assumed: tuple[str, ...] = ()
    file: str | None = None


def names_post_training(subject: str, words: Mapping[str, Any]) -> bool:
    """Whether flags, or else a scenario file that can be read, ask for a task of post-training."""
    if words.get("task") is not None:
        said, known = str(words["task"]).casefold(), (*TASKS, *(one.value for one in Task))
        if said not in known:
            raise InputError(f"'{said[:80]}' is not one of them; {near(said[:80], known)}", field="--task")
        return said in TASKS
    return subject.endswith(".toml") and str(task_in(subject)).casefold() in TASKS


def post_training_of(tables: Mapping[str, Table], place: Place) -> PostTrainingScenario:
    """The scenario that tables describe; raises `InputError` with file, line and field, or the flag at fault."""
    model, cluster, _ = model_and_cluster(tables, place)
    if cluster.mixed is not None:
        raise place.fail("cluster", "", "has unlike devices; post-training is predicted on devices of one kind")
    values = read_fields(tables.get("workload", {}), POST_TRAINING_FIELDS, failing("workload", place))
    task = values.setdefault("task", "grpo")
    stated = read_fields(tables.get("plan", {}), POST_PLAN_FIELDS, failing("plan", place))
    _check_idle(values, stated, place)
    if "responses" in values and not is_law(values["responses"]):
        values["responses"] = str((place.folder / values["responses"]).resolve())
    assumed = tuple(_fill(values, task))
    others = {name: _model(values.pop(name), name, place) for name in ("reward_model", "critic") if name in values}
    named: dict[str, Any] = {name: one.name for name, one in others.items()}
    of_job = {name: value for name, value in values.items() if name not in _OF_ITERATION}
    stated_format: Table = {"precision": of_job["precision"]} if "precision" in of_job else {}
    assumed += guarded("workload", stated_format, place, lambda: tuple(fill_precision(of_job, cluster)))
    of_iteration = {name: value for name, value in values.items() if name in _OF_ITERATION}
    asked = guarded("workload", of_iteration, place, lambda: PostTraining(**of_iteration, **named))
    return PostTrainingScenario(
        model=model, cluster=cluster, asked=asked, reward=others.get("reward_model"), critic=others.get("critic"),
        job=guarded("workload", {}, place, lambda: Workload(seq_len=1, global_batch=1, **of_job)),
        stated=stated,
        assumed=assumed, file=place.file,
    )  # fmt: skip


def _check_idle(values: Mapping[str, Any], stated: Mapping[str, Any], place: Place) -> None:
    """Raises for words that would change nothing in a task."""
    task = values["task"]
    idle = {"critic": ("ppo",), "critic_devices": ("ppo",), "reference": (*ONLINE, "dpo"), "offload_trainer": ONLINE}
    idle |= dict.fromkeys(("reward_model", "reward_s", "old_logprobs", "samples"), ONLINE)
    idle |= dict.fromkeys((name for name in stated if name.startswith("rollout_")), ONLINE)
    for name, tasks in idle.items():
        section = "workload" if name in values else "plan"
        if (name in values or name in stated) and task not in tasks:
            raise place.fail(section, name, f"is of {', '.join(tasks)}, and the task is {task}; leave it out")
    if "responses" in values and ("response" in values or "response_cv" in values):
        told = "says the lengths of all responses; leave out response and response_cv"
        raise place.fail("workload", "responses", told)


def _fill(values: dict[str, Any], task: str) -> list[str]:
    """Puts in what was left out, and says so; paired tasks have two responses to a prompt, `sft` one."""
    if task in PAIRED or task == "sft":
        values["samples"] = 2 if task in PAIRED else 1
    if task == "sft":
        values["reference"] = False
    told = []
    for name, usual in _ASSUMED.items():
        if name not in values and not (name == "response" and "responses" in values):
            values[name] = 1 if name == "samples" and task == "ppo" else usual
            told.append(f"{name} = {values[name]:g}, as none was given")
    if "response_max" not in values:
        values["response_max"] = round(4 * values.get("response", 2048))
        told.append(f"response_max = {values['response_max']} tokens, as none was given")
    elif "response" in told and values["response"] > values["response_max"]:
        values["response"] = float(values["response_max"])
    if "responses" in values:
        values["response"] = min(1024.0, float(values["response_max"]))
    elif "response_cv" not in values:
        told.append(f"response_cv = {constant('rollout.response_cv'):g} (assumed), as none was given")
    return told


def _model(name: str, word: str, place: Place) -> Model:
    from ridgeline.graph.load import load

    try:
        return load(name)
    except RidgelineError as error:
        raise place.fail("workload", word, str(error)) from None
