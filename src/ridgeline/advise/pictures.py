"""Advice on pictures: how a batch is made and divided, as `predict` prices it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf
from typing import Any

from ridgeline.advise.cases import DOLLARS, GOODPUT, MEMORY, TIME, AdviceCase, Change, TrialOutcome
from ridgeline.advise.training_levers import UNSEEN
from ridgeline.advise.words import every_technique
from ridgeline.facts.records import Cluster, Fact
from ridgeline.graph.denoiser_specs import Picture
from ridgeline.graph.denoisers import denoiser
from ridgeline.graph.workload import PRECISIONS
from ridgeline.plan.sampling import DEGREES, OFFLOADS, Division, Sampling
from ridgeline.predict.sampling import SamplingCost, sample
from ridgeline.predict.step_interval import shared_error
from ridgeline.scenario.sampling_fields import DIVISION_FIELDS, SAMPLING_FIELDS
from ridgeline.seams.setting import Setting
from ridgeline.seams.technique import EXACT

UNITS = {TIME: "s", MEMORY: "byte", GOODPUT: "pictures a minute", DOLLARS: "USD a thousand pictures"}
KINDS = {
    "matrix": "compute", "attention": "compute", "memory": "hbm", "launch": "host", "tensor link": "link",
    "words": "compute", "pixels": "compute", "copies from host": "link",
}  # fmt: skip
_HELP = {each.name: each.help for each in (*SAMPLING_FIELDS, *DIVISION_FIELDS)}
_MOST_BATCH = 64


@dataclass(frozen=True, kw_only=True)
class PictureChoice:
    """What is made at a time, and on how many devices."""

    asked: Sampling
    by: Division


@dataclass
class PicturesCase(AdviceCase[PictureChoice]):
    """A scenario of pictures; batches run side by side on as many groups of devices as there are."""

    model: str
    cluster: Cluster
    base: PictureChoice
    objective: str
    bounds_nothing: bool = True
    _costs: dict[PictureChoice, SamplingCost] = field(default_factory=dict)

    def changes(self, on: PictureChoice) -> Iterator[Change[PictureChoice]]:
        """Words of what is asked and of its division."""
        asked, by = on.asked, on.by
        for size in (asked.batch * 2, asked.batch * 4, max(1, asked.batch // 2)):
            if size <= _MOST_BATCH and size != asked.batch:
                yield self._change("batch", {"batch": size})
        for way in ("compiled", "graph"):
            yield self._change("execution", {"execution": way})
        rates = self.cluster.accelerator.peak_flop_per_s
        for name, recipe in PRECISIONS.items():
            if recipe.compute in rates and recipe.compute not in ("fp32", "tf32") and not name.endswith("-amp"):
                same = recipe.compute == PRECISIONS[asked.precision].compute
                yield self._change("precision", {"precision": name}, quality=EXACT if same else UNSEEN)
        yield self._change("attention_kernel", {"attention_kernel": "flash"})
        for place in OFFLOADS:
            yield self._change("offload", {"offload": place})
        for name in DEGREES:
            for size in (getattr(by, name) * 2, max(1, getattr(by, name) // 2)):
                stale = name == "pipeline" and size > 1
                yield self._change(name, {}, {name: size}, quality=UNSEEN if stale else EXACT)
        yield from self._techniques(on)

    def _techniques(self, on: PictureChoice) -> Iterator[Change[PictureChoice]]:
        """Every sampler of the registry, those that do not apply with the reason."""
        model = denoiser(self.model, Picture(width=on.asked.width, height=on.asked.height, frames=on.asked.frames))
        setting = Setting(model=model, cluster=self.cluster, workload=on.asked, plan=on.by)
        for one in every_technique(setting.kind):
            why = one.applies(setting)
            for text in (one.text,) if why else one.axes(setting):
                others = tuple(each for each in on.by.technique if each.partition("(")[0] != one.key)
                put = partial(_put, {}, {"technique": (*others, text)})
                yield Change(
                    words=f"technique = ['{text}']", slot=one.key, what=one.summary(), key=one.key,
                    quality=one.quality, export=one.export, refused=why, put=put,
                )  # fmt: skip

    def _change(
        self, slot: str, asked: dict[str, Any], by: dict[str, Any] | None = None, quality: Fact | None = EXACT
    ) -> Change[PictureChoice]:
        pairs = {**asked, **(by or {})}
        words = ", ".join(f'{name} = "{v}"' if isinstance(v, str) else f"{name} = {v}" for name, v in pairs.items())
        return Change(words=words, slot=slot, what=_HELP[slot], quality=quality, put=partial(_put, asked, by or {}))

    def cost(self, on: PictureChoice) -> SamplingCost:
        """The price of one batch."""
        if on not in self._costs:
            self._costs[on] = sample(self.model, self.cluster, on.asked, on.by)
        return self._costs[on]

    def bound(self, on: PictureChoice) -> TrialOutcome:
        """Its memory: a batch is priced in closed form, so that its outcome is no dearer than a bound."""
        return replace(self.outcome(on), value=0.0)

    def outcome(self, on: PictureChoice) -> TrialOutcome:
        """The value of the objective."""
        cost = self.cost(on)
        excess = cost.memory.peak_bytes - cost.memory.capacity_bytes
        held = {name: part.weights_bytes for name, part in cost.memory.parts.items()}
        return TrialOutcome(
            value=self._value(on, cost), memory_bytes=cost.memory.peak_bytes, excess_bytes=max(0.0, excess), held=held
        )  # fmt: skip

    def _value(self, on: PictureChoice, cost: SamplingCost) -> float:
        groups = max(1, self.cluster.count // on.by.devices)
        each_s = cost.seconds / (on.asked.batch * groups)
        price = self.cluster.price_usd_per_device_h
        if self.objective == DOLLARS:
            return inf if price is None else each_s * price.value * self.cluster.count / 3600.0 * 1000.0
        return {MEMORY: cost.memory.peak_bytes, GOODPUT: each_s / 60.0}.get(self.objective, cost.seconds)

    def explained(self, on: PictureChoice) -> TrialOutcome:
        """The value with the parts of a batch's time."""
        plain, cost = self.outcome(on), self.cost(on)
        steps = cost.step_s * on.asked.steps / max(sum(cost.parts.values()), 1e-30)
        parts = {name: seconds * steps for name, seconds in cost.parts.items()}
        parts |= {"words": cost.words_s, "pixels": cost.pixels_s, "copies from host": cost.copied_s}
        scale = plain.value / cost.seconds
        return replace(
            plain, parts={name: seconds for name, seconds in parts.items() if seconds > 0}, kinds=KINDS,
            ends=(scale * cost.low_s, scale * cost.high_s),
        )  # fmt: skip

    def range_of(self, before: TrialOutcome, after: TrialOutcome) -> tuple[float, float]:
        """Both ends of after over before [1]: each part errs alike in both, as far as the baseline may."""
        ratio = after.value / before.value
        if self.objective == MEMORY:
            return ratio, ratio
        cost = self.cost(self.base)
        factors = (cost.low_s / cost.seconds, cost.high_s / cost.seconds)
        names = {*before.parts, *after.parts}
        low, high = shared_error(before.parts, after.parts, [{name: factors} for name in names])
        times = sum(after.parts.values()) / sum(before.parts.values())
        return ratio * low / times, ratio * high / times


def _put(asked: dict[str, Any], by: dict[str, Any], on: PictureChoice) -> PictureChoice:
    return PictureChoice(asked=replace(on.asked, **asked), by=replace(on.by, **by))
