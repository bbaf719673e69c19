"""How sensitive attention maps are: gradient alignment of the two branches, and what follows from it."""

from antiphase.sensitivity.adapters import register
from antiphase.sensitivity.alignment import Alignment, Gram, align, cotangent_gram, exact_gram
from antiphase.sensitivity.branches import Branch
from antiphase.sensitivity.layers import Call, Layer
from antiphase.sensitivity.maps import attention_layers, attention_maps
from antiphase.sensitivity.theory import amplification, critical_cosine, relative_sensitivity

__all__ = [
    "Alignment", "Branch", "Call", "Gram", "Layer", "align", "amplification", "attention_layers", "attention_maps",
    "cotangent_gram", "critical_cosine", "exact_gram", "register", "relative_sensitivity",
]  # fmt: skip
