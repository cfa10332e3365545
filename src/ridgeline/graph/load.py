"""Models by name or file: the catalog, a network built by name, a config.json, or a folder that holds one."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from ridgeline.errors import InputError, ModelError, UnknownNameError
from ridgeline.facts import store
from ridgeline.facts.user_files import CONFIG, read_user_file
from ridgeline.graph.build import build
from ridgeline.graph.checkpoint import checkpoint_weights, quantization
from ridgeline.graph.model import Model

_FOLDER = "models"
_ALIASES = "_aliases"  # data/models/_aliases.json: other names people use -> catalog name
_SHOWN = 80  # characters of an unknown name that an error repeats
_TUNED = re.compile(
    r"[-_ .](?:instruct|chat|base|thinking|preview|qat|\d{4}|hf|it|pt|bnb|gguf|marlin|quark|kv|dynamic|static|block"
    r"|quantized|quant|[48]-?bit|bf16|fp16|(?:mx|nv)?fp[468](?:-?v\d)?|awq|gptq|int[48]|w\d+a\d+|g(?:32|64|128)"
    r"|q\d(?:_k)?(?:_[msl01])?)$",
    re.IGNORECASE,
)
"""Endings of published checkpoints that leave a model's dimensions as they are: its tuning and its format."""


def catalog() -> tuple[str, ...]:
    """Names of the models that ship with the package, sorted."""
    return tuple(name for name in store.names(_FOLDER, ".json") if not name.startswith("_"))


def catalog_config(name: str) -> Mapping[str, Any]:
    """The config of a catalog model as it is stored, under its exact name."""
    config: Mapping[str, Any] = store.read_json(f"{_FOLDER}/{name}.json")
    return config


def load(text_or_path: str | Path) -> Model:
    """A model by catalog name, path of a config.json, or folder that holds one.

    Names ignore case, punctuation, the organisation before '/', and endings such as -instruct,
    -hf or the number format of a checkpoint. A text that ends in .json or begins like a path is a
    path; any other is looked up first.
    """
    text = os.fspath(text_or_path)
    path = _path(text)
    looks_like_path = not isinstance(text_or_path, str) or text.endswith(".json") or text.startswith((".", "/", "~"))
    if not looks_like_path:
        name = find(text)
        if name is not None:
            config = catalog_config(name)
            return build(config, name=name, source=str(config.get("source", f"catalog {name}")))
        from ridgeline.graph.networks import find_network, network

        known = find_network(text)
        if known is not None:
            return network(known)
    if looks_like_path or _exists(path):
        return _load_file(path)
    from ridgeline.graph.denoiser_specs import find_diffusion

    pictures = find_diffusion(text)
    if pictures is not None:
        raise ModelError(
            f"{pictures} makes pictures; ask `predict` with --width, --height and --steps, or in a scenario file"
            " (docs/models.md), without --serve"
        )
    from ridgeline.graph.networks import networks

    hint = "give a catalog name, a config.json or a folder that holds one"
    raise UnknownNameError("model", text[:_SHOWN], (*catalog(), *_aliases(), *networks()), hint=hint)


def _path(text: str) -> Path:
    try:
        return Path(text).expanduser()
    except RuntimeError:  # '~name' of no user
        return Path(text)


def find(text: str) -> str | None:
    """The catalog name that `text` means, or None."""
    tail = text.strip().rsplit("/", 1)[-1]
    while True:
        found = _by_key().get(_key(tail))
        shorter = _TUNED.sub("", tail)
        if found is not None or shorter == tail:
            return found
        tail = shorter


def _key(text: str) -> str:
    """Letters, digits and the points between digits: 1.3b is not 13b."""
    return re.sub(r"(?<!\d)\.|\.(?!\d)|[^a-z0-9.]", "", text.casefold())


@cache
def _aliases() -> Mapping[str, str]:
    found: Mapping[str, str] = store.read_json(f"{_FOLDER}/{_ALIASES}.json")
    return found


@cache
def _by_key() -> Mapping[str, str]:
    keys = {_key(alias): name for alias, name in _aliases().items()}
    return keys | {_key(name): name for name in catalog()}


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


def _load_file(path: Path) -> Model:
    """The model of a config.json; errors name the file and, for JSON, the line."""
    folder = os.path.isdir(path)
    file = path / "config.json" if folder else path
    if folder and not _exists(file):
        raise InputError("no such file (the folder holds no config.json)", file=str(path))
    text = read_user_file(file, CONFIG).text()
    config = _with_quantization(parse_config(text, file=str(file)), file)
    name = file.resolve().parent.name if file.name == "config.json" else file.stem
    try:
        checkpoint_weights(config)
        return build(config, name=name, source=str(file))
    except ModelError as error:
        raise _placed(str(error).removeprefix(f"{name}: "), text, str(file)) from None


def _with_quantization(config: Mapping[str, Any], file: Path) -> Mapping[str, Any]:
    """The config with what ModelOpt's `hf_quant_config.json` beside it says, where it says nothing itself.

    Raises `InputError` where that file is no JSON. Source: vllm, vllm/model_executor/layers/quantization/modelopt.py.
    """
    beside = file.with_name("hf_quant_config.json")
    if file.name != "config.json" or quantization(config) or not _exists(beside):
        return config
    said = parse_config(read_user_file(beside, CONFIG).text(), file=str(beside)).get("quantization")
    return (
        config
        if not isinstance(said, dict)
        else {**config, "quantization_config": {"quant_method": "modelopt", **said}}
    )


def _placed(message: str, text: str, file: str) -> InputError:
    """A complaint about a config with its file, the field that it names and the first line that holds it."""
    named = re.search(r"\b(\w+) = |no field '(\w+)'|unknown (\w+) '", message)
    key = next((word for word in named.groups() if word), "model") if named else "model"
    line = next((number for number, row in enumerate(text.splitlines(), start=1) if f'"{key}"' in row), None)
    return InputError(message, file=file, line=line, field=key)


def parse_config(text: str, *, file: str) -> Mapping[str, Any]:
    """The content of a config.json; a mistake is an InputError with file and line."""
    try:
        content = json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(f"not JSON: {error.msg} (column {error.colno})", file=file, line=error.lineno) from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"not usable JSON: {error}", file=file) from error
    if not isinstance(content, dict):
        raise InputError(f"a config is an object of fields, not a {type(content).__name__}", file=file, line=1)
    return content
