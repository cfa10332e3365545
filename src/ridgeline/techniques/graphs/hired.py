"""Images before a language model's prompt, and HiRED, which keeps a share of their tokens."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from ridgeline.facts.records import Fact
from ridgeline.graph.load import load
from ridgeline.graph.model import Block, Graph, Model
from ridgeline.graph.ops import Split, elementwise
from ridgeline.graph.parts import linear
from ridgeline.graph.vision_transformer import vision_tokens
from ridgeline.seams.graph import GraphRewrite
from ridgeline.seams.setting import Setting
from ridgeline.seams.technique import accuracy, param

_MANY = 16.0  # prompts side by side, as in the tables of chunks
_GRIDS = ((1, 2), (2, 1), (2, 2), (3, 1), (1, 3))  # tiles wide and high. Source: llava-v1.6, image_grid_pinpoints


@dataclass(frozen=True, kw_only=True)
class ImageInputs(GraphRewrite):
    """Each prompt has images before its words, as LLaVA-NeXT reads them: a vision tower's tokens of all their tiles.

    Fills the seam of graphs, in serving: `--prompt` counts words alone, and each prompt has `count` images besides. An
    image is scaled into the grid of tiles that keeps most of it, and tiles and a thumbnail pass the tower and two
    projections, with the first chunk of the prompt. The language model reads the tiles' patches without those that only
    pad the image, one more at the end of each row, and the thumbnail's.

    Checked: tokens by hand (2,928 of 600 x 600 pixels), work of the tower. Left out: the processor's preparation of
    pixels, the tower's launches by the host, images that other prompts have had.
    """

    key: ClassVar[str] = "images"
    source: ClassVar[tuple[str, ...]] = ("hired-code",)
    kinds: ClassVar[frozenset[str]] = frozenset({"serving"})
    owns: ClassVar[frozenset[str]] = frozenset({"images"})
    count: int = param(1, "images", "images of a prompt", low=1, high=1000)
    width: int = param(600, "pixels", "width of the image", low=1, high=65_536)
    height: int = param(600, "pixels", "height of the image", low=1, high=65_536)
    tower: str = param(
        "vit-large-patch14-336", "", "the vision tower", choices=("vit-large-patch14-336", "vit-large-patch14-224")
    )  # fmt: skip

    def axes(self, setting: Setting) -> tuple[str, ...]:
        """None: images are a matter of the requests."""
        return ()

    def _grid(self) -> tuple[int, int]:
        """Tiles wide and high that keep most pixels, of equals the fewest."""
        side = int(self.tower.rpartition("-")[2])

        def kept(grid: tuple[int, int]) -> tuple[float, int]:
            scale = min(grid[0] * side / self.width, grid[1] * side / self.height, 1.0)
            return self.width * self.height * scale**2, -grid[0] * grid[1]

        return max(_GRIDS, key=kept)

    @property
    def tiles(self) -> int:
        """Tiles of the image and its thumbnail [1]."""
        wide, high = self._grid()
        return wide * high + 1

    @property
    def image_tokens(self) -> int:
        """Tokens of one image that the language model reads [token]."""
        each = vision_tokens(self.tower) - 1
        (wide, high), patches = self._grid(), round(each**0.5)
        across, down = wide * patches, high * patches
        if self.width * down > across * self.height:  # bars above and below are cut off
            down -= 2 * ((down - int(self.height * across / self.width)) // 2)
        else:
            across -= 2 * ((across - int(self.width * down / self.height)) // 2)
        return int(each + down * (across + 1))

    def prompt_tokens(self, tokens: Any) -> Any:
        """Words and the images' tokens [token]."""
        return tokens + self.count * self.image_tokens

    def _tower(self, width: int) -> Model:
        """The tower, with the projections to `width` after it."""
        model = load(self.tower)
        projector = Block(
            name="projector",
            ops=(
                linear("projection", model.graph.hidden, width, split=Split.COLUMN),
                elementwise("gelu", width, width),
                linear("projection2", width, width, split=Split.ROW),
            ),
        )
        blocks = {**model.graph.blocks, projector.name: projector}
        return replace(model, graph=replace(model.graph, blocks=blocks, layers=(*model.graph.layers, projector.name)))

    def rewrite(self, graph: Graph) -> Graph:
        """The graph with the weights of the tower and its projections."""
        held = self._tower(graph.hidden).graph.params
        return replace(graph, embedding=(*graph.embedding, elementwise("vision_tower", 0, 0, params=held)))

    def retimed(self, steps: Any, tables: Any) -> Any:
        """The first chunk of each prompt takes the tower's time as well."""
        import numpy as np

        once = np.where(tables.pasts > 0.0, 0.0, 1.0)
        first, each = (self._tower_s(steps, prompts).times(once / prompts) for prompts in (1.0, _MANY))
        name = f"{tables.prompt_name} and images"
        return replace(tables, first=tables.first + first, each=tables.each + each, prompt_name=name)

    def _tower_s(self, steps: Any, prompts: float) -> Any:
        """The tower over the images of so many prompts, whole on each device (1,) [s]."""
        import numpy as np

        from ridgeline.cost.seconds import nothing
        from ridgeline.lower.inference import serve
        from ridgeline.lower.pieces import Core, Product
        from ridgeline.plan.deployment import Deployment

        samples, tokens = prompts * self.count * self.tiles, float(vision_tokens(self.tower))
        total, rows, none = nothing((1,)), np.array([samples * tokens]), np.zeros(1)
        for kind in serve(self._tower(steps.served.hidden), Deployment(), steps.fusions).kinds:
            for piece in kind.pieces:
                if isinstance(piece, Core):
                    found = steps.prices.prefill(piece, samples, np.array([tokens]), none)
                else:
                    price = steps.prices.product if isinstance(piece, Product) else steps.prices.stream
                    found = price(piece, rows)
                total = total + found.times(float(kind.count))
        return total.alike


@dataclass(frozen=True, kw_only=True)
class Hired(ImageInputs):
    """HiRED: of an image's tokens a share is kept after the vision tower, which still computes all of them.

    Images as those of `images`; of the tokens of all tiles the share stays, and none at the end of rows. Checked:
    the authors' claims. Left out: which tokens stay (a sort of the tower's attention).
    """

    key: ClassVar[str] = "hired"
    source: ClassVar[tuple[str, ...]] = ("hired", "hired-code")
    quality: ClassVar[Fact | None] = accuracy("as said of a fifth of the tokens: superior accuracy, abstract", "hired")
    share: float = param(0.2, "1", "share of the image's tokens that are kept", low=0.001, high=1.0)

    @property
    def image_tokens(self) -> int:
        """The share of the tokens of all tiles [token]."""
        return max(1, int(self.tiles * (vision_tokens(self.tower) - 1) * self.share))
