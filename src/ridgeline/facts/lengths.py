"""Lengths of training sequences: of a file, or of a law, as the sequences of one step that stands for all.

A file has a number of tokens a line; in a table of several columns its header names one `tokens`. A law is
`lognormal(median=TOKENS,sigma=S)`, whose logarithm is normal.
"""

from __future__ import annotations

import re
from array import array
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from ridgeline.errors import InputError, WorkloadError
from ridgeline.facts.user_files import MIB, FileKind, read_user_file

LENGTHS = FileKind(
    what="a table of sequence lengths", most_bytes=256 * MIB, most_lines=20_000_000, most_line_bytes=4_096,
    streams=True, packed=True, next_step="draw fewer sequences",
)  # fmt: skip
MOST_SEQUENCES = 20_000
_LAW = re.compile(r"lognormal\(\s*median\s*=\s*([^,]+),\s*sigma\s*=\s*([^)]+)\)")


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """Lengths of a step's sequences, (N,) ascending [token], and the share of all that were longer than allowed [1]."""

    lengths: NDArray[np.float64]
    dropped: float


def is_law(text: str) -> bool:
    """Whether a text is a law, not the path of a file."""
    return text.lstrip().startswith("lognormal")


def drawn(text: str, count: int, longest: int) -> Drawn:
    """`count` sequences at evenly spaced quantiles of those of at most `longest` tokens; longer ones are dropped.

    Raises `InputError` with file and line for what is no length, `WorkloadError` for a law or number that cannot be.
    """
    if count > MOST_SEQUENCES:
        raise WorkloadError(
            f"lengths: {count} sequences a step, at most {MOST_SEQUENCES} are divided; lower global_batch"
        )
    shares = (np.arange(count) + 0.5) / count
    if is_law(text):
        median, sigma = _law(text)
        kept = NormalDist(np.log(median), sigma).cdf(np.log(longest)) if sigma else float(median <= longest)
        if kept <= 0.0:
            raise WorkloadError(f"lengths: {text} has none of at most {longest} tokens; raise seq_len")
        normal = NormalDist(float(np.log(median)), sigma) if sigma else None
        found = np.array([np.exp(normal.inv_cdf(kept * one)) if normal else median for one in shares.tolist()])
    else:
        every = np.sort(_read(text))
        fitting = every[every <= longest]
        if not len(fitting):
            raise WorkloadError(f"lengths: {text} has none of at most {longest} tokens; raise seq_len")
        kept = len(fitting) / len(every)
        found = fitting[(shares * len(fitting)).astype(np.int64)]
    return Drawn(lengths=np.maximum(1.0, np.rint(found)), dropped=1.0 - kept)


def _law(text: str) -> tuple[float, float]:
    found = _LAW.fullmatch(text.strip())
    try:
        median, sigma = (float(found[place]) for place in (1, 2)) if found else (0.0, -1.0)
    except ValueError:
        median, sigma = 0.0, -1.0
    if not (1.0 <= median <= 1e9 and 0.0 <= sigma <= 10.0):
        raise WorkloadError(
            f"lengths: '{text[:80]}' is no law; write lognormal(median=TOKENS,sigma=S), median 1 to 1e9, sigma 0 to 10,"
            " or the path of a file"
        )
    return median, sigma


def _read(path: str) -> NDArray[np.float64]:
    """Lengths of a file, in its order [token]."""
    file = read_user_file(path, LENGTHS, field="lengths")
    if file.break_:
        raise InputError(f"ends early: {file.break_}; fetch it again", file=path)
    column, found = 0, array("d")
    for number, line in enumerate(file.lines(), start=1):
        cells = re.split(r"[,\t]", line)
        if number == 1 and not _number(cells[0]):
            names = [cell.strip().strip('"') for cell in cells]
            if "tokens" not in names and len(names) > 1:
                raise InputError("no column 'tokens'; name the column of lengths so", file=path, line=1, field="tokens")
            column = names.index("tokens") if "tokens" in names else 0
        elif line.strip():
            value = _number(cells[column]) if column < len(cells) else 0.0
            if not value:
                raise InputError(f"'{line[:40]}' has no tokens from 1 to 1e9", file=path, line=number, field="tokens")
            found.append(value)
    if not found:
        raise InputError("has no length; a line is a sequence's number of tokens", file=path)
    return np.array(found)


def _number(text: str) -> float:
    """The number of tokens that a cell says; 0 where it says none."""
    try:
        value = float(text)
    except ValueError:
        return 0.0
    return value if 1.0 <= value <= 1e9 else 0.0
