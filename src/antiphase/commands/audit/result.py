"""The result of an audit or attack: headlines, tables, figures and page from the stored rows.

A headline compares two models (or two families, averaged over their training seeds) under the first attack of the run,
and quotes one ε. It depends on which differences are decided, see :mod:`antiphase.statistics.decisions`:

- If some are, the title says on which side of zero they lie. The quoted ε is the one of them nearest to the middle of
  the list (the smaller of two), not the one with the largest difference.
- If none is, the title says what is not decided, and the quoted ε is the middle one (the lower of two).
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any

import polars as pl

from antiphase.budgets import eps_label
from antiphase.commands.result import Result, combined_rows
from antiphase.commands.sense.result import sensitivity_sections
from antiphase.errors import UserError
from antiphase.evaluation.rates import (
    COMPARISON_SCHEMA,
    ROW_SCHEMA,
    by_seed,
    clean_accuracy,
    compare,
    family_comparisons,
    family_results,
    over_images,
    rates,
    with_decisions,
)
from antiphase.registry import QUESTIONS, find
from antiphase.report.figure import Family, families, rate_figure, seed_counts
from antiphase.report.gallery import gallery_markup, read_gallery
from antiphase.report.page import Headline, Panel, Plot, Rate, Section, environment
from antiphase.report.table import Field, Table
from antiphase.report.words import (
    attack_condition,
    attack_label,
    lambda_range,
    p_text,
    percent,
    percent_range,
    points,
    points_interval,
    points_range,
)
from antiphase.statistics.decisions import LEAST_SEEDS
from antiphase.statistics.intervals import as_share, mean_over_seeds

# metric: (name, name on a tab, definition)
_RATES = {
    "asr": ("Attack success rate", "ASR", "broken / all"),
    "asr_correct": (
        "Attack success rate on correctly classified images",
        "ASR, correct only",
        "correct and broken / correct",
    ),
    "robust_accuracy": ("Robust accuracy", "Robust accuracy", "correct and not broken / all"),
}
Entry = Mapping[str, Any]


class AuditResult(Result):
    """Attack success rates of models and their paired differences."""

    needs = ("rows.parquet", "summary.json", "run.json")
    keys = ("models", "comparisons")
    settings_title = "Attack"

    @classmethod
    def of_files(cls, files: Mapping[str, bytes]) -> type[Result]:
        """Return the class of attacks on answers, where questions were asked."""
        if "questions.json" in files:
            return find(QUESTIONS, next(iter(QUESTIONS)), "questions").result
        return cls

    @cached_property
    def rows(self) -> pl.DataFrame:
        """A row for each model, ε and image.

        Raises:
            UserError: they lack a column, are none, or are of other models than the summary.
        """
        rows, again = self.frame("rows"), "expected the rows of a finished run; run it again"
        if missing := [name for name in ROW_SCHEMA if name not in rows.columns]:
            raise UserError(f"rows.parquet has no column {missing[0]!r}: {again}")
        if rows.is_empty():
            raise UserError(f"rows.parquet has no rows: {again}")
        if odd := {model["name"] for model in self.models} ^ set(rows["model"]):
            raise UserError(f"model {min(odd)!r} is not in both summary.json and rows.parquet: run it again")
        return rows

    @property
    def models(self) -> list[dict[str, Any]]:
        """What the summary says of each model."""
        return self.summary["models"]

    @cached_property
    def families(self) -> list[Family]:
        """Models that differ in their training seed alone."""
        return families(self.models)

    @cached_property
    def colors(self) -> dict[str, str]:
        """The colour of each model and of each family."""
        return {name: family.color for family in self.families for name in (family.name, *family.models)}

    @cached_property
    def pairs(self) -> list[tuple[str, str]]:
        """(model, twin) by name."""
        return list(
            dict.fromkeys((entry["model"], entry["against"]) for entry in self.summary["comparisons"])
        )

    @cached_property
    def rates(self) -> pl.DataFrame:
        """Every rate, see :func:`antiphase.evaluation.rates.rates`."""
        return rates(self.rows)

    @cached_property
    def accuracy(self) -> pl.DataFrame:
        """Clean accuracy of every model."""
        return clean_accuracy(self.rows)

    @cached_property
    def comparisons(self) -> pl.DataFrame:
        """Paired differences, with ``decided``: 1, −1 or 0."""
        frames = [compare(self.rows, *pair) for pair in self.pairs]
        return with_decisions(pl.concat([pl.DataFrame(schema=COMPARISON_SCHEMA), *frames]))

    @cached_property
    def mean_rates(self) -> pl.DataFrame:
        """Rates averaged over the training seeds of each family that has several."""
        return family_results(self.rates, by_seed(self.models))

    @cached_property
    def mean_comparisons(self) -> pl.DataFrame:
        """Differences averaged over pairs of training seeds, with intervals over the seeds and over the images."""
        groups = by_seed(self.models)
        plain = self.comparisons.drop("decided")
        means, frames = family_comparisons(plain, groups), []
        for (first, second), mean in means.group_by(["family", "against_family"], maintain_order=True):
            inside = pl.col("model").is_in(groups[str(first)]) & pl.col("against").is_in(groups[str(second)])
            pairs = plain.filter(inside).select("model", "against").unique(maintain_order=True).rows()
            images = over_images(self.rows, pairs)
            frames.append(mean.join(images, on=["attack", "norm", "eps"], how="left"))
        empty = means.with_columns(image_low=pl.lit(0.0), image_high=pl.lit(0.0))
        return with_decisions(pl.concat(frames) if frames else empty)

    # what is shown

    def headlines(self) -> list[Headline]:
        owner = {model: family.name for family in self.families for model in family.models}
        means, headlines = self.mean_comparisons, []
        for (family, against), frame in means.group_by(["family", "against_family"], maintain_order=True):
            headlines.append(
                self._of_families(str(family), str(against), frame.rename({"value": "difference"}))
            )
        averaged = set(means.select("family", "against_family").rows())
        for (model, against), frame in self.comparisons.group_by(["model", "against"], maintain_order=True):
            if (owner[str(model)], owner[str(against)]) not in averaged:
                headlines.append(self._of_models(str(model), str(against), frame))
        return headlines or [self._without_twin()]

    def line(self) -> str:
        """Name the attack and the ASR of the first models at the largest ε."""
        block = self._first(self.rates.filter(metric="asr"))
        last = block.filter(eps=block["eps"].max())
        shown = ", ".join(f"{percent(row['value'])} % ({row['model']})" for row in last.head(2).to_dicts())
        more = f" and {len(last) - 2} more models" if len(last) > 2 else ""
        eps, where = eps_label(last["eps"][0]), attack_label(*self._attack)
        return f"ASR {shown}{more} at ε = {eps}, {where}, {last['n'][0]:,} images"

    def differences(self, other: Result) -> pl.DataFrame:
        rows, pairs = combined_rows(self, other)
        return pl.concat([compare(rows, *pair) for pair in pairs])

    def sections(self) -> list[Section]:
        seeds = seed_counts(self.families)
        n, several = self.record["n"], bool(seeds)
        bands = ""
        if any(len(family.models) == 1 for family in self.families):
            bands = f"Bands{' of single models' * several} are 95 % Wilson intervals over {n:,} images. "
        if seeds:
            bands += (
                f"Thick lines are means over {seeds} training seeds, with 95 % Student’s t intervals over the seeds; "
                "thin lines are single seeds."
            )
        captions = {
            "asr": "Attack success rate: share of images whose prediction the attack changes. ",
            "robust_accuracy": "Robust accuracy: share of images classified correctly before and after the attack. ",
        }
        plots = [
            Plot(metric, self._rate_figure(metric), words + bands, beside=metric == "asr")
            for metric, words in captions.items()
        ]
        sections = [
            Section("figures", "", plots=plots),
            Section("models", "Models", tables=[self.models_table()]),
        ]
        panels = [
            Panel(f"rate-{metric}", tab, self.rate_tables(metric), title, formula)
            for metric, (title, tab, formula) in _RATES.items()
        ]
        words = "In percent, with 95 % Wilson intervals below."
        if seeds:
            words += (
                f" Means over {seeds} training seeds have Student’s t intervals over the seeds, computed on the logit "
                "scale if they would otherwise extend beyond 0 to 100 %."
            )
        sections.append(Section("rates", "Rates under attack", words, panels=panels, in_navigation="Rates"))
        if tables := self.difference_tables():
            words = (
                "Attack success rate of the first model minus that of the second on the same images, in percentage "
                "points, with Newcombe’s 95 % interval for paired proportions and the exact McNemar p-value. Pale "
                "values are not decided: a difference is if its interval excludes zero and p is below 5 %, corrected "
                "by Holm for the ε of the attack."
            )
            if seeds:
                words += (
                    " Means over pairs have two intervals: one over the images, with the weights held fixed, and "
                    "Student’s t over the training seeds, which decides if there are at least eight."
                )
            title = "Paired differences"
            sections.append(Section("differences", title, words, tables=tables, in_navigation="Differences"))
        if table := self._norms():
            words = (
                "The smallest ε at which the attack success rate reaches each level in the table, with a 95 % "
                "bootstrap interval below. It is an order statistic of the distances to the nearest adversarial "
                "example found for each image."
            )
            sections.append(Section("norms", "Minimal perturbations", words, tables=[table]))
        if table := self._broken_by():
            words = (
                "Each attack of the ensemble runs on the images that all attacks before it failed to break."
            )
            if str(self.record["settings"].get("budgets", "")).startswith("nested up"):
                words += (
                    " An image broken at one ε also counts as broken at every larger ε, by the same attack."
                )
            sections.append(Section("broken", "Images broken by each attack", words, tables=[table]))
        if table := self.lambda_table():
            words = (
                "Differential attention uses A1 − λ·A2: λ is the weight of the subtracted map, averaged over heads if "
                "each has its own. At λ = 0 only the positive map A1 is left."
            )
            sections.append(Section("lambda", "λ of each layer", words, tables=[table], in_navigation="λ"))
        sections += sensitivity_sections(self, self.pairs, self.families)
        if "gallery.safetensors" in self.files:
            with self.unpacked() as folder:
                gallery = read_gallery(folder / "gallery.safetensors")
            sections.append(Section("gallery", "Gallery", markup=gallery_markup(gallery, self.colors)))
        return sections

    def console(self) -> list[Any]:
        from rich.text import Text

        titles = [Text(f"{headline.title}.\n", "bold") for headline in self.headlines()]
        tables = [self.models_table(), *self.rate_tables("asr"), *self.difference_tables()]
        return [*titles, *(self._short(table).console() for table in tables), *self._norm_lines()]

    def _short(self, table: Table) -> Table:
        """Leave out the rows of single models whose family has a mean."""
        several = {model for family in self.families if len(family.models) > 1 for model in family.models}
        if not any(row[0].kind == "mean" for row in table.rows):
            return table
        rows = (
            row for row in table.rows if row[0].kind == "mean" or row[0].text.split(" − ")[0] not in several
        )
        return replace(table, rows=tuple(rows))

    def write_report(self, folder: Path) -> Path:
        """Write ``report.html``, ``asr.svg``, ``.png`` and ``.pdf``, ``card.json`` and ``CARD.md``."""
        from antiphase.commands.audit.card import write_card
        from antiphase.report.page import write_page

        path = folder / "report.html"
        reading = (
            environment().get_template("how_to_read_rates.html").render(seeds=seed_counts(self.families))
        )
        headlines, sections = self.headlines(), self.sections()
        write_page(path, self.record, headlines, sections, settings=self.settings_title, reading=reading)
        write_card(self, folder)
        return path

    # tables

    def all_tables(self) -> list[Table]:
        return [*self.rate_tables("asr"), *self.difference_tables()]

    def models_table(self) -> Table:
        """Tabulate name, attention, training seed, clean accuracy and range of λ of each model."""
        accuracy = {row["model"]: row for row in self.accuracy.iter_rows(named=True)}
        rows = [
            (
                self._name(model["name"]),
                Field(model["attention"], kind="word"),
                Field("–" if model["seed"] is None else str(model["seed"])),
                _rate_field(accuracy[model["name"]]),
                Field(lambda_range(model["lambda"])),
            )
            for model in self.models
        ]
        about = [{name: model[name] for name in ("name", "attention", "seed")} for model in self.models]
        frame = pl.DataFrame(about, infer_schema_length=None).rename({"name": "model"})
        csv = frame.join(self.accuracy, on="model", how="left").write_csv()
        columns = ("model", "attention", "seed", "clean accuracy, %", "λ")
        return Table("models", "Accuracy on clean images", columns, tuple(rows), csv)

    def rate_tables(self, metric: str) -> list[Table]:
        """Tabulate one rate for each attack and norm: models and families down, ε across."""
        means = self.mean_rates.filter(metric=metric)
        tables = []
        for attack, block in _attacks(self.rates.filter(metric=metric)):
            rows = []
            for family in self.families:
                rows += [(self._name(model), block.filter(model=model)) for model in family.models]
                mean = _of(means, attack).filter(family=family.name)
                if not mean.is_empty():
                    rows.append((self._name(family.name, f", mean of {len(family.models)}", "mean"), mean))
            tables.append(_by_eps(f"{metric}-{'-'.join(attack)}", attack, "model", block, rows, _rate_field))
        return tables

    def difference_tables(self) -> list[Table]:
        """Tabulate the paired differences of ASR for each attack and norm, likewise."""
        tables = []
        for attack, block in _attacks(self.comparisons):
            rows = [
                (self._name(str(model), f" − {against}"), frame)
                for (model, against), frame in block.group_by(["model", "against"], maintain_order=True)
            ]
            means = _of(self.mean_comparisons, attack)
            for (family, against), mean in means.group_by(["family", "against_family"], maintain_order=True):
                words = f" − {against}, mean of {mean['n'].max()}"
                rows.append((self._name(str(family), words, "mean"), mean))
            name = f"differences-{'-'.join(attack)}"
            tables.append(_by_eps(name, attack, "pair", block, rows, _difference_field))
        return tables

    def lambda_table(self) -> Table | None:
        """Tabulate λ by layer; return None if no model has one."""
        models = {model["name"]: model["lambda"] for model in self.models if model["lambda"]}
        depth = max(map(len, models.values()), default=0)
        rows = []
        for name, values in models.items():
            fields = [Field(f"{value:.3f}") for value in values] + [Field("–")] * (depth - len(values))
            rows.append((self._name(name), *fields))
        numbers = [
            {"model": name, "layer": layer, "lambda": value}
            for name, values in models.items()
            for layer, value in enumerate(values, start=1)
        ]
        columns = ("model", *(f"layer {layer}" for layer in range(1, depth + 1)))
        title, csv = "λ, mean over the heads of each layer", pl.DataFrame(numbers).write_csv()
        return Table("lambda", title, columns, tuple(rows), csv) if rows else None

    def _norms(self) -> Table | None:
        """Tabulate the ε at which the ASR reaches each level: one row per model, one column per level."""
        if not (entries := self.summary.get("norms")):
            return None
        frame, rows = pl.DataFrame(entries), []
        levels = frame["level"].unique().sort().to_list()
        for (model,), block in frame.group_by(["model"], maintain_order=True):
            by_level = {row["level"]: row for row in block.iter_rows(named=True)}
            rows.append((self._name(str(model)), *(_norm_field(by_level[level]) for level in levels)))
        columns = ("model", *(f"{level:.0%}" for level in levels))
        title = attack_label(frame["attack"][0], frame["norm"][0])
        return Table("norms", title, columns, tuple(rows), frame.write_csv())

    def _norm_lines(self) -> list[str]:
        return [
            f"{entry['model']}: ASR of {entry['level'] * 100:.0f} % "
            + (
                "is not reached"
                if entry["eps"] is None
                else f"at ε = {entry['eps']:.4g} (from {entry['low']:.4g})"
            )
            for entry in self.summary.get("norms", [])
        ]

    def _broken_by(self) -> Table | None:
        """Tabulate how many images each attack of an ensemble broke: a row for each model and attack."""
        by = pl.col("felled_by")
        broken = self.rows.filter(by.is_not_null() & (by != pl.col("attack")))
        if broken.is_empty():
            return None
        keys = ["model", "felled_by", "eps"]
        counts = (
            broken.group_by(keys, maintain_order=True).agg(n=pl.len().cast(pl.Int64)).sort("model", "eps")
        )
        eps, rows = counts["eps"].unique().sort().to_list(), []
        for (model, attack), block in counts.group_by(["model", "felled_by"], maintain_order=True):
            number = dict(block.select("eps", "n").iter_rows())
            fields = (Field(str(number.get(e, 0))) for e in eps)
            rows.append((Field(f"{model}: {attack}", kind="name"), *fields))
        columns = ("images broken by", *map(eps_label, eps))
        title = "Number of images broken by each attack, in the order in which the attacks run"
        return Table("felled", title, columns, tuple(rows), counts.write_csv())

    def _name(self, name: str, more: str = "", kind: str = "name") -> Field:
        return Field(f"{name}{more}", color=self.colors[name], kind=kind)

    def _rate_figure(self, metric: str) -> Any:
        return rate_figure(self.rates, self.mean_rates, self.families, metric)

    # headlines

    @property
    def _attack(self) -> tuple[str, str]:
        """The first attack and its norm."""
        return self.rates.select("attack", "norm").row(0)

    def _first(self, frame: pl.DataFrame) -> pl.DataFrame:
        return _of(frame, self._attack)

    def _of_models(self, model: str, against: str, frame: pl.DataFrame) -> Headline:
        own = self._first(frame)
        quoted = _quoted(own)
        shown = tuple(self._rate(name, (name,), quoted["eps"]) for name in (model, against))
        accuracy = dict(self.accuracy.select("model", "value").iter_rows())
        lead = (
            f"The attack changes {shown[0].percent} % of the predictions of {model} and {shown[1].percent} % of "
            f"{against} (exact McNemar {p_text(quoted['p_value'])}). {_elsewhere(frame)}"
            f"Their clean accuracies are {percent(accuracy[model])} % and {percent(accuracy[against])} %."
        )
        title = _title(model, against, own, f"{quoted['n']:,} images, {self._condition()}")
        return Headline(title, lead, shown, _what(quoted["eps"]))

    def _of_families(self, family: str, against: str, frame: pl.DataFrame) -> Headline:
        own = self._first(frame)
        quoted = _quoted(own)
        members = {group.name: group.models for group in self.families}
        sides = zip(
            *((a, b) for a, b in self.pairs if a in members[family] and b in members[against]), strict=True
        )
        paired = dict(zip((family, against), sides, strict=True))
        shown = tuple(self._rate(name, models, quoted["eps"]) for name, models in paired.items())
        clean = [
            percent(fmean(self.accuracy.filter(pl.col("model").is_in(models))["value"].to_list()))
            for models in paired.values()
        ]
        images = points_interval(quoted["difference"], quoted["image_low"], quoted["image_high"])
        few = f"Fewer than {LEAST_SEEDS} training seeds decide nothing. " if quoted["n"] < LEAST_SEEDS else ""
        lead = (
            f"The attack changes on average {shown[0].percent} % of the predictions of {family} and "
            f"{shown[1].percent} % of {against}. The interval is Student’s t over the training seeds; over the images, "
            f"with the weights held fixed, it is {images}. {few}{_elsewhere(frame)}"
            f"Their mean clean accuracies are {clean[0]} % and {clean[1]} %."
        )
        condition = f"{quoted['n']} seeds, {self.accuracy['n'].max():,} images, {self._condition()}"
        return Headline(_title(family, against, own, condition), lead, shown, _what(quoted["eps"]))

    def _without_twin(self) -> Headline:
        model = self.models[0]["name"]
        frame = self._first(self.rates.filter(model=model, metric="asr")).sort("eps")
        middle = frame.row((len(frame) - 1) // 2, named=True)
        rate = self._rate(model, (model,), middle["eps"])
        label, eps = attack_label(*self._attack), eps_label(middle["eps"])
        lead = (
            f"95 % interval {rate.interval} %, from {middle['n']:,} images. This run compares no "
            "two models, so it does not show the effect of the attention."
        )
        title = f"{label} changes {rate.percent} % of the predictions of {model} at ε = {eps}"
        return Headline(title, lead, (rate,), _what(middle["eps"]))

    def _condition(self) -> str:
        attack, norm = self._attack
        return attack_condition(attack, norm, _steps(self.record["settings"], attack))

    def _rate(self, name: str, models: tuple[str, ...], eps: float) -> Rate:
        """Return the attack success rate of a model, or its mean over the models of a family."""
        frame = self._first(self.rates.filter(metric="asr", eps=eps))
        rows = {row["model"]: row for row in frame.iter_rows(named=True)}
        if len(models) == 1:
            own = rows[models[0]]
            return Rate(
                name, self.colors[name], percent(own["value"]), percent_range(own["low"], own["high"])
            )
        mean = as_share(mean_over_seeds([rows[model]["value"] for model in models]))
        return Rate(name, self.colors[name], percent(mean.value), percent_range(mean.low, mean.high))


def _what(eps: float) -> str:
    return f"attack success rate at ε = {eps_label(eps)}"


def _title(model: str, against: str, frame: pl.DataFrame, condition: str) -> str:
    quoted = _quoted(frame)
    more, less = _decided(frame, 1), _decided(frame, -1)
    if "p_value" not in frame.columns and quoted["n"] < LEAST_SEEDS:
        answer = f"{quoted['n']} training seeds leave undecided whether {model} is broken more often than {against}"
    elif not more and not less:
        answer = f"No difference shown between {model} and {against}"
    elif more and less:
        answer = (
            f"{model} is broken more often than {against} at {len(more)} of {len(frame)} ε, "
            f"less often at {len(less)}"
        )
    else:
        answer = f"{model} is broken {'more' if more else 'less'} often than {against}"
    number = points_interval(quoted["difference"], quoted["low"], quoted["high"])
    return f"{answer}: {number} at ε = {eps_label(quoted['eps'])} ({condition})"


def _elsewhere(frame: pl.DataFrame) -> str:
    """List for every attack the ε at which the difference is decided; return nothing if there is only one ε."""
    if len(frame) == 1:
        return ""
    words = [
        f"Under {attack_label(*attack)} the difference {_signs(block)}." for attack, block in _attacks(frame)
    ]
    return f"{' '.join(words)} Decisions are corrected for the number of ε (Holm), intervals and p-values are not. "


def _signs(frame: pl.DataFrame) -> str:
    words = [
        f"{side} zero at {len(eps)} of {len(frame)} ε ({', '.join(map(eps_label, eps))})"
        for side, eps in (("above", _decided(frame, 1)), ("below", _decided(frame, -1)))
        if eps
    ]
    return f"lies {' and '.join(words)}" if words else f"is undecided at all {len(frame)} ε"


def _decided(frame: pl.DataFrame, sign: int) -> list[float]:
    return frame.filter(decided=sign)["eps"].sort().to_list()


def _quoted(frame: pl.DataFrame) -> dict[str, Any]:
    """Return the row of the ε that a headline quotes."""
    rows = frame.sort("eps").rows(named=True)
    middle = (len(rows) - 1) // 2
    decided = [place for place, row in enumerate(rows) if row["decided"]]
    return rows[min(decided, key=lambda place: abs(place - middle), default=middle)]


def _steps(settings: Mapping[str, Any], attack: str) -> int | None:
    """Return the number of steps of an attack; runs stored before November 2026 have its settings as a text."""
    own = settings.get(attack, settings)
    if isinstance(own, str):
        number = re.search(r"\bsteps (\d+)", own)
        return int(number[1]) if number else None
    return own.get("steps")


def _attacks(frame: pl.DataFrame) -> list[tuple[tuple[str, str], pl.DataFrame]]:
    """Return the rows of each (attack, norm)."""
    blocks = frame.group_by(["attack", "norm"], maintain_order=True)
    return [((str(attack), str(norm)), block) for (attack, norm), block in blocks]


def _of(frame: pl.DataFrame, attack: tuple[str, str]) -> pl.DataFrame:
    return frame.filter(attack=attack[0], norm=attack[1])


def _by_eps(
    name: str,
    attack: tuple[str, str],
    what: str,
    block: pl.DataFrame,
    rows: Sequence[tuple[Field, pl.DataFrame]],
    field: Callable[[Entry], Field],
) -> Table:
    """Tabulate frames with one row for each ε: a line for each of them, a column for each ε."""
    eps = block["eps"].unique().sort().to_list()
    lines = []
    for title, frame in rows:
        by_eps = {row["eps"]: row for row in frame.iter_rows(named=True)}
        lines.append((title, *(field(by_eps[e]) if e in by_eps else Field("–") for e in eps)))
    columns = (what, *map(eps_label, eps))
    return Table(name, attack_label(*attack), columns, tuple(lines), block.write_csv())


def _rate_field(entry: Entry) -> Field:
    return Field(percent(entry["value"]), (percent_range(entry["low"], entry["high"]),))


def _difference_field(entry: Entry) -> Field:
    """Grey the difference out if it is not decided."""
    notes = [points_range(entry["low"], entry["high"])]
    if "image_low" in entry:
        notes = [f"{points_range(entry['image_low'], entry['image_high'])} images", f"{notes[0]} seeds"]
    if "p_value" in entry:
        notes.append(p_text(entry["p_value"]))
    value = entry["difference"] if "difference" in entry else entry["value"]
    return Field(points(value), tuple(notes), kind="" if entry["decided"] else "undecided")


def _norm_field(entry: Entry) -> Field:
    if entry["eps"] is None:
        return Field("not reached")
    high = "∞" if entry["high"] is None else f"{entry['high']:.4g}"
    return Field(f"{entry['eps']:.4g}", (f"{entry['low']:.4g} to {high}",))
