"""Commands that open another way in: a room beside this one, imported when it is called."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from ridgeline.api.verb import Argument, Verb
from ridgeline.errors import InputError

DOORS: dict[str, Verb] = {
    "web": Verb(
        run="web.serve.serve",
        short_help="Open the local web app.",
        help="Ask questions on a page of this machine, with answers as one types; needs ridgeline[web].",
        own={
            "host": Argument(kind=str, flag="--host", default="127.0.0.1", help="address to listen on; this machine's"),
            "port": Argument(kind=int, flag="--port", default=8642, least=0, most=65535, help="0 takes a free one"),
            "limit": Argument(kind=float, flag="--limit", default=120.0, least=1, help="seconds for one question"),
            "memory": Argument(kind=str, flag="--memory", default="4GiB", help="memory for one question"),
            "browser": Argument(kind=bool, flag="--browser/--no-browser", default=True, help="open a browser"),
        },
    ),
    "mcp": Verb(
        run="mcp_server.serve.serve",
        short_help="Serve the questions to agents.",
        help="Serve the questions as tools of the Model Context Protocol, on standard input and output or on a port "
        "of this machine; needs ridgeline[mcp].",
        own={
            "root": Argument(kind=str, flag="--root", default=".", help="the only folder whose files are used"),
            "port": Argument(
                kind=int, flag="--port", least=1, most=65535, help="streamable HTTP on 127.0.0.1, not standard input"
            ),
            "limit": Argument(kind=float, flag="--limit", default=120.0, least=1, help="seconds for one question"),
            "memory": Argument(kind=str, flag="--memory", default="8GiB", help="memory for one question"),
            "processes": Argument(
                kind=int, flag="--processes", default=2, least=1, most=64, help="questions at a time"
            ),
        },
    ),
}


def start(name: str, words: Mapping[str, Any]) -> int:
    """The exit code of a way in; raises `InputError` where what it needs is not installed."""
    module, _, function = DOORS[name].run.rpartition(".")
    try:
        run = getattr(import_module(f"ridgeline.{module}"), function)
        code: int = run(**words)
    except ModuleNotFoundError as error:
        raise InputError(f"{error.name} is not installed; pip install 'ridgeline[{name}]'") from None
    return code
