"""Intervals, tests, seeds × images, clusters and power: pure functions of arrays."""
