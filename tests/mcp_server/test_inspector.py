"""The protocol's own inspector as client: it starts the command, lists tools, asks one and reads a resource."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

INSPECTOR = shutil.which("mcp-inspector")  # npm install -g @modelcontextprotocol/inspector; tests/run_weekly does

pytestmark = pytest.mark.skipif(INSPECTOR is None, reason="mcp-inspector is not installed")
pytest.importorskip("mcp")


def inspected(root: Path, *words: str) -> dict[str, Any]:
    server = [sys.executable, "-m", "ridgeline.cli.main", "mcp", "--root", str(root)]
    done = subprocess.run(
        [str(INSPECTOR), "--cli", *server, *words], capture_output=True, text=True, timeout=120, check=True
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_tools_are_listed_with_their_schemas(tmp_path: Path) -> None:
    tools = {tool["name"]: tool for tool in inspected(tmp_path, "--method", "tools/list")["tools"]}
    assert {"predict", "plan", "simulate", "advise", "export", "op", "explain", "details"} <= tools.keys()
    assert all(tool["description"] and tool["inputSchema"]["type"] == "object" for tool in tools.values())


def test_an_operator_is_asked_and_a_wrong_word_is_told(tmp_path: Path) -> None:
    call = ("--method", "tools/call", "--tool-name", "predict", "--tool-arg")
    answer = inspected(tmp_path, *call, "subject=llama-3.2-1b", "on=1xH100-SXM", "serve=true", "batch=1")
    assert not answer.get("isError")
    assert answer["structuredContent"]["model"] == "llama-3.2-1b"
    refusal = inspected(tmp_path, *call, "subject=llama-3.2-1b", "onn=1xH100-SXM")
    assert refusal["isError"]
    assert "on" in refusal["structuredContent"]["nearest"]


def test_a_resource_is_read(tmp_path: Path) -> None:
    found = inspected(tmp_path, "--method", "resources/read", "--uri", "ridgeline://models/llama-3.1-8b")
    assert json.loads(found["contents"][0]["text"])["params"] == 8030261248
