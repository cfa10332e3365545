"""One rank of a static batch: prompts are read, tokens are generated one by one with a cache of keys and values."""

from __future__ import annotations

from typing import Any

import torch
from torch import distributed

from ridgeline.run.divide import Divided


class Generator:
    """Answers a batch of random prompts greedily and keeps the seconds of each phase."""

    def __init__(self, divided: Divided, *, batch: int, prompt: int, output: int, seed: int) -> None:
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
