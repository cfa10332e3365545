"""The seam of graphs: techniques that compute something else than the model does as it was published."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from ridgeline.seams.technique import Technique

if TYPE_CHECKING:
    from ridgeline.graph.model import Graph


@dataclass(frozen=True, kw_only=True)
class GraphRewrite(Technique):
    """Operators put in place of others. Several may be applied, in the order in which they are listed."""

    family: ClassVar[str] = "graphs"
    exclusive: ClassVar[bool] = False

    def refusal(self, graph: Graph) -> str:
        """Why it does not apply to a graph, in a phrase; '' where it does."""
        return ""

    def rewrite(self, graph: Graph) -> Graph:
        """The graph with what it puts in place."""
        raise NotImplementedError
