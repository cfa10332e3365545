"""What a family says of its layers: small records that `blocks` turns into operators.

Letters: D hidden, H heads, K kv heads, F ffn, V vocabulary, E experts.
"""

from __future__ import annotations

from dataclasses import dataclass

from ridgeline.graph.ops import Keys


@dataclass(frozen=True, kw_only=True)
class Norm:
    """A normalisation over the last dimension: 'rms' (scale) or 'layer' (scale and perhaps shift)."""

    kind: str = "rms"
    bias: bool = False
    scale: bool = True

    def params(self, width: int) -> int:
        """Trainable numbers of the norm over `width` [1]."""
        return width * (int(self.scale) + int(self.bias))


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """Sparse attention: a query attends to the `top` keys that an indexer of narrow heads scores highest.

    `heads` 0 where a layer takes the choice of the one before it. Source: DeepSeek-V3.2, arXiv:2512.02556, section 2.1.
    """

    top: int
    heads: int
    dim: int


@dataclass(frozen=True, kw_only=True)
class Latent:
    """Multi-head latent attention: low-rank queries (optional) and a shared low-rank key and value.

    Keys are `nope_dim` from the latent and `rope_dim` shared by all heads.
    Source: DeepSeek-V2, arXiv:2405.04434, section 2.1.
    """

    q_rank: int | None
    kv_rank: int
    nope_dim: int
    rope_dim: int
    chosen: Chosen | None = None


@dataclass(frozen=True, kw_only=True)
class Entries:
    """The last `window` keys as they are, and of those before them one entry for every `ratio` tokens (0: none).

    One key of a head's width is key and value of all heads. Of the entries a query sees those `chosen` (None: all).
    Queries come over `q_rank`, the output over `out_rank` of each of `out_groups` groups of heads. An entry is a
    weighted sum of tokens, of twice as many where they overlap. Source: DeepSeek-V4, config.json, and transformers,
    models/deepseek_v4/modular_deepseek_v4.py.
    """

    ratio: int
    window: int
    q_rank: int
    out_groups: int
    out_rank: int
    chosen: Chosen | None = None


@dataclass(frozen=True, kw_only=True)
class AttentionSpec:
    """Softmax attention: MHA (K = H), GQA (K < H), MQA (K = 1) or MLA (`latent`).

    `qk_norm_over` says what a query and key norm spans: 'head' (one scale of qk_dim shared by all
    heads) or 'all' (one scale of the whole projection). `rotary_dim` 0 means no rotary embedding.
    `relative_buckets` rows of a learned bias per head live here (T5: its first layer).
    """

    heads: int
    kv_heads: int
    qk_dim: int
    v_dim: int
    qkv_bias: bool = False
    out_bias: bool = False
    merged_qkv: bool = False  # stored as one linear layer, as GPT-2 does
    values_are_keys: bool = False  # one product for both, cached apart: keys are normed and rotated (Gemma 4)
    borrowed: bool = False  # keys and values are those of a layer before: it makes and keeps none (Gemma 4 E2B, E4B)
    rotary_dim: int = 0
    qk_norm: Norm | None = None
    qk_norm_over: str = "head"
    causal: bool = True
    window: int | None = None
    chunk: int | None = None
    sinks: bool = False  # one learned logit per head
    output_gate: bool = False  # a sigmoid gate beside the queries weighs the output (Qwen3-Next)
    relative_buckets: int = 0
    cross: bool = False
    latent: Latent | None = None
    entries: Entries | None = None
    blocks: Chosen | None = None  # keys chosen in blocks of 128, by an index head for each key head (MiniMax-M3)

    @property
    def made(self) -> int:
        """Heads of keys and values that the layer makes [1]."""
        return 0 if self.borrowed else self.kv_heads

    @property
    def keys(self) -> Keys:
        """What is kept of each token."""
        if self.latent is not None:
            return Keys.LATENT
        if self.entries is not None:
            return Keys.ENTRIES
        return Keys.HEADS if self.blocks is None else Keys.BLOCKS


@dataclass(frozen=True, kw_only=True)
class Lightning:
    """Linear attention with decay, a norm and an output gate.

    Source: MiniMax-01, arXiv:2501.08313, section 2.2.
    """

    heads: int
    head_dim: int


@dataclass(frozen=True, kw_only=True)
class StateSpace:
    """A Mamba-2 mixer. Source: arXiv:2405.21060, section 7."""

    heads: int
    head_dim: int
    state: int
    groups: int
    conv_kernel: int
    chunk: int
    bias: bool = False
    conv_bias: bool = True


@dataclass(frozen=True, kw_only=True)
class GatedDelta:
    """A gated delta-rule mixer: short convolution, delta rule with decay, gated norm.

    Source: Gated Delta Networks, arXiv:2412.06464.
    """

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    conv_kernel: int
    parts: int  # linear layers that make up the input projection


Mixer = AttentionSpec | Lightning | StateSpace | GatedDelta


@dataclass(frozen=True, kw_only=True)
class Mlp:
    """A feed-forward block: gated (act(gate) * up) or plain (act(up))."""

    ffn: int
    gated: bool
    activation: str
    bias: bool = False
    merged_gate: bool = False  # gate and up are stored as one linear layer


@dataclass(frozen=True, kw_only=True)
class Moe:
    """E experts of which each token visits `top_k`; `shared` ones see every token.

    `shared` is the sum of the shared experts as one MLP; `shared_gate` weighs it by a sigmoid of
    a D -> 1 projection (Qwen-MoE). With `latent` tokens are brought to so many elements before they
    are sent to routed experts, which are as wide, and back after they are summed (Nemotron 3 Super).
    """

    experts: int
    top_k: int
    expert: Mlp
    router_bias: bool = False
    router_wide: bool = False  # engines keep its weight in 32 bits
    shared: Mlp | None = None
    shared_count: int = 0
    shared_gate: bool = False
    latent: int | None = None
    groups_chosen: float = 1.0  # share of the groups of experts that those of one token lie in (node-limited routing)


@dataclass(frozen=True, kw_only=True)
class LayerSpec:
    """One layer: a mixer, perhaps cross attention, a feed-forward; any may be absent.

    `placement` of norms: 'pre' (before each part), 'post' (after each residual, BERT), 'output'
    (on each part's output, before the residual, OLMo-2) or 'sandwich' (before and on the output,
    Gemma-2). `parallel`: '' in sequence; 'one' attention and MLP share a norm (GPT-J, Phi);
    'two' each has its own (GPT-NeoX).
    """

    norm: Norm
    mixer: Mixer | None = None
    cross: AttentionSpec | None = None
    feed: Mlp | Moe | None = None
    placement: str = "pre"
    parallel: str = ""
    dropout: bool = False
    encoder: bool = False
    encoder_end: bool = False  # last of an encoder: its output is kept for the decoder's cross attention
    closing_norm: bool = False  # the encoder's own final norm runs after this layer
    embedding: int = 0  # width of an embedding of its own: gated by the residual and projected into it (Gemma 4 E4B)
    streams: int = 1  # of the residual: mixed into each part's input, and its output back into them (hyper-connections)


@dataclass(frozen=True, kw_only=True)
class EmbeddingHead:
    """What runs before the first layer and after the last.

    `embed_dim` differs from `hidden` where the table is narrower and projected (`embed_project`
    says by what: 'in_out' both ways without bias as OPT-350m, 'in' once with bias as ELECTRA).
    `head`: 'lm' (logits through the vocabulary), 'mlm' (dense, activation, norm, then logits) or
    'discriminator' (dense, activation, one logit). `pooler` adds BERT's pooler and next-sentence
    head of two logits.
    """

    vocab: int
    hidden: int
    tied: bool
    norm: Norm | None  # the final one; None for post-norm stacks
    embed_dim: int | None = None
    embed_project: str = ""
    positions: int = 0  # rows of learned positions, 0 for none
    decoder_positions: int = 0  # a second table, for the decoder of an encoder-decoder
    token_types: int = 0
    layer_rows: int = 0  # of a table with each layer's own embedding, all of them `layer_width` wide
    layer_width: int = 0
    embed_norm: Norm | None = None
    embed_norms: int = 1
    head: str = "lm"
    head_bias: bool = False
    pooler: bool = False
    dropout: bool = False
