"""Words of post-training: read from flags and files, filled in aloud, refused with file, line and what to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ridgeline.api.post_training import asked_of
from ridgeline.api.verb import ask
from ridgeline.errors import InputError
from ridgeline.scenario.post_training import names_post_training

ON = "8xH100-SXM"


def asked(**words: Any) -> Any:
    return asked_of("llama-3.2-1b", ON, {"task": "grpo", **words})


def test_a_task_of_post_training_is_recognised(tmp_path: Path) -> None:
    assert names_post_training("gpt2", {"task": "GRPO"})
    assert not names_post_training("gpt2", {"task": "lora"})
    file = tmp_path / "a.toml"
    file.write_text('model = "gpt2"\n[workload]\ntask = "ppo"\n', encoding="utf-8")
    assert names_post_training(str(file), {})
    assert not names_post_training(str(tmp_path / "none.toml"), {})
    with pytest.raises(InputError, match="'grop' is not one of them; nearest: grpo"):
        names_post_training("gpt2", {"task": "grop"})


def test_words_of_generation_are_of_tasks_that_generate() -> None:
    with pytest.raises(InputError, match="is of grpo, ppo, and the task is dpo; leave it out"):
        asked(task="dpo", rollout_devices=4)
    with pytest.raises(InputError, match="is of ppo, and the task is grpo; leave it out"):
        asked(critic_devices=4)
    assert asked(rollout_devices=4).stated["rollout_devices"] == 4


def test_what_nobody_said_is_told() -> None:
    found = asked()
    assert found.asked.samples == 8
    assert any("response_cv = 1 (assumed)" in text for text in found.assumed)
    assert asked(task="ppo").asked.samples == 1
    assert asked(task="dpo").asked.samples == 2
    assert not asked(task="sft").asked.reference


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"critic": "gpt2"}, "is of ppo, and the task is grpo"),
        ({"task": "sft", "reward_model": "gpt2"}, "is of grpo, ppo, and the task is sft"),
        ({"responses": "lognormal(median=500,sigma=1)", "response": "500"}, "leave out response"),
        ({"response": "5000", "response_max": "4000"}, "raise response_max"),
        ({"prompts": "0"}, "out of range"),
        ({"rollout_mode": "sometimes"}, "nearest|valid"),
        ({"reward_model": "no-such-model"}, "no-such-model"),
        ({"seq_len": "4096"}, "says nothing of post-training"),
    ],
)
def test_words_that_cannot_be_are_refused(words: dict[str, str], said: str) -> None:
    with pytest.raises(InputError, match=said):
        asked(**words)


def test_questions_of_training_say_who_answers() -> None:
    with pytest.raises(InputError, match="which `predict` and `plan` answer"):
        ask("advise", subject="gpt2", on=ON, task="grpo")
    with pytest.raises(InputError, match="says nothing of post-training"):
        ask("predict", subject="gpt2", on=ON, task="grpo", longest=True)


def test_roles_that_cannot_be_are_blamed_on_the_plan() -> None:
    with pytest.raises(InputError, match="leave the trainer none of 8"):
        ask("predict", subject="llama-3.2-1b", on=ON, task="grpo", rollout_devices="8")
    with pytest.raises(InputError, match="rollout_devices, or mode = synchronous"):
        ask("predict", subject="llama-3.2-1b", on=ON, task="grpo", rollout_mode="off-policy")
