"""APGD for one image, line by line from Algorithm 1 of Croce and Hein (2020): slow, and without batches."""

import math

import torch


def project(x, clean, eps, norm):
    if norm == "linf":
        return (clean + (x - clean).clamp(-eps, eps)).clamp(0, 1)
    delta = x - clean
    return (clean + delta * min(1.0, eps / max(float(delta.norm()), 1e-12))).clamp(0, 1)


def apgd(loss, clean, start, eps, norm, steps, rho=0.75, momentum=0.75):
    """Return every loss along the way and the best image; ``loss`` takes an image and returns a scalar."""

    def slope(x):
        x = x.clone().requires_grad_(True)
        value = loss(x)
        return float(value.detach()), torch.autograd.grad(value, x)[0]

    def ascend(x, gradient, eta):
        unit = gradient.sign() if norm == "linf" else gradient / gradient.norm()
        return project(x + eta * unit, clean, eps, norm)

    shares = [0.0, 0.22]
    while shares[-1] < 1:
        shares.append(shares[-1] + max(shares[-1] - shares[-2] - 0.03, 0.06))
    checkpoints = [math.ceil(round(share * steps, 9)) for share in shares]
    eta = 2 * eps
    value, gradient = slope(start)
    values, best, best_value, best_gradient = [value], start, value, gradient
    previous, x = start, ascend(start, gradient, eta)
    height_at_checkpoint, kept = None, False
    for k in range(1, steps + 1):
        value, gradient = slope(x)
        values.append(value)
        if value > best_value:
            best, best_value, best_gradient = x, value, gradient
        if k in checkpoints:
            last = checkpoints[checkpoints.index(k) - 1]
            rises = sum(values[i + 1] > values[i] for i in range(last, k))
            halve = rises < rho * (k - last) or (kept and height_at_checkpoint == best_value)
            height_at_checkpoint, kept = best_value, not halve
            if halve:
                eta, x, gradient = eta / 2, best, best_gradient
        ahead = ascend(x, gradient, eta)
        mixed = x + momentum * (ahead - x) + (1 - momentum) * (x - previous)
        previous, x = x, project(mixed, clean, eps, norm)
    return values, best
