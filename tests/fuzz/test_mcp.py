"""Whatever an agent calls, it gets an answer or a structured refusal, never a defect and never a broken connection."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mcp")

from mcp import Client

from ridgeline.api.bounded import Answerers, Limits
from ridgeline.mcp_server.server import server
from ridgeline.mcp_server.tools import ASKED, offered, words_of

VALUES: tuple[Any, ...] = (
    "", " ", "0", "-1", "1e999", "nan", "gpt2", "1xH100-SXM", "x" * 5_000, "\x00", "é\u202e", "../x", "/", "~",
    "a.toml", "deepspeed:x.json", "4096x4096x14336", "lognormal(median=1", "zero-infinity(",
    0, -1, 1, 2**70, 0.5, 1e308, True, False,
    None, [], ["a", 1], [[[[]]]], {}, {"a": {"b": 1}},
)  # fmt: skip
CALLS = 150


def made_up(dice: random.Random) -> tuple[str, dict[str, Any]]:
    """A call: mostly a question that could be asked, with some words whose values could not."""
    name = dice.choice([each.name for each in offered()])
    known = words_of(name) if name in ASKED else ("name", "tool", "answer", "path", "start")
    words: dict[str, Any] = {"subject": "gpt2", "on": "1xA100-SXM-80GB"} if name in ASKED and name != "op" else {}
    words |= {dice.choice(known): dice.choice(VALUES) for _ in range(dice.randint(0, 3))}
    if dice.random() < 0.2:
        words[dice.choice(["more", "kind", "shape", "évil", "__class__"])] = dice.choice(VALUES)
    return name, words


def test_any_call_is_answered_or_refused(tmp_path: Path) -> None:
    dice = random.Random(22)
    calls = [made_up(dice) for _ in range(CALLS)]
    (tmp_path / "a.toml").write_text("[model]\nname = 3\n", encoding="utf-8")

    async def main(answerers: Answerers) -> None:
        async with Client(server(answerers)) as client:
            for name, words in calls:
                found = await client.call_tool(name, words)
                told = found.structured_content
                if found.is_error:
                    assert told["kind"] != "Defect", (name, words, told)
                    assert told["error"], (name, words)
                    assert len(found.content[0].text) < 20_000  # type: ignore[union-attr]
            assert (await client.call_tool("op", {"kind": "gemm", "shape": "64x64x64"})).structured_content["rows"]

    with Answerers(Limits(root=tmp_path, seconds=5, processes=1)) as answerers:
        asyncio.run(main(answerers))
    assert {path.name for path in tmp_path.iterdir()} <= {"a.toml", *map(str, VALUES)}
