"""Randomised smoothing one image and one draw at a time, with its bound found by bisection: slow and obvious."""

import math
from statistics import NormalDist

import torch


def binomial_tail(count, samples, p):
    """P(X ≥ count) for X ~ Binomial(samples, p), term by term."""
    logs = [
        math.lgamma(samples + 1)
        - math.lgamma(k + 1)
        - math.lgamma(samples - k + 1)
        + k * math.log(p)
        + (samples - k) * math.log1p(-p)
        for k in range(count, samples + 1)
    ]
    return math.fsum(map(math.exp, logs))


def lower_bound(count, samples, alpha):
    """The p at which ``count`` successes or more have probability α; any smaller p makes them rarer."""
    if count == 0:
        return 0.0
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if binomial_tail(count, samples, middle) < alpha else (low, middle)
    return low


def certify(model, image, draw, sigma, select, samples, alpha):
    """Return (prediction or −1, radius, top, count); ``draw(name, i)`` gives the i-th standard normal image."""

    def vote(name, i):
        with torch.no_grad():
            return int(model((image + sigma * draw(name, i))[None])[0].argmax())

    chosen = [vote("select", i) for i in range(select)]
    top = max(sorted(set(chosen)), key=chosen.count)
    count = sum(vote("samples", i) == top for i in range(samples))
    bound = lower_bound(count, samples, alpha)
    if bound < 0.5:
        return -1, 0.0, top, count
    return top, sigma * NormalDist().inv_cdf(bound), top, count
