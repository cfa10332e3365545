"""Ranks of the slow simulator that keep parts of caches at each other; every loan is counted whenever it matters."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from reference_rank import Asked, Rank
from reference_serving import Instance


@dataclass(eq=False)
class Neighbour(Rank):
    """A rank that lends and borrows: `loans` of each of its requests, by who gives them [block]."""

    peers: list[Neighbour] = field(default_factory=list)  # all of the fleet, itself among them
    loans: dict[Asked, dict[Neighbour, int]] = field(default_factory=dict)
    own: dict[Asked, int] = field(default_factory=dict)
    taken: int = 0  # loans so far

    @property
    def size(self) -> int:
        """Tokens of a block."""
        return int(self.rule["block_tokens"])

    @property
    def lent(self) -> int:
        """Blocks that others hold here."""
        return sum(loan.get(self, 0) for peer in self.peers for loan in peer.loans.values())

    @property
    def guests(self) -> int:
        """Tokens of others that a step reads here."""
        decoding = [(peer, one) for peer in self.peers for one in peer.loans if one.stage == "decoding"]
        return sum(peer.loans[one].get(self, 0) * self.size for peer, one in decoding)

    @property
    def used(self) -> int:
        """Blocks in use, those of guests among them."""
        return self.lent + sum(self.own.get(one, one.block_count(self.rule)) for one in self.running)

    @property
    def growth(self) -> int:
        """Blocks that the next step needs; who has borrowed has all of its own."""
        grows = [one for one in self.decoding if one not in self.loans]
        return sum(one.block_count(self.rule, ahead=1) - one.block_count(self.rule) for one in grows)

    @property
    def context(self) -> float:
        """Tokens of cache that the next step reads here, but for guests."""
        away = {one: sum(loan.values()) * self.size for one, loan in self.loans.items()}
        return sum(max(0, one.needed - away.get(one, 0)) + 1 + one.steps for one in self.decoding)

    def lendable(self) -> int:
        """Blocks that it gives at once."""
        free = int(self.rule["capacity"]) - self.used - self.growth
        return max(0, math.floor(self.rule["lend_share"] * free))

    def has_room(self, one: Asked) -> tuple[bool, list[int], int, int]:
        """Whether a request fits without loans."""
        room, hits, taken, reserved = super().has_room(one)
        whole = one.most_blocks(self.rule, one.output)
        return (
            room and whole <= self.rule["capacity"] and self.used + taken <= self.rule["capacity"],
            hits,
            taken,
            reserved,
        )

    def admits(self, one: Asked) -> bool:
        """Takes a request in, with loans where it does not fit."""
        if super().admits(one):
            return True
        if len(self.running) >= self.rule["max_seqs"]:
            return False
        whole = one.most_blocks(self.rule, one.output)
        home = min(whole, self.lendable())
        missing = left = whole - home
        owes = sum(sum(loan.values()) for loan in self.loans.values())
        others = [(peer, peer.lendable()) for peer in self.peers if peer is not self]
        if missing <= 0 or owes + missing > self.rule["owe"] or sum(most for _, most in others) < missing:
            return False
        self.queue.remove(one)
        self.last_client = one.client
        if not one.charged:
            one.charged = True
            self.served[one.client] = self.served.get(one.client, 0.0) + one.prompt
        loan = {}
        for peer, most in sorted(others, key=lambda pair: -pair[1]):
            if left > 0 and most > 0:
                loan[peer] = min(left, most)
                left -= loan[peer]
        self.loans[one], self.own[one], one.reserved = loan, home, home
        self.taken += 1
        self.moved_s += min(missing * self.size, one.needed) * float(self.rule["lend_token_s"])
        self.running.append(one)
        one.ready, one.stage, one.steps = 0, "prefilling", 0
        return True

    def release(self, one: Asked) -> None:
        """Gives back the cache of a request, loans among it."""
        super().release(one)
        self.loans.pop(one, None)
        self.own.pop(one, None)

    def preempt(self) -> bool:
        """Sends the first to give way back, also where it is alone with guests."""
        victim = self.victim()
        if victim is None or (len(self.running) < 2 and not self.lent):
            return False
        self.send_back(victim)
        return True


@dataclass(eq=False)
class Lender(Instance):
    """An instance whose requests may lie in others, and theirs in it."""

    def elsewhere(self, rank: Rank, attention: float) -> float:
        """Attention here and elsewhere at once, queries and sums on their way, and that of guests [s]."""
        assert isinstance(rank, Neighbour)
        rule = self.rule
        asking = [loan for one, loan in rank.loans.items() if one.stage == "decoding"]
        far = sum(max(loan.values()) * rank.size for loan in asking) * rule["far_token_s"]
        asked = rule["ask_start_s"] + len(asking) * rule["ask_s"] if asking else 0.0
        return float(max(attention, far) + asked + rank.guests * rule["far_token_s"])

    def too_long(self, one: Asked, output: int) -> bool:
        """Whether all ranks together would not hold it."""
        (rank,) = self.ranks
        assert isinstance(rank, Neighbour)
        blocks, capacity = one.most_blocks(self.rule, output), int(self.rule["capacity"])
        each = math.floor(self.rule["lend_share"] * capacity)
        return blocks > capacity and (blocks > len(rank.peers) * each or blocks - each > self.rule["owe"])
