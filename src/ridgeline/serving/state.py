"""What a replay knows of requests, ranks and instances: arrays that the compiled loop reads and writes.

Shape letters: R requests, G ranks (every attention rank and pipeline slot of every instance has a scheduler and a cache
of its own), I instances, W running sequences of a rank at most, B tokens of a block, K distinct prefix blocks.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Whole = NDArray[np.int64]
Small = NDArray[np.int32]

NOT_ARRIVED, WAITING, PREFILLING, DECODING, MOVING, ENDED, REFUSED = range(7)
IDLE, MIXED, DECODES = range(3)  # what an instance is at
PREFILL_FIRST, MIXED_BATCHES, STATIC = range(3)  # schedulers
ROUND_ROBIN, LEAST_LOADED, LONGEST_PREFIX = range(3)  # routers
SAMPLES = 512  # of the series over time
NOBODY = -1


class Rules(NamedTuple):
    """What the engine's scheduler does, in numbers."""

    scheduler: int
    chunked: bool
    token_budget: int
    max_seqs: int
    block_tokens: int
    period: int  # steps in which a sequence fills a block
    capacity: int  # blocks of one rank's cache
    kept_free: int  # blocks that admission leaves free
    reserve: float  # share of the output that admission reserves blocks for
    swaps: bool  # preempted sequences go to the host and come back, else they are computed again
    swap_token_s: float  # to move a token's cache one way
    ranks: int  # of one instance
    prefix_tokens: int  # of a prefix block; 0: prompts share nothing
    move_token_s: float  # to move a token's cache from a prefill to a decode instance
    move_start_s: float


class Fleet(NamedTuple):
    """What holds for all instances together."""

    router: int
    concurrency: int  # requests in flight at most; 0: no limit
    by_priority: bool
    turns: Whole  # (3,) whose turn it is in each pool


class Requests(NamedTuple):
    """Requests (R,): what was asked, and what became of it."""

    arrival_s: Array
    prompt: Whole
    output: Whole
    priority: Whole
    prefix_start: Whole
    prefix_blocks: Whole
    first_child: Whole  # the first request that waits for this one to end
    next_child: Whole
    think_s: Array
    stage: Small
    rank: Small
    came_s: Array  # when it entered the system
    first_s: Array  # first token
    end_s: Array
    ready: Whole  # tokens of the prompt (and of what was generated before a preemption) whose cache exists
    needed: Whole  # tokens whose cache must exist before it decodes
    made: Whole  # tokens generated
    since: Whole  # the rank's step at which it began to decode
    length: Whole  # tokens of cache at that step
    until: Whole  # the rank's step at which it ends
    shared: Whole  # prefix blocks that it holds together with others
    hit: Whole  # prompt tokens found in the cache
    reserved: Whole  # blocks that admission set aside
    preempted: Whole
    after: Whole  # next in a queue or in the order of admission
    before: Whole


class Ranks(NamedTuple):
    """Schedulers (G,), each with its cache."""

    instance: Whole
    decoding: Whole
    context: Array  # tokens of cache that the decoding sequences read in the next step
    step: Whole
    used: Whole
    committed: Whole
    waiting: Whole
    wait_first: Whole
    wait_last: Whole
    running: Whole
    run_first: Whole
    run_last: Whole
    partial: Whole  # a prompt that is computed in part
    heap_step: Whole  # (G, 2W)
    heap_request: Whole
    heap_size: Whole
    phase: Whole  # (G, B) sequences that need a block at the steps that are equal modulo B
    chunk_request: Whole  # (G, W) prompts of the iteration that runs
    chunk_tokens: Whole
    chunk_past: Whole
    chunks: Whole
    moved_s: Array  # cache moved to or from the host for the next iteration
    holders: Small  # (G, K) how many hold a prefix block; -1 absent
    newer: Whole  # (G, K) order of last use of blocks that nobody holds
    older: Whole
    oldest: Whole
    newest: Whole
    idle_blocks: Whole  # prefix blocks that nobody holds


class Instances(NamedTuple):
    """Instances (I,) of the engine."""

    kind: Whole  # which of the deployments it is
    first_rank: Whole
    next_s: Array  # when what it is at ends; inf when idle
    begun_s: Array
    at: Small
    steps: Whole  # of the run it is at
    up: Small
    gives: Small  # 1: sends requests on after their first token
    takes: Small  # 1: accepts requests that arrive, 2: those sent on
    load: Whole  # requests that have not ended
    busy_s: Array
    link_free_s: Array
    stalled_s: Array  # time that decoding sequences have waited for prompts since their last token
    iterations: Whole


class Pending(NamedTuple):
    """Requests that will arrive, or whose cache is on its way: a heap in the order of (time, number)."""

    at_s: Array
    number: Whole
    request: Whole
    counts: Whole  # (3,): size, next number, first request of a closed loop that has not started


class Record(NamedTuple):
    """What is counted while the clock runs."""

    histogram: Array
    counts: Whole  # see the indices below
    series: Array  # (SAMPLES, 4): cache blocks in use, waiting, running, most of each in the bin; and whether visited
    series_s: Array  # (1,) width of a bin
    sums: Array  # prefill seconds, decode seconds, decode sequence-seconds, context-seconds, tokens computed


ITERATIONS, PREEMPTIONS, PROMPT_TOKENS, HIT_TOKENS, MOVES, RUNS, DONE, PEAK_BLOCKS = range(8)
COUNTS = 8
PREFILL_S, DECODE_S, SEQUENCE_S, CONTEXT_S = range(4)
SUMS = 4


def empty_ranks(instance: Whole, width: int, period: int, prefix_blocks: int) -> Ranks:
    """Ranks of the given instances with nothing to do and an empty cache."""
    count = instance.size
    whole = np.zeros(count, dtype=np.int64)
    nobody = np.full(count, NOBODY, dtype=np.int64)
    return Ranks(
        instance=instance,
        decoding=whole.copy(),
        context=np.zeros(count),
        step=whole.copy(),
        used=whole.copy(),
        committed=whole.copy(),
        waiting=whole.copy(),
        wait_first=nobody.copy(),
        wait_last=nobody.copy(),
        running=whole.copy(),
        run_first=nobody.copy(),
        run_last=nobody.copy(),
        partial=nobody.copy(),
        heap_step=np.zeros((count, 2 * width + 2), dtype=np.int64),
        heap_request=np.zeros((count, 2 * width + 2), dtype=np.int64),
        heap_size=whole.copy(),
        phase=np.zeros((count, period), dtype=np.int64),
        chunk_request=np.zeros((count, width + 1), dtype=np.int64),
        chunk_tokens=np.zeros((count, width + 1), dtype=np.int64),
        chunk_past=np.zeros((count, width + 1), dtype=np.int64),
        chunks=whole.copy(),
        moved_s=np.zeros(count),
        holders=np.full((count, prefix_blocks), -1, dtype=np.int32),
        newer=np.full((count, prefix_blocks), NOBODY, dtype=np.int64),
        older=np.full((count, prefix_blocks), NOBODY, dtype=np.int64),
        oldest=nobody.copy(),
        newest=nobody.copy(),
        idle_blocks=whole.copy(),
    )
