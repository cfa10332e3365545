"""The mechanisms by family; a family's formula is compiled when it is first asked for."""

from __future__ import annotations

from functools import cache
from importlib import import_module

from ridgeline.cost.mechanism import Mechanism

_FORMULAS = {
    "gemm.GEMM": "gemm mla_bmm",
    "attention.PREFILL": "prefill mla_prefill",
    "attention.DECODE": "decode mla_decode",
    "attention.ENCODER": "encoder",
    "experts.EXPERTS": "experts wide_experts wide_experts_decode",
    "collective.COLLECTIVE": "collective",
    "collective.CUSTOM_ALL_REDUCE": "custom_all_reduce",
    "exchange.EXCHANGE": "exchange",
    "exchange.ENGINE_EXCHANGE": "engine_exchange",
    "rows.QUANTIZE": "quantize",
    "rows.HYPER_CONNECTION": "hyper_connection",
    "layers.LATENT_LAYER": "mla_layer_prefill mla_layer_decode dsa_layer_prefill dsa_layer_decode",
    "layers.COMPRESSED_LAYER": (
        "csa_layer_prefill csa_layer_decode hca_layer_prefill hca_layer_decode msa_layer_prefill msa_layer_decode"
    ),
    "recurrence.DELTA_PREFILL": "delta_prefill",
    "recurrence.DELTA_DECODE": "delta_decode",
    "recurrence.CONVOLUTION": "convolution",
}
"""The families that each formula prices, by its module and name."""
_BY_FAMILY = {family: formula for formula, families in _FORMULAS.items() for family in families.split()}
FAMILIES = tuple(_BY_FAMILY)


@cache
def mechanism(family: str) -> Mechanism:
    """The mechanism of a family."""
    module, _, name = _BY_FAMILY[family].partition(".")
    found: Mechanism = getattr(import_module(f"ridgeline.cost.families.{module}"), name)
    return found
