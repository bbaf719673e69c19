"""Figures 2 and 6: attention of CLIP and DiffCLIP for a text."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl

from antiphase.data.shards import TITLES
from antiphase.studies import SAMPLE, SEED, Check, Given, Sense, TrainClip, Untrained, difference, estimates, mean
from antiphase.studies.cells.evaluate import COMBINED, NEGATIVE, POSITIVE
from antiphase.studies.figures import BY_SEED, IN_255THS, Artefact, Gallery, Picture, Table, panels, tables
from antiphase.studies.papers.declarations import Checks, filled
from antiphase.studies.papers.diffclip.bench import PAPER, bench, models, models_in_words, released
from antiphase.studies.papers.diffclip.bench import settings as bench_settings
from antiphase.studies.scale import IN_SHORT
from antiphase.studies.spec import Cell, Profile, RowsByTable
from antiphase.terminal import eps_label

SHOWN = 6
MAPS = {COMBINED: "{}", POSITIVE: "{}, A1 alone", NEGATIVE: "{}, A2 alone"}
_PRECISION, _POINTING, _RIGHT = "mask average precision", "pointing game", "the right one of two"
SCORES = {
    _PRECISION: pl.col("average_precision"),
    _POINTING: pl.col("pointing_game").cast(pl.Float64),
    _RIGHT: pl.col("prefers_own").cast(pl.Float64),
}
_CONSTANT = {_PRECISION: pl.col("object_share"), _POINTING: pl.col("object_share"), _RIGHT: pl.lit(0.5)}
_SHARE = "a map of one value"


def _cells(profile: Profile) -> list[Cell]:
    sizes = bench(profile)
    return [cell for model in models(profile, sets=[sizes.main]) for cell in sizes.look(model)]


def draw(rows: RowsByTable) -> Artefact:
    """Both figures, the two maps of differential attention, and how often maps lie on the object."""
    name = pl.col("kind").replace_strict(MAPS, default="{}, " + pl.col("kind"))
    named = rows["relevance"].with_columns(map=name.str.replace("{}", pl.col("series"), literal=True))
    queries, measured = named.filter(pl.col("asked").is_not_null()), named.filter(pl.col("asked").is_null())
    galleries = [
        _gallery("figure-2", "Figure 2. Images that show both of two classes", queries, [COMBINED]),
        _gallery("figure-6", "Figure 6. Images and their two largest objects", measured, [COMBINED]),
        _gallery("a1-and-a2", "The two maps of differential attention alone", measured, [POSITIVE, NEGATIVE]),
    ]
    scored = measured.filter(SCORES[_PRECISION].is_not_null())
    return Artefact(tables=_tables(scored), galleries=[one for one in galleries if one.rows])


def _gallery(name: str, title: str, named: pl.DataFrame, kinds: Sequence[str]) -> Gallery:
    """Show some images, a row for each: the image, then the maps of the first seed for its first and second query."""
    first = named.filter(pl.col(SEED) == pl.col(SEED).min(), pl.col("kind").is_in(list(kinds)))
    images = first.partition_by(SAMPLE, maintain_order=True)
    sheet = []
    for block in images[:: -(-len(images) // SHOWN) or 1]:
        texts = block["text"].unique(maintain_order=True).to_list()
        rows = [row for text in texts for row in block.filter(text=text).iter_rows(named=True)]
        maps = [_picture(f"{row['text']}: {row['map']}", row) for row in rows]
        sheet.append((Picture("; ".join(texts), maps[0].image), *maps))
    sources = map(str, named["trained_on"].unique(maintain_order=True).drop_nulls())
    origin = ", ".join(TITLES.get(source, source) for source in sources)
    return Gallery(name, filled(PAPER.words["captions"]["gallery"], title=title, origin=origin), tuple(sheet))


def _picture(title: str, row: dict[str, Any]) -> Picture:
    image = np.frombuffer(row["image"], np.uint8).reshape(row["image_height"], row["image_width"], 3)
    return Picture(title, image, np.array(row["relevance"], float).reshape(row["height"], row["width"]))


def _tables(scored: pl.DataFrame) -> list[Table]:
    one = scored.filter(map=scored["map"][0]).with_columns(map=pl.lit(_SHARE))
    blocks = []
    for frame, scores in ((scored, SCORES), (one, _CONSTANT)):
        for title, value in scores.items():
            means = estimates(frame.filter(SCORES[title].is_not_null()), ["map"], value)
            blocks.append(means.with_columns(column=pl.lit(title)))
    cells = pl.concat(blocks)
    known = (pl.col("map") == _SHARE) & (pl.col("column") == _RIGHT)  # half, without an interval
    cells = cells.with_columns(pl.when(~known).then(pl.col("low", "high")))
    title, name = "How well maps find the object", "attention-on-object"
    return tables(cells, title, name, "map", "column", index="map")


def _checks(rows: RowsByTable) -> Checks:
    scored = rows["relevance"].filter(pl.col("asked").is_null())

    def check(title: str, first: tuple[str, str], second: tuple[str, str]) -> list[Check]:
        words = " − ".join(MAPS[kind].format(series) for series, kind in (first, second))
        one, two = ({"series": series, "kind": kind} for series, kind in (first, second))
        some = scored.filter(SCORES[title].is_not_null())
        return [Check(f"{title}: {words}", difference(some, one, two, SCORES[title]))]

    combined = (("DiffCLIP", COMBINED), ("CLIP", COMBINED))
    return {"more-focused": check(_PRECISION, *combined), "query-relevant": check(_RIGHT, *combined)}


ATTENTION = PAPER.study(
    "diffclip-attention",
    _cells,
    draw,
    _checks,
    lambda profile: bench_settings(profile) | PAPER.settings("maps", bench=bench(profile)),
)


NOISE = (8 / 255, 64 / 255)
TRAINED, UNTRAINED = "DiffCLIP", "DiffCLIP, untrained"
IN_MAPS, IN_CHANGES = "maps", "changes"
CLEAN = "clean"
VALUE = pl.col("value")


def _pairs(profile: Profile) -> list[TrainClip | Given | Untrained]:
    """Return the trained models, and as many with the weights they start from; those of given ones are not known."""
    sizes = bench(profile)
    trainings = [sizes.train("diffclip", seed) for seed in profile.seeds_or(sizes.seeds)]
    given = sizes.given or (released() if profile.name == "paper" else ())
    differential = [one for one in given if one.factors().get("lambda_init") is not None]
    if sizes.given:
        return [*differential]
    return [*(differential or trainings), *(Untrained(of=training) for training in trainings)]


def _correlation_cells(profile: Profile) -> list[Cell]:
    sizes = bench(profile)
    how: dict[str, Any] = {"part": "branches", "limit": sizes.correlated, "settings": {"travel": NOISE}}
    return [Sense(model=model, data=sizes.home, **how) for model in _pairs(profile)]


def _correlation_settings(profile: Profile) -> dict[str, str]:
    shown = bench_settings(profile)
    given = [one for one in _pairs(profile) if isinstance(one, Given)]
    about = {name: shown[name] for name in ("trained on", "model", "training", IN_SHORT) if name in shown}
    about |= {"models": models_in_words(given)} if given else {}
    return about | PAPER.settings("correlation", bench=bench(profile))


def values(rows: RowsByTable) -> pl.DataFrame:
    """Return every correlation, one row for each layer, head, seed and image."""
    kind = pl.col("perturbation").replace_strict({"noise": "noise", "pgd": "PGD"}, return_dtype=pl.String)
    branches = rows["branches"].with_columns(input=pl.format("{} {}", kind, IN_255THS))
    # the clean image is the same in the rows of every perturbation
    clean = branches.filter(pl.col("perturbation") == "noise", pl.col("eps") == pl.col("eps").min())
    parts = [
        (clean.with_columns(input=pl.lit(CLEAN)), IN_MAPS, "clean_correlation"),
        (branches, IN_MAPS, "correlation"),
        (branches, IN_CHANGES, "change_correlation"),
    ]
    keys = ("series", SEED, "layer", "head", SAMPLE, "input")
    return pl.concat(frame.select(*keys, quantity=pl.lit(quantity), value=column) for frame, quantity, column in parts)


def _draw_correlations(rows: RowsByTable) -> Artefact:
    means = estimates(values(rows), ["quantity", "series", "input", "layer"], VALUE, kind="difference")
    title = pl.col("quantity").replace_strict({IN_MAPS: "A1 and A2", IN_CHANGES: "ΔA1 and ΔA2"})
    means = means.drop(BY_SEED).sort("layer", maintain_order=True).with_columns(title=title, model="series")
    number, listed, style = pl.col("layer") + 1, [], {"percent": False, "digits": 3}
    lines, labels = means.with_columns(series="input"), ("layer", "correlation")
    drawn = panels(lines, "{title}, {model}", number, labels, level=0.0)
    for quantity in (IN_MAPS, IN_CHANGES):
        told = ("Correlation of {title} by layer", f"map-correlation-{quantity}")
        placed = (pl.format("{}, {}", "series", "input"), pl.format("layer {}", number))
        listed += tables(means.filter(quantity=quantity), *told, *placed, **style)
    return Artefact([PAPER.plot("map-correlation", drawn)], listed)


def _correlation_checks(rows: RowsByTable) -> Checks:
    correlations = values(rows)
    maps = {"series": TRAINED, "quantity": IN_MAPS}
    changes, untrained = ({"series": series, "quantity": IN_CHANGES} for series in (TRAINED, UNTRAINED))
    clean = maps | {"input": CLEAN}
    louder, shared, learned = [], [], []
    for noise in (f"noise {eps_label(eps)}" for eps in NOISE):
        noisy, changed, before = (which | {"input": noise} for which in (maps, changes, untrained))
        louder.append(Check(f"r({noise}) − r(clean)", difference(correlations, noisy, clean, VALUE), ""))
        shared.append(Check(f"r of the changes, {noise}", mean(correlations, changed, VALUE), ""))
        learnt = difference(correlations, changed, before, VALUE)
        learned.append(Check(f"r of the changes, trained − untrained, {noise}", learnt, ""))
    return {
        "maps-share": [Check("r, clean", mean(correlations, clean, VALUE), "")],
        "noise-raises-correlation": louder,
        "noise-is-shared": shared,
        "training-shares-noise": learned,
    }


MAP_CORRELATION = PAPER.study(
    "map-correlation", _correlation_cells, _draw_correlations, _correlation_checks, _correlation_settings
)
