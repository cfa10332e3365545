"""A slow serving simulator in plain lists, one iteration at a time: the rival of the compiled clock.

Loads and batch sizes are counted at every event, and every decode step is an iteration of its own.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from reference_rank import MIXED, PREFILL_FIRST, Asked, Rank, Rule, read, read_two

Tables = Any  # `StepTables`

EACH_LOOK, WHEN_ALL = 0, 1


def ping_pong(attention: float, experts: float, send: float, micro: int, layers: int) -> float:
    """When the last micro-batch is back from the last layer, each resource serving first come, first served [s]."""
    free = dict.fromkeys(("attention", "out", "experts", "back"), 0.0)
    ready = [0.0] * micro
    for _ in range(layers):
        for each in range(micro):
            now = ready[each]
            for name, whole in (("attention", attention), ("out", send), ("experts", experts), ("back", send)):
                now = free[name] = max(now, free[name]) + whole / layers
            ready[each] = now
    return ready[-1]


def murmur(number: int) -> int:
    """The finalizer of MurmurHash3 for 32 bits."""
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35), (16, 1)):
        number = ((number ^ number >> shift) * factor) & 0xFFFFFFFF
    return number


@dataclass(eq=False)
class Instance:
    """One engine: ranks that step together."""

    kind: int
    rule: Rule
    tables: Tables
    graphs: Sequence[float]
    extra_s: float  # of every iteration, outside attention
    role: str
    ranks: list[Rank]
    at: str = "idle"
    end_s: float = math.inf
    peer: Instance | None = None  # the other lane of a split device
    done: int = 0  # iterations
    epoch: int = 0
    begun_s: float = 0.0
    ended_s: float = -1.0  # its last iteration
    formed_s: float = 0.0  # its last batch was made up, in the shadow of the one before or not
    chained: bool = False
    prompted: bool = False  # its last iteration had prompts
    count: int = 0  # iterations since its scheduler last looked for prompts, or since those it holds began to wait
    holding: bool = False
    last_arrival_s: float = 0.0
    merged: int = 1  # instances that compute a prompt together
    built: set[tuple[int, int]] = field(default_factory=set)  # ranks and numbers of tokens that had an iteration
    stood: int = 0  # iterations in which ranks stood

    def parts_s(self, tokens: float, shared: float, sampled: float, prompts: bool) -> tuple[float, float]:
        """What tokens and samples of one rank take outside attention, and what the experts take [s]."""
        t = self.tables
        lane = read(t.tokens, t.lane.mid, tokens) + self.extra_s
        group = t.prompt_group if prompts else t.group
        return lane + read(t.sequences, t.head.mid, sampled), read(t.tokens, group.mid, shared)

    def nano_s(
        self, tokens: float, shared: float, sampled: float, attention: float, running: float,
        prompts: float | None = None,
    ) -> float:  # fmt: skip
        """Nano-batches: the busiest resource, or one part's chain with its host, and what the host exposes [s].

        Of `tokens` of one rank beside the experts of `shared` of each, with attention of `prompts` where there are any.
        """
        t, rule = self.tables, self.rule
        c, m, n = (
            read(t.tokens, each.mid[0], tokens)
            + read(t.tokens, each.mid[1 if prompts is None else 2], shared)
            + read(t.sequences, head.mid, sampled)
            for each, head in (
                (t.nano.compute, t.nano.head_compute),
                (t.nano.memory, t.nano.head_memory),
                (t.nano.network, t.nano.head_network),
            )
        )
        c, own = c + (prompts or 0.0), m + attention
        together = c + rule["memory_sms"] * own + rule["link_sms"] * n
        alone = rule["chain"] * (c + own + n) + rule["chain_step_s"] + rule["chain_seq_s"] * running
        busy = m + rule["attention_memory"] * attention, n + rule["attention_link"] * attention
        return float(max(together, *busy, alone)) + self.extra_s

    def cut(self, tokens: float) -> bool:
        """Whether so many tokens a rank, in the mean, are cut in two."""
        least = max(2 if self.rule["chain"] else 1, self.rule["nano_tokens"])
        return bool(self.rule["nano_tokens"] and tokens >= least - 1e-9)

    def apart_s(self, attention: float, tokens: float, shared: float, sampled: float, prompts: bool) -> float:
        """Micro-batches that go back and forth, the slowest rank's attention of one at hand [s]."""
        t, rule = self.tables, self.rule
        send = read(t.tokens, t.attention_ffn.send.mid, tokens)
        experts = read(t.tokens, (t.prompt_group if prompts else t.group).mid, shared)
        micro = min(int(rule["micro_batches"]), int(max(tokens, 1)))
        seconds = ping_pong(attention, experts, send, micro, int(rule["expert_layers"]))
        return self.extra_s + read(t.sequences, t.head.mid, sampled) + seconds

    def hosted(self, seconds: float) -> float:
        """With the host's part [s]."""
        counts = [rank.places for rank in self.ranks]
        return self.with_host(seconds, max(*counts, sum(counts) * (self.rule["hops"] + 1) / len(counts), 0))

    def with_host(self, seconds: float, running: float) -> float:
        """With the host's part for so many sequences of one scheduler [s]."""
        host = self.rule["step_host_s"] + self.rule["seq_host_s"] * running
        masks = running * self.rule["mask_s"]
        if running > self.rule["mask_above"] and self.rule["mask_threads"]:
            masks /= self.rule["mask_threads"]
        seconds = max(seconds, masks) if self.rule["masks_beside"] else seconds + masks
        return float(max(seconds, host) if self.rule["overlapped"] else seconds + host)

    def decode_s(self) -> float:
        """One step of all decoding sequences [s]."""
        rule, t = self.rule, self.tables
        moving = [rank for rank in self.ranks if not rank.stands]
        busiest = max(moving, key=lambda rank: (len(rank.decoding), rank.context))
        batch = sequences = len(busiest.decoding)
        captured = [size for size in self.graphs if size >= sequences]
        batch = min(captured) if captured else sequences
        mean = max(sum(len(rank.decoding) for rank in moving) / len(self.ranks), 1.0)
        width = 1 + rule["drafted"]
        shared = mean * width * batch / sequences
        own, group = self.parts_s(batch * width, shared, batch, False)
        attention = read_two(t.sequences, t.contexts, t.decode.mid, sequences, busiest.context / sequences)
        seconds = own + group + self.elsewhere(busiest, attention)
        if self.cut(shared):
            attention = read_two(t.sequences, t.contexts, t.nano.decode.mid, sequences, busiest.context / sequences)
            seconds = self.nano_s(batch, shared, batch, attention, sequences)
        if rule["micro_batches"]:
            attention = read_two(t.sequences, t.contexts, t.decode.mid, sequences, busiest.context / sequences)
            attention += read(t.tokens, t.lane.mid, batch)
            seconds = self.apart_s(attention, batch, mean * batch / sequences, batch, False)
        filled = sum(bool(rank.decoding) for rank in moving) > 1
        drafting = seconds * rule["draft_share"] * self.last_stage(filled)
        if filled:
            seconds *= rule["balance"]
        seconds += drafting
        seconds += rule["hops"] * (rule["send_start_s"] + rule["send_s"] * batch * width)
        if not captured:
            seconds = max(seconds, rule["eager_s"])
        fetched = max(rank.fetch_s for rank in self.ranks)
        seconds = max(seconds, fetched + drafting if fetched else 0.0)  # drafts come after what is fetched
        return self.moved(self.hosted(seconds))

    def elsewhere(self, rank: Rank, attention: float) -> float:
        """Attention of a rank's decoding sequences, where a part of it is computed elsewhere [s]."""
        return attention

    def parts(self) -> None:
        """Its iteration has ended: who helped is free."""

    def too_long(self, one: Asked, output: int) -> bool:
        """Whether a request could never run here."""
        away = int(self.rule["host_tokens"])
        return bool(one.most_blocks(self.rule, output) > self.rule["capacity"] or (away and one.prompt + output > away))

    def moved(self, seconds: float) -> float:
        """With caches that move to or from the host, beside it or after it [s]."""
        moved_s = max(rank.moved_s for rank in self.ranks)
        return max(seconds, moved_s) if self.rule["beside"] else seconds + moved_s

    def last_stage(self, filled: bool) -> float:
        """Batches that wait for what the last stage alone does."""
        return float(self.rule["hops"] + 1 if filled else 1)

    def drafting_s(self, seconds: float) -> float:
        """What a draft takes beside an iteration with prompts: of its decoding sequences, and of the rest [s]."""
        rule, t = self.rule, self.tables
        busy = [rank for rank in self.ranks if rank.decoding and rule["scheduler"] == MIXED]
        width = 1 + rule["drafted"]
        step = 0.0
        for rank in busy:
            count = len(rank.decoding)
            attention = read_two(t.sequences, t.contexts, t.decode.mid, count, rank.context / count)
            step = max(step, self.parts_s(count * width, 1.0, count, True)[0] + attention)
        if busy:
            tokens = sum(len(rank.decoding) for rank in busy) * width
            step += self.parts_s(1.0, tokens / len(self.ranks), 1.0, True)[1]
        step = min(step, seconds)
        return float(rule["draft_share"] * step + rule["draft_prompt"] * (seconds - step))

    def widths(self, rank: Rank) -> list[int]:
        """Tokens that each of a rank's prompts takes of an iteration, padding among them."""
        chunks = [one.chunk for one in rank.chunks]
        return [max(chunks)] * len(chunks) if chunks and self.rule["padded"] else chunks

    def tokens_of(self, rank: Rank) -> int:
        """Tokens of a rank in an iteration with prompts."""
        decoding = len(rank.decoding) if self.rule["scheduler"] == MIXED else 0
        chunks = sum(math.ceil(one / self.merged) for one in self.widths(rank))
        return int(decoding * (1 + self.rule["drafted"])) + chunks

    def mixed_s(self) -> float:
        """One iteration with prompts [s]."""
        rule, t = self.rule, self.tables
        lanes, tokens_of, ones, halves, sampled = [0.0], [], [0.0], [0.0], 0
        mean = sum(map(self.tokens_of, self.ranks)) / len(self.ranks)
        cut = self.cut(mean)
        for rank in self.ranks:
            decoding = len(rank.decoding) if rule["scheduler"] == MIXED else 0
            chunks = [math.ceil(one.chunk / self.merged) for one in rank.chunks]
            tokens = self.tokens_of(rank)
            if not tokens:
                continue
            tokens_of.append(tokens)
            seconds, _ = self.parts_s(tokens, 1.0, decoding + len(rank.chunks), True)
            attention = 0.0
            if decoding:
                table = t.nano.decode if cut else t.decode
                attention = read_two(t.sequences, t.contexts, table.mid, decoding, rank.context / decoding)
            attention = self.elsewhere(rank, attention)
            seconds += attention
            shapes = [(width, one.seen(rule)) for width, one in zip(self.widths(rank), rank.chunks, strict=True)]
            first, each = ([read_two(t.chunks, t.pasts, table.mid, *shape) for shape in shapes]
                           for table in (t.first, t.each))  # fmt: skip
            prompts = max([*first, sum(each) if len(each) > 1 else 0.0], default=0.0) / self.merged
            if self.merged > 1:  # their parts of the cache go round meanwhile
                round_s = rule["ring_start_s"] + chunks[0] * rule["move_token_s"]
                prompts = max(prompts, (self.merged - 1) * round_s)
            seconds += prompts
            lanes.append(seconds)
            micro = min(int(rule["micro_batches"]), tokens) or 1
            ones.append(read(t.tokens, t.lane.mid, tokens) + attention + prompts / micro)
            sampled = max(sampled, decoding + len(rank.chunks))
            if cut:
                count = decoding + len(rank.chunks)
                halves.append(self.nano_s(tokens, mean, count, attention, count, prompts))
        seconds = max(halves) if cut else max(lanes) + self.parts_s(1.0, mean, 1.0, True)[1]
        if rule["micro_batches"]:
            seconds = self.apart_s(max(ones), max(tokens_of), mean, sampled, True)
        drafting = self.drafting_s(seconds) * self.last_stage(len(tokens_of) > 1)
        if len(tokens_of) > 1:
            seconds *= rule["balance"]
        if max(tokens_of) > rule["prefill_graphs"]:
            seconds = max(seconds, rule["eager_s"])
        seconds += rule["hops"] * (rule["send_start_s"] + rule["send_s"] * max(tokens_of))
        stored = [sum(self.widths(rank)) * rule["store_s"] for rank in self.ranks]
        fetched = [rank.fetch_s for rank in self.ranks if rule["scheduler"] == MIXED]
        seconds = max(seconds, *stored, *fetched) + drafting
        return self.moved(self.hosted(seconds))

    def pass_on_late(self, ended_s: float, launched_s: float) -> None:
        """First tokens of the iteration that has ended come once the one that follows is launched."""
        launched_s = min(launched_s, self.end_s)
        for one in [one for rank in self.ranks for one in rank.running]:
            if one.made == 1 and one.first_s == ended_s and launched_s > ended_s and not one.passed:
                one.first_s, one.passed = launched_s, True

    def build_s(self) -> float:
        """Compiling kernels for numbers of tokens that a rank has not had before [s]."""
        most = int(self.rule["token_budget"])
        now = set()
        for place, rank in enumerate(self.ranks):
            mixed = len(rank.decoding) * int(1 + self.rule["drafted"]) if self.rule["scheduler"] == MIXED else 0
            tokens = mixed + sum(self.widths(rank))
            now |= {(place, min(tokens, most))} if tokens else set()
        news = now - self.built
        self.built |= now
        return float(self.rule["build_s"]) if news else 0.0

    def redraw(self) -> None:
        """Priorities of a new epoch, and queues by them."""
        if not self.rule["redraws"] or self.epoch == self.done // self.rule["redraws"]:
            return
        self.epoch = self.done // self.rule["redraws"]
        for rank in self.ranks:
            for one in [*rank.queue, *rank.running]:
                one.priority = self.priority(one)
            rank.queue.sort(key=lambda one: one.priority)

    def priority(self, one: Asked) -> int:
        """What a request draws in the epoch that is."""
        value = ((one.number + 1) * 2654435761 + (self.epoch + 1) * 40503) % 2**32
        for _ in range(4):
            value = ((value ^ (value >> 15)) * 40503 + 2654435761) % 2**32
        return (value >> 16) % int(self.rule["levels"])

    def stand(self, may: bool) -> None:
        """Ranks that took sequences in stand in this iteration where they may, if another has some to step."""
        if not (may and any(rank.decoding and not rank.stands for rank in self.ranks)):
            for rank in self.ranks:
                rank.stands = 0
        self.stood += any(rank.stands for rank in self.ranks)

    def known_s(self, now_s: float) -> float:
        """Until when those came who may be taken now [s]."""
        rule = self.rule
        every = rule["receive_steps"]
        self.count += 1
        if not any(rank.decoding for rank in self.ranks):
            self.count, self.last_arrival_s, self.holding = 0, now_s, False
            return self.made_up_s(now_s)
        prepared_s = self.begun_s if rule["ahead"] else math.inf
        if every <= 1:
            return prepared_s
        if rule["holds"] == EACH_LOOK:
            before_s = self.last_arrival_s
            if self.prompted and rule["scheduler"] == PREFILL_FIRST:
                self.count = 0
                self.last_arrival_s = min(now_s, self.begun_s + rule["eager_s"]) if rule["ahead"] else now_s
                return self.last_arrival_s
            if self.count == every:
                self.count, self.last_arrival_s = 0, now_s
            return before_s if rule["ahead"] else self.last_arrival_s
        tokens = [[one.needed - one.ready for one in rank.queue if not one.late(prepared_s)] for rank in self.ranks]
        if rule["holds"] == WHEN_ALL:
            lets = all(rank.has_prompt(prepared_s) for rank in self.ranks) or not all(
                rank.decoding for rank in self.ranks
            )
            if lets or self.count == every:
                self.count = 0
                return prepared_s
            return -math.inf
        filled = max(
            sum(each) + len(rank.decoding) * (1 + rule["drafted"])
            for each, rank in zip(tokens, self.ranks, strict=True)
        )
        self.count = self.count if self.holding else 0
        self.holding = any(sum(each) for each in tokens) and filled < rule["enough"] and self.count < every
        return -math.inf if self.holding else prepared_s

    def made_up_s(self, now_s: float) -> float:
        """When the next batch of a pool of prompts was made up, if an iteration ends now and somebody was there [s]."""
        if self.role != "prefill" or not self.rule["ahead"] or not self.prompted or self.ended_s != now_s:
            return math.inf
        looks_s = self.formed_s + self.rule["eager_s"]  # the kernels of the last batch are launched
        if self.chained and looks_s < self.begun_s:
            looks_s = self.begun_s  # and the result of the one before it was there
        looks_s = min(looks_s, now_s)
        for rank in self.ranks:
            left = [one for one in rank.running if one.stage == "prefilling" and one.ready + one.chunk < one.needed]
            if left or any(not one.late(looks_s) and one.needed > one.ready for one in rank.queue):
                return float(looks_s)
        return math.inf

    def noticed_s(self, now_s: float) -> float:
        """When the result of an iteration that ends now is looked at: a batch behind it is launched before [s]."""
        behind_s = self.made_up_s(now_s)
        return now_s if behind_s == math.inf else max(now_s, behind_s + float(self.rule["eager_s"]))

    def begin(self, now_s: float) -> None:
        """Starts the next iteration, or idles."""
        self.redraw()
        follows, before_s = self.prompted and self.ended_s == now_s, self.begun_s
        known_s = self.known_s(now_s)
        for rank in self.ranks:
            rank.fill(known_s, now_s)
        if known_s < math.inf and not any(rank.chunks or rank.decoding for rank in self.ranks):
            known_s = math.inf
            for rank in self.ranks:
                rank.fill(known_s, now_s)
        self.chained, self.formed_s = known_s < math.inf, min(known_s, now_s)
        self.begun_s, self.prompted = now_s, any(rank.chunks for rank in self.ranks)
        if any(rank.chunks for rank in self.ranks):
            self.stand(False)
            built_s = self.build_s()
            self.at, self.end_s = "mixed", now_s + self.mixed_s() + built_s
            if follows and self.rule["late_results"]:
                self.pass_on_late(now_s, min(now_s, before_s + self.rule["eager_s"]) + self.rule["eager_s"] + built_s)
        elif any(rank.decoding for rank in self.ranks):
            for rank in self.ranks:
                if rank.decoding and self.rule["scheduler"] != MIXED:
                    rank.make_growth_fit()
            self.stand(True)
            self.at, self.end_s = "decode", now_s + self.decode_s()
        else:
            self.at, self.end_s = "idle", math.inf


@dataclass(eq=False)
class Fleet:
    """Everything that steps, and the clock."""

    instances: list[Instance]
    asked: list[Asked]
    router: str
    concurrency: int | None
    by_priority: bool
    coming: list[tuple[float, int, Asked]] = field(default_factory=list)
    next_turn: dict[str, int] = field(default_factory=lambda: {"new": 0, "moved": 0})
    started: int = 0
    serial: int = 0
    now_s: float = 0.0
    iterations: int = 0
    moves: int = 0
    peak_share: float = 0.0  # of any rank's cache
    keeps: Callable[[Asked], float] | None = None  # how long the cache of a turn is kept [s]
    kept: int = 0  # caches

    def run(self) -> Fleet:
        """Runs until nothing is left to happen."""
        free = [one for one in self.asked if one.after < 0]
        arrivals = free[: self.concurrency] if self.concurrency else free
        self.started = len(arrivals)
        while True:
            coming_s = self.coming_s()
            arrival_s = arrivals[0].arrival_s if arrivals else math.inf
            waits = min(coming_s, arrival_s) > self.now_s  # nothing else comes at this instant
            for instance in self.instances if waits else []:
                if instance.at == "idle":
                    instance.begin(self.now_s)
            coming_s = self.coming_s()
            ending = min(self.instances, key=lambda instance: instance.end_s)
            event_s = min(ending.end_s if waits else math.inf, coming_s, arrival_s)
            if event_s == math.inf:
                return self
            self.now_s = max(self.now_s, event_s)
            if waits and ending.end_s <= self.now_s:
                self.finish_iteration(ending)
            else:
                self.arrive(heapq.heappop(self.coming)[2] if coming_s <= self.now_s else arrivals.pop(0))

    def coming_s(self) -> float:
        """When the next arrives, or a cache has been kept for long enough [s]."""
        while self.coming and self.coming[0][2].stage == "ended" and not self.coming[0][2].kept:
            heapq.heappop(self.coming)
        return self.coming[0][0] if self.coming else math.inf

    def push(self, at_s: float, one: Asked) -> None:
        """Notes an arrival to come."""
        heapq.heappush(self.coming, (at_s, self.serial, one))
        self.serial += 1

    def end(self, one: Asked, stage: str) -> None:
        """Ends a request, and lets what waited for it come."""
        one.stage, one.end_s = stage, self.now_s
        if stage == "refused":
            self.elsewhere(one, None)
        for other in self.asked:
            if other.after == one.number:
                self.push(max(self.now_s + other.think_s, other.arrival_s), other)
        if self.concurrency and self.started < len(self.asked):
            self.push(self.now_s, self.asked[self.started])
            self.started += 1

    def leave(self, instance: Instance, rank: Rank, one: Asked) -> None:
        """Ends a request at its rank, whose cache may be kept for its session's next turn."""
        if instance.role != "decode" and one.goes_on:
            rank.publish(one, one.prompt + one.output - 1)
        seconds = self.keeps(one) if self.keeps and one.goes_on else 0.0
        if seconds > 0:
            one.kept = True
            rank.kept.append(one)
            self.kept += 1
            if seconds < math.inf:
                self.push(self.now_s + seconds, one)
        rank.release(one)
        self.end(one, "ended")

    def elsewhere(self, one: Asked, rank: Rank | None) -> None:
        """The cache of the turn before is not kept for one that does not come to it."""
        for other in self.asked:
            if other.number == one.follows and other.kept and other.home is not rank:
                other.home.stop_keeping(other)  # type: ignore[union-attr]

    def load(self, instance: Instance) -> int:
        """Requests of an instance that have not ended."""
        return sum(len(rank.queue) + len(rank.running) for rank in instance.ranks)

    def filled(self, instance: Instance) -> float:
        """Blocks in use after the last step that has ended, and of who waits, as a share of all [1]."""
        rule, blocks = instance.rule, 0.0
        for rank in instance.ranks:
            blocks += rank.used
            for one in rank.queue:
                blocks += one.needed / rule["block_tokens"]
        return float(blocks / (rule["capacity"] * len(instance.ranks)))

    def choose(self, pool: list[Instance], one: Asked, kind: str) -> Instance:
        """The instance that takes a request."""
        if self.router == "round-robin":
            order = self.instances[self.next_turn[kind] :] + self.instances
            chosen = next(instance for instance in order if instance in pool)
            self.next_turn[kind] = self.instances.index(chosen) + 1
            return chosen
        if self.router == "least-loaded":
            return min(pool, key=self.load)
        if self.router == "kv-usage":
            return min(pool, key=lambda each: (self.filled(each), self.load(each)))
        return min(pool, key=lambda each: (-max(rank.found(one) for rank in each.ranks), self.load(each)))

    def arrive(self, one: Asked) -> None:
        """A request, or its cache, reaches the fleet."""
        if one.stage == "ended":
            one.home.stop_keeping(one)  # type: ignore[union-attr]
            return
        kind = "moved" if one.stage == "moving" else "new"
        if kind == "moved":
            one.home.release(one)  # type: ignore[union-attr]
            one.needed = one.ready = one.prompt + one.made - 1
        elif one.stage == "outside":
            one.came_s = self.now_s
            if one.front_s > 0:
                one.stage = "coming in"
                self.push(self.now_s + one.front_s, one)
                return
        roles = ("decode",) if kind == "moved" else ("whole", "prefill")
        pool = [each for each in self.instances if each.role in roles]
        chosen = self.choose(pool, one, kind)
        output = 0 if chosen.role == "prefill" else one.output
        if chosen.too_long(one, output):
            self.end(one, "refused")
            return
        prefix = self.router == "prefix"
        one.home = min(
            chosen.ranks,
            key=lambda rank: (-rank.found(one) if prefix else 0, len(rank.queue) + rank.places),
        )
        if chosen.rule["draws_rank"]:
            one.home = chosen.ranks[murmur(one.number) % len(chosen.ranks)]
        self.elsewhere(one, one.home)
        one.stage = "waiting"
        if chosen.rule["redraws"]:
            one.priority = chosen.priority(one)
        queue = one.home.queue
        turn = one.home.turn(one, self.by_priority)
        queue.insert(sum(one.home.turn(other, self.by_priority) <= turn for other in queue), one)
        one.unseen = True

    def finish_iteration(self, instance: Instance) -> None:
        """Books what an iteration has done."""
        self.iterations += 1
        instance.done += 1
        mixed = instance.at == "mixed"
        instance.at, instance.end_s, instance.ended_s = "idle", math.inf, self.now_s
        noticed_s = instance.noticed_s(self.now_s)
        instance.parts()
        decodes = not mixed or instance.rule["scheduler"] == MIXED
        for rank in instance.ranks:
            for one in rank.decoding if decodes and not rank.stands else []:
                one.steps += 1
                rank.served[one.client] = rank.served.get(one.client, 0.0) + 2.0 * float(rank.rule["gained"])
            rank.evict(0)
            rank.moved_s = 0.0
            self.peak_share = max(self.peak_share, rank.used / int(rank.rule["capacity"]))
        for rank in instance.ranks:
            done = [one for one in rank.decoding if rank.rule["gained"] * one.steps >= one.output - one.made]
            for one in sorted(done, key=lambda one: one.number):
                one.made = one.output
                self.leave(instance, rank, one)
            for one in rank.chunks if mixed else []:
                self.prompt_step(instance, rank, one, noticed_s)
            rank.chunks = [] if mixed else rank.chunks
            for one in [] if mixed else rank.running:  # whose prompts were done during a step
                one.stage = "decoding" if one.stage == "joins" else one.stage

    def prompt_step(self, instance: Instance, rank: Rank, one: Asked, noticed_s: float) -> None:
        """A chunk of a prompt has been computed."""
        one.ready, one.chunk = one.ready + one.chunk, 0
        if one.ready < one.needed:
            return
        rank.publish(one, one.prompt)
        travels = instance.role == "prefill" and one.output > 1
        if one.made == 0 and not travels:
            one.first_s = self.now_s
        one.made += 1
        if one.made >= one.output:
            self.leave(instance, rank, one)
        elif instance.role == "prefill":
            one.stage = "moving"
            begin_s = max(noticed_s, rank.link_free_s)
            rank.link_free_s = begin_s + one.needed * float(instance.rule["move_token_s"])
            self.moves += 1
            self.push(rank.link_free_s + float(instance.rule["move_start_s"]), one)
        else:
            waits = instance.peer is not None and instance.peer.at == "decode"  # for the step that runs
            one.stage, one.steps = "joins" if waits else "decoding", 0
            if one.stays(rank.rule) < one.needed:
                goal = one.stays(rank.rule) + rank.rule["reserve"] * (one.output - one.made)
                one.reserved = int(-(-goal // rank.rule["block_tokens"]))
