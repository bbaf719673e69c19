"""Every study of both papers: from an empty store to its page under smoke, and its paper profile against the papers."""

import polars as pl
import pytest

from antiphase.report.studies.site import write_site
from antiphase.studies.artefact import ESTIMATES
from antiphase.studies.collect import result
from antiphase.studies.dry_run import TABLES, compare
from antiphase.studies.identity import identity
from antiphase.studies.lab import Lab
from antiphase.studies.registry import find_studies, known_studies
from antiphase.studies.run import run_cells
from antiphase.studies.spec import closure, profile
from antiphase.studies.store import Store

NAMES = list(known_studies())
NEEDS_LAYERS = {"opposed-first-in-diffclip"}  # the smallest CLIP has one


@pytest.fixture(scope="module")
def store(shared_folder):
    """The cells of the smoke profile, each made once, by whichever test of whichever worker asks first."""
    return Store(shared_folder / "smoke")


@pytest.mark.parametrize("name", NAMES)
def test_smoke_runs_from_cells_to_the_page(name, store, tmp_path):
    (study,) = find_studies([name])
    small = profile("smoke")
    run_cells(study.cells(small), Lab(store, progress=False))
    found = result(study, small, store, f"antiphase study run {name} --profile smoke")
    assert (found.done, found.total) == (len(study.cells(small)),) * 2
    assert found.artefact is not None
    frames = [table.cells for table in found.artefact.tables]
    frames += [panel.points for plot in found.artefact.plots for panel in plot.panels]
    assert frames or found.artefact.galleries
    for frame in frames:
        assert set(ESTIMATES) <= set(frame.columns)
        assert frame["value"].is_not_null().all()
        assert (frame["low"] <= frame["value"] + 1e-12).all()
        assert (frame["value"] <= frame["high"] + 1e-12).all()
    for table in found.artefact.tables:
        if table.name in ("layer-factors", "layer-parts", "causes-angle"):
            continue  # cosines and logarithms
        least = -1 if "ifference" in table.title else 0
        assert (table.cells["low"].drop_nulls() >= least).all(), table.title
        assert not table.percent or (table.cells["high"].drop_nulls() <= 1).all(), table.title
    assert found.claims
    verdicts = {claim.name: claim.verdict for claim in found.claims}
    assert set(verdicts.values()) <= {"not judged (smoke)", "not run"}
    assert {name for name, verdict in verdicts.items() if verdict == "not run"} <= NEEDS_LAYERS
    captions = " ".join(plot.caption for plot in found.artefact.plots)
    assert "over training seeds" not in captions
    assert ("Bands:" not in captions and "Intervals:" not in captions) or "for one training seed" in captions
    page = write_site([found], tmp_path)
    assert found.title in (tmp_path / f"{study.paper}-{name.removeprefix('diffclip-')}.html").read_text(
        encoding="utf-8"
    )
    assert page.name == "index.html"


@pytest.mark.parametrize("name", NAMES)
def test_the_paper_profile_has_the_papers_hyper_parameters(name):
    (study,) = find_studies([name])
    compared = compare(study, profile("paper"))
    assert compared
    assert [
        f"{each.line.name}: {each.ours}, not {each.line.values}" for each in compared if not each.agrees
    ] == []


def test_a_setting_that_differs_from_the_paper_is_seen():
    (study,) = find_studies(["figure-2a"])
    assert not all(each.agrees for each in compare(study, profile("laptop")))


@pytest.mark.parametrize("name", NAMES)
def test_the_docstring_says_what_it_reproduces_and_how(name):
    (study,) = find_studies([name])
    assert f"antiphase study run {name}" in study.text
    assert "The paper" in study.text
    assert "| paper |" in study.text
    assert study.settings(profile("paper"))


def test_every_study_has_a_table_of_hyper_parameters():
    assert set(TABLES) == set(NAMES)


def test_more_seeds_are_more_cells_and_the_others_stay():
    for study in known_studies().values():
        one, two = (
            {identity(c) for c in closure(study.cells(profile("laptop", n)), identity)} for n in (1, 2)
        )
        assert one < two


def test_studies_share_their_cells():
    figures = [
        set(map(identity, find_studies([name])[0].cells(profile("laptop"))))
        for name in ("figure-2a", "figure-3a")
    ]
    assert figures[0] < figures[1]


def test_claims_wait_for_every_cell(store):
    (study,) = find_studies(["figure-2a"])
    run_cells(study.cells(profile("smoke")), Lab(store, progress=False))
    found = result(study, profile("smoke", 5), store, "")
    assert 0 < found.done < found.total
    assert found.artefact is not None
    assert [claim.verdict for claim in found.claims] == ["not run"]


def test_means_are_taken_over_every_seed_and_image(store):
    (study,) = find_studies(["figure-2a"])
    small = profile("smoke", 2)
    run_cells(study.cells(small), Lab(store, progress=False))
    found = result(study, small, store, "")
    assert found.artefact is not None
    points = found.artefact.plots[0].panels[0].points
    rows = pl.concat(
        store.rows(cell).with_columns(series=pl.lit(cell.factors()["series"]))
        for cell in study.cells(small) if cell.table == "attack"
    )  # fmt: skip
    by_hand = rows.group_by("series", "eps").agg(pl.col("success").mean()).sort("series", "eps")
    assert points.sort("series", "x")["value"].to_list() == pytest.approx(by_hand["success"].to_list())
    assert set(points["seeds"]) == {2}
