"""Sensitivity of attention maps: gradient alignment, Lipschitz estimators, certificates, relevance."""

from antiphase.sensitivity.alignment import (
    Alignment,
    GradientTerms,
    Gram,
    align,
    cotangent_gram,
    direction_grams,
    exact_gram,
    gradient_terms,
    loss_grams,
    random_directions,
    token_grams,
)
from antiphase.sensitivity.attention_adapters import register
from antiphase.sensitivity.depth import BranchChange, branch_changes, crossover, propagate, stage_norms
from antiphase.sensitivity.layers import Branch, Call, Layer
from antiphase.sensitivity.lipschitz import (
    exact_norm,
    gradient_ascent,
    local_maximum,
    power_iteration,
    uniform_sampling,
)
from antiphase.sensitivity.maps import attention_layers, attention_maps, map_function
from antiphase.sensitivity.relevance import attention_map, chefer_relevance
from antiphase.sensitivity.smoothing import smooth
from antiphase.sensitivity.theory import (
    amplification,
    critical_cosine,
    estimated_radius,
    margins,
    printed_radius_ratio,
    radius_ratio,
    relative_sensitivity,
)

__all__ = ["Alignment", "Branch", "BranchChange", "Call", "GradientTerms", "Gram", "Layer", "align", "amplification"]
__all__ += ["attention_layers", "attention_map", "attention_maps", "branch_changes", "chefer_relevance"]
__all__ += ["cotangent_gram", "critical_cosine", "crossover", "direction_grams", "estimated_radius"]
__all__ += ["exact_gram", "exact_norm", "gradient_ascent", "gradient_terms", "local_maximum", "loss_grams"]
__all__ += ["map_function", "margins", "power_iteration", "printed_radius_ratio", "propagate", "radius_ratio"]
__all__ += ["random_directions", "register", "relative_sensitivity", "smooth", "stage_norms", "token_grams"]
__all__ += ["uniform_sampling"]
