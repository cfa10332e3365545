"""Answers cut to a size that an agent can read: what is small stays, what is large is named, with how to get it."""

from __future__ import annotations

import json
from typing import Any

from ridgeline.errors import InputError

SIZE = 8_000
"""Characters of JSON that one answer may have; chosen, about two and a half thousand tokens."""
_LARGE = SIZE // 8  # characters of a part that may need to be divided itself; chosen
_LEAST = 200  # characters below which a part is not divided further; chosen
_MOST = 12  # entries of a list in a summary; chosen
_FIRST = ("best", "fits", "limit", "plan", "deployments", "slo", "error")
"""Parts that answer the question itself: kept before others of their size."""
_OF_A_FACT = ("value", "low", "high", "unit", "evidence")


def size(value: Any) -> int:
    """Characters of a value as compact JSON [1]."""
    return len(json.dumps(value, separators=(",", ":"), ensure_ascii=False))


def cut(value: Any, room: int, *, whole: bool = False) -> tuple[Any, dict[str, str]]:
    """The value in about `room` characters, and what is left out: by path the names of the parts there.

    Estimates are kept whole or not at all. Small parts of an object are kept before large ones, of a list the first
    entries. What is null or empty and sources of facts are not shown, unless it is `whole` and there is room.
    """
    left_out: dict[str, str] = {}
    if whole and size(value) <= room:
        return value, left_out
    return _cut(_pruned(value), room, "", left_out), left_out


def _pruned(value: Any) -> Any:
    """A value without what is null or empty in its objects, of facts the estimate without its sources."""
    if isinstance(value, dict):
        keys = [key for key in _OF_A_FACT if key in value] if {"value", "unit", "evidence"} <= value.keys() else value
        return {key: _pruned(value[key]) for key in keys if value[key] not in (None, "", [], {})}
    return [_pruned(each) for each in value] if isinstance(value, list) else value


def part(answer: Any, path: str, start: int = 0) -> Any:
    """What stands at a dotted path of an answer; raises `InputError` with what is there instead."""
    at = answer
    for step in filter(None, path.split(".")):
        known = list(at) if isinstance(at, dict) else [str(index) for index in range(len(at))] if _is_list(at) else []
        if step not in known:
            there = ", ".join(known[:30]) or "nothing below it"
            raise InputError(f"'{step[:60]}' is not there; there are: {there}", field="path", value=path[:200])
        at = at[step] if isinstance(at, dict) else at[int(step)]
    return at[start:] if _is_list(at) and start else at


def _is_list(value: Any) -> bool:
    return isinstance(value, list)


def _cut(value: Any, room: int, path: str, left_out: dict[str, str]) -> Any:
    if size(value) <= room and not (_is_list(value) and len(value) > _MOST):
        return value
    if isinstance(value, dict):
        return _cut_object(value, room, path, left_out)
    if _is_list(value):
        return _cut_list(value, room, path, left_out)
    return value[: max(room - 6, 40)] + " [...]" if isinstance(value, str) else value


def _cut_object(value: dict[str, Any], room: int, path: str, left_out: dict[str, str]) -> dict[str, Any]:
    """Parts from the smallest on: whole within an even share of the room that is left, else cut to that share; where
    a share is too small to say anything, whole while there is room."""
    found: dict[str, Any] = {}
    gone: list[str] = []
    rest = room
    large = {key for key, each in value.items() if _is_divisible(each) and size(each) > _LARGE}  # to be divided itself
    by_size = sorted(value, key=lambda key: (key in large, key not in _FIRST, size(value[key])))
    for index, key in enumerate(by_size):
        need, share = size(value[key]), rest // (len(by_size) - index) - len(key) - 4
        if need <= max(share, rest * 2 // 3 if key in _FIRST else min(rest // 3, _LARGE)) or (
            share < _LEAST and need <= rest
        ):
            found[key] = value[key]
        elif share >= _LEAST and _is_divisible(value[key]):
            found[key] = _cut(value[key], share, f"{path}.{key}".lstrip("."), left_out)
        else:
            gone.append(key)
            continue
        rest -= size(found[key]) + len(key) + 4
    if gone:
        left_out[path or "."] = ", ".join(gone)
    return {key: found[key] for key in value if key in found}


def _is_divisible(value: Any) -> bool:
    return isinstance(value, str | list) or (isinstance(value, dict) and not {"value", "unit"} <= value.keys())


def _cut_list(value: list[Any], room: int, path: str, left_out: dict[str, str]) -> list[Any]:
    """The first entries; the first may take half of the room."""
    found: list[Any] = []
    rest = room
    for index, each in enumerate(value):
        if index == _MOST or (size(each) > rest and rest < _LEAST * 2):
            break
        found.append(_cut(each, rest // 2 if index == 0 else rest, f"{path}.{index}".lstrip("."), left_out))
        rest -= size(found[-1]) + 1
    if len(found) < len(value):
        left_out[path or "."] = f"entries from {len(found)} on, of {len(value)}"
    return found
