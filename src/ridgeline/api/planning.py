"""The commands `plan` and `predict`: from words to a scenario, to an answer, to the screen; of serving elsewhere."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from ridgeline.api.answer import Answer
from ridgeline.api.asking import blamed_on, scenario_of, take_machine_words
from ridgeline.api.capping import best_cap, caps_of
from ridgeline.api.flags import LIMIT_FIELDS, STATED_FIELDS, read_flags
from ridgeline.api.progress import busy
from ridgeline.errors import InputError, NoPlanError

if TYPE_CHECKING:
    from ridgeline.report.blocks import Block
    from ridgeline.report.mixed import MixedReport
    from ridgeline.report.report import Report
    from ridgeline.scenario.training import Scenario


def plan(given: SimpleNamespace) -> Answer:
    """The best plans, or deployments; raises `NoPlanError` when none fits."""
    _refuse_idle(given)
    caps = caps_of(given)
    return best_cap(given, caps, _plan_at) if len(caps) > 1 else _plan_at(given)


def _plan_at(given: SimpleNamespace) -> Answer:
    """The best plans at one power limit."""
    take_machine_words(given)
    from ridgeline.scenario.post_training import names_post_training

    if names_post_training(given.subject, given.words):
        from ridgeline.api.post_training import plan_iteration

        return plan_iteration(given)
    if given.serve:
        from ridgeline.api.deploying import plan_serving, rent_serving

        return (plan_serving if given.rent is None else rent_serving)(given)
    asked = scenario_of(given.subject, given.on, given.words, planned=False)
    alone = {"--layerwise": given.layerwise, "--lengths": asked.workload.lengths, "mixed devices": asked.cluster.mixed}
    if given.aim not in (None, "time") and (other := next((name for name, said in alone.items() if said), "")):
        raise InputError(f"with {other} only the quickest plan is searched; leave it out", field="--for")
    if asked.workload.lengths:
        words = {"zero": "3", **{name: value for name, value in given.words.items() if value is not None}}
        return _lengths(scenario_of(given.subject, given.on, words, planned=True), given, best=True)
    stated, limits = read_flags(given.words, STATED_FIELDS), read_flags(given.words, LIMIT_FIELDS)
    if asked.cluster.mixed is not None:
        from ridgeline.search.mixed import best_mixed

        with blamed_on(asked), busy("searching plans"):
            best = best_mixed(asked.model, asked.cluster, asked.workload, fixed=stated, top=given.top)
        return _mixed(asked, given, best)

    from ridgeline.report.as_json import search_as_dict
    from ridgeline.report.search_text import search_blocks
    from ridgeline.search.search import search
    from ridgeline.search.space import EXHAUSTIVE, Space

    space = replace(EXHAUSTIVE if given.exhaustive else Space(), fixed=stated, **limits)
    try:
        with blamed_on(asked), busy("searching plans"):
            what = (asked.model, asked.cluster, asked.workload)
            found = search(*what, limits=space, top=given.top, evidence=given.evidence, aim=given.aim or "time")
            if given.layerwise:
                from ridgeline.search.layer_plans import LayerPlanSpace, with_layer_plans

                bounds = {name: limits[name] for name in ("max_tp", "max_pp", "max_micro_batch") if name in limits}
                found = with_layer_plans(
                    found,
                    asked.model,
                    asked.cluster,
                    asked.workload,
                    space=LayerPlanSpace(**bounds),
                    evidence=given.evidence,
                )
    except NoPlanError as error:
        error.beside = {"best": []}
        raise
    return Answer(
        lambda: {**search_as_dict(found), "assumed": list(asked.assumed)},
        lambda: search_blocks(found, assumed=asked.assumed),
        value=found,
        aside=f"searched for {found.seconds:.1f} s",
    )


def _refuse_idle(given: SimpleNamespace) -> None:
    """Raises for options of `plan` that say nothing beside the others."""
    of_serving = {
        "--quantize": given.quantize, "--no-pools": not given.pools, "--min-devices": given.min_devices,
        "--rent": given.rent, "--for": given.aim == "goodput",
    }  # fmt: skip
    if given.rent is not None and given.aim is not None:
        raise InputError("--rent chooses machines by their price alone; leave one of them out", field="--for")
    for flag, said in of_serving.items():
        if said and not given.serve:
            raise InputError("is an option of serving; add --serve, or leave it out", field=flag)
        if said and given.rent is not None and flag != "--rent":
            raise InputError("--rent chooses machines by their price alone; leave one of them out", field=flag)
    for flag, said in {"--exhaustive": given.exhaustive, "--layerwise": given.layerwise}.items():
        if given.serve and said:
            raise InputError("is an option of training; leave it out, or --serve", field=flag)
    stated = [name for name in ("framework", *(one.name for one in STATED_FIELDS)) if given.words.get(name) is not None]
    if given.layerwise and stated:
        told = "is kept for all layers, and --layerwise chooses each layer's own; leave one of them out"
        raise InputError(told, field="--" + stated[0].replace("_", "-"))
    if given.rent is not None and given.on is not None:
        raise InputError("--rent chooses among its own offers; leave one of them out", field="--on")
    if given.rent is not None and given.price is not None:
        raise InputError("--rent takes each offer at its own price; leave one of them out", field="--price")


def predict(given: SimpleNamespace) -> Answer:
    """Prints one plan's report, or what else is predicted; raises NoPlanError when it does not fit in memory."""
    take_machine_words(given)
    from ridgeline.scenario.post_training import names_post_training

    if names_post_training(given.subject, given.words):
        from ridgeline.api.post_training import predict_iteration

        return predict_iteration(given)
    if given.longest and given.serve:
        raise InputError("is a question about training; leave it out, or --serve", field="--longest")
    if given.serve and _is_network(given.subject):
        given.words, given.serve = _forward_words(given), False
    if given.serve:
        from ridgeline.api.simulating import predict_batch

        if given.trace is not None:
            raise InputError("writes the timeline of a training step; leave it out, or --serve", field="--trace")
        return predict_batch(given)
    from ridgeline.scenario.sampling import names_sampling

    if names_sampling(given.subject):
        if given.longest:
            raise InputError("is a question about training, and this scenario draws pictures", field="--longest")
        from ridgeline.api.sampling import predict_sampling

        return predict_sampling(given.subject, given.on, given.words)
    asked = scenario_of(given.subject, given.on, given.words, planned=True)
    assert asked.plan is not None
    if asked.workload.lengths and not given.longest:
        return _lengths(asked, given, best=False)

    if asked.cluster.mixed is not None:
        from ridgeline.predict.mixed import predict_mixed

        with blamed_on(asked):
            found = (predict_mixed(asked.model, asked.cluster, asked.workload, asked.plan),)
        return _mixed(asked, given, found)
    from ridgeline.predict import predict as predicted
    from ridgeline.report.as_json import report_as_dict
    from ridgeline.report.text import report_blocks

    longest: dict[str, Any] = {}
    with blamed_on(asked):
        if given.longest:
            from ridgeline.predict.longest import longest_sequence

            most = longest_sequence(asked.model, asked.cluster, asked.workload, asked.plan)
            longest = {"longest_sequence": None if most is None else vars(most)}
        report = predicted(
            asked.model, asked.cluster, asked.workload, asked.plan, evidence=given.evidence, changes=not given.quick
        )
    told = "" if given.trace is None else _write_trace(report, given.trace)
    return Answer(
        lambda: {**report_as_dict(report), **longest, "assumed": list(asked.assumed)},
        lambda: [*(_longest(longest) if longest else []), *report_blocks(report, assumed=asked.assumed)],
        value=report,
        impossible=None if report.fits else _too_large(report),
        aside=told,
    )


def _is_network(subject: str) -> bool:
    """Whether a subject names a network of images, speech, sentences or categories."""
    from ridgeline.graph.networks import find_network

    return not subject.endswith((".toml", ".json")) and find_network(subject) is not None


def _forward_words(given: SimpleNamespace) -> dict[str, Any]:
    """Words of a step that serves a network: one forward of a batch of samples on every device."""
    from ridgeline.api.asking import cluster_words
    from ridgeline.scenario.fields import count
    from ridgeline.scenario.training import Place, cluster_in

    if given.on is None:
        raise InputError("say which machine, e.g. --on 1xH100-SXM", field="--on")
    where = cluster_in({"cluster": cluster_words(given.on, given.words)}, Place(file=None, folder=Path(), lines={}))
    try:
        batch = count(1)(given.words.get("batch") or 1)
    except (ValueError, InputError) as error:
        raise InputError(str(error), field="--batch") from None
    asked = {"optimizer": "forward-only", "micro_batch": batch, "global_batch": batch * where.count}
    for name in asked:
        if given.words.get(name) is not None:
            raise InputError(
                "is of training; --batch says the samples of a device", field="--" + name.replace("_", "-")
            )
    return {**given.words, "batch": None, **asked}


def _too_large(report: Report) -> str:
    from ridgeline.units import bytes_text

    worst = min(report.memory, key=lambda stage: stage.headroom_bytes)
    return (
        f"the plan needs {bytes_text(worst.total_bytes)} on stage {worst.stage}, the device has "
        f"{bytes_text(worst.capacity_bytes)}; `ridgeline plan` looks for one that fits"
    )


def _longest(found: Mapping[str, Any]) -> Iterator[Block]:
    """A line on the longest sequence, above the report."""
    from ridgeline.report.blocks import Line, blank
    from ridgeline.units import bytes_text

    one = found["longest_sequence"]
    if one is None:
        yield Line(text="longest sequence: none fits, not even the shortest; states and workspace fill the device")
    else:
        told = f"{bytes_text(one['peak_bytes'])} of {bytes_text(one['capacity_bytes'])}, most of it {one['largest']}"
        more = "; longer ones were not tried" if one["ended"] else f"; {one['step']:,} more do not fit"
        yield Line(text=f"longest sequence: {one['tokens']:,} tokens ({told}){more}")
    yield blank()


def _lengths(asked: Scenario, given: SimpleNamespace, *, best: bool) -> Answer:
    """How sequences of unlike lengths are divided: as the plan says, or in every way there is."""
    from ridgeline.predict.unlike_lengths import best_lengths, predict_lengths
    from ridgeline.report.lengths import lengths_blocks

    if getattr(given, "trace", None) is not None:
        raise InputError("writes the timeline of equal sequences; leave it out, or --lengths", field="--trace")
    assert asked.plan is not None
    with blamed_on(asked), busy("dividing sequences"):
        what = (asked.model, asked.cluster, asked.workload, asked.plan)
        found = best_lengths(*what) if best else (predict_lengths(*what),)
    return Answer(
        lambda: {**found[0].as_dict(), "others": [one.as_dict() for one in found[1:]], "assumed": list(asked.assumed)},
        lambda: lengths_blocks(found, asked.assumed),
        value=found,
    )


def _mixed(asked: Scenario, given: SimpleNamespace, found: tuple[MixedReport, ...]) -> Answer:
    """Steps on devices of unlike types, the best in full."""
    from ridgeline.report.mixed import mixed_blocks

    if getattr(given, "trace", None) is not None:
        raise InputError("writes the timeline of alike devices; leave it out", field="--trace")
    full = next((one for one in found[0].uses if one.memory_bytes > one.capacity_bytes), None)
    return Answer(
        lambda: {**found[0].as_dict(), "others": [one.as_dict() for one in found[1:]], "assumed": list(asked.assumed)},
        lambda: mixed_blocks(found, asked.assumed),
        value=found,
        impossible=None
        if full is None
        else f"{full.device}: {full.limit}; `ridgeline plan` looks for a plan that fits",
    )


def _write_trace(report: Report, path: str) -> str:
    from ridgeline.report.trace import write_trace

    try:
        with Path(path).open("w", encoding="utf-8") as out:
            events = write_trace(report, out)
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror}", file=path) from None
    return f"wrote {events} events to {path}; open it at https://ui.perfetto.dev"
