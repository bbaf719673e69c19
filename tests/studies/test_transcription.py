"""The dry run against the papers' text: a wrong number in the transcription or in a bench is found, in every study."""

from dataclasses import replace
from functools import cache

import pytest

from antiphase.studies.paper_settings import Line, compare, dry_run, gather, note_of, printed_settings, shown_settings
from antiphase.studies.papers.diffclip import bench as diffclip
from antiphase.studies.papers.diffclip import pope as vlm_bench
from antiphase.studies.papers.robustness import bench as robustness
from antiphase.studies.plan import known_studies
from antiphase.studies.spec import profile

NAMES = [name for name, study in known_studies().items() if study.paper in ("robustness", "diffclip")]
PAPER = profile("paper")
studies = pytest.mark.parametrize("name", NAMES)
TRANSCRIBED = {**printed_settings("robustness"), **printed_settings("diffclip")}


PLANTED = {
    "robustness": {"train.epochs", "train.learning_rate", "attack.steps", "sense.images", "sense.eps_255"},
    "diffclip": {
        "clip.epochs",
        "clip.learning_rate",
        "clip.precision",
        "probe.iterations",
        "few-shot.shots",
        "zero-shot.data",
        "sense.data",
        "align.learning_rate",
        "tune.batch_size",
        "answers.steps",
    },
}


@cache
def facts(name, seeds=None):
    return gather(known_studies()[name], profile("paper", seeds))


def test_every_study_of_a_paper_is_transcribed():
    assert set(TRANSCRIBED) == set(NAMES)


@studies
def test_the_paper_profile_is_the_papers_or_declares_why_not(name):
    for line, values, verdict in compare(TRANSCRIBED[name], facts(name)):
        expected = "declared deviation" if line.why else "same"
        assert verdict == expected, f"{line.name}: {values}, not {line.paper}"


@studies
def test_a_wrong_number_in_the_transcription_is_found(name):
    for line in TRANSCRIBED[name]:
        wrong = replace(line, paper=(*line.paper, "wrong"), ours=line.ours and (*line.ours, "wrong"))
        ((_, _, verdict),) = compare((wrong,), facts(name))
        assert verdict == "differs", line


def test_a_dry_run_is_a_table_of_settings():
    lines = list(dry_run(known_studies()["figure-2a"], PAPER))
    assert lines[0] == "figure-2a: 72 cells built"
    assert lines[1].split() == ["setting", "ours", "paper", "verdict"]
    assert [row.split()[0] for row in lines[2:]] == [line.name for line in TRANSCRIBED["figure-2a"]]
    assert not any(row.endswith("  differs") for row in lines)


@studies
def test_a_wrong_number_in_a_bench_is_found(name, monkeypatch):
    bench = robustness.BENCHES["paper"]
    wrong = {
        "epochs": dict.fromkeys(bench.epochs, 7),
        "recipe": {"learning_rate": 1e-3},
        "attacks": {name: {**bench.attacks.get(name, {}), "steps": 7} for name in (*bench.attacks, "pgd", "patch")},
        "probed": 7,
        "sense": {"eps": 4 / 255},
    }
    monkeypatch.setitem(robustness.BENCHES, "paper", replace(bench, **wrong))
    clip = diffclip.BENCHES["paper"]
    recipe, protocols = ({"epochs": 7, "learning_rate": 1e-3}, {"probe": {"iterations": 7}, "few-shot": {"shots": 7}})
    wrong_clip = replace(clip, recipe=recipe, protocols=protocols, home="imagenet-v2")
    monkeypatch.setitem(diffclip.BENCHES, "paper", wrong_clip)
    answering = vlm_bench.BENCHES["paper"]
    wrong_vlm = replace(answering, align={"learning_rate": 7}, tune={"batch_size": 7}, steps=7)
    monkeypatch.setitem(vlm_bench.BENCHES, "paper", wrong_vlm)
    planted = PLANTED[known_studies()[name].paper] & {line.name for line in TRANSCRIBED[name]}
    assert planted
    compared = compare(TRANSCRIBED[name], gather(known_studies()[name], profile("paper", 1)))
    assert planted <= {line.name for line, _, verdict in compared if verdict == "differs"}


def test_other_profiles_differ_where_the_transcription_is_specific():
    laptop = gather(known_studies()["figure-2a"], profile("laptop"))
    compared = compare(TRANSCRIBED["figure-2a"], laptop)
    differing = {line.name for line, _, verdict in compared if verdict == "differs"}
    assert {"train.data", "train.epochs", "train.dim"} <= differing


@studies
def test_a_line_has_its_source_and_a_deviation_its_reason(name):
    for line in TRANSCRIBED[name]:
        assert bool(line.paper) <= bool(line.quote and line.source), line
        assert bool(line.ours) == bool(line.why), line
        assert not line.why or ((line.why[0].isupper() or line.why[0].isdigit()) and line.why.endswith(".")), line
        assert bool(line.paper or line.ours), line


def test_a_deviation_has_to_be_the_declared_one():
    line = Line("train.seeds", (1,), ours=(3, 4), why="For an interval.")
    verdicts = ["same", "declared deviation", "differs", "differs", "differs"]
    assert [line.verdict(seeds) for seeds in ((1,), (4, 3), (3,), (2,), ())] == verdicts
    inexact = replace(line, exact=False)
    assert [inexact.verdict(seeds) for seeds in ((1, 2), (3, 4, 5), (3,))] == ["same", "declared deviation", "differs"]


def test_the_training_of_given_models_is_not_compared():
    lines = TRANSCRIBED["diffclip-table-2"]
    settings = {"given.spec": ("diffclip:model.pt",), "retrieval.captions": ("all",)}
    kinds = {line.name.partition(".")[0] for line, _, _ in compare(lines, settings)}
    assert kinds == {"retrieval", "zero-shot"}
    assert len(compare(lines, {"retrieval.captions": ("all",)})) == len(lines)


def test_numbers_that_differ_by_rounding_are_the_same():
    assert Line("sense.eps_255", (8,)).verdict((8 / 255 * 255,)) == "same"


def test_deviations_are_shown_with_the_settings_of_the_paper_profile_only():
    study = known_studies()["diffclip-table-2"]
    shown = shown_settings(study, PAPER)
    assert "interval over trainings" in shown["deviation in clip.seeds"]
    assert shown["deviation in clip.seeds"].startswith("3. ")
    assert "clip.seeds" in note_of(study, PAPER)[0]
    laptop = profile("laptop")
    assert shown_settings(study, laptop) == study.settings(laptop)
    assert note_of(study, laptop) == []
