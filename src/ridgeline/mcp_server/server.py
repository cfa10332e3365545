"""The server: calls of tools to bounded questions, readings of resources to facts, refusals to structured errors."""

from __future__ import annotations

import json
from collections import OrderedDict
from importlib.metadata import version
from itertools import count
from threading import Event
from typing import Any

import anyio
import anyio.to_thread
import mcp_types as types
from mcp import MCPError
from mcp.server import Server, ServerRequestContext

from ridgeline.api.bounded import Answerers
from ridgeline.api.refusals import refusal
from ridgeline.errors import InputError, RidgelineError, UnknownNameError
from ridgeline.mcp_server.summary import SIZE, cut, part
from ridgeline.mcp_server.tools import ASKED, explained, laid_flat, offered

INSTRUCTIONS = """Predicts how deep-learning workloads run on machines, before anyone rents them.
Ask predict (does it fit, how fast, what does it cost), plan (the best way to run it), simulate (under traffic), \
advise (why slow, what helps), export (the config that runs it), op (one operator). A workload is a catalog model and \
a machine such as 8xH100-SXM; resources list both. Say every word that is known: what is left out is assumed, told \
under `assumed`. Estimates have value, low and high (80 % interval), unit and evidence: repeat the interval. Answers \
are summaries; `left_out` names what `details` brings. A refusal names field, nearest names and next step."""
_CATALOGS = {
    "models": "architectures", "accelerators": "devices", "clusters": "machines", "processors": "processors of hosts",
}  # fmt: skip
_LISTS = {**_CATALOGS, "techniques": "published ideas that a plan may use", "targets": "programs of `export`"}
_SCHEME = "ridgeline://"
_KEPT = 32  # answers whose details may be asked for
_KEPT_CHARACTERS = 16_000_000
_LONGEST = 100_000  # characters of a call


class Desk:
    """What the server does for its clients, apart from the protocol: tools by name, resources by address."""

    def __init__(self, answerers: Answerers) -> None:
        self.answerers = answerers
        self._answers: OrderedDict[str, tuple[str, Any]] = OrderedDict()
        self._serial = count(1)

    def call(self, name: str, arguments: dict[str, Any], told: Any, stop: Event) -> dict[str, Any]:
        """The answer of a tool, cut to size; raises `RidgelineError` for what cannot be answered."""
        if len(json.dumps(arguments, default=str)) > _LONGEST:
            raise InputError(f"a call may have {_LONGEST:,} characters; give files by their path")
        if name in ASKED:
            found = self._asked(name, laid_flat(name, arguments), told, stop)
            return self._summary(found["answer"], found["impossible"])
        if name == "explain":
            return self._summary(self._explained(arguments, told, stop), None)
        if name == "details":
            return self._details(arguments)
        raise UnknownNameError("tool", name[:80], [each.name for each in offered()])

    def read(self, address: str) -> Any:
        """The facts at an address, as JSON holds them; raises `UnknownNameError` where there is none."""
        kind, _, name = address.removeprefix(_SCHEME).partition("/")
        if kind not in _LISTS or not address.startswith(_SCHEME):
            raise UnknownNameError("resource", address[:200], [_SCHEME + each for each in _LISTS])
        if kind == "targets":
            return _targets()
        if kind == "techniques":
            return self._facts("techniques", {"name": name} if name else {})
        found = self._facts("catalog", {"kind": kind, "name": name or None})
        if name:
            return found
        return {"kind": kind, "names": [each["name"] for each in found["entries"]], "one": f"{_SCHEME}{kind}/NAME"}

    def _asked(self, verb: str, words: dict[str, Any], told: Any, stop: Event) -> dict[str, Any]:
        found = self.answerers.ask(verb, words, told, stop)
        if "refused" in found:
            raise RefusedError(found["refused"])
        return found

    def _facts(self, verb: str, words: dict[str, Any]) -> Any:
        return self._asked(verb, words, lambda text, share: None, Event())["answer"]

    def _explained(self, arguments: dict[str, Any], told: Any, stop: Event) -> dict[str, Any]:
        name, tool = (_text(arguments, each) for each in ("name", "tool"))
        if name is None and tool is None:
            raise InputError("say a name, or a tool whose words are wanted", field="name")
        found = explained(name, tool)
        if found is not None or name is None:
            return found or {}
        asked = [("techniques", {"name": name}), *(("catalog", {"kind": kind, "name": name}) for kind in _CATALOGS)]
        near: list[str] = []
        for verb, words in asked:
            answer = self.answerers.ask(verb, words, told, stop)
            if "answer" in answer:
                facts: dict[str, Any] = answer["answer"]
                return facts
            near += answer["refused"]["nearest"]
        raise UnknownNameError("name", name[:80], near, hint="it is no word, technique, model or machine")

    def _summary(self, answer: Any, impossible: str | None) -> dict[str, Any]:
        shown, left_out = cut(answer, SIZE)
        if not isinstance(shown, dict):
            shown = {"rows": shown}
        if impossible is not None:
            shown = {"impossible": impossible, **shown}
        if left_out:
            shown |= {"left_out": left_out, "answer_id": self._keep(answer)}
        return shown

    def _keep(self, answer: Any) -> str:
        key = f"a{next(self._serial)}"
        self._answers[key] = (json.dumps(answer), answer)
        while len(self._answers) > _KEPT or (
            len(self._answers) > 1 and sum(len(text) for text, _ in self._answers.values()) > _KEPT_CHARACTERS
        ):
            self._answers.popitem(last=False)
        return key

    def _details(self, arguments: dict[str, Any]) -> dict[str, Any]:
        key, path, start = _text(arguments, "answer"), _text(arguments, "path") or "", arguments.get("start") or 0
        if key is None or key not in self._answers:
            raise UnknownNameError("answer", str(key)[:80], self._answers, hint="ask the question again")
        if not isinstance(start, int) or start < 0:
            raise InputError(f"{str(start)[:40]!r} is not a whole number from 0", field="start")
        found = part(self._answers[key][1], path.strip("."), start)
        shown, left_out = cut(found, SIZE, whole=True)
        return {"path": path, "start": start, "part": shown, **({"left_out": left_out} if left_out else {})}


class RefusedError(RidgelineError):
    """What another process refused, as its JSON says it."""

    def __init__(self, told: dict[str, Any]) -> None:
        super().__init__(told["error"])
        self.told = told


def _text(arguments: dict[str, Any], name: str) -> str | None:
    value = arguments.get(name)
    if value is not None and not isinstance(value, str):
        raise InputError(f"{str(value)[:60]!r} is no text", field=name)
    return value


def _targets() -> dict[str, Any]:
    from ridgeline.export.target import target, targets

    return {"targets": [{"name": key, "program": target(key).title, "for": target(key).task} for key in targets()]}


def server(answerers: Answerers) -> Server[Any]:
    """The server of the protocol over some processes that answer."""
    desk = Desk(answerers)

    async def list_tools(_: Any, __: Any) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[_tool(each) for each in offered()])

    async def call_tool(context: ServerRequestContext[Any], params: types.CallToolRequestParams) -> Any:
        return await _called(desk, context, params)

    async def list_resources(_: Any, __: Any) -> types.ListResourcesResult:
        return types.ListResourcesResult(
            resources=[
                types.Resource(uri=_SCHEME + kind, name=kind, description=told, mime_type="application/json")
                for kind, told in _LISTS.items()
            ]
        )

    async def list_templates(_: Any, __: Any) -> types.ListResourceTemplatesResult:
        return types.ListResourceTemplatesResult(
            resource_templates=[
                types.ResourceTemplate(
                    uri_template=f"{_SCHEME}{kind}/{{name}}", name=f"one of {kind}", mime_type="application/json",
                    description=f"all that is known of one of the {told}, with sources and evidence",
                )
                for kind, told in _LISTS.items() if kind != "targets"
            ]
        )  # fmt: skip

    async def read_resource(_: Any, params: types.ReadResourceRequestParams) -> types.ReadResourceResult:
        address = str(params.uri)
        try:
            found = await anyio.to_thread.run_sync(desk.read, address)
        except RidgelineError as error:
            raise MCPError(types.INVALID_PARAMS, str(error), data=_told(error)) from None
        text = json.dumps(found, allow_nan=False)
        return types.ReadResourceResult(
            contents=[types.TextResourceContents(uri=address, mime_type="application/json", text=text)]
        )

    return Server(
        "ridgeline", version=version("ridgeline"), title="Ridgeline", instructions=INSTRUCTIONS,
        on_list_tools=list_tools, on_call_tool=call_tool, on_list_resources=list_resources,
        on_list_resource_templates=list_templates, on_read_resource=read_resource,
    )  # fmt: skip


def _tool(each: Any) -> types.Tool:
    return types.Tool(
        name=each.name, title=each.title, description=each.help, input_schema=each.schema,
        annotations=types.ToolAnnotations(
            read_only_hint=not each.writes, destructive_hint=each.writes, idempotent_hint=True, open_world_hint=False
        ),
    )  # fmt: skip


async def _called(
    desk: Desk, context: ServerRequestContext[Any], params: types.CallToolRequestParams
) -> types.CallToolResult:
    """One call: the work in a thread, progress to the client, the work ended where the client takes the call back."""
    stop = Event()
    done = count(1)

    def _progress(text: str, share: float | None) -> None:
        step = next(done)
        anyio.from_thread.run(
            context.session.report_progress, step if share is None else share, None if share is None else 1.0, text
        )

    try:
        found = await anyio.to_thread.run_sync(
            desk.call, params.name, params.arguments or {}, _progress, stop, abandon_on_cancel=True
        )
        return _result(found, failed=False)
    except RidgelineError as error:
        return _result(_told(error), failed=True)
    finally:
        stop.set()


def _told(error: RidgelineError) -> dict[str, Any]:
    return error.told if isinstance(error, RefusedError) else refusal(error)


def _result(found: dict[str, Any], *, failed: bool) -> types.CallToolResult:
    text = json.dumps(found, separators=(",", ":"), allow_nan=False)
    return types.CallToolResult(
        content=[types.TextContent(type="text", text=text)], structured_content=found, is_error=failed
    )
