"""Hooks of the request clock: what a technique may decide, by name, as a compiled function of fixed signature.

The core asks a hook through a pointer, and only where a run has it; what a run has not is not compiled. A technique's
file marks a function with `clocked`, takes what is given in this order, and hands it over by the hook's name:

    @clocked
    def shortest(requests, rule, request, other):
        return requests[other].prompt > requests[request].prompt

    replay_tables(engines, tables, traffic, router=router, hooks={"order": shortest})

A hook changes nothing; it answers with what can be: of who runs, of the cache that is there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ridgeline.errors import PlanError
from ridgeline.serving.compiling import Entered
from ridgeline.serving.kinds import BOOL, INT, REAL, ArrayKind, Kind, Pointer, RecordKind, kind_of_state
from ridgeline.serving.state import BOOKS, HELD, KEEPS, LENDS, ORDER, RANK, REQUEST, ROUTE, RULE, SCALES, VICTIM, Clock

_KINDS: dict[str, Kind] = {
    "clock": None, "ranks": ArrayKind(RANK, 1), "requests": ArrayKind(REQUEST, 1), "rule": RecordKind(RULE),
    "now_s": REAL,
}  # fmt: skip
_entered: dict[tuple[Any, ...], Entered] = {}  # compiled once in a process, for the same numbers around it
_code: dict[int, Callable[..., Any]] = {}  # functions by where their compiled code begins


@dataclass(frozen=True, kw_only=True)
class Hook:
    """A question of the clock: its place in `Clock.hooks`, what is given in this order, and what is answered.

    Called with where the code of a hook begins, and what is given.
    """

    place: int
    given: tuple[str, ...]
    answer: str
    text: str

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """Kinds of what is given; None that of the clock at hand."""
        return tuple(_KINDS.get(name, INT) for name in self.given)

    @property
    def pointer(self) -> Pointer:
        """What compiled code calls."""
        return Pointer(self.kinds, self.answer)

    def __call__(self, where: int, *given: Any) -> Any:
        """The answer, where the clock runs in plain Python."""
        return _code[int(where)](*given)


order = Hook(
    place=ORDER, given=("requests", "rule", "request", "other"), answer=BOOL,
    text="whether `other`, who waits and is as urgent, stays behind `request`, who joins the queue",
)  # fmt: skip
victim = Hook(
    place=VICTIM, given=("ranks", "requests", "rule", "rank"), answer=INT,
    text="which running request of a rank gives way when blocks run out; -1: nobody",
)  # fmt: skip
held = Hook(
    place=HELD, given=("requests", "rule", "request", "tokens"), answer=INT,
    text="tokens of cache that stay of `tokens` when a prompt is done, and that the first step reads [token]",
)  # fmt: skip
route = Hook(
    place=ROUTE, given=("clock", "pool", "request"), answer=INT,
    text="which instance of a pool (whose `takes` it is) takes a request; -1: nobody, where none is up",
)  # fmt: skip
lends = Hook(
    place=LENDS, given=("clock", "rule", "rank", "request", "lender"), answer=INT,
    text="blocks of a decoding request's cache that move from its rank to a lender's; 0: none [1]",
)  # fmt: skip
keeps = Hook(
    place=KEEPS, given=("clock", "rule", "rank", "request"), answer=REAL,
    text="for how long the cache of a turn that has ended stays held for its session's next turn; inf: until then [s]",
)  # fmt: skip
scales = Hook(
    place=SCALES, given=("clock", "pool", "ready", "now_s"), answer=INT,
    text="whether an instance of a pool, of which so many are up or starting, is started (1) or stopped (-1)",
)  # fmt: skip
books = Hook(
    place=BOOKS, given=("clock", "now_s"), answer=INT,
    text="books the decode steps that have ended, before caches are looked at from elsewhere; the core's own",
)  # fmt: skip
HOOKS = {
    "order": order, "victim": victim, "held": held, "route": route, "lends": lends, "keeps": keeps, "scales": scales,
    "books": books,
}  # fmt: skip


def fill(clock: Clock, hooks: Mapping[str, Callable[..., Any]]) -> None:
    """Compiles hooks and notes where their code begins. Raises `PlanError` for a name that is no hook."""
    for name, function in hooks.items():
        if name not in HOOKS:
            raise PlanError(f"hook '{name}': the clock has none of that name; give one of {', '.join(HOOKS)}")
        one = HOOKS[name]
        around = tuple(cell.cell_contents for cell in getattr(function, "__closure__", None) or ())
        entered = _entered.setdefault((function.__code__, *around), Entered(function, one.answer))
        kinds = [kind_of_state(clock) if kind is None else kind for kind in one.kinds]
        clock.hooks[one.place] = where = entered.library(kinds).address
        _code[where] = function
