# mypy: disable-error-code="no-untyped-call"
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

import numba
from numba.core import cgutils, types
from numba.extending import intrinsic

from ridgeline.errors import PlanError
from ridgeline.serving.compiling import address
from ridgeline.serving.state import HELD, ORDER, VICTIM, Lists, Records


@dataclass(frozen=True, kw_only=True)
class Hook:
    """A question of the clock: its place in `Lists.hooks`, what is given in this order, and what is answered."""

    place: int
    given: tuple[str, ...]
    answer: Any
    text: str


HOOKS = {
    "order": Hook(
        place=ORDER, given=("requests", "rule", "request", "other"), answer=types.boolean,
        text="whether `other`, who waits and is as urgent, stays behind `request`, who joins the queue",
    ),
    "victim": Hook(
        place=VICTIM, given=("ranks", "requests", "rule", "rank"), answer=types.int64,
        text="which running request of a rank gives way when blocks run out; -1: nobody",
    ),
    "held": Hook(
        place=HELD, given=("requests", "rule", "request", "tokens"), answer=types.int64,
        text="tokens of cache that stay of `tokens` when a prompt is done, and that the first step reads [token]",
    ),
}  # fmt: skip


def fill(
    lists: Lists, hooks: Mapping[str, Callable[..., Any]], *, ranks: Records, requests: Records, rule: Records
) -> None:
    """Compiles hooks and notes where their code begins. Raises `PlanError` for a name that is no hook."""
    records = {"ranks": numba.typeof(ranks), "requests": numba.typeof(requests), "rule": numba.from_dtype(rule.dtype)}
    for name, function in hooks.items():
        if name not in HOOKS:
            raise PlanError(f"hook '{name}': the clock has none of that name; give one of {', '.join(HOOKS)}")
        one = HOOKS[name]
        given = tuple(records.get(each, types.int64) for each in one.given)
        lists.hooks[one.place] = address(function, one.answer, given)


def asked(name: str) -> Any:
    """What compiled code calls with where a hook's code begins and a tuple of what is given."""
    answer = HOOKS[name].answer

    @intrinsic
    def ask(_: Any, where: Any, given: Any) -> Any:
        known = tuple(types.int64 if isinstance(one, types.Integer) else one for one in given.types)

        def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            convention = context.call_conv
            pointer = builder.inttoptr(arguments[0], convention.get_function_type(answer, known).as_pointer())
            values = cgutils.unpack_tuple(builder, arguments[1])
            cast = [context.cast(builder, *each) for each in zip(values, signature.args[1].types, known, strict=True)]
            status, found = convention.call_function(builder, pointer, answer, known, cast)
            with cgutils.if_unlikely(builder, status.is_error):
                convention.return_status_propagate(builder, status)
            return found

        return answer(where, given), code

    return ask


order, victim, held = asked("order"), asked("victim"), asked("held")
