"""Attacks: functions of (model, images, labels, threat) that return confirmed verdicts."""

from antiphase.attacks.apgd import apgd
from antiphase.attacks.fab import fab
from antiphase.attacks.fgsm import fgsm
from antiphase.attacks.noise import noise
from antiphase.attacks.pgd import pgd
from antiphase.attacks.result import AttackResult
from antiphase.attacks.threat import Threat

__all__ = ["AttackResult", "Threat", "apgd", "fab", "fgsm", "noise", "pgd"]
