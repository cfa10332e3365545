"""One app with its workers for all tests of the web room."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

from starlette.testclient import TestClient

from ridgeline.api.bounded import Limits
from ridgeline.web.app import app

Told = list[dict[str, Any]]


@pytest.fixture(scope="session")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    limits = Limits(root=tmp_path_factory.mktemp("web"), seconds=60, memory_bytes=4 << 30)
    with TestClient(app(limits), base_url="http://127.0.0.1") as one:
        yield one


@pytest.fixture(scope="session")
def ask(client: TestClient) -> Callable[..., Told]:
    """All messages about a question."""

    def asked(verb: str, files: dict[str, str] | None = None, **words: Any) -> Told:
        answer = client.post("/ask", json={"verb": verb, "words": words, "files": files or {}})
        return events(answer)

    return asked


def events(answer: Any) -> Told:
    """The messages of a response, or the one refusal."""
    if not answer.headers["content-type"].startswith("text/event-stream"):
        return [answer.json()]
    return [json.loads(part.partition("data: ")[2]) for part in answer.text.split("\n\n") if part]
