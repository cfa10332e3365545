"""What an allocator reserves, what updates and losses hold besides; worked out by hand."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ridgeline.graph.build import from_dims
from ridgeline.graph.workload import Workload
from ridgeline.memory.stage import reserved_bytes, stage_memory
from ridgeline.report.report import StageMemory
from ridgeline.seams.loss import Logits, cross_entropy

GRAPH = from_dims(layers=2, hidden=64, heads=2, vocab=1024, ffn=256, positions="rope").graph
HELD = {"weights": 4e9, "gradients": 2e9, "optimizer": 8e9, "activations": 5e9, "logits": 2e9, "buffers": 1e9}


def test_the_allocator_keeps_a_share_of_what_comes_and_goes() -> None:
    """(5 + 2 + 1) GB at a share of 0.35: 2.8 GB; states cause none."""
    assert reserved_bytes(HELD, 0.35) == pytest.approx(2.8e9)


@pytest.mark.parametrize(("capacity", "reserved"), [(80e9, 24.8e9), (23e9, 23e9), (20e9, 22e9)])
def test_no_more_is_reserved_than_the_device_has(capacity: float, reserved: float) -> None:
    """22 GB in use: 24.8 GB are shown where there is room, 23 GB on a device of as many."""
    stage = StageMemory(stage=0, categories=HELD, capacity_bytes=capacity, reserved_share=0.35)
    assert stage.reserved_bytes == pytest.approx(reserved)


def test_chunks_of_the_vocabulary_hold_16_bytes_an_entry_and_the_hidden_gradient() -> None:
    """1000 tokens, chunks of 2048 entries: 1000 * (2048 * (2 * 2 + 3 * 4) + 512 * 2) bytes, whatever the vocabulary."""
    logits = Logits(
        tokens=np.asarray(1000.0), vocab=150_000, share=np.asarray(1.0), hidden=512, element_bytes=2.0,
        waiting=np.asarray(0.0), copies=1.0, fp32_copies=4.0, eager=True,
    )  # fmt: skip
    loss = cross_entropy("vocabulary-chunks")
    assert float(np.asarray(loss.held_bytes(logits))) == pytest.approx(1000 * (2048 * 16 + 1024))
    assert loss.logits_again() == 1.0


def head(tokens: float, vocab: int, hidden: int) -> Logits:
    return Logits(
        tokens=np.asarray(tokens), vocab=vocab, share=np.asarray(1.0), hidden=hidden, element_bytes=2.0,
        waiting=np.asarray(0.0), copies=0.0, fp32_copies=3.0, eager=True,
    )  # fmt: skip


@pytest.mark.parametrize(("chunk", "measured"), [(64, 28.44e6), (128, 34.87e6), (256, 55.84e6), (512, 98.04e6)])
def test_chunks_of_tokens_hold_an_fp32_head(chunk: int, measured: float) -> None:
    """2048 tokens, 8192 words, D = 256: peaks of backward in PyTorch 2.13 for TRL's loss, the head's gradient (4.19 MB)
    among them, but not the hidden states in order (1.05 MB). A chunk made again: 4 V D + 20 C V bytes; the head's
    gradient: 10 V D + 4 C V; the hidden states' gradient and those in order 4 T D."""
    held = float(np.asarray(cross_entropy(f"token-chunks(tokens={chunk})").held_bytes(head(2048.0, 8192, 256))))
    assert held == max(4 * 8192 * 256 + 20 * chunk * 8192, 10 * 8192 * 256 + 4 * chunk * 8192) + 4 * 2048 * 256
    assert held + 2 * 8192 * 256 - 2 * 2048 * 256 == pytest.approx(measured, rel=0.01)


def test_a_frozen_head_has_no_gradient_in_fp32() -> None:
    """64 tokens, LoRA: 4 V D + 20 C V bytes instead of 10 V D + 4 C V, and 4 T D."""
    held = cross_entropy("token-chunks(tokens=64)").held_bytes(replace(head(2048.0, 8192, 256), trains_head=False))
    assert float(np.asarray(held)) == 4 * 8192 * 256 + 20 * 64 * 8192 + 4 * 2048 * 256


def test_chunks_of_the_head_hold_an_eighth_of_all_logits() -> None:
    """2048 tokens of 8192 words at 12 bytes in eight chunks, and 2 D = 512 bytes a token of hidden gradient."""
    loss = cross_entropy("head-chunks")
    held = float(np.asarray(loss.held_bytes(head(2048.0, 8192, 256))))
    assert held == 12 * 2048 * 8192 / 8 + 2048 * 512
    assert float(np.asarray(loss.backward_bytes(head(2048.0, 8192, 256)))) == 0.0


@pytest.mark.parametrize(("optimizer", "each"), [("adamw-4bit", 2 * (0.5 + 4 / 128)), ("adamw-8bit", 2.0)])
def test_narrow_moments(optimizer: str, each: float) -> None:
    """4-bit moments and a scale for 128 of them; 8-bit moments."""
    job = Workload(seq_len=64, global_batch=1, precision="bf16-pure", optimizer=optimizer)
    held = stage_memory(GRAPH, job, layers={"dense": 2})
    assert float(held["optimizer"]) / float(held["weights"]) == pytest.approx(each / 2)


def test_an_update_that_is_not_fused_holds_the_square_roots_of_second_moments() -> None:
    """Its peak is the update's: 2 + 2 bytes of weights and gradients, 4 of moments, and 2 a number more."""
    job: dict[str, Any] = {"seq_len": 1, "global_batch": 1, "precision": "bf16-pure", "optimizer": "adamw-bf16"}
    fused, apart = (
        stage_memory(GRAPH, Workload(**job, fused_optimizer=one), layers={"dense": 2}) for one in (True, False)
    )
    numbers = float(fused["weights"]) / 2.0
    assert float(apart["buffers"]) == pytest.approx(2.0 * numbers)
    assert float(fused["buffers"]) < 2.0 * numbers
