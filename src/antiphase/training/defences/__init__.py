"""Defences: what ``antiphase train --defend NAME=STRENGTH`` adds to a classifier's training."""

from antiphase.training.defences.defence import (
    Defence,
    Step,
    check_defences,
    defended_loss,
    in_use,
    penalties,
    share_of_time,
    values,
)

__all__ = ["Defence", "Step", "check_defences", "defended_loss", "in_use", "penalties", "share_of_time", "values"]
