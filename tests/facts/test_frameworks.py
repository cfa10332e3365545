"""Policy files of training frameworks: every file loads, every key has a source, and what a release runs is as told."""

from __future__ import annotations

from pathlib import Path

import pytest

from ridgeline.errors import InputError, UnknownNameError
from ridgeline.facts.frameworks import SHARDINGS, FrameworkPolicy, framework_policy
from ridgeline.facts.policies import ENGINES, FRAMEWORKS
from ridgeline.facts.store import source
from ridgeline.seams.registry import names

PAGE = Path(__file__).parents[2] / "docs" / "frameworks.md"
_SMALL = """name = "Mine"

[[policy]]
from = "0"
source = "mine, train.py"
schedules = ["1f1b"]
sharding = ["none", "optimizer"]
"""


def _starts(name: str) -> tuple[str, ...]:
    return FRAMEWORKS.named(name).starts


@pytest.mark.parametrize("name", FRAMEWORKS.names())
def test_every_release_loads_and_names_known_sources(name: str) -> None:
    for version in _starts(name):
        policy = framework_policy(f"{name}@{version}")
        assert {key.split(".")[0] for key in policy.facts} <= set(FRAMEWORKS.keys)
        for text in policy.sources:
            assert source(text).title
            assert "," in text, "a source names the file"


@pytest.mark.parametrize("name", FRAMEWORKS.names())
def test_what_a_release_runs_is_consistent(name: str) -> None:
    for version in _starts(name):
        policy: FrameworkPolicy = framework_policy(f"{name}@{version}")
        assert policy.tasks
        assert set(policy.schedules) <= set(names("schedules"))
        assert policy.precisions
        assert set(policy.sharding_in_groups) <= set(policy.sharding)
        assert set(policy.sharding_with_experts) <= set(policy.sharding)
        assert set(policy.sharding_in_pipelines) <= set(policy.sharding)
        assert set(policy.offload_in_pipelines) <= set(policy.offload)
        assert bool(policy.schedules) == bool(policy.sharding_in_pipelines)
        assert policy.expert_parallel == bool(policy.dispatchers) == bool(policy.sharding_with_experts)
        assert not policy.schedules or policy.data_parallel
        assert policy.default_precision in ("", *policy.precisions)
        assert policy.tensor_parallel or not (policy.sequence_parallel or policy.tensor_overlap)


def test_names_are_those_of_the_files() -> None:
    for policies in (FRAMEWORKS, ENGINES):
        assert policies.names() == tuple(
            sorted((program.name for program in policies.programs.values()), key=str.casefold)
        )


def test_a_release_runs_what_its_repository_has() -> None:
    assert framework_policy("megatron").name == framework_policy("Megatron-LM").name == "Megatron-LM"
    megatron = {version: framework_policy(f"megatron@{version}") for version in ("0.5", "0.9", "0.10", "0.12", "0.13")}
    assert {policy.schedules for policy in megatron.values()} == {("1f1b", "interleaved")}
    assert [policy.layer_splits for policy in megatron.values()] == ["equal", "ends", "ends", "ends", "any"]
    assert megatron["0.9"].context_styles == ("ring",)
    assert "ulysses" in megatron["0.10"].context_styles
    assert megatron["0.5"].sharding == SHARDINGS[:2]
    assert megatron["0.12"].sharding == SHARDINGS
    assert framework_policy("ddp").sharding == ("none",)
    assert not framework_policy("ddp").schedules
    assert not framework_policy("fsdp").schedules
    assert framework_policy("deepspeed").sharding_in_pipelines == SHARDINGS[:2]
    assert framework_policy("deepspeed@0.10.1").context_styles == ()
    assert framework_policy("deepspeed@0.10.2").context_styles == ("ulysses",)
    assert "zb-v" in framework_policy("torchtitan").schedules
    assert not framework_policy("torchtitan@0.1.0").expert_parallel
    assert framework_policy("maxtext").schedules == ("gpipe",)


def test_a_file_of_ones_own_is_a_framework(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(_SMALL)
    policy = framework_policy(str(path))
    assert (policy.name, policy.schedules, policy.sharding) == ("Mine", ("1f1b",), ("none", "optimizer"))
    path.write_text(_SMALL.replace("source =", "like = 'FSDP2'\nsource ="))
    like = framework_policy(f"{path}@0.1")
    assert like.optimizer_in_backward
    assert like.sharding == ("none", "optimizer")


@pytest.mark.parametrize(
    ("old", "new", "wanted"),
    [
        ("schedules", "schedule", r"mine\.toml:6: field 'policy.0.schedule': unknown field; nearest: schedules"),
        ('"optimizer"]', '"optimiser"]', r"mine\.toml:7: .*needs one of none, .*nearest: optimizer"),
        ('["1f1b"]', '"1f1b"', r"mine\.toml:6: .*needs a list of words"),
        ('from = "0"', 'from = "1"', r"mine\.toml:4: .*the first policy needs from = '0'"),
        ("source = ", "like = 'FSDP9' #", r"mine\.toml:5: field 'policy.0.like': .*is none of DDP, DeepSpeed"),
        ("schedules = ", "most_chunks = 0 #", r"mine\.toml:6: .*needs a whole number from 1 to"),
        ("schedules = ", "tensor_parallel = 1 #", r"mine\.toml:6: .*needs true or false"),
    ],
)
def test_defects_are_named_by_file_line_and_field(tmp_path: Path, old: str, new: str, wanted: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(_SMALL.replace(old, new, 1))
    with pytest.raises(InputError, match=wanted):
        FRAMEWORKS.from_file(path)


def test_an_unknown_framework_is_refused_with_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="torchtitan"):
        framework_policy("torchtitn")


def _short(names: tuple[str, ...]) -> str:
    return ", ".join(names) or "-"


def _newest() -> list[str]:
    """The table of what the newest release of each framework runs."""
    found = [
        "| framework | schedules (layers) | sharding (in pipelines) | tensor, sequence | context | experts | recompute "
        "| offload |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name in FRAMEWORKS.names():
        one = framework_policy(name)
        chunked = f"; chunks {one.chunk_splits}" if one.most_chunks > 1 else ""
        columns = (
            f"{name} (since {FRAMEWORKS.named(name).starts[-1]})",
            f"{_short(one.schedules)} ({one.layer_splits}{chunked})" if one.schedules else "-",
            f"{_short(one.sharding)} ({_short(one.sharding_in_pipelines)})" if one.data_parallel else "one device",
            ", ".join("yes" if can else "no" for can in (one.tensor_parallel, one.sequence_parallel)),
            _short(one.context_styles),
            f"{_short(one.dispatchers)}; etp {_short(one.expert_tensor)}" if one.expert_parallel else "-",
            _short(one.recompute) + (", some layers" if one.recompute_some_layers else ""),
            _short(one.offload),
        )
        found.append("| " + " | ".join(columns) + " |")
    found += ["", "| framework | tasks | precision | loss | update in backward |", "|---|---|---|---|---|"]
    for name in FRAMEWORKS.names():
        one = framework_policy(name)
        again = "yes" if one.optimizer_in_backward else "no"
        found.append(f"| {name} | {_short(one.tasks)} | {_short(one.precisions)} | {_short(one.losses)} | {again} |")
    return found


def _keys() -> list[str]:
    """The table of keys."""
    lines = ["| key | unit | meaning |", "|---|---|---|"]
    return lines + [f"| `{key.name}` | {key.unit} | {key.meaning} |" for key in FRAMEWORKS.keys.values()]


def _written(page: str) -> str:
    """The page with its generated tables."""
    for marker, table in (("generated", _newest()), ("keys", _keys())):
        head, found, tail = page.partition(f"<!-- {marker}: python tests/facts/test_frameworks.py -->\n")
        rest = tail[tail.index("<!-- end -->") :]
        page = head + found + "\n".join(table) + "\n" + rest
    return page


def test_the_page_has_the_tables_of_the_files() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page == _written(page)


if __name__ == "__main__":
    PAGE.write_text(_written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
