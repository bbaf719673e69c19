"""Attacks: functions of (model, images, labels, threat) that return an ``AttackResult``."""

from antiphase.attacks.apgd import apgd
from antiphase.attacks.autoattack import autoattack
from antiphase.attacks.carlini_wagner import carlini_wagner
from antiphase.attacks.fab import fab
from antiphase.attacks.fmn import fmn
from antiphase.attacks.noise import noise
from antiphase.attacks.other_libraries import run_foreign
from antiphase.attacks.pgd import fgsm, patch_pgd, pgd
from antiphase.attacks.result import AttackResult, eps_at
from antiphase.attacks.sigma_zero import sigma_zero
from antiphase.attacks.square import square
from antiphase.attacks.sweep import sweep
from antiphase.attacks.threat import Threat

__all__ = ["AttackResult", "Threat", "apgd", "autoattack", "carlini_wagner", "eps_at", "fab", "fgsm", "fmn", "noise"]
__all__ += ["patch_pgd", "pgd", "run_foreign", "sigma_zero", "square", "sweep"]
