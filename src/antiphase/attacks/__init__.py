"""Attacks: functions of (model, images, labels, threat) that return confirmed verdicts."""

from antiphase.attacks.pgd import pgd
from antiphase.attacks.result import AttackResult
from antiphase.attacks.threat import Threat

__all__ = ["AttackResult", "Threat", "pgd"]
