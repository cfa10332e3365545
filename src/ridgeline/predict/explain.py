"""Turns an evaluated plan into a report: parts of the step, memory, evidence, what limits it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from ridgeline.cost.machine import assumed_facts
from ridgeline.energy.power import step_energy_j, step_power_range
from ridgeline.errors import PlanError
from ridgeline.facts.mechanisms import constants
from ridgeline.facts.records import Evidence
from ridgeline.facts.transfer import joined, run_spread
from ridgeline.lower.params import optimizer_states, step_forwards
from ridgeline.lower.shard import Sharder
from ridgeline.lower.work import Collective
from ridgeline.predict.floor import peak_flop_per_s, recomputed_flop, stage_parts, step_floor_s
from ridgeline.predict.predictor import Evaluation, Predictor
from ridgeline.predict.step_interval import step_interval
from ridgeline.report.evidence import Known, lowest
from ridgeline.report.report import Estimate, OpRow, Report, Share, StageMemory
from ridgeline.seams.context import context_style
from ridgeline.seams.loss import cross_entropy
from ridgeline.seams.offload import OPTIMIZER, applied, owner
from ridgeline.seams.registry import CHECKPOINTS, PARTITIONS, listed, of_family, technique
from ridgeline.seams.technique import Technique
from ridgeline.seams.time_shift import time_shift_of
from ridgeline.timeline.simulate import simulate
from ridgeline.training.paired import hidden_s
from ridgeline.training.parts import by_resource
from ridgeline.training.pipeline import pipeline_schedule
from ridgeline.training.stage_times import StageTimes
from ridgeline.training.step import pipeline_step
from ridgeline.units import bytes_text

_PART_KIND = {
    "matrix": "compute",
    "attention": "compute",
    "memory": "hbm",
    "copies": "hbm",
    "launch": "host",
    "update": "hbm",
    "bubble": "bubble",
}
_EVIDENCE_OF_PART = {
    "matrix": "matrix rate",
    "attention": "matrix rate",
    "memory": "memory rate",
    "copies": "memory rate",
    "launch": "launch",
    "update": "memory rate",
}


def explain(predictor: Predictor, evaluation: Evaluation) -> Report:
    """One evaluated plan as a report; of a whole run with what failures leave of its time.

    Raises `PlanError` for a plan that moves its run to other hours where the run's tokens are not said.
    """
    found = _Explainer(predictor, evaluation).report()
    if found.run_time_s is None and (shift := time_shift_of(evaluation.plan.technique)) is not None:
        raise PlanError(f"{shift.key} moves a whole run; say how long it is, e.g. --tokens 10B")
    if found.run_time_s is None and of_family(CHECKPOINTS, evaluation.plan.technique) is None:
        return found
    from ridgeline.predict.goodput import with_failures

    return with_failures(predictor, found)


class _Explainer:
    """Turns an evaluation into a report."""

    def __init__(self, predictor: Predictor, evaluation: Evaluation) -> None:
        self.predictor, self.it = predictor, evaluation
        made = stage_parts(predictor, evaluation)
        self.tables, self.hosts = made.tables(), made.hosts()
        times = evaluation.times
        work = (times.forward_s + times.backward_input_s + times.backward_weight_s).sum(axis=1)
        routed = pipeline_schedule(evaluation.plan.schedule).routed  # through its first stage goes each micro-batch
        self.busiest = 0 if routed else int(np.argmax(work))

    def hosts_s(self) -> tuple[float, float]:
        """Seconds of the step in which the busiest stage waits for the quickest and for the slowest host."""
        quick, slow = (float(table.total_s[self.busiest].sum()) * self.it.passes for table in self.hosts)
        return quick, slow

    def parts(self) -> dict[str, float]:
        """Seconds of the step on the busiest stage, by part; they add up to the makespan."""
        it, plan, stage = self.it, self.it.plan, self.busiest
        one = {name: float(table.total_s[stage].sum()) for name, table in self.tables.items()}
        parts = {name: seconds * it.passes for name, seconds in one.items() if seconds > 0}
        if it.times.paired_s is not None:  # the exchange that another micro-batch's compute hides
            order = pipeline_step(plan, it.micro_batches, it.times)[1]
            parts["expert link"] = parts.get("expert link", 0.0) - hidden_s(order, it.times.paired_s, stage)
        if self.predictor.on_lanes(plan):
            return {name: seconds for name, seconds in (parts | self._moved(parts)).items() if seconds > 0}
        last = int(np.argmax(it.times.optimizer_s))
        exchanged = float(
            np.broadcast_to(it.times.exchanged_s, it.times.optimizer_s.shape)[last]
        )  # once a step, before the update: no work of the optimizer
        parts["update"] = float(it.times.optimizer_s[last]) - exchanged
        rest = it.timeline.makespan_s - sum(parts.values()) - exchanged
        # What exchanges, then sends, lengthen the step by is time of their links; what is left is waiting.
        quiet = it.times.without_exchanges
        without = simulate(self.predictor.step(plan, it.held, quiet)[0]).makespan_s
        waited = min(rest, it.timeline.makespan_s - without)
        parts["data link"] = waited + exchanged
        parts["pipeline link"] = self.sent_s(quiet, without, rest - waited)
        parts["bubble"] = rest - waited - parts["pipeline link"]
        return {name: seconds for name, seconds in parts.items() if seconds > 0}

    def _moved(self, parts: Mapping[str, float]) -> dict[str, float]:
        """Seconds of the step beside its compute where states move on lanes: the update that nothing hides, waiting for
        links of the host and of other ranks, and waiting for other stages."""
        from ridgeline.training.offloaded import device_update_s, exposed_update_s, without_moves

        it, whole_s = self.it, self.it.timeline.makespan_s
        if it.times.forwards_alone:
            update = device_update_s(it.tasks, self.busiest)
            return {"update": update, "host link": whole_s - sum(parts.values()) - update}
        update = exposed_update_s(it.tasks, it.timeline.end_s)
        rest = whole_s - sum(parts.values()) - update
        quiet = simulate(without_moves(it.tasks))
        bubble = quiet.makespan_s - exposed_update_s(it.tasks, quiet.end_s) - sum(parts.values())
        bubble = min(max(bubble, 0.0), max(rest, 0.0))
        return {"update": update, "bubble": bubble, "host link": parts.get("host link", 0.0) + rest - bubble}

    def sent_s(self, times: StageTimes, makespan_s: float, rest_s: float) -> float:
        """How much longer a step of such times, which takes `makespan_s`, is for its sends [s]; at most `rest_s`."""
        if not (times.send_forward_s.any() or times.send_backward_s.any()):
            return 0.0
        still = replace(times, send_forward_s=times.send_forward_s * 0, send_backward_s=times.send_backward_s * 0)
        without = simulate(self.predictor.step(self.it.plan, self.it.held, still)[0]).makespan_s
        return max(0.0, min(rest_s, makespan_s - without))

    def kind_of(self, part: str) -> str:
        """What a part of the step keeps busy; an optimizer in host memory is updated by the host."""
        if part == "update" and owner(applied(self.it.plan), OPTIMIZER, self.it.plan.zero):
            return "host"
        return _PART_KIND.get(part, "link")

    def memory(self) -> tuple[StageMemory, ...]:
        table = self.predictor.memory(self.it.plan)
        capacity = self.predictor.cluster.accelerator.memory_bytes
        policy = self.predictor.workload.policy
        return tuple(
            StageMemory(
                stage=s,
                categories={
                    name: float(np.broadcast_to(value, (self.it.plan.pp,))[s]) for name, value in table.items()
                },
                capacity_bytes=capacity,
                measured=policy.peaks_measured,
                reserved_share=policy.reserved_share,
            )
            for s in range(self.it.plan.pp)
        )

    def evidence(self) -> dict[str, Evidence]:
        """The rung behind each mechanism."""
        pricer, device = self.predictor.stages.pricer, self.predictor.machine.device
        return {
            "matrix rate": device.evidence.get(f"matrix.{pricer.precision.compute}", Evidence.DATASHEET),
            "memory rate": device.evidence.get("hbm", Evidence.DATASHEET),
            "links": self.predictor.machine.link_evidence,
            "launch": constants()["launch.host.eager"].evidence,
        } | ({"host memory": self.predictor.cluster.host.evidence} if self.it.plan.offload_optimizer else {})

    def known(self, parts: Mapping[str, float], evidence: Mapping[str, Evidence]) -> tuple[Known, ...]:
        """Each mechanism's rung, and the share of the step that hangs on it; waiting hangs on all of them."""
        seconds = dict.fromkeys(evidence, 0.0)
        for part, value in parts.items():
            if part == "bubble":
                continue
            moved = part == "update" and self.it.plan.offload_optimizer
            seconds["host memory" if moved else _EVIDENCE_OF_PART.get(part, "links")] += value
        step_s = self.it.timeline.makespan_s
        return tuple(Known(part=name, evidence=evidence[name], share=value / step_s) for name, value in seconds.items())

    def report(self) -> Report:
        it, predictor, workload = self.it, self.predictor, self.predictor.workload
        parts, step_s = self.parts(), it.timeline.makespan_s
        schedule = pipeline_schedule(it.plan.schedule)
        detailed = it.tasks if schedule.routed else by_resource(it.tasks, self.tables)
        skipped = 1.0 - schedule.visited(it.plan.pp) / it.plan.pp  # of the layers
        evidence = self.evidence()
        known = self.known(parts, evidence)
        trained = step_forwards(workload)
        low, high = step_interval(parts, self.hosts_s(), predictor=predictor, evidence=evidence["matrix rate"])
        beyond = (step_s * end for end in run_spread("training step", lowest(known).label))
        low, high = joined(step_s, [low, high, *beyond])
        low = min(step_floor_s(predictor, it, trained=trained, low_s=low), step_s)
        tokens = workload.step_tokens * (1 - workload.padding)
        per_token = predictor.model_flop_per_token() - skipped * predictor.layers_flop_per_token()
        model_flop = per_token * workload.step_tokens * trained
        hardware_flop = model_flop + recomputed_flop(predictor, it) * workload.step_tokens
        causal = predictor.model_flop_per_token("causal") - skipped * predictor.layers_flop_per_token("causal")
        attended_flop = causal * workload.step_tokens * trained
        done_flop = attended_flop + recomputed_flop(predictor, it, attention="causal") * workload.step_tokens
        formats = {predictor.stages.precision.compute, predictor.stages.precision.attention}
        total_peak = max(peak_flop_per_s(predictor, name) for name in formats) * it.plan.devices
        held = predictor.stages.pricer.held
        energy = step_energy_j(parts, predictor.cluster, held=held, used=it.plan.devices)
        price, carbon = predictor.cluster.price_usd_per_device_h, predictor.cluster.carbon_kg_per_j
        steps = None if workload.tokens is None else workload.tokens / workload.step_tokens
        shares = tuple(
            Share(label=name, kind=self.kind_of(name), seconds=seconds)
            for name, seconds in sorted(parts.items(), key=lambda item: -item[1])
        )
        return Report(
            model=predictor.model,
            cluster=predictor.cluster,
            workload=workload,
            plan=it.plan,
            step_time=Estimate(value=step_s, low=low, high=high, unit="s", evidence=lowest(known)),
            bound_s=it.bound_s,
            tokens_per_s=tokens / step_s,
            model_flop=model_flop,
            hardware_flop=hardware_flop,
            mfu=model_flop / step_s / total_peak,
            hfu=done_flop / step_s / total_peak,
            causal_mfu=attended_flop / step_s / total_peak,
            run_time_s=None if steps is None else steps * step_s,
            energy_j_per_step=energy,
            power_w=energy / step_s,
            power_range=step_power_range(parts, predictor.cluster, held=held, used=it.plan.devices),
            usd_per_step=None if price is None else price.value * predictor.cluster.count * step_s / 3600,
            carbon_kg_per_step=None if carbon is None else carbon.value * energy,
            memory=self.memory(),
            shares=shares,
            limit=_limit(shares, step_s),
            ops=self.ops(),
            assumptions=self.assumptions(),
            sources=self.sources(),
            evidence=evidence,
            known=known,
            tasks=detailed,
            timeline=simulate(detailed),
        )

    def ops(self) -> tuple[OpRow, ...]:
        """Every operator of every block kind on one rank, one micro-batch."""
        stages = self.predictor.stages
        graph, names = self.predictor.model.graph, np.array(self.predictor.model.graph.layers)
        (own, _), *_ = runs = self.predictor.groups(self.it.plan)
        several = len(runs) > 1
        groups = [
            ("embedding", 1, graph.embedding, None, own),
            *(
                (f"{n} {number}" if several else n, count, b.ops, b, plan)
                for number, (plan, chosen) in enumerate(runs)
                for n, b in graph.blocks.items()
                if (count := int(np.count_nonzero(names[chosen] == n)))
            ),
            ("head", 1, graph.head, None, own),
        ]
        rung = self.evidence()
        rows = []
        for name, layers, ops, block, plan in groups:
            sharder = Sharder(self.predictor.workload, self.predictor.layout(plan))
            end = sharder.head if name == "head" else sharder.end
            work = sharder.block(block) if block is not None else end(ops)
            merged: dict[str, list[Any]] = {}
            for piece, cost in stages.pricer.rows(work):
                seconds = float(np.asarray(cost.seconds))
                if seconds <= 0:
                    continue
                busy = float(np.max(cost.compute_s)) >= float(np.max(cost.memory_s))
                bound = "link" if isinstance(piece, Collective) else "compute" if busy else "hbm"
                row = merged.setdefault(piece.name, [0.0, 0.0, 0.0, 0.0, bound])
                row[0 if piece.phase.value == "forward" else 1] += seconds
                row[2] += float(np.asarray(cost.flop))
                row[3] += float(np.asarray(cost.bytes))
            for op, (forward, backward, flop, size, bound) in merged.items():
                mechanism = {"compute": "matrix rate", "hbm": "memory rate", "link": "links"}[bound]
                rows.append(
                    OpRow(
                        block=name,
                        op=op,
                        layers=layers,
                        forward_s=forward,
                        backward_s=backward,
                        flop=flop,
                        bytes=size,
                        bound=bound,
                        evidence=rung[mechanism],
                    )
                )
        return (*rows, *self.moves(rung))

    def moves(self, rung: Mapping[str, Evidence]) -> tuple[OpRow, ...]:
        """What one micro-batch moves beside its operators: sends over each tier that stages hand on over, and copies
        of the busiest stage to the host and back."""
        stages, times, layout = self.predictor.stages, self.it.times, self.it.held.cost.layout
        found: dict[float, OpRow] = {}
        tiers = self.predictor.machine.tiers
        for tier, stride in zip(tiers, (1, *(tier.size for tier in tiers)), strict=False):
            one_s = float(np.asarray(stages.send_seconds(layout, stride)))
            many = int(np.count_nonzero(times.send_forward_s == one_s)) if one_s > 0 else 0
            if many and one_s not in found:
                sent = 2 * float(np.asarray(stages.sent_bytes(layout)))
                found[one_s] = OpRow(
                    block="pipeline", op=f"send over {tier.name}", layers=many, forward_s=one_s, backward_s=one_s,
                    flop=0.0, bytes=sent, bound="link", evidence=rung["links"],
                )  # fmt: skip
        host = self.predictor.cluster.host
        copy_s = float(np.broadcast_to(times.host_copy_s, self.it.held.first.shape)[self.busiest].sum())
        if copy_s > 0:
            moved = 2 * copy_s * self.predictor.machine.host_link_bytes_per_s
            found[-1.0] = OpRow(
                block="host", op="activations out and back", layers=1, forward_s=copy_s, backward_s=copy_s,
                flop=0.0, bytes=moved, bound="link", evidence=host.evidence,
            )  # fmt: skip
        return tuple(found.values())

    def assumptions(self) -> tuple[str, ...]:
        workload, cluster = self.predictor.workload, self.predictor.cluster
        found = [
            "MFU counts attention over all token pairs (PaLM's convention) and no recompute, HFU what kernels compute",
            "experts receive equal numbers of tokens" if self.predictor.limits.experts else "",
            f"{workload.padding:.0%} of positions are padding and count as no tokens" if workload.padding else "",
            f"price: {cluster.price_usd_per_device_h.conditions}"
            if cluster.price_usd_per_device_h
            else "no price is known for this accelerator",
            *self.predictor.model.notes,
            *assumed_facts(self.predictor.machine, self.predictor.stages.precision.compute),
        ]
        if order := self.predictor.node_order(self.it.plan):
            found.append(f"ranks fill nodes in the order {' '.join(map(str, order))}, each link at its own speed")
        if of_family(PARTITIONS, self.it.plan.technique) is not None:
            found.append(f"stages have {'/'.join(map(str, self.predictor.split(self.it.plan)))} layers")
        if away := self.predictor.host_bytes(self.it.plan):
            has = cluster.host.dram_bytes
            room = "" if away <= has else ": MORE THAN IT HAS"
            found.append(f"{bytes_text(away)} are in a host's memory, of {bytes_text(has)}{room}")
        if drives := self.predictor.drive_bytes(self.it.plan):
            has = cluster.host.nvme_bytes
            room = "" if drives <= has else ": MORE THAN THEY HAVE"
            found.append(f"{bytes_text(drives)} are on a host's drives, of {bytes_text(has)}{room}")
        if self.it.plan.offload_activations and not self.predictor.on_lanes(self.it.plan):
            hidden = self._hidden_copies_s() / self.it.timeline.makespan_s
            found.append(
                f"activations cross the host link beside the compute and do not slow it: {hidden:.0%} of the step is so"
                " hidden, which nobody has measured"
            )
        return tuple(text for text in found if text)

    def _hidden_copies_s(self) -> float:
        """Time of activations' copies that compute hides on the stage that has most of it [s]."""
        times = self.it.times
        waits = np.asarray(times.host_wait_s) + np.asarray(times.host_back_wait_s)
        return float(np.sum(2.0 * np.asarray(times.host_copy_s) - waits, axis=-1).max()) * self.it.passes

    def _applied(self) -> list[Technique]:
        """Techniques of the run: those that a plan lists, then of each family the one that does something in it."""
        plan, stages = self.it.plan, self.predictor.stages
        found = [listed(text) for text in plan.technique]
        found += [optimizer_states(self.predictor.workload), cross_entropy(plan.loss)]
        if plan.pp > 1:
            found.append(pipeline_schedule(plan.schedule))
        if plan.cp > 1:
            found.append(context_style(plan.context_style))
        if self.predictor.cluster.links is not None:
            found.append(technique("node_orders", plan.node_order))
        if stages.rule(plan.recompute).repeats():
            found.append(stages.rule(plan.recompute))
        return found

    def sources(self) -> tuple[str, ...]:
        accelerator = self.predictor.cluster.accelerator
        used = [
            fact.source
            for name, fact in accelerator.sustained.items()
            if name in ("hbm", f"matrix.{self.predictor.stages.precision.compute}")
        ]
        used += [
            fact.source for name, fact in accelerator.facts.items() if name in ("memory_bytes", "peak_flop_per_s.bf16")
        ]
        used += [key for one in self._applied() for key in one.source]
        used += [tier.fact.source for tier in self.predictor.cluster.tiers if tier.fact is not None]
        return tuple(dict.fromkeys(used))


def _limit(shares: tuple[Share, ...], step_s: float) -> str:
    """One line: the largest part of the step and the next."""
    text = ", then ".join(f"{share.label} ({share.kind}) {share.seconds / step_s:.0%}" for share in shares[:2])
    return f"{text} of the step" if text else "nothing to do"
