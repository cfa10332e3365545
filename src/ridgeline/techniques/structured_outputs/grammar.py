"""Outputs that follow a grammar: schemas compiled once, a mask of the vocabulary for each token, forced tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from ridgeline.plan.deployment import Deployment
from ridgeline.seams.serving import Instance, Speculation, of, step_tokens
from ridgeline.seams.structured import StructuredOutput
from ridgeline.seams.technique import param


@dataclass(frozen=True, kw_only=True)
class Grammar(StructuredOutput):
    """A share of the requests is constrained to one of some schemas: the host makes a mask for each of their tokens.

    The first request of a schema waits until it is compiled, those that come meanwhile as well. Masks are made one
    after another, beyond an engine's threshold in threads, while the device runs or before it, as the engine does. Of
    tokens that a grammar leaves no choice the share `forced` is appended without steps of their own (jump-forward), and
    computed as parts of a prompt are.
    """

    key: ClassVar[str] = "structured-output"
    source: ClassVar[tuple[str, ...]] = ("maskbench", "vllm")
    share: float = param(1.0, "1", "share of requests that are constrained; all when absent", high=1.0)
    schemas: int = param(1, "schemas", "different schemas, evenly asked for", low=1, high=1_000_000)
    grammar: str = param(
        "engine", "", "what makes the masks; as the engine does when absent",
        choices=("engine", "xgrammar", "llguidance", "outlines", "llama.cpp"),
    )  # fmt: skip
    mask: float | None = param(
        None, "s", "time of one thread for the mask of a token; that of MaskBench's schemas when absent", high=10.0
    )
    compiling: float | None = param(
        None, "s", "time to compile a schema; that of MaskBench's schemas when absent", high=1e5
    )
    usual: str = param(
        "median", "", "whose times are taken: those of MaskBench's median, or its mean, which hard schemas make",
        choices=("median", "mean"),
    )  # fmt: skip
    forced: float = param(0.0, "1", "share of output tokens that jump-forward appends; 0 when absent", high=0.9)

    def refusal(self, deployment: Deployment) -> str:
        """Forced tokens beside drafts."""
        drafts = of(deployment, Speculation).applied
        return (
            "appends forced tokens, which are not modelled beside drafts; leave one out"
            if self.forced and drafts
            else ""
        )

    def _time(self, instance: Instance, what: str) -> float:
        from ridgeline.facts.mechanisms import constant

        name = instance.policy.grammar if self.grammar == "engine" else self.grammar
        return constant(f"grammar.{what}.{self.usual}.{name}")

    def numbers(self, instance: Instance, stride: int) -> Mapping[str, float]:
        """Masks of a mean sequence, and the tokens that a step gains and verifies with forced ones."""
        from ridgeline.serving.rule import growth_of

        mask_s = self._time(instance, "mask") if self.mask is None else self.mask
        policy = instance.policy
        found: dict[str, float] = {
            "mask_s": self.share * mask_s * step_tokens(instance.deployment),
            "mask_above": policy.mask_threads_above / self.share if self.share else 0.0,
            "mask_threads": policy.mask_threads,
            "masks_beside": policy.masks_overlap,
        }
        if self.forced:
            gained = 1.0 / (1.0 - self.share * self.forced)
            period, growth = growth_of(policy.block_tokens, gained)
            found |= {"gained": gained, "drafted": gained - 1.0, "period": period, "growth_blocks": growth}
            found["mask_s"] = self.share * mask_s  # forced tokens need none
        return found

    def front_seconds(self, instance: Instance, traffic: Any) -> Any:
        """Until the schema of each request is compiled, from its first request on (R,) [s]."""
        import numpy as np

        compile_s = self._time(instance, "compile") if self.compiling is None else self.compiling
        draw = np.random.default_rng(0)
        schema = draw.integers(0, self.schemas, traffic.requests)
        schema[draw.random(traffic.requests) >= self.share] = -1
        _, first, of_request = np.unique(schema, return_index=True, return_inverse=True)
        begun = traffic.arrival_s[first][of_request]
        waits = np.maximum(0.0, begun + compile_s - traffic.arrival_s)
        alone = traffic.concurrency is not None or bool((traffic.after >= 0).any())
        late = np.arange(traffic.requests) != first[of_request]
        return np.where((schema < 0) | (late & alone), 0.0, waits)

    def told(self) -> str:
        """How many are constrained, and to how many schemas."""
        return f"{self.share:.0%} of outputs structured, {self.schemas} schemas" + (
            f", {self.forced:.0%} of tokens forced" if self.forced else ""
        )
