"""The pages of a sensitivity run, from its directory alone: tables, figures, headline."""

import json
import math
import re
from io import StringIO

import polars as pl
import pytest
from rich.console import Console

from antiphase.data import load_data
from antiphase.errors import UserError
from antiphase.models import diffvit, load_model, vit
from antiphase.models.checkpoints import save
from antiphase.report.runs.layer_figures import Panel, layer_figure
from antiphase.report.runs.plane_figure import plane_figure
from antiphase.report.runs.sense_page import headline, sense_table, write_sense_report
from antiphase.report.runs.sense_tables import read_rows
from antiphase.report.style.families import Family
from antiphase.runs.attack import AttackPlan
from antiphase.runs.audit import Audit
from antiphase.runs.sense import sense_all
from antiphase.runs.sense_plan import SensePlan
from antiphase.sensitivity import critical_cosine
from antiphase.sensitivity.theorem_ratios import places

QUICK = SensePlan(probes=3, samples=3, steps=1, points=1, travel=(4 / 255,), lipschitz_limit=2)
PARTS = ("alignment", "lipschitz", "depth")


@pytest.fixture(scope="module")
def lineup(tmp_path_factory):
    """Two seeds of a DiffViT and of its twin, at depths 1 and 2; untrained."""
    directory = tmp_path_factory.mktemp("lineup")
    models = {}
    for kind in (diffvit, vit):
        for depth in (1, 2):
            for seed in (0, 1):
                model = kind(8, depth=depth, dim=16, num_heads=2)
                name = f"{kind.__name__}-d{depth}-{seed}"
                recipe = {"model": model.config.model_dump(mode="json"), "seed": seed, "data": "digits"}
                with_seed(model, seed)
                save(model, recipe, directory / name)
                models[name] = load_model(str(directory / name))
    ours = [model for name, model in models.items() if name.startswith("diffvit")]
    twins = [model for name, model in models.items() if name.startswith("vit")]
    return ours, twins


def with_seed(model, seed):
    from antiphase.models.vit import initialise

    initialise(model, seed)


@pytest.fixture(scope="module")
def run(lineup, tmp_path_factory):
    out, data = tmp_path_factory.mktemp("sense"), load_data("digits", limit=4)
    sense_all(*lineup, data, QUICK, out, parts=PARTS, command="antiphase sense", progress=False)
    return out


def test_the_page_holds_every_part_and_every_layer(run):
    page = write_sense_report(run).read_text(encoding="utf-8")
    for title in (
        "Gradient alignment",
        "Local Lipschitz constants",
        "A perturbation’s way through the depth",
    ):
        assert title in page
    assert len(re.findall(r"<svg role=.img.", page)) == 9
    assert "http://" not in page.replace("http://www.w3.org", "")
    rows = read_rows(run)
    assert rows["alignment"]["layer"].max() == 1
    assert page.count("data:text/csv") == 10
    assert write_sense_report(run).read_text(encoding="utf-8") == page  # the same files give the same bytes


def test_each_layer_has_its_place_in_the_plane_of_theorem_3(run):
    rows = read_rows(run)["alignment"]
    twins = {f"diffvit-d2-{seed}": f"vit-d2-{seed}" for seed in (0, 1)}
    found = places(rows, dict(twins))
    family = Family("diffvit-d2", "#D55E00", tuple(twins))
    figure = plane_figure(found, family)
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["layer 1", "layer 2"]
    for layer, axes in enumerate(figure.axes):
        (edge, seeds, mean, _) = axes.lines
        own = found.filter(layer=layer)
        assert seeds.get_xdata().tolist() == own.filter(metric="rho")["value"].to_list()
        assert mean.get_ydata()[0] == pytest.approx(own.filter(metric="cosine")["value"].mean())
        gamma = own.filter(metric="gamma")["value"].log().mean()
        expected = critical_cosine(math.exp(gamma), 1.0, edge.get_xdata()).clip(-1, 1)
        assert edge.get_ydata() == pytest.approx(expected)
    page = write_sense_report(run).read_text(encoding="utf-8")
    assert page.count("in the (ρ, θ) plane of Theorem 3") == 2
    assert "No twin gives γ" not in page


def test_without_a_twin_the_picture_says_so(lineup, tmp_path):
    data = load_data("digits", limit=3)
    sense_all(lineup[0][:1], [], data, QUICK, tmp_path, parts=("alignment",), progress=False)
    assert "where ‖J_DA‖ &gt; ‖J1‖ (Theorem 1). No twin gives γ: γ = 1" in write_sense_report(
        tmp_path
    ).read_text(encoding="utf-8")


@pytest.mark.thorough
def test_the_table_in_the_page_is_the_number_on_disk(run):
    summary = json.loads((run / "summary.json").read_text())
    first = next(e for e in summary["alignment"] if e["metric"] == "rho" and e["site"] == "tokens")
    rows = read_rows(run)["alignment"].filter(model=first["model"], site="tokens", layer=first["layer"])
    assert first["value"] == pytest.approx((rows["second"].sum() / rows["first"].sum()) ** 0.5)
    assert f"{first['value']:.3f}" in write_sense_report(run).read_text(encoding="utf-8")


def test_an_audit_shows_how_the_gradients_lie(lineup, tmp_path):
    from antiphase.report import write_report

    data = load_data("digits", limit=4)
    plan = AttackPlan((8 / 255,), settings={"steps": 2})
    Audit(lineup[0][:1], [], data, plan, tmp_path, sense_limit=3, progress=False).run()
    assert read_rows(tmp_path)["alignment"]["sample"].n_unique() == 3
    assert "Gradient alignment" in write_report(tmp_path).read_text(encoding="utf-8")
    Audit(lineup[0][:1], [], data, plan, tmp_path, progress=False).run()  # the same directory, without
    assert "Gradient alignment" not in write_report(tmp_path).read_text(encoding="utf-8")


def entry(metric, value, low, high, model="diffvit-0"):
    return {
        "model": model,
        "site": "pixels",
        "layer": 0,
        "metric": metric,
        "value": value,
        "low": low,
        "high": high,
        "n": 9,
    }


@pytest.mark.parametrize(
    ("low", "high", "words"),
    [
        (-0.3, -0.1, "oppose each other in diffvit-0"),
        (0.1, 0.2, "point in similar directions"),
        (-0.1, 0.1, "undecided"),
    ],
)
def test_the_headline_follows_the_interval(low, high, words):
    alignment = [
        entry("cosine", (low + high) / 2, low, high),
        entry("below", 0.5, 0.4, 0.6),
        entry("rho", 1.0, 0.9, 1.1),
        entry("amplification", 1.3, 1.2, 1.4),
    ]
    models = [{"name": "diffvit-0", "attention": "differential", "seed": 0}]
    explained = [entry(name, 0.1, 0.0, 0.2) for name in ("relative", "by_gamma", "by_rho")] + [
        entry("by_cosine", 0.9, 0, 1)
    ]
    title, lead = headline({"models": models, "alignment": alignment, "explanation": explained})
    assert words in title
    assert lead.endswith(
        "1.11 times as sensitive (1.00 to 1.22) as that of the standard twin; the angle (cosθ) contributes most."
    )


def test_several_seeds_are_spoken_of_together():
    models = [{"name": f"diffvit-{seed}", "attention": "differential", "seed": seed} for seed in (0, 1, 2)]
    alignment = []
    for model, cosine in zip(models, (-0.5, -0.1, 0.2), strict=True):
        name = model["name"]
        alignment.append(entry("cosine", cosine, cosine - 0.01, cosine + 0.01, name))
        alignment += [entry(metric, 1.0, 0.9, 1.1, name) for metric in ("below", "rho", "amplification")]
    title, lead = headline({"models": models, "alignment": alignment, "explanation": []})
    assert "It is undecided" in title  # the seeds disagree, each with an interval off zero
    assert "mean of 3 seeds" in lead


def test_the_console_table_has_a_row_for_each_layer_and_site(run):
    summary = json.loads((run / "summary.json").read_text())
    assert sense_table(summary).row_count == 3 * (2 * (1 + 1 + 2 + 2))


def test_the_console_table_fits_80_characters():
    values = {"cosine": -0.05, "rho": 1.7, "amplification": 1.5, "below": 0.22, "norm": 35.2}
    rows = [
        entry(name, value, value - 0.04, value + 0.04) | {"site": "tokens"} for name, value in values.items()
    ]
    console = Console(width=80, file=StringIO())
    console.print(sense_table({"alignment": rows}))
    shown = console.file.getvalue()
    for interval in ("[−0.09 −0.01]", "[1.66 1.74]", "[1.46 1.54]", "[18 26]", "[35.2 35.2]"):
        assert interval in shown


def test_one_image_has_open_intervals_and_a_page(lineup, tmp_path):
    data = load_data("digits", limit=1)
    summary = sense_all(lineup[0][:1], lineup[1][:1], data, QUICK, tmp_path, parts=PARTS, progress=False)
    json.loads((tmp_path / "summary.json").read_text())
    first = next(row for row in summary["alignment"] if row["metric"] == "cosine")
    assert (first["low"], first["high"], first["n"]) == (None, None, 1)
    assert "∞" in write_sense_report(tmp_path).read_text(encoding="utf-8")
    assert sense_table(summary).row_count == 6


def test_standard_attention_alone_has_a_page_too(lineup, tmp_path):
    sense_all(lineup[1][:1], [], load_data("digits", limit=2), QUICK, tmp_path, parts=PARTS, progress=False)
    page = write_sense_report(tmp_path).read_text(encoding="utf-8")
    assert "Sensitivity of the attention of vit-d1-0" in page
    assert "along the loss" not in re.sub(r"<p>.*?</p>", "", page, flags=re.DOTALL)


def test_twins_of_other_depths_are_refused(lineup, tmp_path):
    data = load_data("digits", limit=1)
    with pytest.raises(UserError, match=r"has 1 attention layers, .* 2: expected as many in a twin"):
        sense_all(lineup[0][:1], lineup[1][2:3], data, QUICK, tmp_path, parts=["alignment"], progress=False)


def test_one_layer_is_one_picture_with_a_row_for_each_quantity():
    family = Family("diffvit", "#D55E00", ("diffvit-0",))
    values = {"cosine": -0.25, "below": 0.75, "norm": 3.0}
    frames = {
        name: pl.DataFrame(
            {"model": ["diffvit-0"], "layer": [0], "value": [at], "low": [at - 0.1], "high": [at + 0.1]}
        )
        for name, at in values.items()
    }
    figure = layer_figure([Panel(name, name, frame) for name, frame in frames.items()], [family])
    assert [axes.get_title(loc="left") for axes in figure.axes] == list(values)
    for axes, value in zip(figure.axes, values.values(), strict=True):
        (point, *_) = axes.containers[0].lines
        assert point.get_xdata() == [value]
        assert list(axes.get_yticks()) == []


@pytest.mark.parametrize(
    ("seeds", "answer"),
    [
        (1, "The gradients of A1 and A2 oppose each other in "),
        (3, "It is undecided"),
        (8, "The gradients of A1 and A2 oppose"),
    ],
)
def test_fewer_than_eight_seeds_do_not_decide_the_title(seeds, answer):
    models = [{"name": f"d-{seed}", "attention": "differential", "seed": seed} for seed in range(seeds)]
    numbers = {"cosine": -0.5, "below": 0.9, "rho": 1.0, "amplification": 1.4}
    alignment = [
        {
            "model": f"d-{seed}",
            "layer": 0,
            "site": "pixels",
            "metric": metric,
            "value": value + seed / 1000,
            "low": value - 0.1,
            "high": value + 0.1,
            "n": 64,
        }
        for seed in range(seeds)
        for metric, value in numbers.items()
    ]
    title, lead = headline({"models": models, "alignment": alignment, "explanation": []})
    assert title.startswith(answer)
    assert ("fewer than 8 decide nothing" in lead) == (seeds == 3)


def test_parts_of_an_earlier_run_are_not_drawn(lineup, tmp_path):
    (model, *_), data = lineup[0], load_data("digits", limit=2)
    for parts in (("alignment", "depth"), ("alignment",)):
        sense_all([model], [], data, QUICK, tmp_path, parts=parts, progress=False)
    assert "way through the depth" not in write_sense_report(tmp_path).read_text(encoding="utf-8")
    assert set(read_rows(tmp_path)) == {"alignment"}
