"""The seam of graphs: techniques that compute something else than the model does as it was published."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from ridgeline.seams.technique import Technique

if TYPE_CHECKING:
    from ridgeline.graph.model import Graph
    from ridgeline.seams.setting import Setting


@dataclass(frozen=True, kw_only=True)
class GraphRewrite(Technique):
    """Operators put in place of others. Several may be applied, in the order in which they are listed."""

    family: ClassVar[str] = "graphs"
    kinds: ClassVar[frozenset[str]] = frozenset({"training", "serving"})
    exclusive: ClassVar[bool] = False

    def applies(self, setting: Setting) -> str:
        """Why it does not apply, in a phrase; '' where it does: as `refusal` says of the model."""
        return super().applies(setting) or self.refusal(setting.model.graph)

    def refusal(self, graph: Graph) -> str:
        """Why it does not apply to a graph, in a phrase; '' where it does."""
        return ""

    def prompt_tokens(self, tokens: Any) -> Any:
        """Tokens of prompts whose words have so many (R,) [token]: as many, where prompts are words alone."""
        return tokens

    def rewrite(self, graph: Graph) -> Graph:
        """The graph with what it puts in place."""
        raise NotImplementedError
