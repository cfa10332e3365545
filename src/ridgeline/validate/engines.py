"""Finds the conventions of the training program that a row names."""

from __future__ import annotations

import re

from ridgeline.validate.engine import Engine
from ridgeline.validate.programs import ENGINES

__all__ = ["EARLY_SOURCES", "ENGINES", "UNKNOWN", "Engine", "find_engine"]

EARLY_SOURCES = r"arXiv:(?:1\d|20|21|220[1-4])\d*\.|bigscience-workshop|BMTrain|DeepLearningExamples"
"""Sources that ran before FlashAttention (May 2022) was in training programs."""

UNKNOWN = Engine(
    name="not stated",
    pattern="",
    reason="engine not in the table of conventions: eager execution, flash attention, bf16 with fp32 master (assumed)",
    framework="torch",
    attention_kernel="flash2",
)


def find_engine(text: str, source: str = "") -> Engine:
    """The conventions of the program that an engine cell names; MLPerf is told by its source.

    'Megatron-LM' without a year is the program of the source's time: early where the source is.
    """
    if "mlcommons/training_results" in source and not re.search(r"maxtext", text, re.IGNORECASE):
        return next(engine for engine in ENGINES if engine.precision == "mlperf")
    if re.fullmatch(r"megatron-lm", text.strip(), re.IGNORECASE) and re.search(EARLY_SOURCES, source):
        text += " 2021"
    for engine in ENGINES:
        if re.search(engine.pattern, text, re.IGNORECASE):
            return engine
    return UNKNOWN
