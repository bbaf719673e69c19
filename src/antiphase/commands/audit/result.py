"""The result of an audit or attack: headlines, tables, figures and page from the stored rows.

A headline compares two models (or two families, averaged over their training seeds) under the first attack of the run,
and quotes one ε. It depends on which differences are decided, see :mod:`antiphase.statistics.decisions`:

- If some are, the title says on which side of zero they lie. The quoted ε is the one of them nearest to the middle of
  the list (the smaller of two), not the one with the largest difference.
- If none is, the title says what is not decided, and the quoted ε is the middle one (the lower of two).
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import polars as pl
from matplotlib.figure import Figure
from rich.text import Text

from antiphase import registry, terminal
from antiphase.commands.audit import WORST, read_gates
from antiphase.commands.audit.advice import advice
from antiphase.commands.audit.card import write_card
from antiphase.commands.result import Result, combined_rows
from antiphase.commands.sense.result import sensitivity_sections
from antiphase.errors import UserError
from antiphase.evaluation import rates as asr
from antiphase.report import figure as figures
from antiphase.report import words
from antiphase.report.gallery import gallery_markup, read_gallery
from antiphase.report.page import Headline, Panel, Plot, Section, answer, environment, quoted_place, text
from antiphase.report.table import Field, FieldOf, OnConsole, Table, difference_field, rate_field, tabulate
from antiphase.statistics.decisions import LEAST_SEEDS

# metric: (name, name on a tab, definition)
_CORRECT = "Attack success rate on correctly classified images"
_RATES = {
    "asr": ("Attack success rate", "ASR", "broken / all"),
    "asr_correct": (_CORRECT, "ASR, correct only", "correct and broken / correct"),
    "robust_accuracy": ("Robust accuracy", "Robust accuracy", "correct and not broken / all"),
}
_PAIR, _FAMILIES, _ATTACK = ["model", "against"], ["family", "against_family"], ["attack", "norm"]
_words = partial(text, "audit.txt")


class AuditResult(Result):
    """Attack success rates of models and their paired differences."""

    keys = ("models", "comparisons")

    @classmethod
    def of_files(cls, files: Mapping[str, bytes]) -> type[Result]:
        return registry.imported("antiphase.commands.audit.answers:AnswersResult") if "questions.json" in files else cls

    @cached_property
    def rows(self) -> pl.DataFrame:
        """A row for each model, ε and image; a UserError if they are incomplete or of other models than the summary."""
        rows, again = self.frame("rows"), "expected the rows of a finished run; run it again"
        if missing := [name for name in asr.ROW_SCHEMA if name not in rows.columns]:
            raise UserError(f"rows.parquet has no column {missing[0]!r}: {again}")
        if rows.is_empty():
            raise UserError(f"rows.parquet has no rows: {again}")
        if odd := {model["name"] for model in self.models} ^ set(rows["model"]):
            raise UserError(f"model {min(odd)!r} is not in both summary.json and rows.parquet: run it again")
        return rows

    @property
    def models(self) -> list[dict[str, Any]]:
        return self.summary["models"]

    @cached_property
    def pairs(self) -> list[tuple[str, str]]:
        """(model, twin) by name."""
        return list(dict.fromkeys((entry["model"], entry["against"]) for entry in self.summary["comparisons"]))

    @cached_property
    def rates(self) -> pl.DataFrame:
        return asr.rates(self.rows)

    @cached_property
    def accuracy(self) -> pl.DataFrame:
        return asr.clean_accuracy(self.rows)

    @cached_property
    def comparisons(self) -> pl.DataFrame:
        """Paired differences, with ``decided``: 1, −1 or 0."""
        frames = [asr.compare(self.rows, *pair) for pair in self.pairs]
        return asr.with_decisions(pl.concat([pl.DataFrame(schema=asr.COMPARISON_SCHEMA), *frames]))

    @cached_property
    def mean_rates(self) -> pl.DataFrame:
        return asr.family_results(self.rates, asr.by_seed(self.models))

    @cached_property
    def mean_comparisons(self) -> pl.DataFrame:
        """Differences averaged over pairs of training seeds, with intervals over the seeds and over the images."""
        means = asr.family_comparisons(self.comparisons.drop("decided"), asr.by_seed(self.models))
        frames = [means.clear().with_columns(image_low=pl.lit(0.0), image_high=pl.lit(0.0))]
        for sides, mean in means.group_by(_FAMILIES, maintain_order=True):
            images = asr.over_images(self.rows, self._pairs_of[sides])
            frames.append(mean.join(images, on=["attack", "norm", "eps"], how="left"))
        return asr.with_decisions(pl.concat(frames))

    @property
    def _family_of(self) -> dict[str, str]:
        return {model: group.name for group in self.families for model in group.models}

    @cached_property
    def _pairs_of(self) -> dict[tuple[Any, ...], list[tuple[str, str]]]:
        grouped: dict[tuple[Any, ...], list[tuple[str, str]]] = {}
        for one, two in self.pairs:
            grouped.setdefault((self._family_of[one], self._family_of[two]), []).append((one, two))
        return grouped

    @property
    def twins(self) -> set[str]:
        return {against for _, against in self.pairs} - {model for model, _ in self.pairs}

    @cached_property
    def advice(self) -> str:
        """What would make the differential models less fragile; empty unless one of them is compared with a twin."""
        return advice(self.models) if self.pairs else ""

    def unmet(self) -> list[str]:
        options, lines = self.record.get("options", {}), []
        for gate in read_gates(options.get("fail_under", ()), options.get("eps", ())):
            rates = _of(self.rates, self._attack).filter(metric="robust_accuracy", eps=gate.eps)
            for row in rates.filter(~pl.col("model").is_in(self.twins)).iter_rows(named=True):
                if row["low" if gate.low else "value"] < gate.share - 1e-9:
                    rate = f"{words.percent(row['value'])} % {words.percent_range(row['low'], row['high'])}"
                    lines.append(f"{gate.text}: {row['model']} has {rate}")
        return lines

    def headlines(self) -> list[Headline]:
        means = dict(self.mean_comparisons.group_by(_FAMILIES, maintain_order=True))
        singles = {
            pair: ([pair], frame)
            for pair, frame in self.comparisons.group_by(_PAIR, maintain_order=True)
            if tuple(self._family_of[str(name)] for name in pair) not in means
        }
        compared = {sides: (self._pairs_of[sides], frame) for sides, frame in means.items()} | singles
        if compared:
            return [self._headline(place, *pair) for place, pair in enumerate(compared.items())]
        model = self.models[0]["name"]
        rates = _of(self.rates.filter(model=model, metric="asr"), self._attack).sort("eps")
        middle = rates.row((len(rates) - 1) // 2, named=True)
        title = answer("audit.txt", "title_alone", {"model": model}, **middle)
        shown = rates.with_columns(decided=1, difference="value")
        plot = partial(self._plot, "answer-0", [model], [[model]], shown, shown, middle["eps"])
        return [Headline(title, _words("lead_alone", **middle), _words("condition", **self._condition), plot)]

    @property
    def _condition(self) -> dict[str, Any]:
        settings = self.record["settings"].get(self._attack[0], self.record["settings"])
        condition = words.attack_condition(*self._attack, settings.get("steps"))
        condition += f", {width} × {width} pixels" if (width := settings.get("width")) else ""
        return {"images": self.accuracy["n"].max(), "condition": condition, "seeds": 0}

    def _headline(self, place: int, names: tuple[Any, ...], comparison: tuple[Sequence[Any], pl.DataFrame]) -> Headline:
        """Compare two models, or two families over pairs of their models, from the differences at each ε."""
        pairs, frame = comparison
        differences = _of(frame, self._attack).sort("eps")
        quoted = differences.row(quoted_place(differences["decided"].to_list()), named=True)
        sides = list(zip(*pairs, strict=True))
        named: dict[str, str] = dict(zip(("model", "against"), names, strict=True))
        rates = _of(self.rates.filter(metric="asr", eps=quoted["eps"]), self._attack)
        single = _of(self.comparisons.join(pl.DataFrame(pairs, _PAIR, orient="row"), on=_PAIR), self._attack)
        values = quoted | {"rates": [rates.filter(pl.col("model").is_in(side))["value"].mean() for side in sides]}
        values["signs"] = [
            (*attack, len(rows), *(rows.filter(decided=sign)["eps"].sort().to_list() for sign in (1, -1)))
            for attack, rows in frame.group_by(_ATTACK, maintain_order=True)
        ]
        values |= {"seeds": 0 if "p_value" in quoted else quoted["n"], "least_seeds": LEAST_SEEDS}
        values = self._condition | values
        title, lead = answer("audit.txt", "title", named, **values), _words("lead", **values | named)
        plot = partial(self._plot, f"answer-{place}", names, sides, differences, single, quoted["eps"])
        return Headline(title, lead, _words("condition", **values), plot)

    def _plot(
        self, name: str, names: Sequence[str], sides: list[Any], shown: pl.DataFrame, single: pl.DataFrame, quoted: Any
    ) -> Plot:
        """Draw differences or rates by ε, those of ``single`` models or pairs as dots, above the accuracies."""
        rows, accuracies = [], []
        for eps, sign in shown.select("eps", "decided").iter_rows():
            estimates = [words.estimate_of(row, "difference") for row in single.filter(eps=eps).to_dicts()]
            rows.append((f"ε = {terminal.eps_label(eps)}", estimates, sign, eps == quoted))
        accuracy_of = {row["model"]: words.estimate_of(row) for row in self.accuracy.to_dicts()}
        for one, models in zip(names, sides, strict=True):
            accuracies.append((one, self.colors[one], [accuracy_of[model] for model in dict.fromkeys(models)]))
        title, below = "Attack success rate", "Accuracy without an attack"
        caption = _words("answer", seeds=len(sides[0]) if len(sides[0]) > 1 else 0, compared=len(names) > 1)
        return Plot(name, figures.answer_figure(title, rows, below, accuracies, figures.chance(self.models)), caption)

    @property
    def _attack(self) -> tuple[str, str]:
        return self.rates.select(_ATTACK).row(0)

    def differences(self, other: Result) -> pl.DataFrame:
        rows, pairs = combined_rows(self, other)
        correct = pl.col("clean_prediction") == pl.col("label")
        rates = {"asr": rows, "robust_accuracy": rows.with_columns(success=correct & ~pl.col("success"))}
        clean = rows.unique(["model", "sample"], keep="first")
        rates["clean_accuracy"] = clean.with_columns(success=correct, eps=0.0, attack=pl.lit("none"))
        return pl.concat(
            asr.compare(rows, *pair).with_columns(metric=pl.lit(name)) for name, rows in rates.items() for pair in pairs
        )

    def sections(self) -> list[Section]:
        seeds, single = (figures.seed_counts(self.families), any(len(group.models) == 1 for group in self.families))
        bands = _words("bands", n=self.record["n"], seeds=seeds, single=single)
        panels = []
        for metric, (title, tab, formula) in _RATES.items():
            drawn = metric != "asr_correct"
            plots = [Plot(metric, self.rate_figure(metric), bands, beside=metric == "asr")] if drawn else []
            panels.append(Panel(f"rate-{metric}", tab, self.rate_tables(metric), title, formula, plots))
        nested_up = str(self.record["settings"].get("budgets", "")).startswith("nested up")
        further = [
            ("differences", "Paired differences", "Differences", self.difference_tables()),
            ("norms", "Minimal perturbations", "", self._norm_tables()),
            ("broken", "Images broken by each attack", "", self._broken_tables()),
            ("lambda", "λ of each layer", "λ", self.lambda_tables()),
        ]
        told = partial(_words, seeds=seeds, nested_up=nested_up)
        sections = [
            Section("rates", "Rates under attack", told("rates"), panels=panels, in_navigation="Rates"),
            Section("models", "Models", tables=[self.models_table()]),
        ]
        for name, title, short, tables in further:
            if tables:
                sections.append(Section(name, title, told(name), tables=tables, in_navigation=short))
        sections += sensitivity_sections(self, self.pairs, self.families)
        if self.advice:
            sections.append(Section("advice", "What may help", self.advice))
        if "gallery.safetensors" in self.files:
            gallery = read_gallery(self.files["gallery.safetensors"])
            sections.append(Section("gallery", "Gallery", markup=gallery_markup(gallery, self.colors)))
        return sections

    def figure(self) -> Figure:
        return self.rate_figure("asr")

    def console(self) -> list[Any]:
        def shown(tables: list[Table], prefix: str = "") -> list[Any]:
            """Single models are left out where their family has a mean."""
            rows = (tuple(row for row in table.rows if row[0].kind != "member") for table in tables)
            pairs = zip(tables, rows, strict=True)
            return [OnConsole(replace(table, title=prefix + table.title, rows=body)) for table, body in pairs]

        robust = self.rate_tables("robust_accuracy") if self.kind == "attack" else []
        return [
            *shown(robust, "Robust accuracy, "),
            *(Text(f"{headline.line}.\n", "bold") for headline in self.headlines()),
            *shown([self.models_table()]),
            *shown(self.rate_tables("asr"), "Attack success rate, "),
            *shown(self.difference_tables(), "Difference of the attack success rates, "),
            *shown(self._norm_tables()),
            *([Text(f"{self.advice}\n")] if self.advice else []),
        ]

    @property
    def reading(self) -> str:
        return environment().get_template("how_to_read_rates.html").render(seeds=figures.seed_counts(self.families))

    def write_report(self, folder: Path) -> Path:
        write_card(self, folder)
        return super().write_report(folder)

    def rate_figure(self, metric: str) -> Any:
        means = self.mean_rates.rename({"family": "model"})
        lines = pl.concat([self.rates, means]).filter(metric=metric).rename({"model": "name"})
        blocks = lines.group_by(_ATTACK, maintain_order=True)
        panels = [(_title(*map(str, attack)), _RATES[metric][0], block) for attack, block in blocks]
        return figures.rate_figure(panels, self.families)

    def all_tables(self) -> list[Table]:
        return [*self.rate_tables("asr"), *self.difference_tables()]

    def models_table(self) -> Table:
        about = [{"model": model["name"], **model} for model in self.models]
        frame = pl.DataFrame(about, infer_schema_length=None).select("model", "attention", "seed")
        frame = frame.join(self.accuracy, on="model", how="left", maintain_order="left")
        rows = []
        for row, model in zip(frame.iter_rows(named=True), self.models, strict=True):
            name = Field(row["model"], color=self.colors[row["model"]], kind="name")
            kind, seed = Field(row["attention"], kind="word"), Field("–" if row["seed"] is None else str(row["seed"]))
            rows.append((name, kind, seed, rate_field(row), Field(words.lambda_range(model["lambda"]))))
        columns = ("model", "attention", "seed", "clean accuracy, %", "λ")
        return Table("models", "Accuracy on clean images", columns, tuple(rows), frame.write_csv())

    def rate_tables(self, metric: str) -> list[Table]:
        rates, means = (frame.filter(metric=metric) for frame in (self.rates, self.mean_rates))
        return self._tables(metric, rates, means, ["model"], rate_field)

    def difference_tables(self) -> list[Table]:
        def field(entry: Mapping[str, Any]) -> Field:
            field = difference_field(entry)
            if entry["p_value"] is not None:
                return replace(field, notes=(*field.notes, words.p_text(entry["p_value"])))
            images = words.percent_range(entry["image_low"], entry["image_high"])
            return replace(field, notes=(f"{images} images", f"{field.notes[0]} seeds"))

        return self._tables("differences", self.comparisons, self.mean_comparisons, _PAIR, field)

    def _tables(
        self, name: str, single: pl.DataFrame, means: pl.DataFrame, sides: list[str], field: FieldOf
    ) -> list[Table]:
        """Tabulate models, or pairs of them, and below them their means over training seeds."""
        families = _FAMILIES[: len(sides)]
        owned = single.with_columns(
            pl.col(side).replace_strict(self._family_of, return_dtype=pl.String).alias(family)
            for side, family in zip(sides, families, strict=True)
        )
        members = means.select(families).unique().with_columns(kind=pl.lit("member"))
        owned = owned.join(members, on=families, how="left", maintain_order="left").with_columns(
            pl.col("kind").fill_null("name"), model=pl.concat_str(sides, separator=" − ")
        )
        names = pl.format("{}, mean of {}", pl.concat_str(families, separator=" − "), "n")
        means = means.with_columns(kind=pl.lit("mean"), model=names)
        color = pl.col("family").replace_strict(self.colors, return_dtype=pl.String)
        order = pl.col("family").cast(pl.Enum([group.name for group in self.families]))
        frame = pl.concat([owned, means], how="diagonal_relaxed").with_columns(color=color)
        frame = frame.sort(order, maintain_order=True)
        tables = []
        for (norm,), block in frame.group_by("norm", maintain_order=True):
            attack = str(block["attack"][0])
            label, title = f"{name}-{attack}-{norm}", _title(attack, str(norm))
            if block["attack"].n_unique() > 1:
                label, title = f"{name}-{norm}", words.attack_label("each attack", str(norm))
            csv = single.filter(norm=norm)
            tables.append(tabulate(label, title, _by_attack(block), ["model"], "eps", field, terminal.eps_label, csv))
        return tables

    def lambda_tables(self) -> list[Table]:
        layers = ((model["name"], enumerate(model["lambda"], start=1)) for model in self.models)
        entries = [{"model": name, "layer": layer, "lambda": value} for name, lams in layers for layer, value in lams]
        how = ("layer", lambda row: Field(f"{row['lambda']:.3f}"), "layer {}".format)
        return self._by_model("lambda", "λ, mean over the heads of each layer", entries, *how)

    def _norm_tables(self) -> list[Table]:
        def field(entry: Mapping[str, Any]) -> Field:
            if entry["eps"] is None:
                return Field("not reached")
            high = "∞" if entry["high"] is None else f"{entry['high']:.4g}"
            return Field(f"{entry['eps']:.4g}", (f"[{entry['low']:.4g}, {high}]",))

        entries = self.summary.get("norms", [])
        attacks = {entry["attack"] for entry in entries}
        attack = "each attack" if len(attacks) > 1 else next(iter(attacks), "")
        title = _title(attack, entries[0]["norm"]) if entries else ""
        return self._by_model("norms", title, entries, "level", field, "{:.0%}".format)

    def _by_model(self, name: str, title: str, entries: list[dict[str, Any]], *how: Any) -> list[Table]:
        if (frame := pl.DataFrame(entries, infer_schema_length=None)).is_empty():
            return []
        frame = frame.with_columns(color=pl.col("model").replace_strict(self.colors))
        return [tabulate(name, title, _by_attack(frame), ["model"], *how)]

    def _broken_tables(self) -> list[Table]:
        broken = self.rows.filter(pl.col("felled_by") != pl.col("attack"))
        keys = ["model", "attack", "felled_by", "eps"]
        counts = broken.group_by(keys, maintain_order=True).len("n").sort("model", "eps", maintain_order=True)
        frame = _by_attack(counts).with_columns(model=pl.format("{}: {}", "model", "felled_by"))
        how = (["model"], "eps", lambda row: Field(str(row["n"])), terminal.eps_label, counts)
        table = tabulate("felled", "In the order of the attacks", frame, *how)
        return [table] if table.rows else []


def _by_attack(frame: pl.DataFrame) -> pl.DataFrame:
    """Return rows whose models are named with the attack, if there are several."""
    if "attack" not in frame.columns or frame["attack"].n_unique() < 2:
        return frame
    attack = pl.when(pl.col("attack").str.starts_with(WORST)).then(pl.lit("worst case"))
    attack = attack.otherwise(pl.col("attack").map_elements(words.attack_name, pl.String))
    return frame.with_columns(model=pl.format("{}, {}", "model", attack))


def _title(attack: str, norm: str) -> str:
    return words.attack_label("Worst case" if attack.startswith(WORST) else attack, norm)


def _of(frame: pl.DataFrame, attack: tuple[str, str]) -> pl.DataFrame:
    return frame.filter(attack=attack[0], norm=attack[1])
