"""Figure 3(a) from other initial weights: ASR under PGD by depth."""

from dataclasses import replace

from antiphase.studies.own.variants import PAPER, SEEDS, seeds_of, shown_settings
from antiphase.studies.papers.declarations import Checks
from antiphase.studies.papers.robustness.bench import bench, measured, twins
from antiphase.studies.papers.robustness.success_rates import asr_checks, depth_checks, draw_by_depth
from antiphase.studies.papers.robustness.tables import eps_checks
from antiphase.studies.spec import Cell, Profile, RowsByTable


def cells(profile: Profile) -> list[Cell]:
    """Return PGD and accuracy of the twins of every depth, whose blocks start from N(0, 0.02)."""
    own = replace(profile, seeds=seeds_of(profile), asked=True)
    models = [replace(one, sizes={**one.sizes, "initial_weights": "normal"}) for one in twins(own, None)]
    return measured(models, bench(profile).attack, bench(profile).accuracy)


def checks(rows: RowsByTable) -> Checks:
    """Check what is claimed of depth, and with four layers, where there are any, of ε."""
    attacks = rows["attack"]
    deep = attacks.filter(depth=4)
    return {**asr_checks(attacks, "pgd"), **depth_checks(attacks), **(eps_checks(deep) if len(deep) else {})}


DEPTH_NORMAL = PAPER.study(
    "depth-normal",
    cells,
    lambda rows: draw_by_depth(rows["attack"]),
    checks,
    lambda profile: shown_settings(profile, bench(profile).depths, SEEDS),
    by_data=True,
)
