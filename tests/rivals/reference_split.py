"""The slow simulator's split device: a lane that computes prompts and a lane that decodes, one step at a time."""

from __future__ import annotations

import math
from dataclasses import dataclass

from reference_rank import read, read_two
from reference_serving import Instance

Work = tuple[float, float, float, float]  # waiting for compute, memory, links; memory busy [s]


@dataclass(eq=False)
class Lane(Instance):
    """What both lanes know: their work alone on the device, and how long it takes on a share of it."""

    share: float = 1.0
    asks: float = 0.0  # share of memory's rate

    def work(self, tokens: float, sampled: float, *, prompts: bool) -> Work:
        """An iteration without attention."""
        t = self.tables
        compute, memory, links, busy = (
            read(t.tokens, getattr(t.split, name).mid[0], tokens)
            + read(t.tokens, getattr(t.split, name).mid[2 if prompts else 1], tokens)
            + read(t.sequences, getattr(t.split, f"head_{name}").mid, sampled)
            for name in ("compute", "memory", "network", "busy")
        )
        return compute, memory, links, busy

    def prompts(self) -> Work:
        """What the chosen chunks are."""
        (rank,), t = self.ranks, self.tables
        tokens = sum(one.chunk for one in rank.chunks)
        first = [read_two(t.chunks, t.pasts, t.first.mid, one.chunk, one.ready) for one in rank.chunks]
        each = [read_two(t.chunks, t.pasts, t.each.mid, one.chunk, one.ready) for one in rank.chunks]
        compute, *others = self.work(tokens, len(rank.chunks), prompts=True)
        return compute + max(*first, sum(each) if len(each) > 1 else 0.0), *others  # type: ignore[return-value]

    def answers(self) -> Work:
        """What the next decode step is: attention waits for memory, and keeps it busy."""
        (rank,), t = self.ranks, self.tables
        count = len(rank.decoding)
        batch = min((size for size in self.graphs if size >= count), default=count)
        attention = read_two(t.sequences, t.contexts, t.decode.mid, count, rank.context / count)
        compute, memory, links, busy = self.work(batch, batch, prompts=False)
        return compute, memory + attention, links, busy + attention

    def alone(self, work: Work, share: float) -> float:
        """Work on a share of the multiprocessors [s]."""
        slow, linked = (max(1.0, self.rule[name] / share) for name in ("memory_sms", "link_sms"))
        return float(work[0] / share + work[1] * slow + work[2] * linked) + self.extra_s

    def beside(self, one: Work, two: Work, share: float) -> tuple[float, float]:
        """Both at once, the first on the share [s]."""
        mine, other = self.alone(one, share), self.alone(two, 1.0 - share)
        return max(mine, one[3] + mine * two[3] / other), max(other, two[3] + other * one[3] / mine)

    def best(self, one: Work, two: Work) -> float:
        """The share with which both get on most."""

        def gets_on(part: int) -> float:
            mine, other = self.beside(one, two, part / 16)
            return self.alone(one, 1.0) / mine + self.alone(two, 1.0) / other

        return max(range(1, 16), key=gets_on) / 16

    def sided(self, one: Work, two: Work, filled: bool) -> float:
        """The share that favours prompts, or decode steps where the cache is filled, within the other's bound."""
        side = int(filled)  # the favoured one of the two
        bound = self.rule["split_slack"] * self.alone((one, two)[1 - side], 1.0)
        found = [(part / 16, self.beside(one, two, part / 16)) for part in range(1, 16)]
        kept = [pair for pair in found if pair[1][1 - side] <= bound]
        return (
            min(kept, key=lambda pair: pair[1][side])[0] if kept else min(found, key=lambda pair: pair[1][1 - side])[0]
        )

    def hosts(self, seconds: float, sequences: int) -> float:
        """With the host's part for the sequences of this lane [s]."""
        host = self.rule["step_host_s"] + self.rule["seq_host_s"] * sequences
        return float(max(seconds, host) if self.rule["overlapped"] else seconds + host)


class Prompts(Lane):
    """The lane to which requests come."""

    def begin(self, now_s: float) -> None:
        """Starts the next iteration of prompts, or idles."""
        (rank,) = self.ranks
        rank.fill()
        self.at, self.end_s, self.share = "idle", math.inf, 1.0
        if not rank.chunks:
            return
        mine = self.prompts()
        seconds = self.alone(mine, 1.0)
        if rank.decoding:
            other = self.answers()
            self.share = float(self.rule["split_share"]) or self.best(mine, other)
            if self.rule["split_slack"]:
                self.share = self.sided(mine, other, rank.used >= self.rule["split_fill"] * self.rule["capacity"])
            seconds = self.beside(mine, other, self.share)[0]
        self.asks = mine[3] / self.alone(mine, self.share)
        if sum(one.chunk for one in rank.chunks) > self.rule["prefill_graphs"]:
            seconds = max(seconds, float(self.rule["eager_s"]))
        self.at, self.end_s = "mixed", now_s + self.hosts(seconds, len(rank.chunks))


class Answers(Lane):
    """The lane that decodes."""

    def begin(self, now_s: float) -> None:
        """Starts the next step, or idles."""
        (rank,) = self.ranks
        assert isinstance(self.peer, Prompts)
        waiting = len(rank.queue)
        if rank.decoding:
            rank.make_growth_fit()
        if len(rank.queue) > waiting and self.peer.at == "idle":
            self.peer.begin(now_s)
        self.at, self.end_s = "idle", math.inf
        if not rank.decoding:
            return
        beside = self.peer.at == "mixed"
        share, asked = (1.0 - self.peer.share, self.peer.asks) if beside else (1.0, 0.0)
        mine = self.answers()
        own = self.alone(mine, share)
        seconds = max(own, mine[3] + asked * own)
        if not any(size >= len(rank.decoding) for size in self.graphs):
            seconds = max(seconds, float(self.rule["eager_s"]))
        self.at, self.end_s = "decode", now_s + self.hosts(seconds, len(rank.decoding))
