"""Inputs that are answered, one of each kind that people give, and the wounds that damage them."""

from __future__ import annotations

import gzip
import json
import random
import re
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[2]

SCENARIO = """\
[model]
layers = 4
hidden = 256
heads = 4
vocab = 1000
max_positions = 256
gated = true

[cluster]
name = "8xH100-SXM"

[workload]
task = "pretrain"
seq_len = 256
global_batch = 16
tokens = "1B"
precision = "bf16"
optimizer = "adamw"
padding = "5%"

[plan]
tp = 2
pp = 2
dp = 2
micro_batch = 2
schedule = "1f1b"
zero = 1
recompute = "selective"
layer_split = [2, 2]
sequence_parallel = true
"""

SERVING = """\
model = "gpt2"
cluster = "1xH100-SXM"

[workload]
rate = 4
requests = 20
prompt = 64
output = 8
slo = "ttft=1s,tpot=50ms"

[plan]
engine = "vllm"
weights = "bf16"
max_seqs = 32
token_budget = 512
"""

DIFFUSION = """\
model = "flux.1-dev"
cluster = "2xH100-SXM"

[workload]
task = "diffusion"
width = 512
height = 512
steps = 4

[plan]
ulysses = 2
"""

CONFIG = json.dumps(
    {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 1000,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-05,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 128},
    },
    indent=1,
)

TRUTH = {
    "training": """\
id model params_b layers hidden heads vocab seq_len hardware n_devices tp pp dp micro_batch global_batch precision \
recompute metric value unit confidence
a1 GPT-3-175B 175 96 12288 96 51200 2048 A100-SXM-80GB 64 8 8 1 1 64 fp16 selective step_time 13.75 s high
a2 Llama-2-7B 6.7 32 4096 32 32000 4096 H100-SXM 8 1 1 8 1 8 bf16 none tokens_per_s 90000 tokens/s high
a3 Llama-2-7B 6.7 - - - - 4096 H100-SXM 8 - - - - - - - mfu 45 % low
""",
    "memory": """\
id model params_b layers seq_len hardware n_devices dp micro_batch global_batch precision recompute offload optimizer \
metric value unit confidence
m1 Mixtral-8x7B_truncated_to_2_layers,_4_experts - - 4096 H100-SXM 8 8 1 8 bf16 none - adamw peak_mem 40 GiB high
m2 Llama-2-7B 6.7 32 4096 H100-SXM 8 8 1 8 bf16 full - adamw fits fits - high
""",
    "serving": """\
id model params_b hardware n_devices tp engine engine_version scenario batch_or_concurrency rate_rps isl osl \
precision_weights metric value unit confidence
s1 Mistral-7B 7 H100-SXM 1 1 TensorRT-LLM 0.12.0 fixed-batch 1 - 128 8 fp16 batch_latency_ms 60 ms high
s2 gpt2 0.1 A100-SXM-80GB 1 1 vLLM 0.6 online 4 2 64 8 fp16 ttft_ms 20 ms high
""",
    "kernels": """\
id op shape dtype hardware library metric value unit confidence
k1 gemm m=64_n=8192_k=8192 bf16 H100-SXM cuBLAS latency 0.06 ms high
k2 attention b=1_s=4096_h=32_d=128 bf16 A100-SXM-80GB FlashAttention latency 1 ms high
""",
    "collectives": """\
id op bytes n_devices n_nodes topology hardware library metric value unit confidence
c1 all_reduce 65536 8 1 NVSwitch A100-SXM-80GB NCCL busbw 2.45 GB/s high
""",
    "offload": """\
id model params_b gpu n_gpu gpu_mem_gb cpu host_mem disk technique engine precision_weights placement batch isl osl \
metric value unit confidence
o1 OPT-30B 30 T4-16GB 1 16 - 208GB - streamed FlexGen fp16 - 16 512 8 generation_tok_s 2 tok/s high
""",
    "diffusion": """\
id model params_b resolution frames steps batch hardware n_devices technique engine precision metric value unit \
confidence
d1 FLUX.1-dev 12 1024x1024 - 28 1 H100-SXM 2 ulysses_2 xDiT bf16 latency_s 4.4 s high
""",
}
"""Rows of each kind of truth table, words apart by blanks; '-' is a blank cell and '_' a blank within one."""

TRACE = """\
arrival_s,prompt_tokens,output_tokens,prefix_block_ids,session,client,priority
0,600,4,0-1,a,x,0
0.25,512,3,0,a,x,1
0.5,1100,2,0 7 9,b,y,0
1.5,20,5,,b,y,0
"""
JSON_TRACE = """\
{"timestamp": 0, "input_length": 600, "output_length": 4, "hash_ids": [0, 1]}
{"timestamp": 250, "input_length": 512, "output_length": 3, "hash_ids": [0]}
{"timestamp": 900, "input_length": 20, "output_length": 5, "hash_ids": []}
"""
LOADS = "layer,expert,load\n" + "".join(f"{layer},{each},{1 + each % 3}\n" for layer in range(32) for each in range(8))
ENGINE = (ROOT / "src/ridgeline/data/engines/transformers.toml").read_text(encoding="utf-8")
FRAMEWORK = (ROOT / "src/ridgeline/data/frameworks/ddp.toml").read_text(encoding="utf-8")
MACHINE = (ROOT / "examples/machine.toml").read_text(encoding="utf-8")

EVIL = ["-1", "0", "1e999", "nan", "''", '"', "[[", "]]", "{", "}", "\x00", "\udcff", "9" * 30, "true", "null", "é€😀"]
EVIL += ["\t", "1_0", "0x10", "1979-05-27", "= =", "../../etc/passwd", "%s%n", "\\u0000", "__import__('os')", "1e9"]
EVIL += [
    "5e-324",
    "²",
    "٣",
    "1e18",
    "-0",
    "[" * 1000,
    "[4]",
    "/dev/zero",
    "\ufeff",
    "x" * 5000,
    "9" * 5000,
    "inf",
    "1,1",
]


def damaged(text: str, dice: random.Random, *, whole: bool) -> bytes:
    """The text after one to three random wounds, now and then after a byte order mark or packed and broken."""
    for _ in range(0 if whole else dice.randint(1, 3)):
        text = dice.choice(WOUNDS)(text, dice)
    raw = text.encode("utf-8", "surrogateescape")
    if not whole and dice.random() < 0.03:
        raw = b"\xef\xbb\xbf" + raw
    if not whole and dice.random() < 0.05:
        packed = bytearray(gzip.compress(raw))
        for _ in range(dice.randint(0, 2)):
            packed[dice.randrange(len(packed))] = dice.randrange(256)
        raw = bytes(packed[: dice.randint(2, len(packed))])
    return raw


def _replace_word(text: str, dice: random.Random) -> str:
    words = list(re.finditer(r"[\w.\-%]+", text)) or [re.match("", text)]
    word = dice.choice(words)
    assert word is not None
    return text[: word.start()] + dice.choice(EVIL) + text[word.end() :]


def _scale_number(text: str, dice: random.Random) -> str:
    numbers = list(re.finditer(r"(?<!\d)\d{1,20}(?!\d)", text)) or [re.match("", text)]
    number = dice.choice(numbers)
    assert number is not None
    changed = str(int(number[0] or 0) * dice.choice([0, 2, 3, 10, 1000, 10**9]) + dice.choice([0, 1]))
    return text[: number.start()] + changed + text[number.end() :]


def _drop_line(text: str, dice: random.Random) -> str:
    lines = text.split("\n")
    lines.pop(dice.randrange(len(lines)))
    return "\n".join(lines)


def _swap_lines(text: str, dice: random.Random) -> str:
    lines = text.split("\n")
    first, second = dice.randrange(len(lines)), dice.randrange(len(lines))
    lines[first], lines[second] = lines[second], lines[first]
    return "\n".join(lines)


def _repeat_line(text: str, dice: random.Random) -> str:
    lines = text.split("\n")
    lines.insert(dice.randrange(len(lines)), dice.choice(lines))
    return "\n".join(lines)


def _swap_words(text: str, dice: random.Random) -> str:
    words = list(re.finditer(r"[\w.\-%]+", text))
    if len(words) < 2:
        return text
    one, other = sorted(dice.sample(words, 2), key=lambda word: word.start())
    return text[: one.start()] + other[0] + text[one.end() : other.start()] + one[0] + text[other.end() :]


def _blank_word(text: str, dice: random.Random) -> str:
    words = list(re.finditer(r"[\w.\-%]+", text)) or [re.match("", text)]
    word = dice.choice(words)
    assert word is not None
    return text[: word.start()] + text[word.end() :]


def _cut(text: str, dice: random.Random) -> str:
    return text[: dice.randrange(len(text) + 1)]


def _poke(text: str, dice: random.Random) -> str:
    at = dice.randrange(len(text) + 1)
    return text[:at] + dice.choice([*EVIL, chr(dice.randrange(1, 0x250))]) + text[at + dice.randint(0, 3) :]


Wound = Callable[[str, random.Random], str]
WOUNDS: list[Wound] = [
    _replace_word, _replace_word, _replace_word, _scale_number, _scale_number, _scale_number, _swap_words, _blank_word,
    _drop_line, _swap_lines, _repeat_line, _cut, _poke,
]  # fmt: skip
