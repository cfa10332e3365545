"""Rows of networks that read sentences, utterances or samples of categories: which one, and what a step of it holds."""

from __future__ import annotations

from dataclasses import replace

from ridgeline.errors import InputError
from ridgeline.facts.readings import reading
from ridgeline.graph.lstm import RECURRENT, UTTERANCE, recurrent
from ridgeline.graph.model import Model
from ridgeline.graph.networks import PADDED, SENTENCE
from ridgeline.graph.recommendation import RECOMMENDERS, recommender
from ridgeline.graph.translation import TRANSLATORS, translator
from ridgeline.validate.recipes import Recipe
from ridgeline.validate.rows import Row


def is_sample(name: str) -> bool:
    """Whether a network is one of these."""
    return name in (*RECURRENT, *TRANSLATORS, *RECOMMENDERS, "ncf")


def meters_tokens(row: Row) -> bool:
    """Whether what a row calls samples are tokens."""
    return reading("meters_tokens", **row.cells_of()) is not None


def counted_times(row: Row) -> int:
    """How often a source's meter counts a sample [1]; raises `InputError` where it counts one for each device too.

    There a batch is that of all devices, yet counted once for each, and all devices together take longer than one.
    """
    found = reading("counted_times", **row.cells_of())
    if found is not None and (row.count("n_devices") or 1) > 1:
        why = "its batch is that of all devices, counted once for each: no rate of samples"
        raise InputError(f"'{row.text('model')}': {why}", field="n_devices")
    return 1 if found is None else int(found.number)


def in_sequences(row: Row, name: str) -> Row:
    """A row whose batch counts sentences: programs that fill batches by tokens state those of a device."""
    usual = None if row.count("global_batch") else reading("network_batch", model=name)
    batch = row.count("micro_batch") or (None if usual is None else int(usual.number))
    if batch is None:
        return row
    sentences = max(1, batch // SENTENCE[name]) if name in TRANSLATORS else batch
    return replace(row, cells={**row.cells, "micro_batch": str(sentences)})


def sample_recipe(recipe: Recipe, name: str, *, devices: int) -> Recipe:
    """A recipe as these networks are trained: Adam, or momentum for tables, which lie in parts on all devices."""
    workload = {**recipe.workload, "optimizer": "sgd" if name in RECOMMENDERS else "adam"}
    plan = {**recipe.plan, "zero": 0}
    if name in RECOMMENDERS:
        plan |= {"ep": devices, "etp": 1}
    return replace(recipe, workload=workload, plan=plan)


def sample_model(name: str, *, devices: int, autocast: bool = False) -> tuple[Model, tuple[str, ...]]:
    """The network of a row, and what is assumed of its samples."""
    if name in TRANSLATORS:
        return translator(name), (f"sentences of {SENTENCE[name]} tokens each way, without padding",)
    if name == "gnmt":
        words, model = SENTENCE[name], recurrent(name, words=PADDED[name])
        said = f"sentences of {words} tokens each way, padded to {PADDED[name]}; its meter counts the tokens of both"
        return replace(model, dims={**model.dims, "counted_tokens": 2 * words}), (said,)
    if name == "rnn-t":
        return recurrent(name), (
            f"utterances of {UTTERANCE.frames} frames and {UTTERANCE.tokens} tokens, without padding",
        )
    if name in RECOMMENDERS:
        said = "tables lie in equal parts on all devices, no row is looked up twice in a step"
        return recommender(name, shards=devices), (said,)
    return recommender(name, autocast=autocast), ()
