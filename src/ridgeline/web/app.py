"""The app: one page, the table of its forms, and questions answered as a stream of events."""

from __future__ import annotations

import asyncio
import json
import tomllib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ridgeline.api.bounded import Limits
from ridgeline.errors import InputError, RidgelineError
from ridgeline.pages.page import script, style
from ridgeline.scenario.fields import PLAN_FIELDS, WORKLOAD_FIELDS
from ridgeline.scenario.serving_fields import DEPLOYMENT_FIELDS, TRAFFIC_FIELDS
from ridgeline.web.answers import PageAnswers, told_refused
from ridgeline.web.asking import MOST_BYTES, WebQuestion, read_question
from ridgeline.web.forms import forms

_SERVING = frozenset(field.name for field in TRAFFIC_FIELDS) - {field.name for field in WORKLOAD_FIELDS}
_WORDS = frozenset(
    field.name for table in (WORKLOAD_FIELDS, PLAN_FIELDS, TRAFFIC_FIELDS, DEPLOYMENT_FIELDS) for field in table
)


def opened(text: str) -> dict[str, Any]:
    """Words of a scenario's TOML, or `None` under 'words' where it has to be asked for as a file.

    `serve` says whether its workload is traffic. Raises `InputError` for what is not TOML.
    """
    try:
        tables = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"is not TOML: {error}", field="subject") from None
    workload = tables.get("workload")
    serve = isinstance(workload, dict) and bool(workload.keys() & _SERVING)
    return {"words": _words(tables), "serve": serve}


def _words(tables: dict[str, Any]) -> dict[str, str] | None:
    found: dict[str, str] = {}
    for section, value in tables.items():
        table = {"name": value} if isinstance(value, str) else value
        if not isinstance(table, dict) or section not in ("model", "cluster", "workload", "plan"):
            return None
        known = {"model": {"name": "subject"}, "cluster": {"name": "on", "region": "region"}}.get(section)
        for name, one in table.items():
            word = name if known is None and name in _WORDS else (known or {}).get(name)
            if word is None or not isinstance(one, str | int | float):
                return None
            found[word] = str(one).lower() if isinstance(one, bool) else str(one)
    return found if {"subject", "on"} <= found.keys() else None


_STATIC = Path(__file__).parent / "static"
_FILES = {path.name: path for path in _STATIC.iterdir() if path.suffix in (".css", ".js")}
_BODY_S = 30  # for the bytes of a request to arrive
_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; style-src-attr"
    " 'unsafe-inline'; img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none';"
    " frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


class Headers:
    """Adds headers that keep a page to itself to every response."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request of the app inside."""

        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                more = [(name.encode(), value.encode()) for name, value in _HEADERS.items()]
                message["headers"] = [*message.get("headers", []), *more]
            await send(message)

        await self.app(scope, receive, sent)


class Events:
    """Messages as server-sent events; what makes them is closed as soon as the page has gone."""

    def __init__(self, messages: AsyncIterator[dict[str, Any]]) -> None:
        self.messages = messages

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends until the messages end, or until nobody reads them."""
        sending = asyncio.ensure_future(self._send(send))
        leaving = asyncio.ensure_future(_gone(receive))
        try:
            await asyncio.wait({sending, leaving}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (sending, leaving):
                task.cancel()
            await asyncio.gather(sending, leaving, return_exceptions=True)

    async def _send(self, send: Send) -> None:
        head = [(b"content-type", b"text/event-stream; charset=utf-8")]
        await send({"type": "http.response.start", "status": 200, "headers": head})
        try:
            async for message in self.messages:
                body = f"event: {message['event']}\ndata: {json.dumps(message)}\n\n".encode()
                await send({"type": "http.response.body", "body": body, "more_body": True})
            await send({"type": "http.response.body", "body": b""})
        finally:
            await self.messages.aclose()  # type: ignore[attr-defined]


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _body(request: Request) -> bytes:
    """The bytes of a request of this page; raises `InputError` for more than allowed, or from another page."""
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        raise InputError("the request is not of type application/json")
    origin = request.headers.get("origin")
    if origin is not None and origin != f"{request.url.scheme}://{request.headers.get('host', '')}":
        raise InputError("the request comes from another page")
    body = bytearray()
    try:
        async with asyncio.timeout(_BODY_S):
            async for piece in request.stream():
                body += piece
                if len(body) > MOST_BYTES:
                    raise InputError(f"the request has more than {MOST_BYTES:,} bytes; give smaller files")
    except (TimeoutError, ClientDisconnect):
        raise InputError(f"the request did not arrive within {_BODY_S} s") from None
    return bytes(body)


def _refused(error: RidgelineError) -> JSONResponse:
    return JSONResponse(told_refused(error), status_code=400)


async def _ask(request: Request) -> Any:
    try:
        asked: WebQuestion = read_question(await _body(request))
    except RidgelineError as error:
        return _refused(error)
    return Events(request.app.state.answers.messages(asked))


async def _open(request: Request) -> Response:
    try:
        given = json.loads(await _body(request))
        return JSONResponse(opened(given if isinstance(given, str) else ""))
    except (ValueError, RecursionError):
        return _refused(InputError("the request is not JSON"))
    except RidgelineError as error:
        return _refused(error)


async def _page(request: Request) -> Response:
    return FileResponse(_STATIC / "index.html")


async def _static(request: Request) -> Response:
    name = request.path_params["name"]
    if name == "page.css":  # those of the pages that --html writes
        return Response(style(), media_type="text/css")
    if name == "page.js":
        return Response(script(), media_type="text/javascript")
    path = _FILES.get(name)
    return Response(status_code=404) if path is None else FileResponse(path)


async def _forms(request: Request) -> Response:
    return JSONResponse(await asyncio.to_thread(forms))


def app(limits: Limits, hosts: tuple[str, ...] = ("127.0.0.1", "localhost")) -> Starlette:
    """The app for requests that name one of `hosts`, whichever page sends them."""

    @asynccontextmanager
    async def living(one: Starlette) -> AsyncIterator[None]:
        with PageAnswers(limits) as one.state.answers:
            await asyncio.to_thread(forms)
            yield

    routes = [
        Route("/", _page),
        Route("/static/{name}", _static),
        Route("/forms", _forms),
        Route("/ask", _ask, methods=["POST"]),
        Route("/open", _open, methods=["POST"]),
    ]
    guards = [Middleware(Headers), Middleware(TrustedHostMiddleware, allowed_hosts=list(hosts), www_redirect=False)]
    return Starlette(routes=routes, middleware=guards, lifespan=living)
