"""Networks that recommend: tables of vectors looked up for each sample, and layers over them; a sample is one token.

Letters: W width of a vector. Sources: He et al. 2017 (arXiv:1708.05031), Naumov et al. 2019 (arXiv:1906.00091), Wang et
al. 2021 (arXiv:2008.13535); sizes as NVIDIA/DeepLearningExamples (NCF, DLRM) and recommendation_v2/torchrec_dlrm of
mlcommons/training run them.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from ridgeline.errors import UnknownNameError
from ridgeline.facts.store import toml_records
from ridgeline.graph.model import Block, Boundary, Model, network_of
from ridgeline.graph.ops import EmbeddingOp, Op, Region, SparseTableOp, elementwise
from ridgeline.graph.pixels import mapped, narrowed, product, scaled

USERS, ITEMS = 138_493, 26_744  # of MovieLens 20M
FACTORS, NCF_LAYERS = 64, (256, 256, 128, 64)  # defaults of ncf.py
DENSE, TABLES, WIDTH = 13, 26, 128  # numbers and categories of a Criteo sample; width of their vectors
BOTTOM = (DENSE, 512, 256, WIDTH)
FP32_BYTES = 4


@dataclass(frozen=True, kw_only=True)
class Recommender:
    """Rows of all tables, rows that a sample looks up, layers above, crossed layers and their rank, state of a row.

    `states` counts the numbers that an update of one element reads and writes beside it (Adagrad: 1).
    """

    rows: int
    lookups: int
    top: tuple[int, ...]
    crossed: int = 0
    rank: int = 0
    states: int = 0


RECOMMENDERS = toml_records("networks.toml", "recommenders", Recommender)


def recommender(name: str, *, shards: int = 1, autocast: bool = False) -> Model:
    """A recommender by name, its tables in `shards` equal parts that lie on as many devices.

    Under `autocast` what is looked up for NCF, and made of it before the first layer, is in fp32.

    >>> recommender("ncf").graph.params
    31832577
    """
    if name == "ncf":
        return _filtering(autocast=autocast)
    if name not in RECOMMENDERS:
        raise UnknownNameError("recommender", name, ("ncf", *RECOMMENDERS))
    spec, wide = RECOMMENDERS[name], TABLES * WIDTH
    tables = SparseTableOp(
        name="tables", region=Region.EXPERT, n=spec.rows // shards, k=WIDTH, params=spec.rows * WIDTH // shards,
        read=spec.lookups * WIDTH, write=wide, backward_read=(1 + spec.states) * spec.lookups * WIDTH,
        backward_write=(1 + spec.states) * spec.lookups * WIDTH,
    )  # fmt: skip
    looked = Block(
        name="tables", ops=(tables,), boundaries=(Boundary(kind="tables", width=wide),), experts=shards, top_k=1
    )
    features = (TABLES + 1) * WIDTH
    if spec.crossed:
        entering, over = features, _crossed(spec, features)
    else:
        pairs = (TABLES + 1) * TABLES // 2
        entering, over = pairs + WIDTH + 1, [_pairs(features, pairs + WIDTH + 1)]
    return _model(
        name, embedding=(),
        blocks=[
            Block(name="bottom", ops=tuple(_perceptron("bottom", BOTTOM))), looked,
            Block(name="interaction", ops=tuple(over)),
            Block(name="top", ops=tuple(_perceptron("top", (entering, *spec.top)))),
        ],
    )  # fmt: skip


def _model(name: str, *, embedding: tuple[Op, ...], blocks: list[Block]) -> Model:
    return network_of(
        name, "recommender", blocks, hidden=WIDTH, source="released code", embedding=embedding,
        head=(mapped("loss", 2, inputs=2),), dims={},
    )  # fmt: skip


def _filtering(*, autocast: bool) -> Model:
    """Two vectors of a user and two of an item: the product of one pair, and layers over the other."""
    wide = NCF_LAYERS[0] // 2
    rows = USERS + ITEMS
    embedding = tuple(
        EmbeddingOp(name=name, region=Region.VOCAB, n=rows, k=2 * each, params=rows * each)
        for name, each in (("factors", FACTORS), ("vectors", wide))
    )
    layers = _perceptron("layer", NCF_LAYERS, dropped=True)
    last = product("rating", NCF_LAYERS[-1] + FACTORS, 1, 1)
    made: list[Op] = [mapped("multiply", FACTORS, inputs=2), mapped("join", NCF_LAYERS[0])]
    if autocast:
        made = [*(scaled(op, 2) for op in made), narrowed("cast", NCF_LAYERS[0] + FACTORS)]
    ops = (*made, *layers, last)
    return _model("ncf", embedding=embedding, blocks=[Block(name="layers", ops=ops)])


def _perceptron(name: str, widths: tuple[int, ...], *, dropped: bool = False) -> list[Op]:
    """Layers with biases, each but the last of a single unit rectified and perhaps dropped."""
    ops: list[Op] = []
    for number, (k, n) in enumerate(pairwise(widths), start=1):
        ops.append(product(f"{name}{number}", k, n, 1, leaf=k == DENSE))
        if n > 1:
            ops.append(mapped(f"{name}{number}_relu", n))
        if dropped:
            ops.append(mapped(f"{name}{number}_dropout", n, saved=n))
    return ops


def _pairs(features: int, out: int) -> Op:
    """Products of all pairs of vectors beside the dense one: each vector is read once."""
    return elementwise(
        "pairs", features, out, features + out, kept=features, flop_per_token=2.0 * (TABLES + 1) ** 2 * WIDTH
    )


def _crossed(spec: Recommender, features: int) -> list[Op]:
    """Layers x0 * (U (V x) + b) + x of low rank."""
    ops: list[Op] = []
    for number in range(spec.crossed):
        ops += [
            product(f"cross{number}_down", features, spec.rank, 1, bias=False),
            product(f"cross{number}_up", spec.rank, features, 1),
            mapped(f"cross{number}", features, inputs=3, saved=features),
        ]
    return ops
