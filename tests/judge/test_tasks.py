"""Tasks in other forms than kernel files: modules with solutions apart, rows of JSON, gradients, weak tasks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from ridgeline.cli.main import run  # noqa: E402
from ridgeline.errors import InputError  # noqa: E402
from ridgeline.judge.child import judge_kernel, task_weaknesses  # noqa: E402
from ridgeline.judge.kernel_file import cases, load_kernel  # noqa: E402
from ridgeline.judge.module_task import unsolved  # noqa: E402
from ridgeline.judge.tasks import kernel_tasks  # noqa: E402
from ridgeline.judge.verdict import JudgeSettings  # noqa: E402

TASK = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self, wide):
        super().__init__()
        self.first, self.drop = nn.Linear(8, wide), nn.Dropout(0.5)

    def forward(self, x):
        return torch.relu(self.drop(self.first(x)))

def get_inputs():
    return [torch.randn(4, 8)]

def get_init_inputs():
    return [16]
"""
SOLUTION = """
import torch
from torch import nn

class ModelNew(nn.Module):
    def __init__(self, wide):
        super().__init__()
        self.noise = torch.randn(3)  # weights are the task's own, whatever is drawn before them
        self.first = nn.Linear(8, wide)

    def forward(self, x):
        return {answer}
"""
RIGHT = "(x @ self.first.weight.T + self.first.bias).clamp_min(0)"
SETTINGS = JudgeSettings(repeats=0)


def names_of(path: Path, solution: Path | None = None) -> list[str]:
    found = judge_kernel(str(path), "candidate", SETTINGS, "" if solution is None else str(solution))
    return [one.name for one in found.findings]


def test_a_module_is_judged_with_a_solution_of_another_file(tmp_path: Path) -> None:
    task, own = tmp_path / "1_layer.py", tmp_path / "own.py"
    task.write_text(TASK)
    own.write_text(SOLUTION.format(answer=RIGHT))
    assert not names_of(task, own)
    own.write_text(SOLUTION.format(answer="self.first(x).abs()"))
    assert names_of(task, own) == ["wrong"]
    own.write_text(SOLUTION.format(answer=RIGHT) + "raise RuntimeError('broken')\n")
    with pytest.raises(InputError, match="broken"):
        names_of(task, own)
    assert names_of(task) == ["unsolved"]
    assert load_kernel(str(task)).candidate is unsolved


def test_solutions_are_found_by_name_or_by_level_and_number(tmp_path: Path) -> None:
    for place in ("level1", "level2"):
        (tmp_path / place).mkdir()
        (tmp_path / place / "2_layer.py").write_text(TASK)
        (tmp_path / place / "10_other.py").write_text(TASK)
    answers = tmp_path / "run"
    answers.mkdir()
    (answers / "level_2_problem_10_sample_0_kernel.py").write_text(SOLUTION.format(answer=RIGHT))
    with kernel_tasks(str(tmp_path / "level1")) as tasks:
        assert [Path(one.path).name for one in tasks] == ["2_layer.py", "10_other.py"]
    with kernel_tasks(str(tmp_path), str(answers)) as tasks:
        assert [one.path for one in tasks if "run" not in one.path] == [str(tmp_path / "level2" / "10_other.py")]
    with pytest.raises(InputError, match="named like a task"), kernel_tasks(str(tmp_path / "level1"), str(answers)):
        pass


def test_rows_of_json_are_tasks_with_their_solutions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        {"level_id": 1, "task_id": 2, "ref_code": TASK, "custom_code": SOLUTION.format(answer=RIGHT)},
        {"level_id": 1, "task_id": 3, "ref_code": TASK, "custom_code": None},
    ]
    path = tmp_path / "tasks.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    assert run(["measure", "--kernel", str(path), "--repeats", "1", "--json"]) == 1
    answer = json.loads(capsys.readouterr().out)
    assert [one["file"] for one in answer["kernels"]] == ["level1/2", "level1/3"]
    assert [one["correct"] for one in answer["kernels"]] == [True, False]
    assert answer["kernels"][1]["eager_time"]["median_s"] > 0
    assert answer["fast_p"]["fast_0"] == 0.5
    (tmp_path / "own.json").write_text(json.dumps(answer))
    assert run(["score", str(tmp_path / "own.json"), "--metric", "fast-p(p=0)", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["scores"][0]["fast_0"] == 0.5
    path.write_text('{"task": 1}\n{"task": 2}\n')
    assert run(["measure", "--kernel", str(path)]) == 2


WEAK = {
    "return x * 1e-4": "zeros pass",
    "return torch.ones_like(x) + 1e-4 * x": "a constant passes",
    "return x[:, :1].expand(-1, 100) * 1.0": "along axis 1",
    "return torch.arange(100.0).expand(16, 100) + 0 * y": "the same for other contents",
    "return x.sum(1, keepdim=True) + x": "input 1 changes no output",
}


@pytest.mark.parametrize("body", WEAK)
def test_weak_tasks_are_told(tmp_path: Path, body: str) -> None:
    path = tmp_path / "weak.py"
    drawn = "tuple(torch.randn(16, 100, generator=generator) for _ in range(2))"
    path.write_text(
        f"import torch\nSIZES = (1,)\ndef inputs(generator, size):\n    return {drawn}\n"
        f"def reference(x, y):\n    {body}\ndef candidate(x, y):\n    {body}\n"
    )
    kernel = load_kernel(str(path))
    told = list(task_weaknesses(kernel, list(cases(kernel, "cpu"))[:2]))
    assert any(WEAK[body] in one for one in told)


def test_a_sound_task_has_no_weakness() -> None:
    kernel = load_kernel(str(Path(__file__).parents[2] / "examples" / "kernels" / "layernorm.py"))
    assert not list(task_weaknesses(kernel, list(cases(kernel, "cpu"))[:2]))


def test_gradients_are_those_of_autograd(tmp_path: Path) -> None:
    path = tmp_path / "product.py"
    path.write_text(
        "import torch\nSIZES = (6,)\nBACKWARD = True\n"
        "def inputs(generator, size):\n"
        "    return tuple(torch.randn(size, size, generator=generator) for _ in range(2))\n"
        "def reference(a, b):\n    return a @ b\n"
        "def candidate(grad, a, b):\n    return grad @ b.T, a.T @ grad\n"
        "def other(grad, a, b):\n    return grad @ b.T, grad @ a.T\n"
    )
    assert not names_of(path)
    assert [one.name for one in judge_kernel(str(path), "other", SETTINGS).findings] == ["wrong"]
