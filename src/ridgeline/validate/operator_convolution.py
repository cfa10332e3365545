"""Rows of convolutions of two dimensions, by what their cells state of filters, strides and groups.

Shape letters: N images, C channels in, K out, H x W in, P x Q out, R x S the filter, G groups.
"""

from __future__ import annotations

from ridgeline.cost.convolution import Images
from ridgeline.errors import InputError
from ridgeline.validate.operator_cells import Ask, Priced, bill


def convolution(ask: Ask) -> Priced:
    """A convolution by `cost.convolution` [s].

    Without the filter's size, an output as large as the input means stride 1 and R = 2 pad + 1. Raises `InputError`
    where the cells state neither, or groups that do not divide the channels.
    """
    form = ask.format()
    batch, rows, columns = ask.size("n"), ask.size("p"), ask.size("q")
    notes = []
    if {"r", "s"} <= ask.shape.keys():
        height, width = ask.size("r"), ask.size("s")
    elif {rows, columns} == {ask.size("h"), ask.size("w")}:
        height, width = 2 * ask.size("pad_h", default=0.0) + 1, 2 * ask.size("pad_w", default=0.0) + 1
        if 1 < height == width == rows == columns:  # (7 + 2 x 3 - 1) / 2 + 1 = 7 as well
            raise InputError(f"'{ask.words}' fits filters of {height:g} x {width:g} and of 1 x 1", field="shape")
        notes.append(f"filter {height:g} x {width:g}: the output is as large as the padded input allows at stride 1")
    else:
        raise InputError(f"'{ask.words}' states neither filter size nor stride", field="shape")
    channels, filters = ask.size("c"), ask.size("k")
    groups = ask.size("groups", "g", default=1.0)
    if groups < 1 or channels % groups or filters % groups:
        raise InputError(f"{groups:g} groups do not divide {channels:g} and {filters:g} channels", field="shape")
    images = Images(
        count=batch, channels=channels, height=ask.size("h", default=rows), width=ask.size("w", default=columns),
        filters=filters, filter_height=height, filter_width=width, rows=rows, columns=columns, groups=groups,
    )  # fmt: skip
    costs, how = images.costs(form, ask.device)
    return bill("conv2d", costs, ask, form.matrix, flop=images.flop, notes=[how, *notes])
