"""Attention of CLIP and DiffCLIP for a text.

The paper (Figures 2 and 6) shows maps of a few photographs and says that CLIP allocates attention to irrelevant
background where DiffCLIP centres on the object that is asked about; Appendix C, that A1 highlights the object and A2
captures the background. It prints no number: Appendix A holds that a map cannot be measured against a mask without
choosing a threshold.

Two measures need none. *Mask average precision* uses the values of a map as scores for the pixels of the object; the
*pointing game* tests whether the largest value lies on it. Both are computed on images that were not hand-picked, and
compared with a constant map, whose score is the share of the object. The images shown are spread evenly over those
measured. Maps are relevance after Chefer et al. (ICCV 2021) through all layers: for differential attention the signed
A1 − λ·A2, and A1 and A2 alone.

| profile | models | cost |
|---|---|---|
| paper | 6, CC12M; 200 images of COCO, the class of their largest object; no masks | 10 A100-days a model |
| laptop | 6, OpenMoji; 200 drawings on white, by their names | 20 minutes of training, 2 of maps |

antiphase study run diffclip-attention --profile laptop
"""

import numpy as np
import polars as pl

from antiphase.data.conceptual import TITLES
from antiphase.studies.artefact import Artefact, Gallery, Picture, Table
from antiphase.studies.cells.relevance import COMBINED, NEGATIVE, POSITIVE
from antiphase.studies.claims import Check, Claim
from antiphase.studies.estimation import SAMPLE, SEED, difference, estimates
from antiphase.studies.papers.diffclip.bench import bench, models, settings
from antiphase.studies.spec import Cell, Profile, RowsByTable, Study

SHOWN = 6
MAPS = {COMBINED: "{}", POSITIVE: "{}, A1 alone", NEGATIVE: "{}, A2 alone"}
SCORES = {"average_precision": "mask average precision", "pointing_game": "pointing game"}
_SHARE = "a map of one value"


def cells(profile: Profile) -> list[Cell]:
    """The maps of both models of the main training set, all seeds."""
    own = bench(profile)
    return [own.look(model) for model in models(profile, sets=[own.main])]


def draw(rows: RowsByTable) -> Artefact:
    """A sheet of pictures, and how often maps lie on the object."""
    named = _named(rows["relevance"])
    scored = named.filter(pl.col("average_precision").is_not_null())
    tables = [_table(scored)] if len(scored) else []
    notes = () if tables else ("These images have no object masks, so the maps are not scored.",)
    return Artefact(tables=tables, galleries=[_gallery(named)], notes=notes)


def _named(rows: pl.DataFrame) -> pl.DataFrame:
    """Add what each map is called, models in the order of their cells."""
    name = pl.col("kind").replace_strict(MAPS, default="{}, " + pl.col("kind"))
    return rows.with_columns(map=name.str.replace("{}", pl.col("series"), literal=True))


def _gallery(named: pl.DataFrame) -> Gallery:
    """Show some images with the maps of the first seed."""
    first = named.filter(pl.col(SEED) == pl.col(SEED).min())
    samples = first[SAMPLE].unique(maintain_order=True).to_list()
    chosen = samples[:: -(-len(samples) // SHOWN)]
    sheet: list[tuple[Picture, ...]] = []
    for (_, text), block in first.filter(pl.col(SAMPLE).is_in(chosen)).group_by(
        [SAMPLE, "text"], maintain_order=True
    ):
        pictures = [Picture(str(row["map"]), _image(row), _map(row)) for row in block.iter_rows(named=True)]
        sheet.append((Picture(str(text), pictures[0].image), *pictures))
    sources = map(str, named["trained_on"].unique(maintain_order=True).drop_nulls())
    origin = ", ".join(TITLES.get(name, name) for name in sources)
    words = f"Relevance of each patch to the text above the image, models trained on {origin}, first training seed."
    return Gallery("attention-maps", words, tuple(sheet))


def _image(row: dict[str, object]) -> np.ndarray:
    shape = (row["image_height"], row["image_width"], 3)
    return np.frombuffer(row["image"], np.uint8).reshape(shape)  # type: ignore[arg-type]


def _map(row: dict[str, object]) -> np.ndarray:
    return np.array(row["relevance"], np.float64).reshape(row["height"], row["width"])  # type: ignore[arg-type]


def _table(scored: pl.DataFrame) -> Table:
    """Return both measures of every map, and what a map of one value has."""
    parts = [
        estimates(scored, ["map"], pl.col(score).cast(pl.Float64)).with_columns(column=pl.lit(title))
        for score, title in SCORES.items()
    ]
    one = scored.filter(map=scored["map"][0]).with_columns(map=pl.lit(_SHARE))
    share = estimates(one, ["map"], pl.col("object_share"))
    parts += [share.with_columns(column=pl.lit(title)) for title in SCORES.values()]
    cells = pl.concat(parts).rename({"map": "row"}).with_columns(paper=pl.lit(None, pl.Float64))
    return Table("attention-on-object", "How well maps find the object", "map", cells)


def claims(rows: RowsByTable) -> list[Claim]:
    """Claim that DiffCLIP's maps focus on the object, and A1's more than A2's."""
    scored = rows["relevance"].filter(pl.col("average_precision").is_not_null())
    precision = pl.col("average_precision")

    def check(first: tuple[str, str], second: tuple[str, str]) -> Check:
        words = (MAPS[kind].format(series) for series, kind in (first, second))
        one, two = ({"series": series, "kind": kind} for series, kind in (first, second))
        found = difference(scored, one, two, precision)
        return Check("mask average precision: {} − {}".format(*words), found)

    return [
        Claim(
            "more-focused", "Figures 2 and 6, Appendix A",
            "DiffCLIP's maps are more focused on the object than CLIP's, by mask average precision.",
            [check(("DiffCLIP", COMBINED), ("CLIP", COMBINED))],
        ),
        Claim(
            "first-map-on-object", "Appendix C", "DiffCLIP's A1 highlights the object more than its A2 does.",
            [check(("DiffCLIP", POSITIVE), ("DiffCLIP", NEGATIVE))],
        ),
    ]  # fmt: skip


study = Study(
    "diffclip-attention", "diffclip", "Figures 2 and 6", "What is attended to for a text", __doc__, cells, draw,
    claims, settings,
)  # fmt: skip
