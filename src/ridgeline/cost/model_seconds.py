"""Seconds of operators by a fitted model, with what of their errors all shapes of a kernel share."""

from __future__ import annotations

import numpy as np

from ridgeline.cost.answer import Question
from ridgeline.cost.fitted import FittedModel
from ridgeline.cost.formats import judged_form
from ridgeline.cost.seconds import Seconds
from ridgeline.facts.fits import BANDS_S
from ridgeline.facts.transfer import rung_interval


def model_seconds(question: Question, model: FittedModel, *, lent: bool) -> Seconds:
    """The price of a question's sizes with its interval, and how much of this is each shape's own [s].

    own = sqrt(1 - shared) of each end's distance. With `lent` others' kernels stand for the engine's, as devices stand
    for a stranger: the interval is at least that of what devices have in common.
    """
    priced, (low, high, used), shape = model.price(question.sizes)
    mid, compute, memory = (priced[:, index].reshape(shape) for index in range(3))
    band = np.searchsorted(BANDS_S, priced[:, 0], side="right")
    shared = np.array([kernel.fit.shared for kernel in model.kernels])[used, band]
    if lent:
        known = rung_interval(question.family, "common", judged_form(question.form, model.kernels[0].fit.form))
        low, high = np.minimum(low, np.asarray(known.low)[band]), np.maximum(high, np.asarray(known.high)[band])
        shared = np.minimum(shared, np.asarray(known.shared)[band])
    own = np.sqrt(1.0 - shared)
    return Seconds(
        mid=mid, low=mid * low.reshape(shape), high=mid * high.reshape(shape), compute=compute, memory=memory,
        below=mid * (own * (1.0 - low)).reshape(shape), above=mid * (own * (high - 1.0)).reshape(shape),
    )  # fmt: skip
