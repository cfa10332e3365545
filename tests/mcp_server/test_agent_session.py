"""An agent's session over the protocol: from "will it fit" to a config on disk, with refusals on the way."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mcp")

from mcp import Client, MCPError

from ridgeline.api.bounded import Answerers, Limits
from ridgeline.api.verb import VERBS
from ridgeline.mcp_server.server import server
from ridgeline.mcp_server.summary import SIZE, cut, part, size
from ridgeline.mcp_server.tools import ASKED, COMMON, fields_of, offered, words_of


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("root")


@pytest.fixture(scope="module")
def answerers(root: Path) -> Iterator[Answerers]:
    with Answerers(Limits(root=root, seconds=120, processes=1)) as found:
        yield found


def talk(answerers: Answerers, script: Callable[[Client], Awaitable[None]]) -> None:
    async def main() -> None:
        async with Client(server(answerers)) as client:
            await script(client)

    asyncio.run(main())


async def asked(client: Client, name: str, /, **words: Any) -> dict[str, Any]:
    found = await client.call_tool(name, words)
    assert not found.is_error, found.structured_content
    told: dict[str, Any] = found.structured_content
    assert json.loads(found.content[0].text) == told  # type: ignore[union-attr]
    assert size(told) < 1.3 * SIZE
    return told


async def refused(client: Client, name: str, /, **words: Any) -> dict[str, Any]:
    found = await client.call_tool(name, words)
    assert found.is_error, found.structured_content
    told: dict[str, Any] = found.structured_content
    return told


def test_a_session_from_will_it_fit_to_a_config(answerers: Answerers, root: Path) -> None:
    async def script(client: Client) -> None:
        assert "interval" in (client.instructions or "")
        near = await refused(client, "predict", subject="qwen3-32", on="1xRTX-4090", serve=True, batch=1)
        assert "qwen3-32b" in near["nearest"]
        big = await refused(client, "predict", subject="qwen3-32b", on="1xRTX-4090", serve=True, batch=1)
        assert big["exit_code"] == 1
        assert "GiB" in big["error"]
        machine = (await client.read_resource("ridgeline://clusters/2xH100-SXM")).contents[0]
        assert json.loads(machine.text)["devices"] == 2  # type: ignore[union-attr]

        traffic = {"rate": 2, "prompt": 1024, "output": 64, "slo": "ttft=2s,tpot=80ms", "duration": 30}
        found = await asked(
            client, "plan", subject="qwen3-32b", on="2xH100-SXM", serve=True, more={"seed": 1}, **traffic
        )
        best = found["best"][0]["deployments"][0]
        told = await asked(client, "simulate", subject="qwen3-32b", on="2xH100-SXM", tp=best["tp"], **traffic)
        assert told["attained"] > 0.9
        rest = await asked(client, "details", answer=told["answer_id"], path="intervals")
        assert {"ttft_p99_s", "tpot_p90_s"} <= rest["part"].keys()

        config = await asked(
            client, "export", subject="qwen3-32b", on="2xH100-SXM", tp=best["tp"], to="vllm", out="run"
        )
        assert f"tensor-parallel-size: {best['tp']}" in (root / "run" / "vllm.yaml").read_text(encoding="utf-8")
        assert config["command"].startswith("vllm serve")
        again = await asked(client, "predict", from_config="run/vllm.yaml", on="2xH100-SXM", batch=8)
        assert again["output_tokens_per_s"] > 0

    talk(answerers, script)


def test_estimates_have_interval_unit_and_evidence(answerers: Answerers) -> None:
    async def script(client: Client) -> None:
        told = await asked(client, "predict", subject="gpt2", on="1xA100-SXM-80GB", micro_batch=8, global_batch=8)
        step = told["step_time_s"]
        assert step["low"] < step["value"] < step["high"]
        assert step["unit"] == "s"
        assert step["evidence"]

    talk(answerers, script)


def test_progress_reaches_the_client(answerers: Answerers) -> None:
    heard: list[tuple[float, float | None, str | None]] = []

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        heard.append((progress, total, message))

    async def script(client: Client) -> None:
        words = {"subject": "gpt2", "on": "1xA100-SXM-80GB", "rate": 1, "prompt": 64, "output": 8, "requests": 20}
        await client.call_tool("simulate", words, progress_callback=on_progress)

    talk(answerers, script)
    assert any(message and "replaying" in message for _, _, message in heard)


def test_no_path_outside_the_root(answerers: Answerers, root: Path, tmp_path: Path) -> None:
    outside = tmp_path / "secret.toml"
    outside.write_text('[model]\nname = "SECRET"\n', encoding="utf-8")
    (root / "link.toml").symlink_to(outside)
    (root / "asks.toml").write_text(
        f'[model]\nconfig = "{outside.with_suffix(".json")}"\n[cluster]\nname = "1xH100-SXM"\n', encoding="utf-8"
    )
    outside.with_suffix(".json").write_text('{"model_type": "SECRET"}', encoding="utf-8")

    async def script(client: Client) -> None:
        for subject in (str(outside), "../" * 20 + str(outside)[1:], "link.toml", "asks.toml", "~/x.toml"):
            told = await refused(client, "predict", subject=subject, on="1xH100-SXM")
            assert "outside the folder" in told["error"], told
            assert "SECRET" not in json.dumps(told)
        words = {"subject": "gpt2", "on": "1xA100-SXM-80GB", "to": "deepspeed"}
        for out in (str(tmp_path / "out"), "../out"):
            assert "outside the folder" in (await refused(client, "export", out=out, **words))["error"]
        assert "outside" in (await refused(client, "predict", from_config=f"vllm:{outside}", on="1xH100-SXM"))["error"]

    talk(answerers, script)
    assert not (tmp_path / "out").exists()


def test_refusals_name_the_nearest(answerers: Answerers) -> None:
    async def script(client: Client) -> None:
        assert "micro_batch" in (await refused(client, "predict", microbatch=1))["nearest"]
        assert "ep" in (await refused(client, "plan", more={"epp": 1}))["nearest"]
        assert "H100-SXM" in str((await refused(client, "explain", name="H100-SX"))["nearest"])
        assert (await refused(client, "predikt"))["nearest"] == ["predict"]
        assert (await refused(client, "details", answer="a999", path=""))["kind"] == "UnknownNameError"
        with pytest.raises(MCPError, match="ridgeline://models"):
            await client.read_resource("ridgeline://modells")
        with pytest.raises(MCPError, match="unknown model"):
            await client.read_resource("ridgeline://models/gpt22")

    talk(answerers, script)


def test_words_techniques_and_names_are_explained(answerers: Answerers) -> None:
    async def script(client: Client) -> None:
        word = (await asked(client, "explain", name="--zero-group"))["words"][0]
        assert "predict" in word["tools"]
        assert len((await asked(client, "explain", tool="op"))["words"]) == len(words_of("op"))
        assert "zero-infinity" in json.dumps(await asked(client, "explain", name="zero-infinity"))
        assert "hopper" in json.dumps(await asked(client, "explain", name="H100-SXM"))
        for kind in ("models", "accelerators", "techniques", "targets"):
            assert (await client.read_resource(f"ridgeline://{kind}")).contents[0].text  # type: ignore[union-attr]

    talk(answerers, script)


def test_what_takes_too_long_is_ended_and_the_next_is_answered(tmp_path: Path) -> None:
    async def script(client: Client) -> None:
        told = await refused(client, "plan", subject="llama-3.1-405b", on="1024xH100-SXM", exhaustive=True)
        assert told["kind"] == "LimitError"
        assert "--limit" in told["next_step"]
        assert (await asked(client, "op", kind="gemm", shape="64x64x64"))["rows"]

    with Answerers(Limits(root=tmp_path, seconds=5, processes=1)) as answerers:
        talk(answerers, script)


def test_a_call_that_is_taken_back_ends_its_process(tmp_path: Path) -> None:
    async def script(client: Client) -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(4):
                await client.call_tool("plan", {"subject": "llama-3.1-405b", "on": "1024xH100-SXM", "exhaustive": True})
        assert (await asked(client, "op", kind="gemm", shape="64x64x64"))["rows"]

    with Answerers(Limits(root=tmp_path, seconds=100, processes=1)) as answerers:
        talk(answerers, script)


@pytest.mark.parametrize("each", offered(), ids=lambda each: each.name)
def test_schemas_are_made_of_the_table_and_small(each: Any) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    jsonschema.Draft202012Validator.check_schema(each.schema)
    assert size(each.schema) < 8_000
    if each.name in ASKED:
        more = each.schema["properties"].get("more", {"propertyNames": {"enum": []}})["propertyNames"]["enum"]
        assert {*each.schema["properties"], *more} - {"more"} == set(words_of(each.name))
        assert set(words_of(each.name)) <= set(VERBS[each.name].words())


def test_common_words_are_words() -> None:
    assert set().union(*(fields_of(verb) for verb in ASKED)) >= COMMON


def test_a_summary_keeps_estimates_whole_and_names_the_rest() -> None:
    fact = {"value": 1.5, "low": 1.0, "high": 2.0, "unit": "s", "evidence": "assumed", "source": "x" * 500}
    answer = {"time": fact, "none": None, "rows": [{"text": "y" * 900, "at": index} for index in range(100)]}
    shown, left_out = cut(answer, 2_000)
    assert shown["time"] == {key: value for key, value in fact.items() if key != "source"}
    assert "none" not in shown
    assert size(shown) < 2_600
    assert left_out["rows"].endswith("of 100")
    assert part(answer, "rows", 99) == [answer["rows"][99]]
    assert part(answer, "rows.7.at") == 7
