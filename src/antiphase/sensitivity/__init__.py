"""How sensitive attention maps are: gradient alignment of the two branches, and what follows from it."""

from antiphase.sensitivity.alignment import Alignment, Gram, align, cotangent_gram, exact_gram
from antiphase.sensitivity.branches import Branch, branches
from antiphase.sensitivity.theory import amplification, critical_cosine, relative_sensitivity

__all__ = [
    "Alignment", "Branch", "Gram", "align", "amplification", "branches", "cotangent_gram", "critical_cosine",
    "exact_gram", "relative_sensitivity",
]  # fmt: skip
