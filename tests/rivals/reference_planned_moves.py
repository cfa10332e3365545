"""Ranks of the slow simulator that move caches of who decodes to each other by what both gain in tokens a second."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from reference_borrowing import Lender, Neighbour
from reference_rank import Asked, read_two


@dataclass(eq=False)
class Planner(Neighbour):
    """A rank that moves blocks of its longest request away; `moved` prompt blocks of each are counted apart."""

    debtor_batch: int = 0
    creditor_used: float = 0.0
    moves: int = 0

    def admits(self, one: Asked) -> bool:
        """Loans at admission are for who is longer than a rank."""
        if one.most_blocks(self.rule, one.output) > self.rule["capacity"]:
            return super().admits(one)
        return super(Neighbour, self).admits(one)

    def home(self, one: Asked) -> int:
        """Tokens of its prompt that are here."""
        return max(0, one.needed - sum(self.loans.get(one, {}).values()) * self.size)

    def short(self, one: Asked) -> int:
        """Blocks that it will need to its end and has not yet; none once it has borrowed."""
        return 0 if one in self.loans else one.most_blocks(self.rule, one.output) - one.block_count(self.rule)

    def move(self, one: Asked, peer: Neighbour, blocks: int) -> None:
        """Moves blocks of a request to a peer."""
        home = self.own.get(one, one.most_blocks(self.rule, one.output)) - blocks
        loan = self.loans.setdefault(one, {})
        loan[peer] = loan.get(peer, 0) + blocks
        self.own[one] = one.reserved = home
        self.taken, self.moves = self.taken + 1, self.moves + 1
        self.moved_s += blocks * self.size * float(self.rule["lend_token_s"])


@dataclass(eq=False)
class Debtor(Lender):
    """An instance that plans moves every so many iterations."""

    def begin(self, now_s: float) -> None:
        """Plans, then starts the next iteration."""
        (rank,) = self.ranks
        assert isinstance(rank, Planner)
        while self.done % int(self.rule["rearranges"]) == 0 and rank.queue and rank.decoding:
            one = max(rank.decoding, key=rank.home)
            plans = [(self.planned(rank, one, peer), peer) for peer in rank.peers if peer is not rank]
            blocks, peer = max(plans, key=lambda plan: plan[0])
            if blocks <= rank.short(one):
                break
            rank.move(one, peer, blocks)
        super().begin(now_s)

    def planned(self, rank: Planner, one: Asked, peer: Neighbour) -> int:
        """Blocks of `one` whose move makes the most tokens a second."""
        owes = sum(sum(loan.values()) for loan in rank.loans.values())
        most = min(rank.home(one) // rank.size, peer.lendable(), int(self.rule["owe"]) - owes)
        full = peer.used > rank.creditor_used * self.rule["capacity"]
        if len(rank.decoding) >= rank.debtor_batch or full or peer.queue:
            return 0
        options = [(0, self.pace(rank, 0, 0, 0, 0) + self.pace(peer, 0, 0, 0, 0))]
        for joined, tokens, blocks in self.joining(rank):
            moved = blocks + rank.short(one) if blocks > 0 else 0
            if moved > most:
                break
            away = moved * rank.size
            both = self.pace(rank, joined, tokens - away, away, 0) + self.pace(peer, 0, 0, 0, away)
            options.append((moved, both))
        return max(options, key=lambda option: option[1])[0]

    def joining(self, rank: Planner) -> Iterator[tuple[int, int, int]]:
        """How many who wait could join, with how many tokens, and the blocks that lack for them."""
        every, grow = int(self.rule["rearranges"]), [one for one in rank.decoding if one not in rank.loans]
        ahead = sum(one.block_count(self.rule, ahead=every) - one.block_count(self.rule) for one in grow)
        tokens, blocks = 0, rank.used + ahead + int(self.rule["kept_free"]) - int(self.rule["capacity"])
        for place, other in enumerate(rank.queue[: int(self.rule["max_seqs"]) - len(rank.running)]):
            tokens += other.needed
            blocks += -(-(other.needed + every) // rank.size)
            yield place + 1, tokens, blocks

    def pace(self, rank: Neighbour, joined: int, tokens: int, away: int, guests: int) -> float:
        """Tokens a second with so many sequences and tokens more [token/s]."""
        rule, t = self.rule, self.tables
        batch = sequences = len(rank.decoding) + joined
        if not sequences:
            return 0.0
        captured = [size for size in self.graphs if size >= sequences]
        batch = min(captured) if captured else sequences
        own, group = self.parts_s(batch, batch, batch, False)
        attention = read_two(t.sequences, t.contexts, t.decode.mid, sequences, (rank.context + tokens) / sequences)
        asking = [loan for one, loan in rank.loans.items() if one.stage == "decoding"]
        far = (sum(max(loan.values()) * rank.size for loan in asking) + away) * rule["far_token_s"]
        asks = len(asking) + (1 if away else 0)
        seconds = own + group + max(attention, far) + (rank.guests + guests) * rule["far_token_s"]
        seconds += rule["ask_start_s"] + asks * rule["ask_s"] if asks else 0.0
        seconds = max(seconds, 0.0 if captured else rule["eager_s"])
        seconds = self.with_host(seconds, sequences)
        return sequences / seconds if seconds > 0.0 else math.inf
