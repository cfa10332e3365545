"""The seams of prefix caches: what stays between the turns of a session, and where what gives way goes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from ridgeline.seams.serving_technique import Instance, ServingTechnique
from ridgeline.seams.technique import EXACT

if TYPE_CHECKING:
    from ridgeline.facts.records import Fact
    from ridgeline.seams.setting import Setting


@dataclass(frozen=True, kw_only=True)
class KVRetention(ServingTechnique):
    """For how long a turn's cache stays held for the next turn of its session; neutral: it may be taken at once.

    Fills hook `keeps`. What is held is given up, the oldest first, where a decoding request needs a block, or where
    nobody runs and a prompt does not fit.
    """

    family: ClassVar[str] = "retentions"
    quality: ClassVar[Fact | None] = EXACT
    in_words: ClassVar[bool] = False
    owns: ClassVar[frozenset[str]] = frozenset({"roles", "urgency"})

    def applies(self, setting: Setting) -> str:
        """Traffic without turns that wait for each other."""
        said, traffic = super().applies(setting), setting.traffic
        return said or (
            "" if traffic is None or traffic.waiting else "is about sessions, of which the traffic has none"
        )

    def unfit(self, instance: Instance) -> str:
        """Engines that find no prefix again."""
        return without_prefixes(instance)


@dataclass(frozen=True, kw_only=True)
class PrefixTier(ServingTechnique):
    """Where prefix blocks go that give way on the device; neutral: nowhere, and they are computed again."""

    family: ClassVar[str] = "prefix_tiers"
    quality: ClassVar[Fact | None] = EXACT
    in_words: ClassVar[bool] = False
    owns: ClassVar[frozenset[str]] = frozenset({"host copies"})

    def applies(self, setting: Setting) -> str:
        """Traffic of which no prefix is known to come again."""
        said, traffic = super().applies(setting), setting.traffic
        return said or ("" if traffic is None or traffic.repeated_share else "is about prefixes, of which none repeats")

    def unfit(self, instance: Instance) -> str:
        """Engines that find no prefix again."""
        return without_prefixes(instance)


def without_prefixes(instance: Instance) -> str:
    """Why an instance finds no prefix again, in a phrase; '' where it does."""
    from ridgeline.seams.serving import applied

    forgets = next((one.key for one in applied(instance.deployment) if one.forgets_prefixes), "")
    if forgets:
        return f"is about prefixes, which are not found beside {forgets}"
    if not instance.policy.prefix_cache:
        return f"is about prefixes, which {instance.policy.name} does not keep here; say prefix_cache true"
    return ""
