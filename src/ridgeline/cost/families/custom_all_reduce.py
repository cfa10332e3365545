"""All-reduce kernels that serving engines bring along: one-shot, two-shot, and through symmetric memory.

Shape letters: B bytes of one rank's buffer, N ranks of a node.
"""

from __future__ import annotations

from ridgeline.compiled import kernel
from ridgeline.cost.families.gemm import START
from ridgeline.cost.mechanism import Array, Mechanism, Parameter, like, parameter
from ridgeline.facts.engine_all_reduce import NEVER_BYTES


@kernel
def _together(a: float, b: float, power: float) -> float:
    """(a^p + b^p)^(1/p): the wait of one part is hidden behind the stream of others [s]."""
    longer = max(a, b)
    if longer <= 0.0:
        return 0.0
    found: float = longer * ((a / longer) ** power + (b / longer) ** power) ** (1.0 / power)
    return found


@kernel
def _one_shot(size: float, peers: float, link: float, v: Array) -> float:
    """Every rank reads the whole buffer of every other, all at once, and adds them up [s]."""
    stream = max(peers * size / (link * v[3]), size / v[4])
    return _together(v[2], stream, v[7])


@kernel
def _two_shot(size: float, peers: float, link: float, v: Array) -> float:
    """A rank adds up its piece of every buffer; after one more synchronisation all read the pieces of all [s].

    Threads stay with one piece of N packs in the second half, so that they go through the whole buffer and a piece.
    """
    ranks = peers + 1.0
    stream = max(2.0 * peers / ranks * size / (link * v[3]), (1.0 + 1.0 / ranks) * size / v[4])
    return _together(v[2] + v[5] + peers * v[6], stream, v[7])


@kernel
def _symmetric(size: float, peers: float, link: float, v: Array) -> float:
    """The switch adds up and spreads pieces, (N + 1) / N of the buffer; of few ranks two shots move less [s]."""
    ranks = peers + 1.0
    found: float = v[8] + min((ranks + 1.0) / ranks, 2.0 * peers / ranks) * size / (link * v[9])
    return found


@kernel
def _custom_all_reduce(sizes: Array, device: Array, values: Array, out: Array) -> None:
    v = values
    for i in range(sizes.shape[0]):
        size, peers, link = sizes[i, 0], sizes[i, 1] - 1.0, sizes[i, 2]
        two_from, symmetric_from, issue_s = sizes[i, 3], sizes[i, 4], sizes[i, 5]
        if peers < 1.0:
            out[i, 0], out[i, 1], out[i, 2] = 0.0, 0.0, 0.0
            continue
        if size >= symmetric_from:
            waited = _symmetric(size, peers, link, v)
        else:
            waited = _one_shot(min(size, two_from), peers, link, v)
            if size >= two_from:  # switched too early or too late, a larger buffer never gains time
                waited = max(waited, _two_shot(size, peers, link, v))
        waited += v[0] + peers * v[1]
        if issue_s > 0.0:  # the host issues each call, and the buffer is copied to where peers may read
            waited = max(issue_s * v[12], waited + v[10] + 2.0 * size / (device[2] * v[11]))
        out[i, 0], out[i, 1], out[i, 2] = waited, 0.0, waited


def _seconds(name: str, low: float, high: float, start: float, meaning: str) -> Parameter:
    return parameter(name, "s", low, high, start, meaning)


def _share(name: str, low: float, start: float, meaning: str) -> Parameter:
    return parameter(name, "1", low, 1.0, start, meaning)


CUSTOM_ALL_REDUCE = Mechanism(
    family="custom_all_reduce",
    sizes=("bytes", "ranks", "link_bytes_per_s", "two_shot_from_bytes", "symmetric_from_bytes", "issue_s"),
    defaults={"two_shot_from_bytes": NEVER_BYTES, "symmetric_from_bytes": NEVER_BYTES, "issue_s": 0.0},
    kernel=_custom_all_reduce,
    parameters=(
        like(START, low=5e-7, high=2e-5, start=3e-6, meaning="launch, and the first meeting of two ranks"),
        _seconds("peer_s_", 1e-9, 5e-6, 1e-7, "one more peer to meet"),
        _seconds("turn_s_", 1e-8, 2e-5, 1e-6, "one round trip of a read, hidden behind a longer stream"),
        _share("link_share_", 0.05, 0.6, "share of the link that reads of peers sustain"),
        parameter("threads_bytes_per_s_", "byte/s", 1e10, 2e12, 3e11, "rate at which the threads go through a buffer"),
        _seconds("sync_s_", 1e-8, 2e-5, 1.5e-6, "second synchronisation of two-shot"),
        _seconds("sync_peer_s_", 1e-9, 5e-6, 5e-7, "one more peer of it"),
        parameter("overlap_", "1", 1.0, 6.0, 2.0, "norm in which waits and stream overlap"),
        _seconds("symmetric_start_s_", 1e-7, 5e-5, 5e-6, "what kernels of symmetric memory take to start beyond it"),
        _share("symmetric_share_", 0.05, 0.5, "share of the link that they sustain"),
        _seconds("copy_s_", 1e-8, 2e-5, 2e-6, "launch of the copy of an eager call's buffer"),
        _share("copy_memory_share_", 0.02, 0.7, "share of memory bandwidth of that copy"),
        parameter(
            "issue_share_", "1", 0.3, 5.0, 1.0, "host time of an eager call, against what such hosts usually take"
        ),
    ),
)
