"""How far the experts that tokens go to can be foreseen, from a trace of routing.

Shape letters: T tokens in order, L layers with experts, E experts of a layer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ridgeline.errors import InputError
from ridgeline.metrics.metric import Metric, Score
from ridgeline.metrics.results import Results, Row
from ridgeline.seams.technique import param

Floats = NDArray[np.float64]
Picks = NDArray[np.bool_]  # (T, L, E), whether a token goes to an expert
_MOST, _MOST_OF_LAYER = 2**27, 2**24  # cells of the picks, 1 byte each, and of one layer's, of 8 bytes in some copies


@dataclass(frozen=True, kw_only=True)
class ExpertRoutes(Metric):
    """How far the experts that tokens go to can be foreseen, from a trace of routing (Orders in Chaos).

    Over layers, the mean of: the busiest expert's load over the mean one's; the share of picks that a tenth of the
    experts take; of a token's experts, the share that the token before it in the same request went to, beside what
    popularity alone would give. And from layer to layer: which experts follow which is counted on the first half of the
    tokens, and of the second half's experts the share is told that stands among the `wide` times as many likeliest
    after those of the layer before, beside the same by popularity alone: what prefetching or placing by it would hit.

    With `rows=loads` (layer, expert, load) or `rows=traffic` (layer, expert, next, tokens) the detail is what
    `expert_loads` and `expert_traffic` of a deployment read. A layer that a token did not pass is left out of its
    means; counting on half of the tokens is the only fit.
    """

    key: ClassVar[str] = "expert-routes"
    source: ClassVar[tuple[str, ...]] = ("orders-in-chaos",)
    columns: ClassVar[Mapping[str, str]] = {
        "token": "[1] its place in the request", "layer": "[1] the layer of experts",
        "experts": "the token's experts there: a list, or numbers with spaces between; or a row for each",
        "request": "[1] optional: whose tokens follow one another",
    }  # fmt: skip
    wide: float = param(1.0, "1", "experts that are foreseen, over those that a token goes to", low=1.0, high=1e3)
    rows: str = param("layers", "", "the detail that is told", choices=("layers", "loads", "traffic"))

    def score(self, table: Results) -> Score:
        """Imbalance, shares and hits [1]; a row of them for each layer, or of loads or traffic."""
        picks, first, layers = _picks(table)
        total = picks.sum(axis=0)
        told = [self._layer(picks, first, place) for place in range(len(layers))]
        means = {name: _mean([one[name] for one in told]) for name in told[0]}
        return Score(
            values={
                "tokens": len(picks), "layers": len(layers), "experts": picks.shape[2],
                "experts_of_a_token": float(picks.sum() / max(picks.any(axis=2).sum(), 1)), **means,
            },
            rows=tuple(self._rows(picks, total, layers, told)),
        )  # fmt: skip

    def _layer(self, picks: Picks, first: NDArray[np.bool_], place: int) -> dict[str, float | None]:
        now = picks[:, place].astype(float)
        load, own = now.sum(axis=0), now.sum(axis=1)
        passed = own > 0
        tenth = np.sort(load)[::-1][: max(1, len(load) // 10)].sum()
        follows = passed[1:] & passed[:-1] & ~first[1:]
        again = (now[1:] * now[:-1]).sum(axis=1)[follows] / own[1:][follows]
        often = load / max(passed.sum(), 1)
        return {
            "imbalance": float(load.max() / load.mean()), "busiest_tenth_share": float(tenth / load.sum()),
            "repeat_share": float(again.mean()) if len(again) else None,
            "repeat_by_popularity": float((often**2).sum() / often.sum()),
            **self._foreseen(picks, place),
        }  # fmt: skip

    def _foreseen(self, picks: Picks, place: int) -> dict[str, float | None]:
        """Shares of a layer's picks that are foreseen from the layer before, on tokens that were not counted [1]."""
        half = len(picks) // 2
        if place == 0 or not half:
            return {"next_layer_hits": None, "hits_by_popularity": None}
        before, now = picks[:, place - 1].astype(float), picks[:, place].astype(float)
        counted, popular = before[:half].T @ now[:half], now[:half].sum(axis=0)
        likely = before[half:] @ counted + 1e-9 * popular
        return {
            "next_layer_hits": self._hits(likely, now[half:]),
            "hits_by_popularity": self._hits(np.broadcast_to(popular, likely.shape), now[half:]),
        }

    def _hits(self, likely: Floats, true: Floats) -> float | None:
        passed = true.any(axis=1)
        if not passed.any():
            return None
        wanted = true.sum(axis=1)
        order = np.argsort(np.argsort(-likely, axis=1, kind="stable"), axis=1)  # 0 the likeliest
        chosen = order < np.minimum(np.ceil(self.wide * wanted), true.shape[1])[:, None]
        return float(((chosen * true).sum(axis=1)[passed] / wanted[passed]).mean())

    def _rows(
        self, picks: Picks, total: NDArray[np.int64], layers: list[int], told: list[dict[str, float | None]]
    ) -> Iterator[Mapping[str, Any]]:
        for place, layer in enumerate(layers):
            if self.rows == "layers":
                yield {"layer": layer, **told[place]}
            elif self.rows == "loads":
                yield from ({"layer": layer, "expert": e, "load": float(x)} for e, x in enumerate(total[place]))
            elif place:
                own = np.maximum(picks[:, place - 1].sum(axis=1), 1.0)
                flow = (picks[:, place - 1] / own[:, None]).T @ picks[:, place].astype(float)
                for one, other in np.argwhere(flow > 0):
                    yield {
                        "layer": layers[place - 1], "expert": int(one), "next": int(other),
                        "tokens": float(flow[one, other]),
                    }  # fmt: skip


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


def _picks(table: Results) -> tuple[Picks, NDArray[np.bool_], list[int]]:
    """Which token goes to which expert, which tokens are the first of a request, and the layers by number."""
    table.need("token", "layer", "experts")
    found = [(_whole(table, row, "request", 0), _whole(table, row, "token"), _whole(table, row, "layer"), row)
             for row in table.rows]  # fmt: skip
    experts = [_experts(table, row) for *_, row in found]
    tokens = {key: at for at, key in enumerate(sorted({(one[0], one[1]) for one in found}))}
    layers = {key: at for at, key in enumerate(sorted({one[2] for one in found}))}
    count = 1 + max(max(each) for each in experts)
    for limit, number in ((_MOST, len(layers)), (_MOST_OF_LAYER, 1)):
        if len(tokens) * number * count > limit:
            told = f"{len(tokens):,} tokens x {number} layers x {count} experts are over {limit:,}; split the trace"
            raise InputError(told, file=table.name)
    picks = np.zeros((len(tokens), len(layers), count), dtype=bool)
    for (request, token, layer, _), each in zip(found, experts, strict=True):
        picks[tokens[request, token], layers[layer], list(each)] = True
    owners = [request for request, _ in tokens]
    first = np.array([at == 0 or owners[at] != owners[at - 1] for at in range(len(owners))])
    return picks, first, list(layers)


def _whole(table: Results, row: Row, column: str, absent: int | None = None) -> int:
    value = table.number(row, column)
    value = absent if value is None else value
    if value is None or value < 0 or value != int(value):
        raise InputError("needs a whole number, 0 or more", file=table.name, field=column, line=row.get("line"))
    return int(value)


def _experts(table: Results, row: Row) -> tuple[int, ...]:
    told = row.get("experts")
    words = told if isinstance(told, list) else str(told).replace(";", " ").replace(",", " ").strip("[] ").split()
    try:
        each = tuple(int(word) for word in words)
    except (TypeError, ValueError):
        each = ()
    if not each or min(each) < 0 or max(each) >= 65_536:
        why = f"'{told}' is no list of experts, whole numbers from 0 to 65535"
        raise InputError(why, file=table.name, field="experts", line=row.get("line"))
    return each
