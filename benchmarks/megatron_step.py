"""Host time of a Megatron-LM training step around its layers, part by part.

    git clone https://github.com/NVIDIA/Megatron-LM
    git clone https://github.com/NVIDIA/TransformerEngine
    pip install einops pybind11 six regex        # beside PyTorch; no GPU
    python benchmarks/megatron_step.py Megatron-LM TransformerEngine

Trains `pretrain_gpt.py` with the arguments of Megatron-LM's functional tests on tensors of a few bytes, in a group of
ranks that answer at once, on one core (`processor_device.py`). Parts of a step are timed apart, each without those that
it calls; Adam is Transformer Engine's. What a part launches is recorded once and run again without Megatron-LM, and
its time taken off: views are left in, as no count of operators holds them. Reading the next batch is left out, as
another thread does that. Times are given for a core on which a call in Python takes 67 ns, a host of H100s
(pytorch/pytorch issue 187862). Prints what `host_s` of data/frameworks/megatron-lm.toml states: turn, embedding, loss,
checkpoint, step, held, owned, route, sinkhorn, alltoall, allgather, expert, latent and sharded.*.
"""

from __future__ import annotations

import atexit
import importlib
import json
import os
import subprocess
import sys
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from processor_device import stand_in

STEPS, WARM, CALL_S = 50, 12, 67e-9
ARGUMENTS = """
--hidden-size 16 --num-attention-heads 8 --seq-length 8 --max-position-embeddings 8 --micro-batch-size 4
--global-batch-size 32 --mock-data --tokenizer-type NullTokenizer --vocab-size 100 --bf16 --transformer-impl local
--log-interval 1 --lr 1e-4 --min-lr 1e-5 --lr-decay-style cosine --lr-decay-iters 1000 --clip-grad 1.0 --log-params-norm
--log-num-zeros-in-grad --eval-iters 0 --eval-interval 1000 --no-gradient-accumulation-fusion
--no-masked-softmax-fusion --no-bias-gelu-fusion --no-persist-layer-norm --no-bias-dropout-fusion --deterministic-mode
--distributed-backend nccl --use-cpu-initialization --timing-log-level 0
"""
FULL = "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1"
CHUNKS = "--num-layers-per-virtual-pipeline-stage 1 --no-check-for-nan-in-loss-and-grad"  # what arrives is no number
EXPERTS = """
--num-experts {} --moe-router-topk {} --moe-router-load-balancing-type {} --moe-token-dispatcher-type {}
--disable-bias-linear
"""
AUXILIARY = "aux_loss --moe-aux-loss-coeff 0.01"
LATENT = """
--multi-latent-attention --q-lora-rank 8 --kv-lora-rank 8 --qk-head-dim 2 --qk-pos-emb-head-dim 2 --v-head-dim 2
"""
OWNED = "--use-distributed-optimizer"
SHARDED = f"{OWNED} --use-megatron-fsdp --data-parallel-sharding-strategy optim_grads_params --ckpt-format fsdp_dtensor"
FEW = "--disable-bias-linear --normalization RMSNorm"
MANY, FEWER = 12, 6  # trained tensors of a layer, with biases and without
STEP = ("held", "owned", "step")
RUNS: dict[str, tuple[int, int, str]] = {  # layers, stages and further arguments
    "whole": (12, 1, ""), "short": (4, 1, ""), "again": (12, 1, FULL), "chunks": (12, 4, CHUNKS),
    "experts": (12, 1, EXPERTS.format(4, 2, AUXILIARY, "alltoall")),
    "fewer": (12, 1, EXPERTS.format(2, 2, AUXILIARY, "alltoall")),
    "gathered": (12, 1, EXPERTS.format(4, 2, AUXILIARY, "allgather")),
    "balanced": (12, 1, EXPERTS.format(4, 1, "sinkhorn", "allgather")), "latent": (12, 1, LATENT),
    **{f"{name} {layers}": (layers, 1, more) for layers in (4, 12) for name, more in (
        ("owned", OWNED), ("sharded", SHARDED), ("owned few", f"{OWNED} {FEW}"), ("sharded few", f"{SHARDED} {FEW}"),
    )},
}  # fmt: skip
CORE = "megatron.core."
PARTS = (  # (part, module, class or none, names)
    ("turn", CORE + "pipeline_parallel.schedules", "", ("forward_step", "deallocate_output_tensor",
        "forward_backward_no_pipelining", "forward_backward_pipelining_with_interleaving")),
    ("turn", CORE + "models.gpt.gpt_model", "GPTModel", ("forward",)),
    ("block", CORE + "transformer.transformer_block", "TransformerBlock", ("forward",)),
    ("layer", CORE + "transformer.transformer_layer", "TransformerLayer", ("__call__",)),
    ("dispatch", CORE + "transformer.moe.moe_layer", "MoELayer", ("forward",)),
    ("route", CORE + "transformer.moe.router", "TopKRouter", ("forward",)),
    ("expert", CORE + "transformer.moe.experts", "SequentialMLP", ("forward",)),
    ("attention", CORE + "transformer.attention", "SelfAttention", ("forward",)),
    ("attention", CORE + "transformer.multi_latent_attention", "MLASelfAttention", ("forward",)),
    ("core", CORE + "transformer.dot_product_attention", "DotProductAttention", ("forward",)),
    ("product", CORE + "tensor_parallel.layers", "ColumnParallelLinear", ("forward",)),
    ("product", CORE + "tensor_parallel.layers", "RowParallelLinear", ("forward",)),
    ("embedding", CORE + "models.gpt.gpt_model", "GPTModel", ("_preprocess",)),
    ("loss", CORE + "models.gpt.gpt_model", "GPTModel", ("_postprocess",)),
    ("backward", CORE + "pipeline_parallel.schedules", "", ("backward_step",)),
    ("batch", CORE + "rerun_state_machine", "RerunDataIterator", ("__next__",)),
    ("message", CORE + "pipeline_parallel.p2p_communication", "P2PCommunicator", ("recv_forward", "recv_backward",
        "send_forward_recv_forward", "send_backward_recv_backward", "send_forward_backward_recv_forward_backward")),
    ("held", CORE + "distributed.finalize_model_grads", "", ("finalize_model_grads",)),
    ("held", "megatron.training.training", "", ("calc_params_l2_norm",)),
    ("zeros", CORE + "optimizer.optimizer", "", ("count_zeros_fp32",)),
    ("owned", CORE + "optimizer.optimizer", "ChainedOptimizer", ("step",)),
    ("owned", CORE + "optimizer.optimizer", "MixedPrecisionOptimizer", ("prepare_grads", "step_with_ready_grads")),
    ("owned", CORE + "optimizer.optimizer", "MegatronOptimizer", ("clip_grad_norm", "get_grad_norm")),
    ("owned", CORE + "optimizer.optimizer", "Float16OptimizerWithFloat16Params", ("zero_grad",)),
    ("owned", CORE + "distributed.distributed_data_parallel", "DistributedDataParallel", ("zero_grad_buffer",)),
    ("step", "megatron.training.training", "", ("train_step",)),
)  # fmt: skip
CALLS = ("all_reduce", "broadcast", "barrier", "batch_isend_irecv", "isend", "irecv")


def ten(a: int, b: int, c: int, d: int, e: int, f: int, g: int, h: int, i: int, j: int) -> None: ...


class Watch:
    """Processor time of each part without those that it calls, step by step, and of 1000 calls in Python."""

    def __init__(self) -> None:
        self.stack, self.seconds, self.last = ["step"], defaultdict[str, float](float), time.thread_time()
        self.steps: list[dict[str, float]] = []
        self.work: dict[str, list[Any]] = defaultdict(list)
        self.entered: Counter[str] = Counter()

    def _pass(self) -> None:
        self.seconds[self.stack[-1]] += time.thread_time() - self.last
        self.last = time.thread_time()

    def timed(self, part: str, call: Any) -> Any:
        def within(*items: Any, **choices: Any) -> Any:
            self._pass()
            self.stack.append(part)
            self.entered[part] += 1
            try:
                return call(*items, **choices)
            finally:
                self._pass()
                self.stack.pop()

        within.__name__, within.__qualname__ = call.__name__, call.__qualname__
        return within

    def step(self) -> None:
        self._pass()
        for _ in range(1000):
            ten(1, 2, 3, 4, 5, 6, 7, 8, 9, 10)
        self.seconds["1000 calls"] = time.thread_time() - self.last
        self.steps.append(dict(self.seconds))
        self.seconds.clear()
        if len(self.steps) < STEPS // 2:
            self.entered.clear()
        self.last = time.thread_time()


def recorder(torch: Any, watch: Watch) -> Any:
    """Notes the operators that each part launches; views are none."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Recorder(TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(self, call: Any, types: Any, items: Any = (), choices: Any = None) -> Any:
            returned = call._schema.returns
            if not (returned and returned[0].alias_info and not returned[0].alias_info.is_write):
                watch.work[watch.stack[-1]].append((call, items, choices or {}))
            return call(*items, **(choices or {}))

    return Recorder()


def repeated_s(torch: Any, work: list[Any]) -> float:
    """The same operators, run by themselves [s]."""
    kept, times = [], []
    with torch.no_grad():
        for call, items, choices in work:
            try:
                call(*items, **choices)
                kept.append((call, items, choices))
            except RuntimeError:  # its tensor was freed since
                pass
        for _ in range(15):
            start = time.thread_time()
            for call, items, choices in kept:
                call(*items, **choices)
            times.append(time.thread_time() - start)
    return sorted(times)[1]


def one_update(folder: Path) -> Any:
    """Transformer Engine's Adam, whose kernel does nothing."""
    source = (folder / "transformer_engine/pytorch/optimizers/fused_adam.py").read_text()
    lines = [line for line in source.split("\n") if "transformer_engine" not in line.split(" import ")[0]]
    body = "\n".join(line for line in lines if not line.startswith("from ..") and not line.startswith("from .multi"))
    fake = "def multi_tensor_applier(op, buffer, lists, *more): return op(65536, buffer, lists, *more)\n"
    fake += "class Float8Tensor: ...\nclass Float8Quantizer: ...\nclass QuantizedTensor: ...\n"
    fake += "class DType: kFloat32 = 0\nfrom processor_device import Nothing\ntex = Nothing()\n"
    space: dict[str, Any] = {"__name__": "fused_adam"}
    sys.modules["fused_adam"] = importlib.import_module("types").ModuleType("fused_adam")
    exec(compile(body.replace("class FusedAdam", fake + "class FusedAdam", 1), "fused_adam", "exec"), space)
    return space["FusedAdam"]


def without_widths(begin: Any) -> Any:
    """The local attention's beginning, that widths of latent attention are told as well; all heads have one width."""

    def begun(self: Any, *items: Any, k_channels: object = None, v_channels: object = None, **choices: Any) -> None:
        begin(self, *items, **choices)

    return begun


def patch(torch: Any, watch: Watch, adam: Any) -> None:
    """Time every part; kernels over lists of tensors do nothing."""
    lists = {"multi_tensor_applier": lambda call, buffer, tensors, *more: call(1, buffer, tensors, *more)}
    zero = torch.zeros(1)
    for name in ("l2_norm_impl", "multi_tensor_l2norm"):
        lists[name] = lambda *_: (zero.clone(), None)  # type: ignore[assignment]
    for name in ("multi_tensor_scale_impl", "multi_tensor_scale_tensor_impl"):
        lists[name] = lambda *_: None  # type: ignore[assignment]
    importlib.import_module("megatron.training.training")
    optimizers = importlib.import_module(CORE + "optimizer")
    common = sys.modules.get("megatron.training.utils.common_utils", sys.modules["megatron.training.utils"])
    for module in (sys.modules[CORE + "optimizer.optimizer"], sys.modules[CORE + "optimizer.clip_grads"], common):
        for name, value in lists.items():
            if hasattr(module, name):
                setattr(module, name, value)
    optimizers.Adam, optimizers.HAVE_APEX_OR_TE, optimizers.USING_PYTORCH_OPTIMIZER = adam, True, False  # type: ignore[attr-defined]
    adam.step = watch.timed("owned", adam.step)
    core = importlib.import_module(CORE + "transformer.dot_product_attention").DotProductAttention
    core.__init__ = without_widths(core.__init__)
    for part, module_name, owner, names in PARTS:
        module = importlib.import_module(module_name)
        for name in names:
            whose = getattr(module, owner) if owner else module
            setattr(whose, name, watch.timed(part, getattr(whose, name)))
    training, made = sys.modules["megatron.training.training"], sys.modules[CORE + "distributed.finalize_model_grads"]
    training.finalize_model_grads = made.finalize_model_grads  # type: ignore[attr-defined]
    for name in CALLS:
        call = watch.timed("call", getattr(torch.distributed, name))
        setattr(torch.distributed, name, call)
        setattr(torch.distributed.distributed_c10d, name, call)
    wrapper = sys.modules[CORE + "distributed.distributed_data_parallel"].DistributedDataParallel  # type: ignore[attr-defined]
    make = wrapper._make_backward_post_hook
    wrapper._make_backward_post_hook = lambda self, *items: watch.timed("hook", make(self, *items))
    recording, log = recorder(torch, watch), training.training_log  # type: ignore[attr-defined]

    def logged(*items: Any, **choices: Any) -> Any:
        found = log(*items, **choices)
        if len(watch.steps) == 4:
            recording.__enter__()
        if len(watch.steps) == 5:
            recording.__exit__(None, None, None)
        watch.step()
        return found

    training.training_log = logged  # type: ignore[attr-defined]


def train(run: str, program: Path, engine: Path) -> None:
    """Train one run's steps in this process and print its parts."""
    layers, stages, more = RUNS[run]
    ranks = stages if stages > 1 else 8
    os.environ |= {"RANK": "0", "WORLD_SIZE": str(ranks), "LOCAL_RANK": "0"}
    os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] = "8" if SHARDED in more else "1"
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29511", "NCCL_ALGO": "Ring"}
    os.environ |= {"TORCHDYNAMO_DISABLE": "1", "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    sys.argv = ["pretrain_gpt.py", *ARGUMENTS.split(), "--num-layers", str(layers), "--train-iters", str(STEPS)]
    sys.argv += ["--pipeline-model-parallel-size", str(stages), *more.split()]
    sys.path.insert(0, str(program))
    import torch

    stand_in(torch, ranks, numbered=SHARDED in more)
    watch = Watch()
    patch(torch, watch, one_update(engine))
    atexit.register(lambda: print("PARTS", json.dumps(parts(torch, watch, repeat=OWNED not in more))))
    source = (program / "pretrain_gpt.py").read_text()
    timed = "for _name in ('get_batch', 'forward_step'): globals()[_name] = WATCH.timed('turn', globals()[_name])\n"
    timed += "loss_func = WATCH.timed('loss', loss_func)\n"
    head, tail = source.split("\nif __name__ == ")
    code = compile(f"{head}\n{timed}\nif __name__ == {tail}", str(program / "pretrain_gpt.py"), "exec")
    exec(code, {"__name__": "__main__", "__file__": str(program / "pretrain_gpt.py"), "WATCH": watch})


def parts(torch: Any, watch: Watch, *, repeat: bool) -> dict[str, Any]:
    """Seconds of each part, on the host of reference, and how often a part was entered a step.

    Beside its operators where these `repeat`: not where their tensors' memory was let go of since.
    """
    steps = watch.steps[WARM:]
    names = {name for step in steps for name in step}
    quick = {name: sorted(step.get(name, 0.0) for step in steps)[len(steps) // 10] for name in names}
    scale = 1000 * CALL_S / quick.pop("1000 calls")
    counted = len(watch.steps) - STEPS // 2 + 1
    return {
        "seconds": {n: scale * (quick[n] - (repeated_s(torch, watch.work[n]) if repeat else 0.0)) for n in quick},
        "entered": {name: count / counted for name, count in watch.entered.items()},
    }


def sharded_lines(seconds: dict[str, dict[str, float]]) -> list[str]:
    """What sharding weights adds to a distributed optimizer: by layer and tensor, and for a micro-batch."""

    def more_us(layers: int, few: str, parts: tuple[str, ...]) -> float:
        whole, states = (seconds[f"{name}{few} {layers}"] for name in ("sharded", "owned"))
        return 1e6 * sum(whole.get(part, 0.0) - states.get(part, 0.0) for part in parts)

    lines = []
    for when, named in (("forward", ("layer", "turn")), ("backward", ("backward", "hook")), ("step", STEP)):
        many, few = ((more_us(12, few, named) - more_us(4, few, named)) / 8 for few in ("", " few"))
        each = (many - few) / (MANY - FEWER)
        lines.append(f"sharded.{when}: {many - MANY * each:.0f} us a layer, {each:.0f} us a tensor")
    rest = 1.5 * more_us(4, "", ("turn", "embedding")) - 0.5 * more_us(12, "", ("turn", "embedding"))
    return [*lines, f"sharded.turn: {rest:.0f} us for a micro-batch"]


def main() -> int:
    if len(sys.argv) > 3:
        train(sys.argv[3], Path(sys.argv[1]), Path(sys.argv[2]))
        return 0
    found = {}
    for run in RUNS:
        command = [sys.executable, __file__, str(Path(sys.argv[1]).resolve()), str(Path(sys.argv[2]).resolve()), run]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        found[run] = json.loads(said.split("PARTS ")[-1])
    seconds = {run: found[run]["seconds"] for run in RUNS}
    whole, short, again, chunks = (seconds[run] for run in ("whole", "short", "again", "chunks"))
    tensors = {run: found[run]["entered"]["hook"] for run in ("whole", "short")}
    for part in ("held", "owned"):
        each = (whole[part] - short[part]) / (tensors["whole"] - tensors["short"])
        print(f"{part}: {each * 1e6:.1f} us a tensor, {(whole[part] - each * tensors['whole']) * 1e3:.2f} ms a step")
    turns = found["chunks"]["entered"]["block"]
    print(f"turn: {(chunks['turn'] + chunks['block']) / turns * 1e6:.0f} us for a chunk and micro-batch")
    print(f"embedding: {whole['embedding'] * 1e6:.0f} us, loss: {whole['loss'] * 1e6:.0f} us")
    more = sum(again[part] - whole[part] for part in ("block", "backward"))
    print(f"checkpoint: {more / RUNS['whole'][0] * 1e6:.0f} us a layer")
    print(f"step: {whole['step'] * 1e3:.2f} ms beside")
    layers_us = {run: {part: 1e6 * s / RUNS[run][0] for part, s in seconds[run].items()} for run in RUNS}
    for name, run, part in (
        ("route", "experts", "route"), ("sinkhorn", "balanced", "route"),
        ("alltoall", "experts", "dispatch"), ("allgather", "gathered", "dispatch"),
    ):  # fmt: skip
        print(f"{name}: {layers_us[run][part]:.0f} us a layer")
    print(f"expert: {(layers_us['experts']['expert'] - layers_us['fewer']['expert']) / 2:.0f} us an expert")
    for line in sharded_lines(seconds):
        print(line)
    print(f"latent: {layers_us['latent']['attention'] - layers_us['whole']['attention']:.0f} us a layer")
    return 0


if __name__ == "__main__":
    sys.exit(main())
