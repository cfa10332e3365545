"""Linear and mixed-integer programs, handed to HiGHS.

minimise  cost . x   subject to   row_low <= A x <= row_high,   low <= x <= high,   some x whole

A `Draft` collects variables and rows; `Draft.solve` answers with values, a proven bound and the gap. HiGHS runs on one
thread with its fixed seed, so equal programs have equal answers. It is imported when the first program is solved.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ridgeline.errors import DomainError, NoPlanError

Floats = NDArray[np.float64]
Whole = NDArray[np.int64]
INFINITE = float("inf")


@dataclass(frozen=True, kw_only=True)
class Solution:
    """What a program answers: values of its variables, objective and proven bound.

    `bound` is a lower bound of every solution; `gap` is 1 - bound / objective, 0 when proven best. `prices` are the
    duals of the rows: the change of the objective per unit of a row's limit; None for mixed programs.
    """

    values: Floats
    objective: float
    bound: float
    prices: Floats | None
    elapsed_s: float

    @property
    def gap(self) -> float:
        """How far the answer can be from the best, as a share of it [1]."""
        return gap(self.objective, self.bound)


def gap(objective: float, bound: float) -> float:
    """1 - bound / objective, never below 0; 0 for an objective of 0 that is proven [1].

    >>> gap(10.0, 9.0)
    0.1
    """
    if objective - bound <= 1e-9 * max(1.0, abs(objective)):
        return 0.0
    return round(1.0 - bound / objective, 12)


@dataclass
class Draft:
    """A program being written; counts of variables and rows [1]."""

    _cost: list[Floats] = field(default_factory=list)
    _low: list[Floats] = field(default_factory=list)
    _high: list[Floats] = field(default_factory=list)
    _whole: list[NDArray[np.bool_]] = field(default_factory=list)
    _rows: list[Whole] = field(default_factory=list)
    _columns: list[Whole] = field(default_factory=list)
    _values: list[Floats] = field(default_factory=list)
    _row_low: list[Floats] = field(default_factory=list)
    _row_high: list[Floats] = field(default_factory=list)
    variables: int = 0
    rows: int = 0

    def variable(
        self,
        shape: int | tuple[int, ...],
        *,
        cost: ArrayLike = 0.0,
        low: ArrayLike = 0.0,
        high: ArrayLike = INFINITE,
        whole: bool = False,
    ) -> Whole:
        """Indices of new variables, in the shape asked for [1]."""
        index = np.arange(int(np.prod(shape)), dtype=np.int64).reshape(shape) + self.variables
        for column, given in ((self._cost, cost), (self._low, low), (self._high, high)):
            column.append(np.broadcast_to(np.asarray(given, dtype=np.float64), index.shape).ravel())
        self._whole.append(np.full(index.size, whole))
        self.variables += index.size
        return index

    def row(self, *terms: tuple[ArrayLike, ArrayLike], low: ArrayLike = -INFINITE, high: ArrayLike = INFINITE) -> Whole:
        """Indices of new rows: sum of coefficients times variables, between low and high [1].

        Each term is (variables, coefficients). One-dimensional variables make one row; the first axis of
        two-dimensional ones counts rows, the second the variables in each.
        """
        grids = [np.atleast_2d(np.asarray(variables, dtype=np.int64)) for variables, _ in terms]
        count = grids[0].shape[0]
        index = np.arange(count, dtype=np.int64) + self.rows
        for grid, (_, coefficients) in zip(grids, terms, strict=True):
            self._columns.append(grid.ravel())
            self._values.append(np.broadcast_to(np.asarray(coefficients, dtype=np.float64), grid.shape).ravel())
            self._rows.append(np.broadcast_to(index[:, None], grid.shape).ravel())
        for side, given in ((self._row_low, low), (self._row_high, high)):
            side.append(np.broadcast_to(np.asarray(given, dtype=np.float64), (count,)))
        self.rows += count
        return index

    def solve(
        self, *, time_limit_s: float = 60.0, gap: float = 0.0, relaxed: bool = False, start: Floats | None = None,
        most_nodes: int = 2**31 - 1,
    ) -> Solution | None:  # fmt: skip
        """The best values found within a time limit, with their proven bound; None when no values satisfy the rows.

        Parameters
        ----------
        time_limit_s : float [s]
            The search stops here and tells the gap that is left.
        gap : float [1]
            It also stops when the gap is no more than this.
        most_nodes : int
            And after so many nodes of its tree: a limit that is the same on every machine.
        relaxed : bool
            Whole variables may be fractions: a lower bound of the program, with prices.
        start : array (variables)
            Values of a solution that is known; NaN where unknown. The answer is no worse.

        Raises
        ------
        NoPlanError
            The time limit passed before any solution was found.
        DomainError
            The program has no lower bound or numbers that the solver refuses.
        """
        import highspy

        began = time.perf_counter()
        solver = _quiet(highspy)
        mixed = not relaxed and any(bool(part.any()) for part in self._whole)
        for name, value in (
            ("output_flag", False),
            ("threads", 1),
            ("time_limit", float(time_limit_s)),
            ("mip_rel_gap", float(gap)),
            ("mip_max_nodes", most_nodes),
            ("mip_abs_gap", 0.0 if gap == 0.0 else 1e-6),
        ):
            solver.setOptionValue(name, value)
        if solver.passModel(self._model(highspy, mixed)) == highspy.HighsStatus.kError:
            raise DomainError("the solver refused the program: a number in it is not finite; check rates and limits")
        if start is not None and mixed:
            known = np.flatnonzero(np.isfinite(start))
            solver.setSolution(known.size, known.astype(np.int32), start[known])
        solver.run()
        return self._answer(highspy, solver, mixed, time.perf_counter() - began)

    def _model(self, highspy: Any, mixed: bool) -> Any:
        """The program in HiGHS's own form, row by row, with repeated entries added up."""
        model = highspy.HighsLp()
        model.num_col_, model.num_row_ = self.variables, self.rows
        model.col_cost_, model.col_lower_ = _joined(self._cost), _joined(self._low)
        model.col_upper_, model.row_lower_ = _joined(self._high), _joined(self._row_low)
        model.row_upper_ = _joined(self._row_high)
        rows = np.concatenate([*self._rows, np.zeros(0, np.int64)])
        columns = np.concatenate([*self._columns, np.zeros(0, np.int64)])
        key, place = np.unique(rows * max(self.variables, 1) + columns, return_inverse=True)
        values = np.bincount(place, weights=_joined(self._values), minlength=key.size)
        row_of, column_of = np.divmod(key, max(self.variables, 1))
        kept = values != 0.0
        model.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        starts = np.searchsorted(row_of[kept], np.arange(self.rows + 1))
        model.a_matrix_.start_ = starts.astype(np.int32)
        model.a_matrix_.index_ = column_of[kept].astype(np.int32)
        model.a_matrix_.value_ = values[kept]
        if mixed:
            kinds = (highspy.HighsVarType.kContinuous, highspy.HighsVarType.kInteger)
            model.integrality_ = [kinds[int(one)] for one in np.concatenate(self._whole)]
        return model

    def _answer(self, highspy: Any, solver: Any, mixed: bool, elapsed_s: float) -> Solution | None:
        """Reads the solver's state; values of whole variables are rounded to whole numbers."""
        status, info = solver.getModelStatus(), solver.getInfo()
        states = highspy.HighsModelStatus
        if status in (states.kInfeasible, states.kUnboundedOrInfeasible):
            return None
        if status == states.kUnbounded:
            raise DomainError("the program has no lower bound: a price or a cost is below 0")
        values = np.array(solver.getSolution().col_value)
        unfinished = info.primal_solution_status != 2 if mixed else status != states.kOptimal
        if unfinished or values.size != self.variables:
            raise NoPlanError(f"no solution within {elapsed_s:.1f} s; raise the time limit or make the problem smaller")
        if mixed:
            whole = np.concatenate(self._whole)
            values[whole] = np.rint(values[whole])
        return Solution(
            values=values,
            objective=float(info.objective_function_value),
            bound=float(info.mip_dual_bound if mixed else info.objective_function_value),
            prices=None if mixed else np.array(solver.getSolution().row_dual),
            elapsed_s=elapsed_s,
        )


def choose(
    losses: Sequence[ArrayLike], costs: Sequence[Sequence[ArrayLike]], limits: Sequence[float], *, gap: float = 0.0
) -> list[int] | None:
    """One option of each group, so that losses add up to the least within every limit (multiple-choice knapsack).

    minimise  sum_g losses_g[c_g]   subject to   sum_g costs_r,g[c_g] <= limits_r   for every resource r

    Options of a group that no choice needs, as another loses and costs no more, are left out first. Exact, or within
    the `gap`; None where no choice keeps to the limits.

    >>> choose([[4.0, 1.0, 0.0], [9.0, 2.0, 0.0]], [[[1, 2, 3], [1, 2, 3]]], [4])
    [1, 1]
    """
    draft = Draft()
    kept: list[Whole] = []
    groups: list[Whole] = []
    for number, loss in enumerate(losses):
        table = np.stack([np.asarray(loss, dtype=float), *(np.asarray(one[number], dtype=float) for one in costs)])
        kept.append(_undominated(table))
        groups.append(draft.variable(kept[-1].size, cost=table[0, kept[-1]], high=1.0, whole=True))
        draft.row((groups[-1], 1.0), low=1.0, high=1.0)
    every = np.concatenate(groups)
    for cost, limit in zip(costs, limits, strict=True):
        used = np.concatenate([np.asarray(each, dtype=float)[some] for each, some in zip(cost, kept, strict=True)])
        draft.row((every, used), high=limit)
    found = draft.solve(gap=gap)
    if found is None:
        return None
    return [int(some[found.values[group].argmax()]) for group, some in zip(groups, kept, strict=True)]


def _undominated(table: Floats) -> Whole:
    """Columns of a table (rows, options) that no other equals or betters in every row; of equal ones the first."""
    better = (table[:, :, None] <= table[:, None, :]).all(axis=0)
    strictly = better & ~better.T
    order = np.arange(table.shape[1])
    equal = better & better.T & (order[:, None] < order[None, :])
    return np.flatnonzero(~(strictly | equal).any(axis=0)).astype(np.int64)


def _joined(parts: list[Floats]) -> Floats:
    return np.concatenate(parts) if parts else np.zeros(0)


def _quiet(highspy: Any) -> Any:
    """A solver that says nothing: from 1.16 on HiGHS greets on standard output when callbacks are set up."""

    class Quiet(highspy.Highs):  # type: ignore[misc]
        def enableCallbacks(self) -> None:  # noqa: N802 - HiGHS's own name
            self.silent()
            super().enableCallbacks()

    return Quiet()
