"""`ridgeline mcp`: the server on standard input and output, or on a port of the loopback address."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from ridgeline.api.bounded import Answerers, Limits, memory_limit
from ridgeline.errors import InputError

HOST = "127.0.0.1"


def serve(*, root: str, port: int | None, limit: float, memory: str, processes: int) -> int:
    """Serves until the client leaves, or the program is stopped: 0; raises `InputError` for what cannot be used."""
    import anyio

    from ridgeline.mcp_server.server import server

    folder = Path(root).expanduser()
    if not folder.is_dir():
        raise InputError("is no folder; say one that exists", field="--root", value=root)
    bound = memory_limit(memory)
    limits = Limits(root=folder.resolve(), seconds=limit, memory_bytes=bound, processes=processes)
    with Answerers(limits) as answerers:
        one = server(answerers)
        anyio.run(_speak, one) if port is None else anyio.run(_listen, one, port)
    return 0


async def _speak(one: Any) -> None:
    from mcp import stdio_server

    async with stdio_server() as (read, write):
        await one.run(read, write, one.create_initialization_options())


async def _listen(one: Any, port: int) -> None:
    import uvicorn

    app = one.streamable_http_app(host=HOST)  # refuses hosts and origins that are not of the loopback
    print(f"http://{HOST}:{port}/mcp", file=sys.stderr, flush=True)
    await uvicorn.Server(uvicorn.Config(app, host=HOST, port=port, log_level="warning")).serve()
