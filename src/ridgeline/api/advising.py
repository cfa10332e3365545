"""The command `advise`: what limits a scenario, which techniques would help, and by how much."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from ridgeline.api.answer import Answer
from ridgeline.api.asking import (
    TRAFFIC_NAMES,
    blamed_on,
    blamed_on_word,
    deployed_scenario_of,
    scenario_of,
    take_machine_words,
)
from ridgeline.api.flags import read_flags
from ridgeline.api.placing import with_placement
from ridgeline.api.progress import busy
from ridgeline.api.simulating import measured_only, policies_of
from ridgeline.errors import InputError
from ridgeline.scenario.fields import read_fields
from ridgeline.scenario.serving_fields import BATCH_FIELDS, HOST_FIELDS

if TYPE_CHECKING:
    from ridgeline.report.advice import Advice
    from ridgeline.report.traced import Traced

_HOST = ("cpu", "dram", "storage")
_SERVING_WORDS = TRAFFIC_NAMES


def advise(given: SimpleNamespace) -> Answer:
    """Prints advice on a scenario; raises `NoPlanError` where it does not run and nothing tried makes it."""
    take_machine_words(given)
    found = _advice(given)

    from ridgeline.report.advice_text import advice_as_dict, advice_blocks
    from ridgeline.report.blocks import blank

    none = "it does not run, and no stack of what was tried makes it; add devices or memory"
    traced = _traced(given, found) if given.trace_file else None
    return Answer(
        lambda: {**advice_as_dict(found), **({} if traced is None else {"trace": traced.as_dict()})},
        lambda: [*(() if traced is None else (*traced.blocks(), blank())), *advice_blocks(found)],
        value=found,
        impossible=none if found.value is None and found.best is None else None,
    )


def _advice(given: SimpleNamespace) -> Advice:
    if given.serve or _of_traffic(given):
        return _of_serving(given)
    from ridgeline.scenario.sampling import names_sampling

    if names_sampling(given.subject):
        return _of_pictures(given)
    asked = scenario_of(given.subject, given.on, given.words, planned=True)

    from ridgeline.advise.asking import advise_training

    with blamed_on(asked), busy("trying techniques"):
        return advise_training(asked, objective=given.objective or "time", evidence=given.evidence)


def _traced(given: SimpleNamespace, found: Advice) -> Traced:
    """Traces beside what `predict` answers for the same words."""
    from ridgeline.advise.against_trace import against_serving, against_training
    from ridgeline.report.report import Report
    from ridgeline.report.serving import ServingReport

    predicted = _prediction(given)
    if isinstance(predicted, Report):
        return against_training(given.trace_file, given.trace_step, predicted, found)
    if isinstance(predicted, ServingReport):
        return against_serving(given.trace_file, given.trace_step, predicted, found)
    raise InputError("is compared with a training step or with a batch of serving; leave it out", field="--trace-file")


def _prediction(given: SimpleNamespace) -> Any:
    from ridgeline.api.planning import predict

    own = {"longest": False, "trace": None, "quick": True}
    return predict(SimpleNamespace(**{**vars(given), **own, "words": dict(given.words)})).value


def _of_pictures(given: SimpleNamespace) -> Advice:
    from ridgeline.advise.asking import advise_pictures
    from ridgeline.api.sampling import asked_of

    measured_only(given.evidence, "a scenario of pictures")
    return advise_pictures(asked_of(given.subject, given.on, given.words), objective=given.objective)


def _of_traffic(given: SimpleNamespace) -> bool:
    """Whether a scenario file is about traffic, as its words of the workload say."""
    if not given.subject.endswith(".toml"):
        return False
    from ridgeline.scenario.training import tables_of

    return bool(tables_of(given.subject)[0].get("workload", {}).keys() & _SERVING_WORDS)


def _of_serving(given: SimpleNamespace) -> Advice:
    batch = read_flags({"batch": given.words.get("batch")}, BATCH_FIELDS).get("batch")
    host = _host_of(given)
    measured_only(given.evidence, "--serve")
    words = {name: None if name in _HOST else value for name, value in given.words.items()}
    asked = with_placement(deployed_scenario_of(given.subject, given.on, words, apart=frozenset(_HOST)))
    if "offload" in asked.stated:
        raise InputError("advice tries the places of weights itself; leave it out, and say --cpu", field="--offload")

    from ridgeline.advise.asking_serving import advise_serving
    from ridgeline.advise.serving_levers import GivenHost

    where = GivenHost(processors=host.get("cpu", ""), dram_bytes=host.get("dram"), storage=host.get("storage", ""))
    with blamed_on_word(asked), busy("replaying deployments"):
        return advise_serving(
            asked, objective=given.objective, batch=batch, policies=policies_of(asked), host=where
        )  # fmt: skip


def _host_of(given: SimpleNamespace) -> dict[str, Any]:
    """Processors, memory and disk of the host, from flags or from the plan of a scenario file."""
    host = read_flags({name: given.words.get(name) for name in _HOST}, HOST_FIELDS)
    if not given.subject.endswith(".toml"):
        return host
    from ridgeline.scenario.training import failing, tables_of

    tables, place = tables_of(given.subject)
    said = {name: value for name, value in tables.get("plan", {}).items() if name in _HOST}
    return {**read_fields(said, HOST_FIELDS, failing("plan", place)), **host}
