"""The command `init`: a commented scenario file with the usual values."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

from ridgeline.api.answer import Answer
from ridgeline.api.asking import cluster_words, is_folder
from ridgeline.errors import InputError
from ridgeline.report.blocks import Block, Line
from ridgeline.scenario.commented import Section, commented, training_sections
from ridgeline.scenario.training import Place, Table, cluster_in, scenario_from_words

if TYPE_CHECKING:
    from ridgeline.facts.records import Cluster

_TRAFFIC = {"rate": 1, "requests": 500, "prompt": "1024", "output": "256", "slo": "ttft=1s,tpot=50ms"}


def init(given: SimpleNamespace) -> Answer:
    """The scenario file and the commands that take it; raises `InputError` for a file that is there already."""
    command, text = _scenario(given)
    path = Path(given.out)
    try:
        with path.open("w" if given.force else "x", encoding="utf-8") as out:
            out.write(text)
    except FileExistsError:
        raise InputError("is there already; say --force, or another --out", field="--out", value=given.out) from None
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror}", field="--out", value=given.out) from None

    def blocks() -> list[Block]:
        return [Line(text=f"wrote {given.out}"), Line(text=f"next: {command}")]

    return Answer(lambda: {"path": given.out, "text": text, "next": command}, blocks, value=text)


def _scenario(given: SimpleNamespace) -> tuple[str, str]:
    """The command that takes a scenario, and the scenario as text."""
    from ridgeline.graph.denoiser_specs import find_diffusion, usual_sampling

    config = given.subject.endswith(".json") or is_folder(given.subject)
    model = {"config": str(Path(given.subject).resolve())} if config else {"name": given.subject}
    machine, pictures = cluster_words(given.on, {}), find_diffusion(given.subject)
    where = cluster_in({"cluster": machine}, Place(file=None, folder=Path(), lines={}))
    if pictures is not None:
        from ridgeline.scenario.sampling_fields import DIVISION_FIELDS, SAMPLING_FIELDS, TASK

        command = f"ridgeline predict {given.out}"
        sections = [
            Section(
                name="workload", fields=SAMPLING_FIELDS, said={"task": TASK, **usual_sampling(pictures), "batch": 1}
            ),
            Section(name="plan", fields=DIVISION_FIELDS, said={}),
        ]
        return command, commented("Pictures by a diffusion model", command, {"name": pictures}, machine, sections)
    if given.serve:
        return _serving(given, model, machine)
    plan = {"zero": 3} if where.count > 1 else {}
    asked = scenario_from_words({"model": model, "cluster": machine, "plan": plan})
    command = f"ridgeline predict {given.out}"
    return command, commented("Training", command, model, machine, training_sections(asked))


def _serving(given: SimpleNamespace, model: Table, machine: Table) -> tuple[str, str]:
    from ridgeline.scenario.serving import serving_from_words
    from ridgeline.scenario.serving_fields import DEPLOYMENT_FIELDS, TRAFFIC_FIELDS

    asked = serving_from_words({"model": model, "cluster": machine, "workload": _TRAFFIC, "plan": {}})
    degree = next((n for n in (1, 2, 4, 8) if _fits(asked.model.graph.params, n, asked.cluster)), 8)
    command = f"ridgeline simulate {given.out}"
    sections = [
        Section(name="workload", fields=TRAFFIC_FIELDS, said=_TRAFFIC),
        Section(name="plan", fields=DEPLOYMENT_FIELDS, said={"engine": "vllm", "tp": min(degree, asked.cluster.count)}),
    ]
    return command, commented("Serving", command, model, machine, sections)


def _fits(params: float, degree: int, where: Cluster) -> bool:
    """Whether weights in 16 bits take at most two thirds of `degree` devices, which leaves room for caches."""
    return 2.0 * params <= 2 / 3 * degree * where.accelerator.memory_bytes
