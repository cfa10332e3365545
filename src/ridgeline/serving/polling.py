"""When a scheduler takes prompts that have come: in every iteration, at looks, or when enough of them wait."""

from __future__ import annotations

import math

from ridgeline.serving.admission import fits
from ridgeline.serving.compiling import clocked
from ridgeline.serving.fairness import head
from ridgeline.serving.state import EACH_LOOK, NOBODY, PREFILL_FIRST, WHEN_ALL, WHEN_FULL, Clock, Record


@clocked
def late(clock: Clock, request: int, known_s: float) -> bool:
    """Whether a request whose prompt is to be computed came to the scheduler after a time."""
    came_s = clock.requests[request].came_s + clock.requests[request].front_s
    return bool(came_s > known_s and clock.requests[request].ready < clock.requests[request].needed)


@clocked
def known_until(clock: Clock, rule: Record, instance: int, now_s: float) -> float:
    """Whoever came until then may be taken into the iteration that begins [s]: -inf nobody new, inf all.

    An idle scheduler looks all the time. A busy one that prepares ahead knows who was there when the iteration before
    began; of an iteration with prompts, when the last of its kernels had been launched; of a pool of prompts, when the
    batch was made up.
    """
    decoding = 0
    for rank in range(clock.instances[instance].first_rank, clock.instances[instance].first_rank + rule.ranks):
        decoding += clock.ranks[rank].decoding
    if decoding == 0:
        clock.instances[instance].looked = -1 if rule.holds == WHEN_FULL else clock.instances[instance].iterations
        clock.instances[instance].looked_s = now_s
        return made_up_s(clock, rule, instance, now_s)
    prepared_s = clock.instances[instance].begun_s if rule.ahead else math.inf
    if rule.receive_steps <= 1:
        return float(prepared_s)
    if rule.holds == EACH_LOOK:
        return _heard_until(clock, rule, instance, now_s)
    clock.instances[instance].looked_s = prepared_s
    if rule.holds == WHEN_ALL:
        lets = _all_have_prompts(clock, rule, instance, prepared_s)
    else:
        lets = _enough_wait(clock, rule, instance, prepared_s)
    return float(prepared_s) if lets else -math.inf


@clocked
def made_up_s(clock: Clock, rule: Record, instance: int, now_s: float) -> float:
    """When a pool of prompts whose iteration ends makes up, or made up, its next batch [s]; inf: it idles.

    F' = max(F + L, S)

    F and S when the batch that ends was made up and began, L launching its kernels: a batch is made up and launched,
    then the result of the one before is waited for, so that nobody joins the next once the one that runs has begun. An
    engine that finds nobody then looks again when it has the last result. Source: sglang,
    srt/disaggregation/prefill.py, event_loop_overlap_disagg_prefill.
    """
    ends = clock.instances[instance].prompted and clock.instances[instance].next_s == now_s
    if not (ends and rule.ahead and clock.instances[instance].gives > 0):
        return math.inf
    formed_s = clock.instances[instance].formed_s + rule.eager_s
    if clock.instances[instance].chained:
        formed_s = max(formed_s, clock.instances[instance].begun_s)
    formed_s = min(formed_s, now_s)
    for rank in range(clock.instances[instance].first_rank, clock.instances[instance].first_rank + rule.ranks):
        if clock.ranks[rank].partial != NOBODY or _prompt_tokens(clock, rank, formed_s, 1.0) > 0.0:
            return float(formed_s)
    return math.inf


@clocked
def result_s(clock: Clock, rule: Record, instance: int, now_s: float) -> float:
    """When what an iteration of prompts has computed is noticed [s]: once the kernels of the next are launched."""
    formed_s = made_up_s(clock, rule, instance, now_s)
    return float(max(now_s, formed_s + rule.eager_s)) if formed_s < math.inf else now_s


@clocked
def pass_on_late(clock: Clock, rule: Record, instance: int, begun_s: float, now_s: float, built_s: float) -> None:
    """First tokens of an iteration that ends now, which another with prompts follows, come when that one is launched.

    F = max(E, min(min(E, B + L) + L + C, N))

    B and E when it began and ended, L launching an iteration's kernels, C compiling some for the next one, which
    ends at N: kernels that have ended were launched.
    Source: sglang, srt/managers/scheduler.py, event_loop_overlap: run_batch before the last batch's result; as
    tensorrt-llm, pyexecutor/py_executor.py, _executor_loop_overlap.
    """
    first_s = min(now_s, begun_s + rule.eager_s) + rule.eager_s + built_s
    first_s = min(first_s, clock.instances[instance].next_s)
    if first_s <= now_s:
        return
    for rank in range(clock.instances[instance].first_rank, clock.instances[instance].first_rank + rule.ranks):
        request = clock.ranks[rank].run_first
        while request != NOBODY:
            if (
                not clock.requests[request].passed
                and clock.requests[request].made == 1
                and clock.requests[request].first_s == now_s
            ):
                clock.requests[request].first_s, clock.requests[request].passed = first_s, 1
            request = clock.requests[request].after


@clocked
def steps_to_look(clock: Clock, rule: Record, instance: int, known_s: float) -> int:
    """Decode steps after which those who wait may be taken, at least 1 [step]; any number where nobody does."""
    waiting = 0
    for rank in range(clock.instances[instance].first_rank, clock.instances[instance].first_rank + rule.ranks):
        waiting += clock.ranks[rank].waiting
    heard = rule.holds == EACH_LOOK and clock.instances[instance].last_arrival_s <= known_s  # what they lack is room
    if waiting == 0 or heard:
        return int(rule.capacity * rule.block_tokens + 1)
    gone = clock.instances[instance].iterations - clock.instances[instance].looked
    next_one = rule.ahead and gone == 0  # the look was for the iteration after this
    if rule.holds != EACH_LOOK:
        next_one = (
            clock.instances[instance].last_arrival_s > clock.instances[instance].looked_s
        )  # nobody knew yet who came last
    if rule.receive_steps <= 1 or clock.instances[instance].looked < 0 or next_one:
        return 1
    return max(int(rule.receive_steps - gone), 1)


@clocked
def _due(clock: Clock, rule: Record, instance: int) -> bool:
    """Whether a whole interval has gone by since the last look; the count begins anew with each."""
    gone = clock.instances[instance].iterations - clock.instances[instance].looked
    clock.instances[instance].looked += gone - gone % rule.receive_steps
    return bool(gone > 0 and gone % rule.receive_steps == 0)


@clocked
def _heard_until(clock: Clock, rule: Record, instance: int, now_s: float) -> float:
    """With looks after so many decode steps, and after every iteration of prompts where those run apart [s]."""
    if clock.instances[instance].prompted and rule.scheduler == PREFILL_FIRST:
        launched_s = clock.instances[instance].begun_s + rule.eager_s
        clock.instances[instance].looked = clock.instances[instance].iterations
        clock.instances[instance].looked_s = min(now_s, launched_s) if rule.ahead else now_s
        return float(clock.instances[instance].looked_s)
    before_s = clock.instances[instance].looked_s
    if _due(clock, rule, instance):
        clock.instances[instance].looked_s = now_s
    return float(before_s if rule.ahead else clock.instances[instance].looked_s)


@clocked
def _prompt_tokens(clock: Clock, rank: int, known_s: float, most: float) -> float:
    """Tokens to compute of those who wait and came in time, counted up to `most` [token]."""
    tokens, request = 0.0, clock.ranks[rank].wait_first
    while request != NOBODY and tokens < most:
        if not late(clock, request, known_s):
            tokens += clock.requests[request].needed - clock.requests[request].ready
        request = clock.requests[request].after
    return tokens


@clocked
def _all_have_prompts(clock: Clock, rule: Record, instance: int, known_s: float) -> bool:
    """Prompts go when every rank could compute one, when one has nothing to decode, or when an interval is over.

    Who waits for a place or for room in the cache is not there yet. Source: tensorrt-llm,
    tensorrt_llm/_torch/pyexecutor/py_executor.py _balance_adp_requests, which counts prompts that were scheduled.
    """
    everyone, idle = True, False
    for rank in range(clock.instances[instance].first_rank, clock.instances[instance].first_rank + rule.ranks):
        everyone = everyone and _has_prompt(clock, rule, rank, known_s)
        idle = idle or clock.ranks[rank].decoding == 0
    if everyone or idle:
        clock.instances[instance].looked = clock.instances[instance].iterations
        return True
    return bool(_due(clock, rule, instance))


@clocked
def _has_prompt(clock: Clock, rule: Record, rank: int, known_s: float) -> bool:
    """Whether a prompt is computed in part, or the next who waits came in time and fits."""
    if clock.ranks[rank].partial != NOBODY:
        return True
    request = head(clock, rule, rank) if clock.ranks[rank].waiting > 0 else NOBODY
    if (
        request == NOBODY
        or late(clock, request, known_s)
        or clock.requests[request].ready == clock.requests[request].needed
    ):
        return False
    return bool(fits(clock, rule, rank, request))


@clocked
def _enough_wait(clock: Clock, rule: Record, instance: int, known_s: float) -> bool:
    """Prompts go when they and the decoding sequences fill an iteration, or an interval after the first of them."""
    fullest, waiting = 0.0, 0.0
    for rank in range(clock.instances[instance].first_rank, clock.instances[instance].first_rank + rule.ranks):
        tokens = _prompt_tokens(clock, rank, known_s, rule.token_budget)
        waiting += tokens
        fullest = max(fullest, tokens + clock.ranks[rank].decoding * (1.0 + rule.drafted))
    iterations, looked = clock.instances[instance].iterations, clock.instances[instance].looked
    if waiting > 0.0 and looked < 0:
        looked = iterations
    if waiting == 0.0 or fullest >= rule.enough or iterations - looked >= rule.receive_steps:
        clock.instances[instance].looked = -1  # nobody waits any more
        return True
    clock.instances[instance].looked = looked
    return False
