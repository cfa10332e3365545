"""One rank of the slow serving simulator: its queue, its cache and what it takes into an iteration, in plain lists.

Nothing is kept that can be counted again: blocks and contexts are sums over requests whenever they are asked for.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Rule = Any  # a record of `state.RULE`
PREFILL_FIRST, MIXED, STATIC = range(3)


def read(grid: np.ndarray, values: np.ndarray, at: float) -> float:
    """A table at one point: constant below the first grid point, linear beyond the last."""
    if at <= grid[-1] or len(grid) == 1:
        return float(np.interp(at, grid, values))
    slope = (values[-1] - values[-2]) / (grid[-1] - grid[-2])
    return float(values[-1] + slope * (at - grid[-1]))


def read_two(rows: np.ndarray, columns: np.ndarray, values: np.ndarray, row: float, column: float) -> float:
    """A table of two sizes at one point."""
    return read(rows, np.array([read(columns, line, column) for line in values]), row)


@dataclass(eq=False)
class Asked:
    """A request and what has become of it."""

    number: int
    prompt: int
    output: int
    priority: int
    arrival_s: float
    after: int
    think_s: float
    blocks: list[int]
    needed: int
    front_s: float = 0.0  # from the person to the scheduler
    client: int = 0
    charged: bool = False
    unseen: bool = True
    passed: bool = False  # its first token, late
    adapter: int = 0
    stage: str = "outside"
    ready: int = 0
    made: int = 0
    steps: int = 0
    hit: int = 0
    preempted: int = 0
    reserved: int = 0
    chunk: int = 0
    held: list[int] = field(default_factory=list)
    home: Rank | None = None
    follows: int = -1  # the turn before it
    goes_on: bool = False  # another turn follows
    kept: bool = False  # its cache, for that
    came_s: float = math.nan
    first_s: float = math.nan
    end_s: float = math.nan

    def late(self, known_s: float) -> bool:
        """Whether it came to the scheduler after a time, and is to be computed."""
        return self.came_s + self.front_s > known_s and self.ready < self.needed

    def stays(self, rule: Rule) -> int:
        """Tokens' worth of cache that stay when its prompt is done."""
        if not rule["kept"] and not rule["fetched"]:
            return self.needed
        return min(self.needed, int(rule["kept"] + rule["fetched"] + math.ceil(rule["held_share"] * self.needed)))

    def taken(self, rule: Rule, tokens: int) -> int:
        """Tokens of cache that so many of a prompt take while it is computed."""
        return min(tokens, int(rule["kept"] + rule["token_budget"])) if rule["early"] else tokens

    def seen(self, rule: Rule) -> int:
        """Tokens before its next chunk that it attends to."""
        return min(self.ready, int(rule["kept"])) if rule["early"] else self.ready

    def chosen(self, rule: Rule) -> tuple[float, int]:
        """Tokens' worth of cache that a step reads of its prompt, and those that it fetches."""
        some = rule["kept"] + rule["fetched"]
        if not some or self.needed <= some:
            return self.needed, 0
        return some + rule["read_share"] * self.needed, int(rule["fetched"])

    def block_count(self, rule: Rule, *, ahead: int = 0) -> int:
        """Blocks of its cache, `ahead` steps from now if it decodes."""
        size, steps = int(rule["block_tokens"]), self.steps + ahead
        if self.stage != "decoding":
            return -(-self.taken(rule, self.needed) // size)
        if rule["gained"] == 1.0:
            return -(-(self.stays(rule) + steps) // size)
        taken = len(range(self.first_growth(rule), steps, int(rule["period"])))
        return -(-self.stays(rule) // size) + taken * int(rule["growth_blocks"])

    def first_growth(self, rule: Rule) -> int:
        """Steps until its decoding needs a block, within the first period."""
        left = -self.stays(rule) % int(rule["block_tokens"])
        return min(int(left / rule["gained"]), int(rule["period"]) - 1)

    def most_blocks(self, rule: Rule, output: int) -> int:
        """Blocks of its cache at its end."""
        size = int(rule["block_tokens"])
        if rule["gained"] == 1.0:
            return -(-(self.taken(rule, self.prompt) + output) // size)
        steps = math.ceil(output / float(rule["gained"]))
        return -(-self.taken(rule, self.prompt) // size) + (steps // int(rule["period"]) + 1) * int(
            rule["growth_blocks"]
        )


@dataclass(eq=False)
class Rank:
    """A scheduler with its cache: queue and running requests in order, prefix blocks with their holders."""

    rule: Rule
    queue: list[Asked] = field(default_factory=list)
    running: list[Asked] = field(default_factory=list)
    holders: dict[int, int] = field(default_factory=dict)
    idle: OrderedDict[int, None] = field(default_factory=OrderedDict)  # the longest unused first
    chunks: list[Asked] = field(default_factory=list)
    moved_s: float = 0.0
    link_free_s: float = 0.0  # the last cache that it sends to another pool is there
    served: dict[int, float] = field(default_factory=dict)  # of each client, in weighted tokens
    last_client: int | None = None
    adapters: list[int] = field(default_factory=list)  # loaded ones, the longest unused first
    loads: int = 0
    helpers: int = 0  # instances that are free beside its own
    stands: int = 0  # sequences that it takes in, while others step
    host: OrderedDict[int, None] = field(default_factory=OrderedDict)  # prefix blocks there, the longest unused first
    kept: list[Asked] = field(default_factory=list)  # ended turns whose next one is to come
    returned: int = 0  # blocks that came back from the host
    given_up: int = 0  # kept caches, for room

    def loadable(self, one: Asked) -> bool:
        """Whether its adapter is there, or may take the place of one that nobody runs with."""
        held = {other.adapter for other in self.running}
        slots = int(self.rule["slots"])
        return not slots or one.adapter in self.adapters or len(held) < slots

    def use(self, adapter: int) -> None:
        """Moves an adapter to the newest end."""
        self.adapters = [*(other for other in self.adapters if other != adapter), adapter]

    def load(self, one: Asked) -> None:
        """Loads the adapter of a request that runs from now on, where it is absent."""
        slots = int(self.rule["slots"])
        if slots and one.adapter not in self.adapters:
            held = {other.adapter for other in self.running}
            if len(self.adapters) == slots:
                self.adapters.remove(next(other for other in self.adapters if other not in held))
            self.moved_s += float(self.rule["load_s"])
            self.loads += 1
        self.use(one.adapter)

    def see(self) -> None:
        """Clients of whom nothing was seen to wait are lifted to the least served of those who do, one by one."""
        for one in [one for one in self.queue if one.unseen]:
            clients = {other.client for other in self.queue if not other.unseen}
            waiting = clients or ({self.last_client} if self.last_client is not None else set())
            floor = min((self.served.get(client, 0.0) for client in waiting), default=0.0)
            if one.client not in clients:
                self.served[one.client] = max(self.served.get(one.client, 0.0), floor)
            one.unseen = False

    def next(self) -> Asked | None:
        """The first whose adapter may be loaded, or the first of the least served client among those as urgent."""
        found = [one for one in self.queue if self.loadable(one)]
        if not found or not self.rule["fair"]:
            return found[0] if found else None
        urgent = []
        for one in found:
            if one.priority != found[0].priority:
                break
            urgent.append(one)
        return min(urgent, key=lambda one: self.served.get(one.client, 0.0))

    def victim(self) -> Asked | None:
        """Who gives way first."""
        if self.rule["split"]:
            return self.decoding[-1] if self.decoding else None
        if not self.rule["displaces"]:
            return self.running[-1] if self.running else None
        found = [one for one in self.running if one.stage in ("prefilling", "decoding")]
        return max(reversed(found), key=lambda one: one.priority, default=None)

    def make_way(self, known_s: float) -> None:
        """The less urgent give way until who is next fits."""
        while self.queue:
            one, victim = self.next(), self.victim()
            if one is None or one.late(known_s) or victim is None:
                return
            if victim.priority <= one.priority or self.has_room(one)[0]:
                return
            self.send_back(victim)

    @property
    def each(self) -> int:
        """Cache blocks of a prefix block."""
        return int(self.rule["prefix_tokens"] // self.rule["block_tokens"])

    @property
    def decoding(self) -> list[Asked]:
        """The requests that gain tokens each step."""
        return [one for one in self.running if one.stage == "decoding"]

    @property
    def context(self) -> float:
        """Tokens of cache that the next step reads."""
        return sum(one.chosen(self.rule)[0] + 1 + self.rule["gained"] * one.steps for one in self.decoding)

    @property
    def fetch_s(self) -> float:
        """What comes from host memory in the next step [s]."""
        return float(sum(one.chosen(self.rule)[1] for one in self.decoding) * self.rule["fetch_s"])

    @property
    def used(self) -> int:
        """Blocks in use: everybody's own, and each shared one once."""
        own = sum(one.block_count(self.rule) - len(one.held) * self.each for one in self.running)
        return own + self.each * len(self.holders)

    @property
    def growth(self) -> int:
        """Blocks that the next step needs."""
        return sum(one.block_count(self.rule, ahead=1) - one.block_count(self.rule) for one in self.decoding)

    def found(self, one: Asked) -> int:
        """Leading prefix blocks of a prompt in the cache, such that a token is left to compute."""
        if not self.rule["prefix_tokens"]:
            return 0
        most = min(len(one.blocks), (one.needed - 1) // int(self.rule["prefix_tokens"]))
        for place, block in enumerate(one.blocks[:most]):
            if block not in self.holders and block not in self.idle and block not in self.host:
                return place
        return most

    def evict(self, blocks: int) -> None:
        """Forgets idle prefix blocks until `blocks` more fit."""
        while self.idle and self.used + len(self.idle) * self.each + blocks > self.rule["capacity"]:
            block, _ = self.idle.popitem(last=False)
            if self.rule["host_blocks"]:
                self.host[block] = None
            if len(self.host) * self.each > self.rule["host_blocks"]:
                self.host.popitem(last=False)

    def publish(self, one: Asked, tokens: int) -> None:
        """Whole prefix blocks of so many computed tokens are found by others, up to one that is there already."""
        size = int(self.rule["prefix_tokens"])
        for block in one.blocks[len(one.held) : tokens // size if size else 0]:
            if block in self.holders or block in self.idle:
                break
            self.host.pop(block, None)
            self.holders[block] = 1
            one.held.append(block)

    def give_up(self) -> None:
        """The cache that is kept for longest makes room."""
        self.given_up += 1
        self.stop_keeping(self.kept[0])

    def stop_keeping(self, one: Asked) -> None:
        """What was kept for a next turn may be taken."""
        self.kept.remove(one)
        one.kept = False
        self.let_go(one)

    def release(self, one: Asked) -> None:
        """Gives back the cache of a request, the end of its prefix first."""
        self.running.remove(one)
        self.use(one.adapter)
        if not one.kept:
            self.let_go(one)
        one.reserved, one.chunk = 0, 0

    def let_go(self, one: Asked) -> None:
        """Gives back the prefix blocks of a request."""
        for block in reversed(one.held):
            self.holders[block] -= 1
            if not self.holders[block]:
                del self.holders[block]
                self.idle[block] = None
        one.held = []

    @property
    def places(self) -> int:
        """Running requests that hold a place: those whose cache is on its way may not."""
        return sum(one.stage != "moving" or bool(self.rule["moving_holds"]) for one in self.running)

    def has_room(self, one: Asked) -> tuple[bool, list[int], int, int]:
        """Whether a waiting request fits; the prefix blocks that it finds, the blocks it takes and sets aside."""
        rule = self.rule
        if self.places >= rule["max_seqs"] or not self.loadable(one):
            return False, [], 0, 0
        away = sum(other.needed for other in self.running)
        if rule["host_tokens"] and away + one.needed > rule["host_tokens"]:
            return False, [], 0, 0
        computed = one.ready == one.needed
        hits = [] if computed else one.blocks[: self.found(one)]
        taken = one.block_count(rule) - self.each * sum(block in self.holders for block in hits)
        grows = self.growth if rule["scheduler"] == MIXED or computed or rule["split"] else 0
        if computed and one.first_growth(rule) == 0:
            grows += int(rule["growth_blocks"])  # it decodes at once
        kept = int(rule["kept_free"]) if self.places else 0
        goal = one.taken(rule, one.needed) + rule["reserve"] * (one.output - one.made)
        reserved = int(-(-goal // rule["block_tokens"]))
        full = bool(self.running or self.kept) and self.used + grows + taken + kept > rule["capacity"]
        promised = sum(other.reserved for other in self.running) + reserved
        full = full or bool(self.places and promised > rule["capacity"])
        return not full, hits, taken, reserved

    def has_prompt(self, known_s: float) -> bool:
        """Whether a prompt is computed in part, or the next who waits came by then and fits."""
        if any(one.stage == "prefilling" for one in self.running):
            return True
        one = self.next() if self.queue else None
        return one is not None and not one.late(known_s) and one.ready < one.needed and self.has_room(one)[0]

    def admits(self, one: Asked) -> bool:
        """Takes a waiting request in, if its whole prompt fits."""
        rule = self.rule
        room, hits, taken, reserved = self.has_room(one)
        while not room:
            if not self.kept or self.places:
                return False
            self.give_up()
            room, hits, taken, reserved = self.has_room(one)
        computed = one.ready == one.needed
        self.queue.remove(one)
        self.last_client = one.client
        self.load(one)
        if not one.charged:
            one.charged = True
            self.served[one.client] = self.served.get(one.client, 0.0) + one.prompt
        for block in hits:
            self.idle.pop(block, None)
            if block in self.host:
                del self.host[block]
                self.returned += 1
                self.moved_s += rule["prefix_tokens"] * rule["swap_token_s"]
            self.holders[block] = self.holders.get(block, 0) + 1
        one.held, one.reserved = list(hits), reserved
        self.evict(taken - self.each * (len(hits) - sum(self.holders[block] > 1 for block in hits)))
        self.running.append(one)
        for other in [other for other in self.kept if other.number == one.follows]:
            self.stop_keeping(other)
        if not computed:
            one.ready = len(hits) * int(rule["prefix_tokens"])
            one.hit += one.ready
        one.stage = "decoding" if computed else "prefilling"
        one.steps = 0
        return True

    def preempt(self) -> bool:
        """Sends the first to give way back to the queue, unless it is alone."""
        victim = self.victim()
        if self.places < 2 or victim is None:
            return False
        self.send_back(victim)
        return True

    def send_back(self, one: Asked) -> None:
        """Sends a running request back to the head of the queue, or of those as urgent."""
        decoded = one.stage == "decoding"
        if decoded:
            one.made = min(one.output, one.made + math.floor(self.rule["gained"] * one.steps))
        self.release(one)
        swapped = decoded and self.rule["swaps"]
        one.needed = one.prompt + one.made - (1 if swapped else 0)
        one.ready = one.needed if swapped else 0
        if swapped:
            self.moved_s += 2.0 * self.rule["swap_token_s"] * one.needed
        one.stage, one.steps = "waiting", 0
        one.preempted += 1
        urgent = bool(self.rule["displaces"])
        turn = self.turn(one, urgent)
        self.queue.insert(sum(self.turn(other, urgent) < turn for other in self.queue), one)

    def turn(self, one: Asked, urgent: bool) -> tuple[float, float]:
        """Where a request belongs in the queue: by urgency if that counts, by its length and age if they do."""
        shortest = bool(self.rule["shortest"])
        length = one.prompt + self.rule["patience"] * one.came_s if shortest else 0.0
        return (one.priority if urgent or shortest else 0, float(length))

    def make_growth_fit(self) -> None:
        """Preempts until the next step's blocks are free."""
        while self.used + self.growth > self.rule["capacity"]:
            if self.kept:
                self.give_up()
            elif not self.preempt():
                return

    def fill(self, known_s: float = math.inf, now_s: float = math.nan) -> None:
        """Chooses the chunks of the next iteration, of those who came by then; first tokens come with caches."""
        rule = self.rule
        self.chunks, self.stands = [], 0
        self.see()
        if rule["scheduler"] == STATIC and self.places and not self._cut():
            return
        mixes = rule["scheduler"] == MIXED
        budget = left = int(rule["token_budget"])
        if mixes:
            self.make_growth_fit()
        if rule["displaces"] and rule["scheduler"] != STATIC:
            self.make_way(known_s)
        if mixes:
            left -= int(len(self.decoding) * (1 + rule["drafted"]))
        decodes = left < budget
        begun = [one for one in self.running if one.stage == "prefilling"]
        for one in begun:
            if left > 0:
                left -= self._chunk(one, min(left, one.needed - one.ready))
        while left > 0 and self.queue and not self._cut():
            if rule["displaces"] and rule["scheduler"] != STATIC and not self.chunks:
                self.make_way(known_s)
            one = self.next()
            if one is None or one.late(known_s):
                break
            tokens = one.needed - max(one.ready, self.found(one) * int(rule["prefix_tokens"]))
            merges = self.merges(tokens)
            if merges and self.chunks:
                break
            alone = not self.chunks and (not decodes or tokens > budget)
            if not rule["chunked"] and not merges and tokens > left and not alone:
                break
            if not self.admits(one):
                break
            if one.stage == "decoding":
                one.first_s = now_s if math.isnan(one.first_s) else one.first_s
                self.stands += int(rule["stands"])
                left -= 1 if mixes else 0
                continue
            tokens = one.needed - one.ready
            left -= self._chunk(one, min(tokens, left) if rule["chunked"] and not merges else tokens)

    def merges(self, tokens: int) -> bool:
        """Whether others are free to compute so many tokens with it."""
        return 0 < self.rule["elastic"] <= tokens and self.helpers > 0

    def _chunk(self, one: Asked, tokens: int) -> int:
        one.chunk = tokens
        self.chunks.append(one)
        return tokens

    def _cut(self) -> bool:
        """Whether a prompt will be left computed in part."""
        return any(one.stage == "prefilling" and one.ready + one.chunk < one.needed for one in self.running)
