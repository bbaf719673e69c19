"""Budgets of attacks in words."""


def eps_label(eps: float) -> str:
    """Format ε as a fraction of 255 if that is short, otherwise as a number.

    >>> [eps_label(eps) for eps in (0.5 / 255, 8 / 255, 0.3, 2.0)]
    ['0.5/255', '8/255', '0.3', '2']
    """
    steps = eps * 255
    grain = 4 if steps < 4 else 1  # quarters for the small ones
    short = 0 < steps < 255 and abs(steps * grain - round(steps * grain)) < 1e-6
    return f"{round(steps * grain) / grain:g}/255" if short else f"{eps:g}"
