"""A search in words and tables: the best plan as any report, the next ones, and how far from the best it can be."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from ridgeline.report.blocks import Block, Line, Table, blank, labelled, listed, record_table
from ridgeline.report.report import FrameworkRun, Report, SearchReport
from ridgeline.report.text import answer_blocks, memory_blocks, plan_text, reason_blocks, share_blocks
from ridgeline.units import time_text


def _ranked(found: SearchReport) -> Table:
    cells: dict[str, Callable[[tuple[int, Report]], str]] = {
        "#": lambda one: str(one[0]),
        "step": lambda one: time_text(one[1].step_time.value),
        "tokens/s": lambda one: f"{one[1].tokens_per_s:,.0f}",
        "MFU": lambda one: f"{one[1].mfu:.1%}",
        "free GiB": lambda one: _free(one[1]),
        "plan": lambda one: plan_text(one[1].plan),
    }
    return record_table(enumerate(found.best, start=1), cells, "plan")


def _free(report: Report) -> str:
    least = min((stage.headroom_bytes for stage in report.memory), default=None)
    return "" if least is None else f"{least / 2**30:.1f}"


def _limits(found: SearchReport) -> list[str]:
    """What limits each plan; plans with the same limit share a line."""
    ranks: dict[str, list[str]] = {}
    for rank, report in enumerate(found.best, start=1):
        ranks.setdefault(report.limit, []).append(f"#{rank}")
    return [f"{', '.join(these)}: {limit}" for limit, these in ranks.items()]


def framework_lines(runs: Sequence[FrameworkRun]) -> list[str]:
    """One line for the frameworks that run the best plan, for those with the same best one, and for the rest."""
    lines: dict[str, list[str]] = {}
    for run in runs:
        lines.setdefault(_framework_text(run), []).append(run.name)
    return [f"{', '.join(names)}: {what}" for what, names in lines.items()]


def _framework_text(run: FrameworkRun) -> str:
    if run.plan is None or run.slowdown is None:
        reason = run.why.partition(";")[0].removeprefix(f"{run.name} ")
        return f"no plan of these; {reason}"
    if not run.why:
        return "the best plan"
    share = f"{'at most ' if run.at_most else ''}{run.slowdown:.1%} slower"
    return f"{share if run.slowdown >= 0.0005 else 'as quick'} with {plan_text(run.plan)}"


def search_text(found: SearchReport) -> str:
    """How the search went, in one sentence: plans covered, refused, pruned and the gap [1] that is left."""
    share = f"more than {max(found.bound_gap, 0.001):.1%} " if found.bound_gap > 0 else ""
    gap = f"is {share}quicker" if found.aim == "time" else f"takes {share}less {found.aim}"
    gap = f"no plan of the grid {gap} at the same prices"
    return (
        f"{found.covered:,} plans covered: {found.legal:,} keep every rule, {found.feasible:,} fit in memory, "
        f"{found.pruned_by_bound:,} pruned by their lower bound, {found.simulated:,} simulated; {gap}"
    )


def infeasible_blocks(found: SearchReport) -> Iterator[Block]:
    """Why plans were refused, and the nearest change that would make one legal."""
    if found.infeasible:
        yield Line(text="Refused plans", strong=True)
        rows = tuple((f"{row.plans:,}", row.reason, row.nearest) for row in found.infeasible)
        yield Table(columns=("plans", "reason", "nearest change"), rows=rows, right=frozenset({"plans"}))
        yield blank()


def search_blocks(found: SearchReport, *, assumed: Sequence[str] = ()) -> list[Block]:
    """The answer to `plan`: the best plan in full, its rivals in a table, how the search went."""
    if not found.best:
        return [
            Line(text="No plan fits.", strong=True),
            blank(),
            Line(text=search_text(found)),
            *infeasible_blocks(found),
        ]
    best = found.best[0]
    aimed = labelled([("ranked by", found.aimed)]) if found.aimed else []
    blocks = [*answer_blocks(best), *aimed, blank(), Line(text="Best plans", strong=True), _ranked(found), blank()]
    blocks += listed(_limits(found), "What limits each")
    blocks += listed(framework_lines(found.frameworks), "Frameworks that run it")
    blocks += [Line(text="Search", strong=True), Line(text=search_text(found), indent=2, hang=2), blank()]
    blocks += [*infeasible_blocks(found), *memory_blocks(best), *share_blocks(best), *reason_blocks(best, assumed)]
    return blocks[:-1] if blocks[-1] == blank() else blocks
