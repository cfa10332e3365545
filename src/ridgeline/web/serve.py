"""The command `web`: the app on an address of this machine, and a browser that opens it."""

from __future__ import annotations

import ipaddress
import socket
import sys
import threading
import webbrowser
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from ridgeline.api.bounded import Limits, memory_limit
from ridgeline.errors import InputError

_OUTSIDE = "outside what this app may open; add the file to the page"
_MOST_CONNECTIONS = 64


def serve(host: str, port: int, limit: float, memory: str, browser: bool) -> int:
    """Serves until Ctrl-C; raises `InputError` for an address or port that cannot be had."""
    import uvicorn

    from ridgeline.web.app import app

    memory_bytes = memory_limit(memory)
    heard = _socket(host, port)
    port = heard.getsockname()[1]
    named = "127.0.0.1" if _is_loopback(host) else host
    if not _is_loopback(host):
        print(f"{host} can be reached from other machines; whoever reaches it may ask questions", file=sys.stderr)
    url = f"http://{named}:{port}/"
    print(f"ridgeline web: {url} (Ctrl-C stops)", flush=True)
    if browser:
        threading.Timer(0.5, webbrowser.open, (url,)).start()
    with TemporaryDirectory(prefix="ridgeline-web-") as root, suppress(KeyboardInterrupt):
        limits = Limits(root=Path(root).resolve(), seconds=limit, memory_bytes=memory_bytes, outside=_OUTSIDE)
        config = uvicorn.Config(
            app(limits, ("127.0.0.1", "localhost", named)), log_level="warning", access_log=False, server_header=False,
            limit_concurrency=_MOST_CONNECTIONS, timeout_graceful_shutdown=1,
        )  # fmt: skip
        uvicorn.Server(config).run(sockets=[heard])
    return 0


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _socket(host: str, port: int) -> socket.socket:
    heard = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    heard.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        heard.bind((host, port))
        heard.listen(_MOST_CONNECTIONS)  # a browser that is quicker than the app waits
    except OSError as error:
        heard.close()
        raise InputError(f"{host}:{port} cannot be had: {error.strerror}; say another", field="--port") from None
    return heard
