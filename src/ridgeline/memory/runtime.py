"""How a training program holds what the arithmetic needs: temporaries, buckets, scratch and context."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ridgeline.errors import UnknownNameError

MIB = 2.0**20
KIB = 2.0**10

# PyTorch gives each cuBLAS handle a workspace through its allocator; forward and the autograd thread
# hold one each. Hopper: 4096 KiB x 8; others: 4096 KiB x 2 + 16 KiB x 8, though later releases count
# Blackwell with Hopper (aten/src/ATen/cuda/CublasHandlePool.cpp). CUBLAS_WORKSPACE_CONFIG=:4096:8,
# which deterministic runs set, makes it 4096 KiB x 8 anywhere.
CUBLAS_HANDLES = 2
CUBLAS_LARGE_BYTES = 8 * 4096 * KIB
CUBLAS_SMALL_BYTES = 2 * 4096 * KIB + 8 * 16 * KIB
# Transformer Engine holds its own: 32 MiB from Hopper on, 4 MiB before, and one for each of four
# streams where it runs grouped matrix products (transformer_engine/pytorch/module/base.py).
ENGINE_LARGE_BYTES = 32 * MIB
ENGINE_SMALL_BYTES = 4 * MIB
ENGINE_STREAMS = 4
NEW_ARCHITECTURES = ("hopper", "blackwell")


@dataclass(frozen=True, kw_only=True)
class Runtime:
    """Habits of one training program that show in its memory.

    `logit_copies` and `logit_fp32_copies` are the tensors of tokens x vocabulary alive at the worst
    moment of the loss, in the activation format and in fp32. `persistent_gradients` says whether gradients
    have a buffer of their own from the first step on; otherwise they appear during backward as activations
    go. `weight_bytes` and
    `gradient_bytes` are their widths where they are not the precision recipe's (8-bit weights,
    16-bit reduction). `gradient_copies` are gradient-sized communication buckets beside the
    gradients. `fused_gradients` accumulates weight gradients in place; otherwise one weight's
    gradient exists apart, in the activation format. `gathered_layers` and `unreduced_layers` are
    whole layers of weights and of gradients held at once under ZeRO-3 (infinite where a pipeline
    keeps its stage gathered and reduces after the last micro-batch); `live_numbers` and
    `bucket_numbers` are the least that a program with fixed allowances gathers and reduces at once;
    `gathered_ends` says whether the embedding and the head stay gathered through the step.
    `selective` says what selective recompute keeps: 'core' everything but attention scores
    (arXiv:2205.05198), 'matmul' every other matrix product, the attention output and each layer's
    input (torchtitan). `transformer_engine`, `architecture` and `deterministic` decide the matrix
    libraries' scratch. `gradient_passes` counts the passes over all gradients at an update: their norm, the update
    itself, and clearing them. `mlp_input_bytes` is the width of what activation functions keep of their inputs where it
    is not that of activations. Of a 4-bit base: `quantized_bytes` a weight takes (None: NF4 with doubly quantized
    constants), whether the head is in 4 bits too (`quantized_head`), the 16-bit copies made of a weight at work
    (`dequantized_copies`), micro-batches of which the inputs of its products are held (`held_inputs`; 2: also those of
    the one before, until its loss is dropped), and whether ranks hold all block constants where ZeRO-3 shards
    weights (`whole_constants`). `ties_embeddings` says whether the program shares a tied table. `context_bytes` is
    assumed: about half for the CUDA context, half for the channels of a few communicators; it is outside the allocator.
    """

    name: str
    logit_copies: float
    logit_fp32_copies: float
    persistent_gradients: bool = True
    weight_bytes: float | None = None
    gradient_bytes: float | None = None
    gradient_copies: float = 0.0
    fused_gradients: bool = True
    gathered_layers: float = 2.0
    unreduced_layers: float = 1.0
    live_numbers: float = 0.0
    bucket_numbers: float = 0.0
    gathered_ends: bool = False
    selective: str = "core"
    transformer_engine: bool = False
    architecture: str = "hopper"
    deterministic: bool = False
    gradient_passes: float = 3.0
    update_fp32_copies: float = 0.0
    mlp_input_bytes: float | None = None
    quantized_bytes: float | None = None
    quantized_head: bool = False
    dequantized_copies: float = 1.0
    held_inputs: float = 0.0
    whole_constants: bool = False
    ties_embeddings: bool = True
    context_bytes: float = 1024 * MIB

    def workspace_bytes(self, *, grouped: bool = False) -> float:
        """Matrix library scratch taken through the allocator for good [byte]; a processor's library takes none there.

        >>> MEGATRON.workspace_bytes() / 2**20
        96.0
        """
        if self.architecture == "cpu":
            return 0.0
        large = self.deterministic or self.architecture == "hopper"
        scratch = CUBLAS_HANDLES * (CUBLAS_LARGE_BYTES if large else CUBLAS_SMALL_BYTES)
        if not self.transformer_engine:
            return scratch
        engine = ENGINE_LARGE_BYTES if self.architecture in NEW_ARCHITECTURES else ENGINE_SMALL_BYTES
        return scratch + engine * (1 + (ENGINE_STREAMS if grouped else 0))


# Loss tensors. Megatron-LM casts logits to fp32 and turns them into probabilities and then gradients
# in place. PyTorch's cross entropy keeps fp32 log-probabilities and makes their gradient and the
# logits' gradient beside them. Chunked losses do so for a few hundred tokens at a time.
MEGATRON = Runtime(name="megatron", logit_copies=1, logit_fp32_copies=1, transformer_engine=True)
FSDP = Runtime(
    name="fsdp",
    logit_copies=0,
    logit_fp32_copies=3,
    persistent_gradients=False,
    gathered_ends=True,
    selective="matmul",
)
# Without ZeRO, fp16 gradients become fp32 ones a weight, and then one flat tensor, before the first two are freed
# (DeepSpeed 0.4.1 and edaa722, runtime/fp16/fused_optimizer.py, FP16_Optimizer.step).
DEEPSPEED = Runtime(
    name="deepspeed",
    update_fp32_copies=2.0,
    logit_copies=0,
    logit_fp32_copies=3,
    live_numbers=1e9,  # stage3_max_live_parameters, default of deepspeed.ai/docs/config-json
    bucket_numbers=5e8,  # reduce_bucket_size, same page
)
FSDP1 = replace(FSDP, name="fsdp1", selective="core")
# Models of Hugging Face make fp32 logits of 16-bit ones, keep them in their output and copy them without the last
# position; the loss keeps its log-probabilities, and backward makes the gradients of those and of the copied logits:
# four fp32 tensors beside the 16-bit one (`logits.float()`, then `shift_logits = logits[..., :-1, :].contiguous()`, of
# LlamaForCausalLM.forward; transformers to 4.45, issue 30860; from 4.46 on in loss_utils.py, pull request 33902).
# FSDP shards parameters; the constants of bitsandbytes' 4-bit weights are none (`quant_state`; fsdp_qlora 05ed9f2,
# train.py, load_and_quantize): each rank holds them whole, on the device.
TRANSFORMERS = replace(FSDP1, name="transformers", logit_copies=1, logit_fp32_copies=4, whole_constants=True)
TORCH = Runtime(name="torch", logit_copies=0, logit_fp32_copies=3, persistent_gradients=False)
# litgpt 00af8b0 (September 2024), finetune/lora.py, on one device. The logits and log-probabilities of all chunks stay
# in 16 bits, and the last micro-batch's logits until the next ones replace them; no table is tied. Quantizing
# (Lightning, plugins/precision/bitsandbytes.py, _Linear4bit) takes every linear layer, the head too, from fp16 copies:
# a weight comes back in fp16 and is cast; blocks of 64 have an fp32 constant. bitsandbytes 0.42, which litgpt pinned,
# holds the inputs of 4-bit products (autograd/_functions.py, MatMul4Bit: ctx.tensors = (A, B); not since 0.43.2, pull
# request 1270) as attributes of the graph: `loss` keeps the last micro-batch's until the next loss is there.
LITGPT = replace(
    TORCH,
    name="litgpt",
    logit_copies=3,
    logit_fp32_copies=0,
    quantized_bytes=0.5 + 4.0 / 64.0,
    quantized_head=True,
    dequantized_copies=2.0,
    held_inputs=2.0,
    ties_embeddings=False,
)
DDP = Runtime(name="ddp", logit_copies=0, logit_fp32_copies=3, gradient_copies=1)
RUNTIMES = {runtime.name: runtime for runtime in (MEGATRON, FSDP, FSDP1, DEEPSPEED, TORCH, DDP, TRANSFORMERS, LITGPT)}


def named_runtime(name: str) -> Runtime:
    """The runtime of the framework called `name`."""
    if name not in RUNTIMES:
        raise UnknownNameError("framework", name, RUNTIMES)
    return RUNTIMES[name]
