"""One rank of a run: real training steps, timed by phase. Run as `python -m ridgeline.run.rank REQUEST RANK`."""

from __future__ import annotations

import json
import os
import resource
import sys
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch import distributed

from ridgeline.run.decoder import loss_of
from ridgeline.run.divide import Divided, divide
from ridgeline.run.generate import Generator
from ridgeline.run.mapping import Execution, Shape

_WARM_UP = 2
_KINDS = ("reduce_scatter", "all_gather", "allgather", "all_reduce", "allreduce", "all_to_all", "send", "recv")


class Stepper:
    """Runs steps of a divided model and keeps the seconds of each phase."""

    def __init__(self, divided: Divided, seed: int) -> None:
        self.divided, self.seed = divided, seed
        self.phases: dict[str, float] = {}
        self.forward_s = 0.0
        if divided.schedule is not None:
            divided.module.register_forward_pre_hook(self._enter)
            divided.module.register_forward_hook(self._leave)

    def _enter(self, *_: Any) -> None:
        self.begin = self.now()

    def _leave(self, *_: Any) -> None:
        self.forward_s += self.now() - self.begin

    def now(self) -> float:
        """Seconds on the clock once the device is done."""
        if self.divided.device.type == "cuda":
            torch.cuda.synchronize()
        return perf_counter()

    def tokens(self, step: int) -> Any:
        """This rank's sequences of a step, S + 1 tokens each; all ranks draw the same global batch."""
        asked = self.divided.asked
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + step)
        mine = asked.micro_batch * asked.micro_batches
        whole = torch.randint(asked.shape.vocab, (mine * asked.dp, asked.seq_len + 1), generator=generator)
        place = self.divided.coordinate("dp")
        return whole[place * mine : (place + 1) * mine].to(self.divided.device)

    def step(self, step: int) -> float:
        """One step; fills `phases` [s] and gives the loss of this rank's sequences, NaN where another rank has it."""
        divided, tokens = self.divided, self.tokens(step)
        if distributed.is_initialized():
            distributed.barrier()
        self.forward_s = 0.0
        begin = self.now()
        loss = self._pipelined(tokens) if divided.schedule is not None else self._plain(tokens)
        done = self.now()
        divided.exchange()
        exchanged = self.now()
        divided.optimizer.step()
        divided.optimizer.zero_grad(set_to_none=True)
        end = self.now()
        self.phases = {
            "forward": self.forward_s,
            "backward": done - begin - self.forward_s,
            "gradient exchange": exchanged - done,
            "optimizer": end - exchanged,
            "step": end - begin,
        }
        return loss

    def _plain(self, tokens: Any) -> float:
        divided, asked, total = self.divided, self.divided.asked, 0.0
        parts = tokens.split(asked.micro_batch)
        for number, part in enumerate(parts):
            last = number == len(parts) - 1
            waits = nullcontext() if last or asked.data not in ("ddp", "zero-1") else divided.module.no_sync()
            with waits, divided.loss_context():
                begin = self.now()
                with divided.cast():
                    loss = loss_of(divided.module(part[:, :-1]), part[:, 1:]) / len(parts)
                self.forward_s += self.now() - begin
                loss.backward()
            total += float(loss.detach())
        return total

    def _pipelined(self, tokens: Any) -> float:
        divided, stage = self.divided, self.divided.coordinate("pp")
        losses: list[Any] = []
        words: dict[str, Any] = {}
        if stage == divided.asked.pp - 1:
            words = {"target": tokens[:, 1:], "losses": losses}
        with divided.loss_context(), divided.cast():
            divided.schedule.step(*([tokens[:, :-1]] if stage == 0 else []), **words)
        return float(torch.stack([one.detach() for one in losses]).mean()) if losses else float("nan")


def collectives(stepper: Stepper | Generator, step: int) -> dict[str, dict[str, float]]:
    """Calls and seconds of each kind of collective in one step on this rank, seen by PyTorch's profiler."""
    from torch.profiler import ProfilerActivity, profile

    activities = [ProfilerActivity.CPU]
    if stepper.divided.device.type == "cuda":
        activities.append(ProfilerActivity.CUDA)
    with profile(activities=activities) as seen:
        stepper.step(step)
    found: dict[str, dict[str, float]] = {}
    for event in seen.events():
        name = event.name.lower()
        if not name.startswith(("gloo:", "nccl:")):
            continue
        kind = next((one for one in _KINDS if one in name), name)
        kind = {"allgather": "all_gather", "allreduce": "all_reduce"}.get(kind, kind)
        entry = found.setdefault(kind, {"calls": 0, "seconds": 0.0})
        entry["calls"] += 1
        entry["seconds"] += float(event.time_range.elapsed_us()) / 1e6
    return found


def main(request: str, rank: int) -> None:
    """Runs the request as one rank; the first one writes the answer of all beside the request."""
    told = json.loads(Path(request).read_text(encoding="utf-8"))
    parent = os.getppid()
    asked = Execution(**{**told["execution"], "shape": Shape(**told["execution"]["shape"])})
    device = torch.device("cpu" if told["device"] == "cpu" else f"cuda:{rank}")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(max(1, told["threads"] // asked.ranks))
    if asked.ranks > 1:
        distributed.init_process_group(
            "gloo" if device.type == "cpu" else "nccl",
            init_method=f"file://{Path(request).parent / 'meeting'}",
            rank=rank,
            world_size=asked.ranks,
            timeout=timedelta(seconds=told["limit_s"]),
        )
    start_bytes = peak_bytes(device)
    divided = divide(asked, device, told["seed"])
    stepper: Stepper | Generator
    if told["generate"] is None:
        stepper = Stepper(divided, told["seed"])
    else:
        stepper = Generator(divided, seed=told["seed"], **told["generate"])
    losses, phases = [], []
    for step in range(_WARM_UP + told["repeats"]):
        losses.append(stepper.step(step))
        if step >= _WARM_UP:
            phases.append(stepper.phases)
        if os.getppid() != parent:  # whoever asked is gone
            os._exit(1)
    mine = {
        "losses": losses,
        "phases": phases,
        "start_bytes": start_bytes,
        "peak_bytes": peak_bytes(device),
        "collectives": collectives(stepper, _WARM_UP + told["repeats"]) if asked.ranks > 1 else {},
        "stage": divided.coordinate("pp"),
    }
    everyone: list[Any] = [mine]
    if asked.ranks > 1:
        everyone = [None] * asked.ranks
        distributed.all_gather_object(everyone, mine)
    if rank == 0:
        Path(request).with_name("answer.json").write_text(json.dumps(everyone), encoding="utf-8")
    if asked.ranks > 1:
        distributed.barrier()
        sys.stderr.flush()
        os._exit(0)  # threads of gloo may abort a process that tears them down while a peer still speaks


def peak_bytes(device: Any) -> int:
    """Most memory held so far: of the allocator on a GPU, of the process on a processor [byte]."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    unit = 1 if sys.platform == "darwin" else 1024
    return int(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) * unit


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
