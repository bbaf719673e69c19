"""Square for one image, in Python's numbers, pixel by pixel, from Algorithms 1 to 3 of Andriushchenko et al. (2020)."""

import math

import torch

from antiphase.streams import sample_keys, uniform

BREAKS = [10, 50, 200, 500, 1000, 2000, 4000, 6000, 8000]


def square(ask, clean, eps, norm, key, queries, p_init=0.8, rescale=False, bounds=(0.0, 1.0)):
    """Return every proposal, what was accepted, and the last image; ``ask(image)`` is (loss, adversarial)."""
    shape = clean.shape
    clean = clean.tolist()
    x = first(clean, eps, norm, key, bounds)
    proposals, accepted = [], []
    best_loss, broken = -math.inf, False
    for t in range(queries):
        proposal = x if t == 0 else propose(x, clean, eps, norm, key, t, queries, p_init, rescale, bounds)
        image = torch.tensor(proposal, dtype=torch.float64).view(shape)
        loss, adversarial = ask(image)
        proposals.append(image)
        accepted.append((adversarial and not broken) or (loss > best_loss and adversarial >= broken))
        if accepted[-1]:
            x, best_loss, broken = proposal, loss, broken or adversarial
    return proposals, accepted, torch.tensor(x, dtype=torch.float64).view(shape)


def numbers(key, count, offset=0):
    return uniform(torch.tensor([key]), count, offset)[0].tolist()


def clip(value, bounds):
    return min(max(value, bounds[0]), bounds[1])


def copy(x):
    return [[list(row) for row in channel] for channel in x]


def side(t, queries, p_init, rescale, height, width, norm):
    iteration = t - 1
    if rescale:
        iteration = math.floor(iteration * 10_000 / queries + 1e-9)
    p = p_init
    for breakpoint in BREAKS:
        if iteration > breakpoint:
            p = p / 2
    s = round(math.sqrt(p * height * width))
    if norm == "linf":
        s = max(s, 1)
    else:
        s = max(s, 3)
        s = s if s % 2 else s + 1
    if s <= height and s <= width:
        return s, s
    if height <= width:
        return height, min(width, max(s, round(p * width)))
    return min(height, max(s, round(p * height))), width


def bump(height, width, across):
    if across:
        turned = bump(width, height, across=False)
        return [[turned[j][i] for j in range(width)] for i in range(height)]
    k = height // 2
    whole = pyramid(k, width) + [[-value for value in row] for row in pyramid(height - k, width)]
    return over_length(whole)


def pyramid(height, width):
    """Add squares that grow around the centre, the m-th of height 1 / m²."""
    out = [[0.0] * width for _ in range(height)]
    for m in range(1, max(height // 2, width // 2) + 2):
        for i in range(height):
            for j in range(width):
                if abs(i - height // 2) < m and abs(j - width // 2) < m:
                    out[i][j] += 1 / m**2
    return over_length(out)


def over_length(values):
    length = math.sqrt(sum(value**2 for row in values for value in row))
    return [[value / length for value in row] for row in values]


def first(clean, eps, norm, key, bounds):
    channels, height, width = len(clean), len(clean[0]), len(clean[0][0])
    start_key = int(sample_keys(torch.tensor([key]), torch.tensor([0])))
    x = copy(clean)
    if norm == "linf":
        draws = numbers(start_key, channels * width)
        for c in range(channels):
            for j in range(width):
                sign = 1 if draws[c * width + j] < 0.5 else -1
                for i in range(height):
                    x[c][i][j] = clip(clean[c][i][j] + sign * eps, bounds)
        return x
    down, right = min(5, height), min(5, width)
    tall, wide = height // down, width // right
    top, left = (height - down * tall) // 2, (width - right * wide) // 2
    draws = numbers(start_key, (1 + channels) * down * right)
    change = [[[0.0] * width for _ in range(height)] for _ in range(channels)]
    for a in range(down):
        for b in range(right):
            tile = bump(tall, wide, across=draws[a * right + b] < 0.5)
            for c in range(channels):
                sign = 1 if draws[(1 + c) * down * right + a * right + b] < 0.5 else -1
                for i in range(tall):
                    for j in range(wide):
                        change[c][top + a * tall + i][left + b * wide + j] = sign * tile[i][j]
    length = math.sqrt(sum(value**2 for channel in change for row in channel for value in row))
    for c in range(channels):
        for i in range(height):
            for j in range(width):
                x[c][i][j] = clip(clean[c][i][j] + eps * change[c][i][j] / length, bounds)
    return x


def propose(x, clean, eps, norm, key, t, queries, p_init, rescale, bounds):
    channels, height, width = len(clean), len(clean[0]), len(clean[0][0])
    tall, wide = side(t, queries, p_init, rescale, height, width, norm)

    def window(down, right):
        top, left = int(down * (height - tall + 1)), int(right * (width - wide + 1))
        return [(top + i, left + j) for i in range(tall) for j in range(wide)]

    out = copy(x)
    if norm == "linf":
        draws = numbers(key, 2 + channels, t * (2 + channels))
        for c in range(channels):
            sign = 1 if draws[2 + c] < 0.5 else -1
            for i, j in window(draws[0], draws[1]):
                moved = clip(x[c][i][j] + 2 * sign * eps, (clean[c][i][j] - eps, clean[c][i][j] + eps))
                out[c][i][j] = clip(moved, bounds)
        return out
    draws = numbers(key, 5 + channels, t * (5 + channels))
    w, v = window(draws[0], draws[1]), window(draws[2], draws[3])
    shape = bump(tall, wide, across=draws[4] < 0.5)
    nu = [[[x[c][i][j] - clean[c][i][j] for j in range(width)] for i in range(height)] for c in range(channels)]
    spent = sum(value**2 for channel in nu for row in channel for value in row)
    for c in range(channels):
        sign = 1 if draws[5 + c] < 0.5 else -1
        window_norm = math.sqrt(sum(nu[c][i][j] ** 2 for i, j in w))
        either = sum(nu[c][i][j] ** 2 for i, j in set(w) | set(v))
        available = math.sqrt(either + max(0.0, eps**2 - spent) / channels)
        direction = {}
        for position, (i, j) in enumerate(w):
            there = nu[c][i][j] / window_norm if window_norm > 1e-6 * eps else 0.0
            direction[i, j] = sign * shape[position // wide][position % wide] + there
        length = math.sqrt(sum(value**2 for value in direction.values()))
        if length <= 1e-3:  # the sum cancels
            length = 1.0
            for position, (i, j) in enumerate(w):
                direction[i, j] = sign * shape[position // wide][position % wide]
        for i, j in v:
            out[c][i][j] = clean[c][i][j]
        for i, j in w:
            out[c][i][j] = clip(clean[c][i][j] + available * direction[i, j] / length, bounds)
    return out
