"""Budgets of attacks in words."""


def eps_label(eps: float) -> str:
    """Format ε as a fraction of 255 or as a number, whichever is shorter.

    >>> [eps_label(eps) for eps in (0.5 / 255, 4.5 / 255, 8 / 255, 0.2, 0.3, 2.0)]
    ['0.5/255', '4.5/255', '8/255', '0.2', '0.3', '2']
    """
    return min(f"{eps * 255:g}/255", f"{eps:g}", key=len)
