"""One rank of a run: real training steps or a static batch, timed by phase and seen by PyTorch's profiler.

Run as `python -m ridgeline.run.rank REQUEST RANK PARENT`.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import sys
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import distributed
from torch.profiler import ProfilerActivity, profile, record_function

from ridgeline.run.decoder import loss_of
from ridgeline.run.divide import DividedModel, divide
from ridgeline.run.mapping import DecoderShape, Execution

_KINDS = ("reduce_scatter", "all_gather", "all_reduce", "all_to_all", "broadcast", "send", "recv")
_BACKENDS = ("gloo:", "nccl:")
_STEP = "ridgeline step"
_MEMORY = "[memory]"
_DEVICE = "gpu_user_annotation"  # the same spans as the device saw them


def observe(begin: Callable[[], Callable[[int], object]], *, kind: str, steps: int) -> dict[str, Any]:
    """Builds what runs and runs `steps` of it: `tensor_bytes` at their peak, `spans` of collectives by step.

    Everything is allocated under the profiler, so the running total of PyTorch's allocator is that of all tensors; on
    a GPU the allocator counts by itself. Times are those of the machine's clock [s], equal for all its processes.
    """
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if kind == "cuda" else [])]
    with profile(activities=activities, profile_memory=kind == "cpu") as seen:
        run = begin()
        for step in range(steps):
            with record_function(_STEP):
                run(step)
    with TemporaryDirectory() as folder:
        path = Path(folder, "trace.json")
        seen.export_chrome_trace(str(path))
        trace = json.loads(path.read_text(encoding="utf-8"))
    return {"tensor_bytes": _peak_bytes(trace["traceEvents"]), "spans": _spans(trace)}


def _peak_bytes(events: list[dict[str, Any]]) -> int:
    told = (event["args"]["Total Allocated"] for event in events if event["name"] == _MEMORY)
    return int(max(told, default=0))


def _spans(trace: dict[str, Any]) -> list[list[tuple[str, float, float]]]:
    """Kind, begin and end [s] of each collective of a step, by step."""
    base_s = float(trace.get("baseTimeNanoseconds", 0)) * 1e-9
    timed = [event for event in trace["traceEvents"] if event.get("ph") == "X"]
    on_device = any(event.get("cat") == _DEVICE and _kind(event["name"].lower()) for event in timed)
    hosts = [event for event in timed if event.get("cat") != _DEVICE]
    steps = sorted((event["ts"], event["ts"] + event["dur"]) for event in hosts if event["name"] == _STEP)
    found: list[list[tuple[str, float, float]]] = [[] for _ in steps]
    for event in [one for one in timed if one.get("cat") == _DEVICE] if on_device else hosts:
        kind = _kind(event["name"].lower())
        for place, (first, last) in enumerate(steps):
            if kind and first <= event["ts"] <= last:
                begin = base_s + event["ts"] * 1e-6
                found[place].append((kind, begin, begin + event["dur"] * 1e-6))
    return found


def _kind(name: str) -> str:
    """The kind of collective that an event of a backend is, '' for other events."""
    if not name.startswith(_BACKENDS):
        return ""
    name = name.replace("allgather", "all_gather").replace("allreduce", "all_reduce")
    name = name.replace("alltoall", "all_to_all")
    return next((one for one in _KINDS if one in name), "")


class Generator:
    """Answers a batch of random prompts greedily and keeps the seconds of each phase."""

    def __init__(self, divided: DividedModel, *, batch: int, prompt: int, output: int, seed: int) -> None:
        self.divided, self.batch, self.prompt, self.output, self.seed = divided, batch, prompt, output, seed
        self.phases: dict[str, float] = {}
        divided.module.eval()

    def step(self, number: int) -> float:
        """One batch; fills `phases` [s] and gives the sum of the generated tokens, equal on every rank."""
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + number)
        vocab = self.divided.asked.shape.vocab
        tokens = torch.randint(vocab, (self.batch, self.prompt), generator=generator).to(self.divided.device)
        caches: list[list[Any]] = [[] for _ in self.divided.module.layers]
        if distributed.is_initialized():
            distributed.barrier()
        now = self.divided.watch.now
        begin = now()
        with torch.no_grad():
            chosen = self._next(tokens, 0, caches)
            filled, total = now(), int(chosen.sum())
            for place in range(self.prompt, self.prompt + self.output - 1):
                chosen = self._next(chosen, place, caches)
                total += int(chosen.sum())
        end = now()
        steps = max(1, self.output - 1)
        self.phases = {"prefill": filled - begin, "decode step": (end - filled) / steps, "batch": end - begin}
        return float(total)

    def _next(self, tokens: Any, start: int, caches: list[list[Any]]) -> Any:
        """The likeliest next token of each sequence, (B, 1); logits of the last position only are gathered."""
        last = self.divided.module(tokens, start, caches)[:, -1:]
        whole = last.full_tensor() if hasattr(last, "full_tensor") else last
        return whole.argmax(dim=-1)


_WARM_UP = 2
_OBSERVED = 3  # steps under the profiler; the first one makes the optimizer's states and is no measure of time


class Stepper:
    """Runs steps of a divided model and keeps the seconds of each phase."""

    def __init__(self, divided: DividedModel, seed: int) -> None:
        self.divided, self.seed = divided, seed
        self.phases: dict[str, float] = {}

    def tokens(self, step: int) -> Any:
        """This rank's part of its sequences of a step, and one token more; all ranks draw the same global batch."""
        asked = self.divided.asked
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + step)
        mine = asked.micro_batch * asked.micro_batches
        whole = torch.randint(asked.shape.vocab, (mine * asked.dp, asked.seq_len + 1), generator=generator)
        place = self.divided.coordinate("dp")
        length = asked.seq_len // asked.cp
        begin = self.divided.coordinate("cp") * length
        return whole[place * mine : (place + 1) * mine, begin : begin + length + 1].to(self.divided.device)

    def step(self, step: int) -> float:
        """One step; fills `phases` [s] and gives the loss of this rank's sequences, NaN where another rank has it."""
        divided, tokens = self.divided, self.tokens(step)
        if distributed.is_initialized():
            distributed.barrier()
        watch = divided.watch
        watch.seconds.clear()
        begin = watch.now()
        loss = self._pipelined(tokens) if divided.schedule is not None else self._plain(tokens)
        done = watch.now()
        divided.exchange()
        exchanged = watch.now()
        divided.optimizer.step()
        divided.optimizer.zero_grad(set_to_none=True)
        end = watch.now()
        forward_s = watch.seconds["forward"]
        self.phases = {
            "forward": forward_s,
            "backward": done - begin - forward_s,
            "computing": sum(watch.seconds.values()),
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
                loss = divided.watch.timed("forward", self._loss)(part) / len(parts)
                divided.watch.timed("backward", loss.backward)()
            total += float(loss.detach())
        return total

    def _loss(self, part: Any) -> Any:
        with self.divided.cast():
            return loss_of(self.divided.module(part[:, :-1]), part[:, 1:])

    def _pipelined(self, tokens: Any) -> float:
        divided, stage = self.divided, self.divided.coordinate("pp")
        losses: list[Any] = []
        words: dict[str, Any] = {}
        if stage == divided.asked.pp - 1:
            words = {"target": tokens[:, 1:], "losses": losses}
        with divided.loss_context(), divided.cast():
            divided.schedule.step(*([tokens[:, :-1]] if stage == 0 else []), return_outputs=False, **words)
        return float(torch.stack([one.detach() for one in losses]).mean()) if losses else float("nan")


def main(request: str, rank: int, parent: int) -> None:
    """Runs the request as one rank of `parent`'s; the first one writes the answer of all beside the request."""
    told = json.loads(Path(request).read_text(encoding="utf-8"))
    asked = Execution(**{**told["execution"], "shape": DecoderShape(**told["execution"]["shape"])})
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
    stepper = _begin(asked, told, device)
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
        "stage": stepper.divided.coordinate("pp"),
        "grown_bytes": peak_bytes(device) - start_bytes,
    }
    del stepper
    gc.collect()
    steps = _OBSERVED if told["generate"] is None else 1
    mine |= observe(lambda: _begin(asked, told, device).step, kind=device.type, steps=steps)
    if device.type == "cuda":
        mine["tensor_bytes"] = mine["grown_bytes"]
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


def _begin(asked: Execution, told: Mapping[str, Any], device: Any) -> Stepper | Generator:
    """What runs the steps of a request on this rank, with fresh weights."""
    divided = divide(asked, device, told["seed"])
    if told["generate"] is None:
        return Stepper(divided, told["seed"])
    return Generator(divided, seed=told["seed"], **told["generate"])


def peak_bytes(device: Any) -> int:
    """Most memory held so far: by the allocator on a GPU, by the process on a processor [byte]."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    unit = 1 if sys.platform == "darwin" else 1024
    return int(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) * unit


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
