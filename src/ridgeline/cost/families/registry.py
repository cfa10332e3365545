"""The mechanisms by family; a family's formula is compiled when it is first asked for."""

from __future__ import annotations

from functools import cache
from importlib import import_module

from ridgeline.cost.mechanism import Mechanism

_MODULES = {
    "gemm": ("gemm", "GEMM"),
    "prefill": ("attention", "PREFILL"),
    "decode": ("attention", "DECODE"),
    "mla_prefill": ("attention", "PREFILL"),
    "mla_decode": ("attention", "DECODE"),
    "experts": ("experts", "EXPERTS"),
    "collective": ("collective", "COLLECTIVE"),
    "exchange": ("exchange", "EXCHANGE"),
    "engine_exchange": ("exchange", "ENGINE_EXCHANGE"),
    "custom_all_reduce": ("custom_all_reduce", "CUSTOM_ALL_REDUCE"),
    "quantize": ("quantize", "QUANTIZE"),
    "encoder": ("encoder", "ENCODER"),
    "mla_bmm": ("gemm", "GEMM"),
    "mla_layer_prefill": ("latent_layer", "LATENT_LAYER"),
    "mla_layer_decode": ("latent_layer", "LATENT_LAYER"),
    "dsa_layer_prefill": ("latent_layer", "LATENT_LAYER"),
    "dsa_layer_decode": ("latent_layer", "LATENT_LAYER"),
    **{
        f"{kind}_layer_{phase}": ("compressed_layer", "COMPRESSED_LAYER")
        for kind in ("csa", "hca", "msa")
        for phase in ("prefill", "decode")
    },
    "hyper_connection": ("hyper_connection", "HYPER_CONNECTION"),
    "delta_prefill": ("recurrence", "DELTA_PREFILL"),
    "delta_decode": ("recurrence", "DELTA_DECODE"),
    "convolution": ("recurrence", "CONVOLUTION"),
    "wide_experts": ("experts", "EXPERTS"),
    "wide_experts_decode": ("experts", "EXPERTS"),
}
FAMILIES = tuple(_MODULES)


@cache
def mechanism(family: str) -> Mechanism:
    """The mechanism of a family."""
    module, name = _MODULES[family]
    found: Mechanism = getattr(import_module(f"ridgeline.cost.families.{module}"), name)
    return found
