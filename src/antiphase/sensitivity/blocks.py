"""Blocks whose attention is no module of its own: where its tokens enter and its output leaves."""

from torch import nn

# by the class of the block, the submodules that receive the attention's tokens and its output
BLOCKS = {
    f"timm.models.vision_transformer.{name}": ("in_proj", "ls")
    for name in ("ParallelScalingBlock", "DiffParallelScalingBlock")
}


def find_ends(module: nn.Module) -> tuple[nn.Module, nn.Module] | None:
    """Return the submodules of a block that receive its attention's tokens and output; None for other modules.

    This excludes the norm, the residual path and the layer scale, as for attention that is a module.
    """
    names = next((BLOCKS[name] for name in map(full_name, type(module).__mro__) if name in BLOCKS), None)
    return None if names is None else (module.get_submodule(names[0]), module.get_submodule(names[1]))


def full_name(kind: type) -> str:
    """Return module and qualified name of a class."""
    return f"{kind.__module__}.{kind.__qualname__}"
