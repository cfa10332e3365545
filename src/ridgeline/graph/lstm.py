"""Recurrent networks: translation with attention, and speech with a transducer.

Letters: H hidden units, V vocabulary. Sources: Wu et al. 2016 (arXiv:1609.08144), layers as PyTorch/Translation/GNMT of
NVIDIA/DeepLearningExamples (its "v2", four layers each way); Graves 2012 (arXiv:1211.3711), He et al. 2018
(arXiv:1811.06621), layers as rnn_speech_recognition/pytorch of mlcommons/training.
"""

from __future__ import annotations

from dataclasses import dataclass

from ridgeline.errors import UnknownNameError
from ridgeline.graph.model import Block, Model, network_of
from ridgeline.graph.ops import ConvolutionOp, CrossEntropyOp, EmbeddingOp, Op, RecurrentOp, Region, elementwise
from ridgeline.graph.pixels import kept, mapped, product

GATES = 4  # of an LSTM
WORDS, WIDE, LAYERS = 32_320, 1024, 4  # vocabulary, H and layers each way of GNMT v2
PASSES, PASSES_BACK = 6, 7  # over the sums of queries and keys: two sums and tanh, read and written, and their weights'


@dataclass(frozen=True, kw_only=True)
class Speech:
    """Frames of an utterance, and its tokens [1]; means over what is trained on."""

    frames: int
    tokens: int


UTTERANCE = Speech(frames=410, tokens=50)
"""LibriSpeech: 960 hours in 281,241 utterances are 1,229 steps of 10 ms, three to a frame (arXiv:1904.02619, table 1);
9.4e6 words are 33 an utterance, each of 1.5 pieces of a vocabulary of 1,024 (assumed)."""
FEATURES, ENCODED, PREDICTED, JOINED, PIECES = 240, 1024, 512, 512, 1024
BEFORE, AFTER, STACKED = 2, 3, 2  # layers before and after pairs of frames are stacked; frames of a stack
RECURRENT = ("gnmt", "rnn-t")


def recurrent(name: str, *, words: int = 32) -> Model:
    """A recurrent network by name: of `words` positions a sentence each way, or of LibriSpeech's mean utterance.

    >>> recurrent("gnmt").graph.params
    160671297
    """
    if name == "gnmt":
        return _translation(words)
    if name == "rnn-t":
        return _transducer(UTTERANCE)
    raise UnknownNameError("recurrent network", name, RECURRENT)


def lstm(name: str, inputs: int, hidden: int, *, rows: int, steps: int, directions: int = 1) -> list[Op]:
    """A recurrent layer over `rows` positions for each token, `steps` of them one after another.

    One product of all inputs with the gates' weights; at each step one of the state, and a pass over the gates.
    """
    gates = GATES * hidden
    cell = mapped(f"{name}.cell", rows * hidden * directions, inputs=5, outputs=2)
    return [
        product(f"{name}.inputs", inputs, gates * directions, rows, params=(inputs + 2) * gates * directions),
        RecurrentOp(
            name=f"{name}.state", region=Region.TENSOR, k=hidden, n=gates, rows=rows / steps,
            steps=float(steps * directions), params=gates * hidden * directions, kernels=2,
            saved=(kept(rows * (gates + 2 * hidden) * directions),),
        ),
        cell,
    ]  # fmt: skip


def _translation(words: int) -> Model:
    """Four layers each way, the first of the encoder both ways; attention from the decoder's first to the encoder."""
    width = WIDE
    plain, wide = (tuple(lstm("lstm", inputs, width, rows=1, steps=words)) for inputs in (width, 2 * width))
    both = tuple(lstm("lstm", width, width, rows=1, steps=words, directions=2))
    layers = {
        "encoder-1": both,
        "encoder-2": wide,
        "encoder": (*plain, _dropped(width)),
        "decoder-1": (*plain, *_attention(words)),
        "decoder": (*wide, _dropped(2 * width)),
    }
    made = {name: Block(name=name, ops=ops) for name, ops in layers.items()}
    order = ("encoder-1", "encoder-2", *["encoder"] * (LAYERS - 2), "decoder-1", *["decoder"] * (LAYERS - 1))
    embedding = (
        EmbeddingOp(name="embed", region=Region.VOCAB, n=WORDS, k=2 * width, params=WORDS * width),
        _dropped(width),
    )
    head = (product("logits", width, WORDS, 1), CrossEntropyOp(name="cross_entropy", region=Region.VOCAB, n=WORDS))
    return network_of(
        "gnmt", "recurrent", [made[name] for name in order], hidden=width, vocab=WORDS, source="released code",
        embedding=embedding, head=head, dims={"hidden": width, "words": words},
    )  # fmt: skip


def _dropped(width: int) -> Op:
    """Dropout and a residual sum."""
    return mapped("residual", width, inputs=2)


def _attention(words: int) -> list[Op]:
    """Additive attention: tanh of every pair's sum, its product with a vector, softmax, the weighted sum."""
    pairs = words * WIDE
    return [
        product("queries", WIDE, WIDE, 1, bias=False),
        product("keys", WIDE, WIDE, 1, bias=False),
        elementwise(
            "pairs", PASSES * pairs / 2, PASSES * pairs / 2, PASSES_BACK * pairs / 2, PASSES_BACK * pairs / 2,
            kept=2 * pairs, params=2 * WIDE + 1,
        ),
        mapped("softmax", words, inputs=2),
        ConvolutionOp(name="context", region=Region.TENSOR, k=words, n=WIDE, rows=1.0, saved=(kept(words),)),
    ]  # fmt: skip


def _transducer(spoken: Speech) -> Model:
    """An encoder of frames, a network that predicts from the tokens so far, a joint layer for every pair."""
    half = spoken.frames // STACKED
    before = [
        lstm("lstm", FEATURES if not place else ENCODED, ENCODED, rows=spoken.frames, steps=spoken.frames)
        for place in range(BEFORE)
    ]
    after = [
        lstm("lstm", STACKED * ENCODED if not place else ENCODED, ENCODED, rows=half, steps=half)
        for place in range(AFTER)
    ]
    tokens = spoken.tokens
    predicted = [lstm("lstm", PREDICTED, PREDICTED, rows=tokens, steps=tokens) for _ in range(2)]
    made = [
        *((f"before-{i}", ops) for i, ops in enumerate(before)),
        *((f"after-{i}", ops) for i, ops in enumerate(after)),
    ]
    made += [(f"predicted-{i}", ops) for i, ops in enumerate(predicted)]
    blocks = [Block(name=name, ops=tuple(ops)) for name, ops in made]
    embedding = (
        EmbeddingOp(name="embed", region=Region.VOCAB, n=PIECES - 1, k=tokens * PREDICTED,
           params=(PIECES - 1) * PREDICTED),
    )  # fmt: skip
    pairs = half * (tokens + 1)
    head = (
        product("joint_frames", ENCODED, JOINED, half),
        product("joint_tokens", PREDICTED, JOINED, tokens + 1),
        mapped("joint_sum", JOINED * pairs),
        product("joint", JOINED, PIECES, pairs),
        CrossEntropyOp(name="loss", region=Region.VOCAB, n=PIECES * pairs),
    )
    return network_of(
        "rnn-t", "recurrent", blocks, hidden=ENCODED * half, source="released code", embedding=embedding, head=head,
        dims={"frames": spoken.frames, "tokens": tokens},
    )  # fmt: skip
