"""Each model attacked once, what all models make of its images, and the matrix of success rates."""

import time
from functools import cached_property
from itertools import combinations, product
from typing import Any

import numpy as np
import polars as pl
from matplotlib.figure import Figure

from antiphase.attacks.engine.oracle import logits_of
from antiphase.attacks.sweep import sweep
from antiphase.attacks.threat import Threat
from antiphase.commands.audit.run import attack_settings, check_attack, load_attacked
from antiphase.commands.lineup import Lineup, described, write_run
from antiphase.commands.result import Result, combined_rows
from antiphase.commands.transfer import TransferOptions
from antiphase.data.images import content_key
from antiphase.errors import UserError
from antiphase.evaluation import rates as asr
from antiphase.models.card import card_of
from antiphase.models.zoo import fingerprint
from antiphase.processes import this_process
from antiphase.report.figure import new_figure, shortened
from antiphase.report.page import Headline, Plot, Section, quoted_place
from antiphase.report.table import difference_field, rate_field, tabulate
from antiphase.report.words import percent, percent_range, points, with_interval
from antiphase.store import Cache, slice_size
from antiphase.terminal import eps_label

CELL_VERSION = 1  # raise it when the same settings come to mean another measurement
_COUNTS = ("sample", "target", "clean_prediction", "prediction", "forwards", "backwards")
_CELL_SCHEMA: dict[str, Any] = dict.fromkeys(_COUNTS, pl.Int64) | {"distance": pl.Float64}
TRANSFER_SCHEMA = asr.ROW_SCHEMA | {"surrogate": pl.String}


def run(options: TransferOptions, command: str = "") -> None:
    """Attack every model, ask all about the images and write the run directory."""
    check_attack(options)
    lineup, began = load_attacked(options), time.monotonic()
    if len(lineup.models) < 2:
        raise UserError(f"model {lineup.names[0]}: expected two or more, separated by commas")
    options = options.for_images(lineup.data.image_shape)
    lineup, notes = lineup.ordered()
    data, parts, doubts = lineup.data, [], lineup.doubts() + notes
    for surrogate in lineup.names:
        for eps in options.eps:
            frame, warnings = _measure(surrogate, eps, lineup, options)
            about = {"attack": f"{options.attack} from {surrogate}", "norm": options.norm, "eps": eps}
            about |= {"attack_seed": options.seed, "surrogate": surrogate, "felled_by": None}
            shown = enumerate(lineup.by_name.items())
            parts += [described(frame.filter(target=i), TRANSFER_SCHEMA, *one, data, **about) for i, one in shown]
            doubts += [f"{surrogate}: {warning}" for warning in warnings]
    rows = pl.concat(parts)
    summary = asr.summarise_rates(rows, lineup.about(), ()) | {"comparisons": differences(rows).to_dicts()}
    classes = max(card_of(model).classes for model in lineup.models)
    settings = attack_settings(options, classes) | {"budgets": "independent"}
    write_run(lineup, options, summary, {"rows": rows}, settings, [*dict.fromkeys(doubts)], command, began)


def _measure(surrogate: str, eps: float, lineup: Lineup, options: TransferOptions) -> tuple[pl.DataFrame, list[str]]:
    """Return a row for each image and model that is shown the image made on the surrogate, and warnings."""
    models, data, attack = lineup.by_name, lineup.data, options.ensemble
    identity = {"version": CELL_VERSION, "model": fingerprint(models[surrogate]), "data": content_key(data)}
    identity |= {"shown to": [fingerprint(model) for model in models.values()], "seed": options.seed}
    identity |= {"attack": [(one.name, one.settings) for one in attack.stages], "norm": options.norm, "eps": eps}
    # auto shares rows with float32, as in audit
    identity |= {"precision": "bf16"} if options.precision == "bf16" else {}
    identity |= {"compile": True} if options.compile else {}
    cache = Cache(options.out, identity, _CELL_SCHEMA, data.ids.tolist(), this_process())
    how = {name: getattr(options, name) for name in ("seed", "batch_size", "precision", "compile")}
    how |= {"progress": "" if options.quiet else f"{surrogate} {options.attack} ε={eps_label(eps)}"}
    how |= {"nested": "off", "early_stop": False}
    with cache.filling(slice_size(data.image_shape)) as parts:
        for part in parts:
            images, ids, frames = data.images(part), data.ids[part], []
            (made,) = sweep(attack, models[surrogate], images, None, Threat(options.norm, eps), [eps], ids=ids, **how)
            cache.journal.warn(made.warnings)
            columns = made.frame()
            for number, model in enumerate(models.values()):
                inputs = {"clean_prediction": images, "prediction": made.adversarial}
                predictions = {name: pl.Series(logits_of(model, x).argmax(1).numpy()) for name, x in inputs.items()}
                frames.append(columns.with_columns(target=pl.lit(number), **predictions).select(*_CELL_SCHEMA))
            whole = pl.concat(frames).cast(pl.Schema(_CELL_SCHEMA))
            cache.journal.append(whole)  # at once: a kill leaves a sample whole or missing
    rows = cache.collect().filter(pl.col("sample").is_in(data.ids.tolist()))
    return rows.with_columns(success=pl.col("prediction") != pl.col("clean_prediction")), cache.warnings


def differences(rows: pl.DataFrame) -> pl.DataFrame:
    """Return, for each two models, the success rate from one to the other minus the way back, paired by image.

    The first is the one with differential attention where the other has another, else the first of the rows.
    """
    attention = dict(rows.select("model", "attention").unique().iter_rows())
    order = sorted(rows["model"].unique(maintain_order=True), key=lambda name: attention[name] != "differential")
    pairs = [(f"{one} → {two}", f"{two} → {one}") for one, two in combinations(order, 2)]
    return asr.with_decisions(pl.concat([asr.compare(_ways(rows), *pair) for pair in pairs]))


def _ways(rows: pl.DataFrame) -> pl.DataFrame:
    """Return rows whose model is the way from one model to another, and whose attack is that of all."""
    attack = pl.col("attack").str.split(" from ").list.first()
    return rows.with_columns(model=pl.format("{} → {}", "surrogate", "model"), attack=attack)


class TransferResult(Result):
    """How often the adversarial images of each model break the others."""

    keys = ("models", "comparisons")

    @cached_property
    def rates(self) -> pl.DataFrame:
        """The success rate of each way at each ε, with the two models."""
        ends = pl.col("model").str.split(" → ")
        rates = asr.rates(_ways(self.frame())).filter(metric="asr").sort("eps", maintain_order=True)
        return rates.with_columns(surrogate=ends.list.first(), target=ends.list.last())

    def headlines(self) -> list[Headline]:
        """Compare both ways between differential and standard attention, or between the first two models."""
        attention = {model["name"]: model["attention"] for model in self.summary["models"]}
        kinds = {"differential": "differential", "standard": "softmax"}
        sides = {side: [name for name in attention if attention[name] == kind] for side, kind in kinds.items()}
        if not all(sides.values()):
            sides = {shortened(name, 16): [name] for name in [*attention][:2]}
        pairs = [(f"{one} → {two}", f"{two} → {one}") for one, two in product(*sides.values())]
        spans = asr.over_images(_ways(self.frame()), pairs).sort("eps").rows(named=True)
        row = spans[quoted_place([(row["image_low"] > 0) - (row["image_high"] < 0) for row in spans])]
        block = self.rates.filter(eps=row["eps"])
        ways = [block.filter(pl.col("model").is_in(way))["value"] for way in zip(*pairs, strict=True)]
        there, back = (float(rates.to_numpy().mean()) for rates in ways)
        difference = with_interval(f"{points(there - back)} points", percent_range(row["image_low"], row["image_high"]))
        title = f"{' → '.join(sides)} {percent(there)} %, back {percent(back)} %: {difference}"
        lead = (
            "Share of images, made on one model, that change the prediction of the other. Paired by image, mean over "
            f"pairs of models: {len(pairs)}; the interval is over the images, for these weights."
        )
        plot = Plot("transfer", self.figure(), "Attack success rate, %, at the largest ε.", beside=True)
        return [Headline(title, lead, f"ε = {eps_label(row['eps'])}, n = {self.record['n']:,}", lambda: plot)]

    def figure(self) -> Figure:
        names = [model["name"] for model in self.summary["models"]]
        with new_figure(2.4 + 0.9 * len(names), 1.6 + 0.6 * len(names)) as figure:
            axes: Any = figure.subplots()
            values = self.rates.filter(eps=self.rates["eps"].max())["value"].to_numpy().reshape(len(names), -1)
            axes.imshow(100 * values, vmin=0, vmax=180, cmap="Blues", aspect="auto")  # pale enough for black
            for (down, across), value in np.ndenumerate(100 * values):
                axes.text(across, down, f"{value:.0f}", ha="center", va="center")
            axes.set(xlabel="shown to", ylabel="made on", xticks=range(len(names)), yticks=range(len(names)))
            axes.set_xticklabels(names, rotation=30, ha="right", parse_math=False)
            axes.set_yticklabels(names, parse_math=False)
        return figure

    def sections(self) -> list[Section]:
        heads = {model["name"]: model["name"] for model in self.summary["models"]}
        matrices, how = [], (["surrogate"], "target", rate_field, heads)
        for number, ((eps,), rows) in enumerate(self.rates.group_by("eps", maintain_order=True)):
            matrices.append(tabulate(f"transfer-{number}", f"ε = {eps_label(eps)}, %", rows, *how))
        lines = differences(self.frame()).with_columns(way=pl.format("({}) − ({})", "model", "against"))
        table = tabulate("differences", "Points", lines, ["way"], "eps", difference_field, eps_label)
        words = "Rows: the model that the images were made on. Columns: the model that they were shown to."
        back = "Each way minus the way back, paired by image; pale where no difference is shown (Holm, over ε)."
        return [
            Section("transfer", "Attack success rate", words, tables=matrices),
            Section("differences", "There and back", back, tables=[table]),
        ]

    def differences(self, other: Any) -> pl.DataFrame:
        rows, pairs = combined_rows(self, other)
        return pl.concat([asr.compare(rows, *pair).with_columns(metric=pl.lit("asr")) for pair in pairs])
