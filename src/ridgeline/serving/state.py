"""What a replay knows of requests, ranks and instances: records that the compiled loop reads and writes.

Shape letters: R requests, G ranks (every attention rank and pipeline slot of every instance has a scheduler and cache
of its own), I instances, W running sequences of a rank at most, K distinct prefix blocks, C clients of a fair queue, A
adapters, X kinds of instances.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Whole = NDArray[np.int64]
Records = NDArray[Any]
Record = Any  # one row of `Records`

NOT_ARRIVED, COMES_IN, WAITING, PREFILLING, DECODING, MOVING, ENDED, REFUSED, JOINS = range(9)
IDLE, MIXED, DECODES, HELPS = range(4)  # what an instance is at
BOTH, PROMPTS, ANSWERS = range(3)  # lanes: what an entry of an instance does
PREFILL_FIRST, MIXED_BATCHES, STATIC = range(3)  # schedulers
EACH_LOOK, WHEN_ALL, WHEN_FULL = range(3)  # what prompts wait for
ORDER, VICTIM, HELD, ROUTE, LENDS, KEEPS, SCALES, BOOKS = range(8)  # hooks (`serving.hooks`)
HOOKS = 8
SAMPLES = 512  # of the series over time
NOBODY = -1
ON_HOST = -2  # holders of a prefix block that host memory has


def _dtype(whole: str, real: str) -> np.dtype[Any]:
    return np.dtype([(name, "i8") for name in whole.split()] + [(name, "f8") for name in real.split()], align=True)


GRIDS = ("tokens", "sequences", "contexts", "chunks", "pasts", "graphs")
_TABLES = (
    "lane group head decode first each nano_compute nano_memory nano_network nano_head_compute nano_head_memory"
    " nano_head_network nano_decode busy head_busy send"
)

RULE = _dtype(
    "scheduler chunked receive_steps holds token_budget max_seqs block_tokens period growth_blocks capacity kept_free"
    " swaps beside displaces fair shortest ranks prefix_tokens nano_tokens slots kept early fetched host_tokens"
    f" overlapped ahead late_results split micro_batches redraws levels borrows owe rearranges elastic moving_holds"
    " draws_rank stands host_blocks masks_beside mask_threads padded"
    f" {_TABLES}"
    f" {' '.join(GRIDS)} {'_size '.join(GRIDS)}_size",
    "reserve patience swap_token_s move_token_s move_start_s eager_s step_host_s seq_host_s prefill_graphs balance hops"
    " send_start_s send_s drafted gained draft_share draft_prompt memory_sms link_sms exposed_s load_s held_share"
    " read_share fetch_s store_s split_share expert_layers enough lend_share lend_token_s ask_start_s ask_s far_token_s"
    " split_slack split_fill follows ring_start_s part_tokens build_s streamed_share chain chain_step_s chain_seq_s"
    " attention_memory attention_link mask_s mask_above",
)
"""What one kind of instance does, in numbers.

`receive_steps` iterations after which prompts are taken: who has come by a look (`holds` 0), all at once when each
rank has one (1) or when they fill `enough` tokens of an iteration (2), so many iterations at the latest; `capacity`
[block] of one rank's cache, `kept_free` by admission; every `period` [step] a sequence takes `growth_blocks`;
`reserve` [1] share of the output that admission sets blocks aside for; `swaps` preempted caches to the host and back
at `swap_token_s`, `beside` what runs or after it, else they are computed again; whoever waits and is more urgent
`displaces` who runs; the queue is `fair` among clients, or in the order of a hook (`shortest`), of `patience`
[token/s]; `prefix_tokens` of a prefix block, 0: prompts share nothing; at most `host_blocks` of those that give way
lie in host memory, and come back at `swap_token_s`; `move_token_s` and `move_start_s` [s] from a prefill to a decode
instance, and whether who is on the way `moving_holds` a place; of its attention ranks a pool's request `draws_rank`,
or takes the least loaded, and one that takes caches in `stands` meanwhile. `eager_s` [s] launching an iteration
kernel by kernel, `step_host_s` and `seq_host_s` [s] of the host, `overlapped` with the device or not; each iteration
is prepared `ahead`, while the one before it runs, of those who are there when that begins, and where `late_results`
are looked at once the next one is launched so are first tokens; iterations with prompts of up to `prefill_graphs`
tokens replay captured pieces; `balance` [1] cycle of a full pipeline over its latency; `hops` sends of one iteration;
a prompt's next chunk `follows` after so many cycles of a stage (1; 0: when this one is done), and parts of
`part_tokens` (0: none) of a batch's prompts fill the stages one after the other. Iterations of `nano_tokens` or more
(0: none) are two nano-batches, of which kernels that wait for memory or a link hold the shares `memory_sms` and
`link_sms` of the multiprocessors; one's own kernels are the share `chain` of all, after `chain_step_s` and
`chain_seq_s` [s] of a host of its own; attention of decoding sequences takes `attention_memory` of its time of what
serves memory, `attention_link` of the link; `exposed_s` [s] of the host is beside neither. An iteration of a number
of tokens with prompts that its rank never had before takes `build_s` [s] more, in which kernels are compiled for it.
A device may be `split` between prompts and decode steps, `split_share` of its multiprocessors for prompts (0: chosen
when an iteration of them begins); with a `split_slack` [1] one side is favoured while the other takes at most so many
times as long: decode steps where the cache is filled to `split_fill`, else prompts. Where experts have devices of
their own an iteration is `micro_batches` (0: experts do not) that go back and forth in each of `expert_layers`. Every
`redraws` iterations (0: never) each request draws one of `levels` priorities. Of adapters at most `slots` are held
(0: all of them), and loading one takes `load_s` [s]. When a prompt is done `kept` tokens of its cache stay (and
`fetched` 0: all), where `early` after each of its chunks; `fetched` of the others come from host memory in each step,
`fetch_s` [s] each, `store_s` on the way out, at most `host_tokens` of a rank there (0: none are); the device holds
`held_share` of a prompt besides and reads `read_share`; of a cache that is streamed each step takes `streamed_share`
from there. Making the masks of structured output takes the host `mask_s` [s] a sequence, with more than `mask_above`
of them in `mask_threads` threads, `masks_beside` the device or after it. A step verifies `drafted` further tokens a
sequence, gains `gained`, and drafting adds `draft_share` of it, and `draft_prompt` of what prompts add to an
iteration. A request that does not fit `borrows` room of other instances, which give a share `lend_share` of what is
free, up to `owe` [block] of a rank at once; moving a token's cache there takes `lend_token_s`, a step of those who
borrow waits `ask_start_s` and `ask_s` [s] each for queries and sums, and a token is read there in `far_token_s`;
every `rearranges` iterations (0: never) caches of who decodes may move there too. Prompts with `elastic` tokens or
more to compute (0: none) are computed by all who are free together, whose parts of the cache go round in
`ring_start_s` [s] each and `move_token_s` a token.

Last, where in `clock.Times` each of the kind's tables [s] begins, by T tokens of an iteration on one rank, N sequences,
C mean context, Q tokens of a chunk and P cached before it: the grids, with their sizes; `lane` (T) of the rank, `group`
(2, T) of experts, in steps and in iterations with prompts, `head` (N) sampling, `decode` (N, C), `first` and `each`
(Q, P) attention of a chunk alone and among others; `graphs` captured batches, ascending; of an iteration that is cut in
two or of a split device, by what kernels wait for, `nano_` (3, T) of the rank and of experts in either, `nano_head_`
(N) and `nano_decode` (N, C), and of the latter how long memory is `busy` (3, T) and `head_busy` (N); `send` (T) one
micro-batch between attention's devices and the experts', one way.
"""

REQUEST = _dtype(
    "prompt output priority first_child next_child stage rank ready needed made since length until shared hit reserved"
    " preempted after before client charged unseen adapter hosted fetches own lent part"
    " passed follows goes_on kept kept_after kept_before",
    "reads arrival_s think_s front_s came_s first_s end_s",
)
"""What was asked, and what became of it.

`first_child`, `next_child` requests that wait for it to end; `front_s` from the person to the scheduler; `came_s`,
`first_s`, `end_s` entering, first and last token; `needed` tokens whose cache must exist before it decodes and
`ready` those whose does; `made` tokens generated; `since` the rank's step at which it began to decode with `length`
tokens of cache, `until` that at which it ends; `shared` prefix blocks that others may hold too; `hit` prompt tokens
found in the cache; `reserved` blocks; `after` and `before` it in a queue or in the order of admission; of which
`client`, whose counter its prompt was `charged` to; `unseen` by the scheduler so far; for which `adapter`; `hosted`
tokens of it in host memory; a step read `reads` tokens of its prompt and fetched `fetches`; of one that borrows `own`
blocks are at its instance and `lent` ones elsewhere, the largest `part` of them at one rank; its first token was
`passed` on late. It `follows` a turn (-1: none) and its session `goes_on`; when it has ended its prefix blocks may be
`kept` for the next turn, between `kept_before` and `kept_after`.
"""

RANK = _dtype(
    "instance decoding step used committed waiting wait_first wait_last running run_first run_last partial ends chunks"
    " oldest newest idle_blocks last_client unseen loaded pinned uses hosted fetching joining owes lent asking far"
    " guests called helpers stands keep_first keep_last host_idle host_oldest host_newest",
    "context moved_s link_free_s",
)
"""A scheduler with its cache.

`decoding` sequences with `context` tokens of cache to read in the next step; `used` blocks, `committed` ones set aside;
queues by their ends; `partial` a prompt computed in part; `ends` and `chunks` entries of its lists; `idle_blocks`
prefix blocks that nobody holds, from the `oldest` use to the `newest`; `moved_s` cache moved to or from the host, and
`link_free_s` when the last one that it sends to another pool is there; `last_client` whose request left the queue last,
requests `unseen` by the scheduler so far; adapters `loaded` and `pinned` by who runs, and `uses` of any so far;
`hosted` tokens in host memory, and `fetching` those that a step fetches from there; `joining` requests whose prompt is
done while a step runs that they are not in; blocks that it `owes` others and that it has `lent` (used as well); of
those who decode `asking` have borrowed, the largest parts of their caches being `far` tokens; `guests` tokens of others
that their steps read here; `called` when loans of it have changed; `helpers` instances that are free to compute a long
prompt with it; it `stands` for so many sequences that it takes in. Blocks are
kept for next turns of requests from `keep_first` to `keep_last`; `host_idle` prefix blocks are in host memory, from the
`host_oldest` to the `host_newest`.
"""

INSTANCE = _dtype(
    "kind first_rank at dirty steps up gives takes load iterations stalled failing failures lane peer epoch looked"
    " prompted chained",
    "next_s begun_s busy_s stalled_s starts_s fails_s up_since_s up_s share asks since_s last_arrival_s looked_s"
    " guests formed_s paid_s paid_since_s",
)
"""One instance of the engine: what it is `at` and until `next_s`, for how many `steps`; `dirty` by an event.

`gives` 1: it sends requests on after their first token; `takes` 1 those that arrive, 2 those sent on; `load` requests
that have not ended; `up` takes requests, from `starts_s` on where it is not yet, until `fails_s`; `failing` it gives
back its requests after the step that runs; `up_s` it has been up; `paid_s` [s] it has been paid, and since
`paid_since_s` (-1: it is not); `stalled_s` that `stalled` decoding sequences have waited for prompts since their last
token. A split instance is two entries with one rank, each other's `peer`: the `lane` of prompts, then that of
answers; `share` of the multiprocessors in the iteration that runs, `asks` the share of memory's rate that prompts ask
for while they run, in the lane of answers as its run takes it; busy `since_s`. In what runs `guests` tokens of others
are read. The last request came at `last_arrival_s`; its scheduler looked for prompts when it had done `looked`
iterations (-1: none wait), at `looked_s`; whether the last iteration had any (`prompted`), and was made up
(`formed_s`) while the one before it ran (`chained`). Priorities were drawn for its `epoch`.
"""

COMING = _dtype("number request", "at_s")
"""A request that will arrive, or whose cache is on its way, in a heap by (time, number)."""


SYSTEM = _dtype(
    "concurrency by_priority by_prefix reads_cache long_tokens awaited numbered unstarted fewest most scale_step"
    " iterations preemptions prompt_tokens hit_tokens moves runs done peak_blocks failures starts stopped loads loans"
    " merges",
    "series_s period_s start_s look_s prefill_s decode_s sequence_s context_s",
)
"""What holds for all instances together, and what is counted while the clock runs.

At most `concurrency` requests in flight (0: any number), of which `unstarted` is the first that has not started;
whether priorities differ (`by_priority`), ranks are chosen `by_prefix` and the router `reads_cache`; prompts of
`long_tokens` or more are long to the router (0: to none); `awaited` entries of `coming`, and the `numbered` next of
them; a stretch of the series takes `series_s` [s]. Scaling: every `period_s` [s] (0: never), next at `look_s`,
`start_s` to start one, `scale_step` at once, `fewest` and `most` of them. Counts, then sums [s]: of iterations with
prompts and without, and of the latter's times weighted with sequences and with tokens of context.
"""


class Clock(NamedTuple):
    """All that the compiled clock reads and writes: R requests, G ranks, I instances and what they hold many of."""

    system: Record
    requests: Records  # (R,)
    ranks: Records  # (G,)
    instances: Records  # (I,)
    rules: Records  # (X,)
    times: Array  # tables of all kinds of instances end to end [s] (`serving.rule`)
    coming: Records  # requests that will arrive, a heap
    turns: Whole  # (3, F) whose turn it is in each pool, by each of F front ends
    histogram: Array  # of inter-token latencies
    series: Array  # (SAMPLES, 4) the most blocks in use, waiting and running in a stretch of time; whether visited
    failures_s: Array  # (I, F) time from the start of each instance to its next failure, and then to its repair
    stop: Array  # bounds of `stopping.Stop` and the least share of requests that must keep to them
    ends: Whole  # (G, W + 2, 2) step and request, a heap: who ends first
    phase: Whole  # (G, period) sequences that need a block at the steps that are equal modulo the period
    chunks: Whole  # (G, W + 1, 3) request, tokens and tokens before them of the iteration that runs
    prefix_start: Whole  # (R + 1,)
    prefix_blocks: Whole
    served: Array  # (G, C) what each client was served until `busy_since`, in weighted tokens
    busy: Whole  # (G, C) sequences of each client that decode
    busy_since: Whole  # (G, C) the step since which they do
    queued: Whole  # (G, C) requests of each client that wait
    adapters: Whole  # (G, A, 2) serial of the last use of each adapter (0: not loaded), and who runs with it
    loans: Whole  # (R, G) blocks of each request at each rank that lends them
    built: Whole  # (G, T + 1) whether kernels are compiled for so many tokens, at the end for more than those
    hooks: Whole  # (H,) where the code of each hook begins, 0: none (`serving.hooks`)
    use: Whole  # (G, K, 3) holders of a prefix block (-1: absent, -2: on the host), the next newer and older idle one


def plain(clock: Clock) -> Clock:
    """The same clock for functions that run as they are in Python: records whose fields are attributes."""
    each: Any = (one.view(np.recarray) if one.dtype.names else one for one in clock)
    return Clock(*(one if one.ndim else one.reshape(1)[0] for one in each))


def empty_ranks(instance: Whole) -> Records:
    """Ranks of the given instances with nothing to do and an empty cache."""
    ranks = np.zeros(instance.size, dtype=RANK)
    ranks["instance"] = instance
    for name in (
        "wait_first", "wait_last", "run_first", "run_last", "partial", "oldest", "newest", "last_client",
        "keep_first", "keep_last", "host_oldest", "host_newest",
    ):  # fmt: skip
        ranks[name] = NOBODY
    return ranks


def empty_lists(
    count: int, rules: Records, starts: Whole, blocks: Whole, clients: int, adapters: int, borrowers: int
) -> dict[str, Any]:
    """The lists of `Clock` of `count` ranks with room for the most running sequences; `clients` share a fair queue."""
    width, period = int(rules["max_seqs"].max()), int(rules["period"].max())
    built = int(rules["token_budget"].max()) if rules["build_s"].any() else 0
    distinct = int(blocks.max()) + 1 if blocks.size else 1
    return {
        "ends": np.zeros((count, width + 2, 2), dtype=np.int64),
        "phase": np.zeros((count, period), dtype=np.int64),
        "chunks": np.zeros((count, width + 1, 3), dtype=np.int64),
        "prefix_start": starts,
        "prefix_blocks": blocks,
        "served": np.zeros((count, clients)),
        "busy": np.zeros((count, clients), dtype=np.int64),
        "busy_since": np.zeros((count, clients), dtype=np.int64),
        "queued": np.zeros((count, clients), dtype=np.int64),
        "adapters": np.zeros((count, adapters, 2), dtype=np.int64),
        "loans": np.zeros((borrowers, count), dtype=np.int64),
        "built": np.zeros((count, built + 1), dtype=np.int64),
        "hooks": np.zeros(HOOKS, dtype=np.int64),
        "use": np.full((count, distinct, 3), NOBODY, dtype=np.int64),
    }
