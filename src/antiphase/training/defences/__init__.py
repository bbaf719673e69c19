"""Defences: what ``antiphase train --defend NAME=STRENGTH`` adds to a classifier's training, one file each.

A defence is registered in :data:`antiphase.registry.DEFENCES`. What it adds to the loss is a free function of a
:class:`~antiphase.training.defences.defence.Step`.
"""

from antiphase.training.defences.defence import Defence, Step, check_defences, defended_loss, in_use, values

__all__ = ["Defence", "Step", "check_defences", "defended_loss", "in_use", "values"]
