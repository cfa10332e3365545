"""Host time of a Megatron-LM layer beside the modules and operators that are priced by themselves.

    git clone https://github.com/NVIDIA/Megatron-LM
    python benchmarks/megatron_host.py Megatron-LM    # needs PyTorch; no GPU

Layers of Megatron-LM hold stand-ins for their products, attention and norms: one bare product each, a view, nothing.
Beside them the same operators run without Megatron-LM. Tensors are tiny and one core works, so that all time is
dispatch; the difference is Python, wrappers and nodes of autograd that no count of operators holds. Prints what
`layer` of data/frameworks/megatron-lm.toml states, and how long the core takes for a call in Python.
"""

from __future__ import annotations

import gc
import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

LAYERS, HIDDEN, HEADS, TRIES = 12, 16, 4, 300


def best_s(calls: Sequence[Callable[[], object]]) -> list[float]:
    """The 10 % quantile of each call's processor time [s]; they take turns, as other work may share the machine."""
    found: list[list[float]] = [[] for _ in calls]
    for _ in range(TRIES):
        for call, times in zip(calls, found, strict=True):
            start = time.thread_time()
            call()
            times.append(time.thread_time() - start)
    return [sorted(times)[TRIES // 10] for times in found]


def megatron_layers(torch: Any) -> Any:
    """Layers of Megatron-LM with stand-ins, in training."""
    from megatron.core import parallel_state
    from megatron.core.fusions.fused_bias_dropout import get_bias_dropout_add
    from megatron.core.transformer.attention import SelfAttention, SelfAttentionSubmodules
    from megatron.core.transformer.enums import AttnMaskType
    from megatron.core.transformer.identity_op import IdentityOp
    from megatron.core.transformer.mlp import MLP, MLPSubmodules
    from megatron.core.transformer.spec_utils import ModuleSpec, build_module
    from megatron.core.transformer.transformer_config import TransformerConfig
    from megatron.core.transformer.transformer_layer import TransformerLayer, TransformerLayerSubmodules

    class Product(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self, inputs: int, outputs: int, *_: object, **__: object) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(outputs, inputs))
            self.bias = torch.nn.Parameter(torch.zeros(outputs))

        def forward(self, x: Any) -> tuple[Any, Any]:
            return torch.nn.functional.linear(x, self.weight), self.bias

    class Core(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self, *_: object, **__: object) -> None:
            super().__init__()

        def forward(self, query: Any, key: Any, value: Any, *_: object, **__: object) -> Any:
            return value.reshape(value.shape[0], value.shape[1], -1)

    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500", "RANK": "0", "WORLD_SIZE": "1"}
    torch.distributed.init_process_group("gloo")
    parallel_state.initialize_model_parallel(1, 1)
    config = TransformerConfig(
        num_layers=LAYERS, hidden_size=HIDDEN, num_attention_heads=HEADS, ffn_hidden_size=4 * HIDDEN, bf16=True,
        use_cpu_initialization=True, params_dtype=torch.bfloat16, hidden_dropout=0.1, bias_dropout_fusion=False,
        bias_activation_fusion=False, gradient_accumulation_fusion=False, deterministic_mode=True,
    )  # fmt: skip
    attention = SelfAttentionSubmodules(
        linear_qkv=Product, core_attention=Core, linear_proj=Product, q_layernorm=IdentityOp, k_layernorm=IdentityOp
    )
    parts = TransformerLayerSubmodules(
        input_layernorm=IdentityOp,
        self_attention=ModuleSpec(
            module=SelfAttention, params={"attn_mask_type": AttnMaskType.causal}, submodules=attention
        ),
        self_attn_bda=get_bias_dropout_add,
        pre_mlp_layernorm=IdentityOp,
        mlp=ModuleSpec(module=MLP, submodules=MLPSubmodules(linear_fc1=Product, linear_fc2=Product)),
        mlp_bda=get_bias_dropout_add,
    )
    spec = ModuleSpec(module=TransformerLayer, submodules=parts)
    layers = [build_module(spec, config=config, layer_number=number + 1) for number in range(LAYERS)]
    return torch.nn.ModuleList(layers).to(torch.bfloat16).train()


def bare(torch: Any, weights: Any, x: Any) -> Any:
    """The operators that those layers dispatch, without them."""
    linear, dropout = torch.nn.functional.linear, torch.nn.functional.dropout
    wide, width = 3 * HIDDEN // HEADS, HIDDEN // HEADS
    for qkv, out, up, down, bias, wide_bias in weights:
        _, _, value = torch.split(linear(x, qkv).view(2, 1, HEADS, wide), [width] * 3, dim=3)
        x = x + dropout(linear(value.reshape(2, 1, -1), out) + bias, 0.1)
        x = x + dropout(linear(torch.nn.functional.gelu(linear(x, up) + wide_bias), down) + bias, 0.1)
    return x


def main() -> int:
    os.environ["TORCHDYNAMO_DISABLE"] = "1"
    sys.path.insert(0, sys.argv[1])
    import torch

    torch.set_num_threads(1)
    layers = megatron_layers(torch)
    x = torch.zeros(2, 1, HIDDEN, dtype=torch.bfloat16, requires_grad=True)
    sizes: tuple[tuple[int, ...], ...] = (
        (3 * HIDDEN, HIDDEN), (HIDDEN, HIDDEN), (4 * HIDDEN, HIDDEN), (HIDDEN, 4 * HIDDEN), (HIDDEN,), (4 * HIDDEN,),
    )  # fmt: skip
    weights = [[torch.nn.Parameter(torch.zeros(s, dtype=torch.bfloat16)) for s in sizes] for _ in range(LAYERS)]

    def whole() -> Any:
        found = x
        for layer in layers:
            found = layer(hidden_states=found, attention_mask=None)[0]
        return found

    gc.disable()
    runs = (whole, lambda: bare(torch, weights, x))
    calls = [*runs, *(lambda run=run: run().sum().backward() for run in runs)]  # type: ignore[misc]
    more, alone, more_both, alone_both = (seconds / LAYERS for seconds in best_s(calls))
    for name, long, short in (("forward", more, alone), ("backward", more_both - more, alone_both - alone)):
        print(f"{name}: {long * 1e6:.0f} us a layer, {short * 1e6:.0f} without Megatron-LM: {(long - short) * 1e6:.0f}")

    def ten(a: int, b: int, c: int, d: int, e: int, f: int, g: int, h: int, i: int, j: int) -> None:
        pass

    call_s = best_s([lambda: [ten(1, 2, 3, 4, 5, 6, 7, 8, 9, 10) for _ in range(1000)]])[0] / 1000
    print(f"a call in Python with ten arguments: {call_s * 1e9:.0f} ns")
    return 0


if __name__ == "__main__":
    sys.exit(main())
