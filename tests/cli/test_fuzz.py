"""A thousand damaged inputs: each is answered or refused by place, none ends in a traceback."""

from __future__ import annotations

import json
import random
import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ridgeline.cli.main import run

CASES = 1000
BATCH = 50  # cases of one test, so that several processes can share them
SLOWEST_S = 20.0  # for one case; most take some hundredths of a second

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
    },
    indent=1,
)

TRUTH = """\
id model params_b layers hidden heads vocab seq_len hardware n_devices tp pp dp micro_batch global_batch precision \
recompute metric value unit confidence
a1 GPT-3-175B 175 96 12288 96 51200 2048 A100-SXM-80GB 64 8 8 1 1 64 fp16 selective step_time 13.75 s high
a2 Llama-2-7B 6.7 32 4096 32 32000 4096 H100-SXM 8 1 1 8 1 8 bf16 none tokens_per_s 90000 tokens/s high
a3 Llama-2-7B 6.7 - - - - 4096 H100-SXM 8 - - - - - - - mfu 45 % low
""".replace(" ", "\t").replace("-\t", "\t")

EVIL = ["-1", "0", "1e999", "nan", "''", '"', "[[", "]]", "{", "}", "\x00", "\udcff", "9" * 30, "true", "null", "é€😀"]
EVIL += ["\t", "1_0", "0x10", "1979-05-27", "= =", "../../etc/passwd", "%s%n", "\\u0000", "__import__('os')", "1e9"]


def damaged(text: str, seed: int) -> bytes:
    """The text after one to three random wounds; seed 0 leaves it whole."""
    dice = random.Random(seed)
    for _ in range(dice.randint(1, 3) if seed else 0):
        text = dice.choice(WOUNDS)(text, dice)
    return text.encode("utf-8", "surrogateescape")


def _replace_word(text: str, dice: random.Random) -> str:
    words = list(re.finditer(r"[\w.\-%]+", text)) or [re.match("", text)]
    word = dice.choice(words)
    assert word is not None
    return text[: word.start()] + dice.choice(EVIL) + text[word.end() :]


def _scale_number(text: str, dice: random.Random) -> str:
    numbers = list(re.finditer(r"\d+", text)) or [re.match("", text)]
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


def _cut(text: str, dice: random.Random) -> str:
    return text[: dice.randrange(len(text) + 1)]


def _poke(text: str, dice: random.Random) -> str:
    at = dice.randrange(len(text) + 1)
    return text[:at] + dice.choice([*EVIL, chr(dice.randrange(1, 0x250))]) + text[at + dice.randint(0, 3) :]


WOUNDS: list[Callable[[str, random.Random], str]] = [
    _replace_word,
    _replace_word,
    _scale_number,
    _scale_number,
    _drop_line,
    _swap_lines,
    _repeat_line,
    _cut,
    _poke,
]


def _scenario(folder: Path, seed: int) -> list[str]:
    path = folder / "scenario.toml"
    path.write_bytes(damaged(SCENARIO, seed))
    return ["predict", str(path)] + (["--json"] if seed % 2 else [])


def _config(folder: Path, seed: int) -> list[str]:
    (folder / "config.json").write_bytes(damaged(CONFIG, seed))
    path = folder / "scenario.toml"
    rest = SCENARIO[SCENARIO.index("[cluster]") :]
    path.write_text('[model]\nconfig = "config.json"\n' + rest, encoding="utf-8")
    return ["predict", str(path)]


def _cluster(folder: Path, seed: int) -> list[str]:
    machine = Path(__file__).parents[2] / "examples" / "machine.toml"
    (folder / "machine.toml").write_bytes(damaged(machine.read_text(encoding="utf-8"), seed))
    path = folder / "scenario.toml"
    asked = SCENARIO[: SCENARIO.index("[plan]")].replace('name = "8xH100-SXM"', 'file = "machine.toml"')
    path.write_text(asked, encoding="utf-8")
    return ["predict", str(path)]


def _truth(folder: Path, seed: int) -> list[str]:
    (folder / "rows.tsv").write_bytes(damaged(TRUTH, seed))
    return ["check", str(folder / "rows.tsv"), "--json"]


KINDS = {"scenario": (_scenario, 0.5), "config": (_config, 0.2), "cluster": (_cluster, 0.15), "truth": (_truth, 0.15)}
BATCHES = [(kind, start) for kind, (_, share) in KINDS.items() for start in range(0, round(share * CASES), BATCH)]


@pytest.mark.parametrize(("kind", "start"), BATCHES, ids=[f"{kind}-{start}" for kind, start in BATCHES])
def test_damaged_input_is_answered_or_refused_by_place(
    kind: str, start: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make, answered = KINDS[kind][0], 0
    for seed in range(start, start + BATCH):
        words = make(tmp_path, seed)
        begun = time.perf_counter()
        code = run(words)
        spent_s = time.perf_counter() - begun
        out, err = capsys.readouterr()
        case = f"{kind} {seed}: {words}\n{err}"
        assert spent_s < SLOWEST_S, case
        assert code in (0, 1, 2), case
        assert "Traceback" not in err, case
        if code == 2:
            assert err.startswith("error: "), case
            assert re.search(r"(\.toml|\.json|\.tsv)(:\d+)?: ", err), case
            assert re.search(r":\d+: |field '|cannot be read|no such file|needs accelerator|rows.tsv: ", err), case
        else:
            assert out.strip(), case
            answered += 1
            assert '"reason": "internal' not in out, out
        assert seed or code == 0, case  # the undamaged input is answered
    assert answered, "every input was refused: the wounds are too deep to test anything but the door"
