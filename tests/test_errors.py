"""Errors go from one process to another whole."""

from __future__ import annotations

import pickle

import pytest

from ridgeline.errors import InputError, NoPlanError, RidgelineError, UnitError, UnknownNameError


@pytest.mark.parametrize(
    "error",
    [
        UnknownNameError("model", "lama", ["llama", "opt"], hint="list them with ridgeline models"),
        InputError("is not a number", file="a.toml", line=3, field="tp"),
        UnitError("'1 q' has the unknown unit 'q'", field="slo"),
        NoPlanError("nothing fits"),
    ],
)
def test_an_error_is_the_same_after_a_pickle(error: RidgelineError) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), vars(again)) == (type(error), str(error), vars(error))
    assert again.exit_code == error.exit_code
