"""Memory fractions: of the whole device, of weights and cache, or of what is free.

With W weights, A workspace and context and M memory of a device, a share f leaves for the cache:

    total   M f - W - A          static   M f - W          free   (M - W - A) f
"""

from __future__ import annotations

from dataclasses import dataclass

from ridgeline.errors import InputError


@dataclass(frozen=True, kw_only=True)
class Room:
    """A device's memory, and what is predicted to lie in it beside the cache [byte]."""

    memory_bytes: float
    weights_bytes: float
    work_bytes: float

    def left_bytes(self, kind: str, share: float) -> float:
        """What a share of a kind ('total', 'static', 'free') leaves for the cache [byte]."""
        if kind == "free":
            return (self.memory_bytes - self.weights_bytes - self.work_bytes) * share
        return self.memory_bytes * share - self.weights_bytes - (self.work_bytes if kind == "total" else 0.0)

    def share(self, kind: str, left_bytes: float) -> float:
        """The share of a kind that leaves so much [1]; the inverse of `left_bytes`.

        Raises `InputError` where no share does: above all memory, or none.
        """
        held = {"free": 0.0, "static": self.weights_bytes}.get(kind, self.weights_bytes + self.work_bytes)
        of = self.memory_bytes - (self.weights_bytes + self.work_bytes if kind == "free" else 0.0)
        found = (left_bytes + held) / of if of > 0 else 0.0
        if not 0.0 < found <= 1.0:
            raise InputError(
                f"leaves {left_bytes:.4g} byte for the cache, which no share of '{kind}' memory does; say another",
                field="memory_fraction",
            )
        return found
