"""DiffCLIP's Table 3: the trainings of vision-language models, POPE's metrics, and answers under attack."""

from dataclasses import replace

import polars as pl
import pytest
import torch

from antiphase.evaluation.metrics import outcome_rows
from antiphase.models.zoo import load_model
from antiphase.studies.cells import TrainClip, TrainVlm
from antiphase.studies.claims import LEAST_SEEDS
from antiphase.studies.estimation import SEED
from antiphase.studies.papers.diffclip import pope as table_3
from antiphase.studies.papers.diffclip.evaluations import KEYS, estimated, published
from antiphase.studies.papers.diffclip.pope import BENCHES, hallucinations, models, rises, scores
from antiphase.studies.run import run_cells
from antiphase.studies.spec import Lab, profile
from antiphase.studies.store import Store, described, identity
from antiphase.vlm.checkpoint import load_language, load_vlm, named_weights, weights_digest
from antiphase.vlm.pope import NO, UNPARSED, YES

TOWER = TrainClip(variant="diffclip", data="openmoji")
ALIGN = TrainVlm(start=TOWER, data="emoji-objects", language="tiny", preset="emoji")
TUNE = TrainVlm(start=ALIGN, data="emoji-objects", preset="emoji", seed=1)


def test_a_stage_is_identified_by_its_settings_and_by_what_it_starts_from():
    assert (ALIGN.stage, TUNE.stage, ALIGN.needs(), TUNE.needs()) == (1, 2, (TOWER,), (ALIGN,))
    assert described(TUNE)["fields"] == {
        "start": {"identity": identity(ALIGN)},
        "data": "emoji-objects",
        "seed": 1,
        "preset": "emoji",
    }
    others = [
        replace(TUNE, **change)
        for change in (
            {"start": replace(ALIGN, start=replace(TOWER, seed=1))},
            {"start": replace(ALIGN, language="smollm2")},
            {"data": "llava:x.json?images=."},
            {"seed": 0},
            {"preset": "diffclip"},
            {"limit": 5},
            {"recipe": {"epochs": 2}},
        )
    ]
    assert len({identity(cell) for cell in (TUNE, *others)}) == 1 + len(others)
    factors = TUNE.factors()
    assert (factors["series"], factors["trained_on"], factors[SEED]) == ("DiffCLIP", "openmoji", 1)


@pytest.mark.thorough
def test_stage_1_changes_the_projector_stage_2_the_language_model_and_neither_the_tower(shared_folder):
    lab = Lab(Store(shared_folder / "smoke"), progress=False)
    (_, last) = models(profile("smoke"))
    run_cells([last], lab)
    assert isinstance(last.start, TrainVlm)
    first, second = (load_vlm(lab.store.folder(cell)) for cell in (last.start, last))
    trained = load_model(str(lab.store.folder(last.tower)))
    for name, value in named_weights(first.tower).items():
        assert torch.equal(value, named_weights(second.tower)[name])
        assert torch.equal(value, trained.state_dict()[name])
    language, _ = load_language("tiny")
    assert weights_digest(first.language) == weights_digest(language) != weights_digest(second.language)
    assert weights_digest(first.projector) != weights_digest(second.projector)
    card = last.load(lab).card
    assert (card.seed, card.attention) == (0, "differential")


def asked(words, truth, images):
    """Return rows of POPE: what was said and what is right of each question, and its image."""
    wrong = [int((one == YES) != right) for one, right in zip(words, truth, strict=True)]
    score = [0.9 if one == YES else 0.1 for one in words]
    rows = outcome_rows(
        setting="random", seed=0, unit=list(range(len(words))), group=images, prediction=words, rank=wrong, score=score
    )
    return rows.with_columns(
        series=pl.lit("CLIP"), trained_on=pl.lit("emoji-objects"), task=pl.lit("pope"), data=pl.lit("emoji-pope")
    ).join(pl.DataFrame({SEED: [0]}), how="cross")


def test_metrics_of_pope_by_hand():
    """Three images with 2, 3 and 1 questions: 4 of 6 answers are right; 4 say yes, 4 should, and 3 do both."""
    answers = [YES, YES, NO, NO, UNPARSED, YES]
    truth = [True, False, True, False, True, True]
    estimates = estimated(scores(asked(answers, truth, [5, 5, 7, 7, 7, 8])))
    assert estimates.select(*KEYS[:3]).unique().rows() == [("random", "emoji-objects", "CLIP")]
    assert dict(estimates.select("data", "value").iter_rows()) == pytest.approx(
        {
            "accuracy": 4 / 6,
            "precision": 3 / 4,
            "recall": 3 / 4,
            "F1": 3 / 4,
            "AUC": 4 / 8,
            "yes": 4 / 6,
            "unparsed": 1 / 6,
        }
    )
    assert set(estimates["n"]) == {3}
    never = scores(asked([NO] * 4, [True, False] * 2, [1, 1, 2, 2]))
    assert "precision" not in set(never["data"])


def attacked(series, seed, answers):
    """Return rows of an attack: for each image its answers without and under two budgets to absent objects."""
    return pl.DataFrame(
        [
            {
                "model": f"{series} {seed}",
                "series": series,
                SEED: seed,
                "trained_on": "emoji-objects",
                "attack": "apgd-ce",
                "eps": eps,
                "label": 0,
                "clean_prediction": clean,
                "success": broken,
                "samplings": "random,popular",
                "image": image,
            }
            for image, (clean, *broke) in enumerate(answers)
            for eps, broken in zip((2 / 255, 4 / 255), broke, strict=True)
        ]
    )


def test_the_hallucination_rate_rises_by_the_answers_that_are_changed():
    calm, nervous = [(1, False, False), (0, False, True)] * 9, [(0, True, True), (0, True, True)] * 9
    seeds = range(LEAST_SEEDS)
    rows = pl.concat(
        [
            attacked(series, seed, answers)
            for series, answers in (("CLIP", calm), ("DiffCLIP", nervous))
            for seed in seeds
        ]
    )
    observed = hallucinations(rows).filter(task="all")
    rates = dict(estimated(observed).select(pl.format("{} {}", "series", "data"), "value").iter_rows())
    assert rates == {
        "CLIP clean": 0.5,
        "CLIP 2/255": 0.5,
        "CLIP 4/255": 1.0,
        "DiffCLIP clean": 0.0,
        "DiffCLIP 2/255": 1.0,
        "DiffCLIP 4/255": 1.0,
    }
    more = rises(observed).group_by("series", "data").agg(pl.mean("value"))
    assert set(more.iter_rows()) == {
        ("CLIP", "2/255", 0.0),
        ("CLIP", "4/255", 0.5),
        ("DiffCLIP", "2/255", 1.0),
        ("DiffCLIP", "4/255", 1.0),
    }
    pope = asked([YES, NO], [True, False], [0, 1])
    both = pl.concat([pope.with_columns(series=pl.lit(series)) for series in ("CLIP", "DiffCLIP")])
    larger = rows.filter(eps=4 / 255).with_columns(eps=pl.lit(8 / 255), success=pl.lit(True))
    *_, claim = table_3.TABLE_3.claims({"evaluate": both, "answers": pl.concat([larger, rows])})
    assert claim.name == "hallucinations-under-attack"
    assert [(check.what[-5:], check.estimate.value) for check in claim.checks] == [("2/255", pytest.approx(1.0))]
    assert claim.verdict == "holds"


def test_the_papers_numbers_are_next_to_ours_and_their_gains_are_those_in_brackets():
    values = {tuple(row[i] for i in (0, 2, 3)): row[4] for row in published("table-3").iter_rows()}
    gains = {
        (task, metric): round(100 * (values[task, "DiffCLIP", metric] - values[task, "CLIP", metric]), 6)
        for task in ("random", "popular", "adversarial")
        for metric in ("accuracy", "precision", "recall")
    }
    assert list(gains.values()) == [0.27, 0.14, 0.35, 0.0, 0.0, 0.14, 0.03, 0.02, 0.14]
    pope = asked([YES, NO], [True, False], [0, 1]).with_columns(
        trained_on=pl.lit(models(profile("paper"))[0].tower.data)
    )
    rows = {"evaluate": pope, "answers": attacked("CLIP", 0, [(0, True, True)] * 3)}
    first = table_3.draw(rows).tables[0].cells.filter(pl.col("column").is_in(("accuracy", "precision", "recall")))
    assert first["row"].unique().to_list() == ["CLIP, CC12M"]
    assert first["paper"].to_list() == pytest.approx([0.5014, 0.5007, 0.9821])


def test_given_towers_are_taken_in_place_of_trained_ones():
    named = profile("paper")
    cells = models(replace(named, models=("released",)))
    assert [cell.factors()["series"] for cell in cells] == ["CLIP", "DiffCLIP"]
    assert [cell.start.needs() for cell in cells] == [(), ()]
    assert cells[0].start.language == BENCHES[named.name].language
