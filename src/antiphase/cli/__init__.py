"""The command line: each module registers its commands."""

from antiphase.cli import attacks, certify, findings, sense, training
from antiphase.cli.app import app, main

__all__ = ["app", "attacks", "certify", "findings", "main", "sense", "training"]
