"""The command line: each module registers its commands."""

from antiphase.cli import attack as attacks
from antiphase.cli import certify, clip_training, evaluate, export, look, sense, study, training
from antiphase.cli.app import app, main

__all__ = [
    "app",
    "attacks",
    "certify",
    "clip_training",
    "evaluate",
    "export",
    "look",
    "main",
    "sense",
    "study",
    "training",
]
