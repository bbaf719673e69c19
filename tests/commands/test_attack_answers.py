"""Attacks on the answers of a tiny vision-language model: rows, rates by hand, resume, and the page."""

import json
import shutil
from dataclasses import replace
from importlib import import_module

import numpy as np
import polars as pl
import pytest
import torch

import antiphase as ap
from antiphase.commands.audit import answers
from antiphase.commands.audit.answers import answers_headline, attack, attack_answers
from antiphase.commands.lineup import Lineup
from antiphase.commands.result import read_result
from antiphase.data.images import model_images
from antiphase.errors import UserError
from antiphase.models.card import ModelCard, with_card
from antiphase.models.zoo import load_model
from antiphase.registry import ATTACKS
from antiphase.report.page import TITLE
from antiphase.vlm import Projector, VisionLanguageModel, VlmConfig, YesNo, image_tokens, save_vlm
from antiphase.vlm.pope import ALL, answer_rates, asked_images, emoji_pope, summarise_answers
from tests.commands.audits import attack_options, report
from tests.vlm.tiny import tiny_language, tiny_tokenizer, tiny_vit

PLAN = attack_options((2 / 255, 8 / 255), attack="apgd-ce", settings={"steps": 2})


def asked(models, twins, pope, options, out):
    out.mkdir(parents=True, exist_ok=True)
    return attack(options.model_copy(update={"out": out}), lineup=Lineup(models, twins, pope))


def _vlm(seed, attention):
    tower = image_tokens(tiny_vit(seed))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        projector = Projector("linear", tower.width, tower.count, 24, 2)
    model = VisionLanguageModel(tower, projector, tiny_language(seed=seed), tiny_tokenizer()).eval()
    return with_card(model, ModelCard(f"{attention}-{seed}", f"{attention}-{seed}", attention, seed, (3, 16, 16), 0))


@pytest.fixture(scope="module")
def pope():
    whole = emoji_pope(progress=False).subset(2)
    return replace(whole, questions=tuple(one for one in whole.questions if one.sampling != "adversarial"))


@pytest.fixture(scope="module")
def attacked(pope, tmp_path_factory):
    """A model and its twin, attacked."""
    out = tmp_path_factory.mktemp("pope")
    one, two = _vlm(0, "differential"), _vlm(0, "softmax")
    return out, (one, two), pope, asked([one], [two], pope, PLAN, out)


@pytest.mark.thorough
def test_every_question_is_attacked_once_and_a_second_run_attacks_nothing(attacked, monkeypatch):
    out, (one, two), pope, summary = attacked
    rows = pl.read_parquet(out / "rows.parquet")
    assert len(rows) == 2 * 2 * len(pope.asked())
    assert rows.filter(pl.col("distance").is_finite(), pl.col("success"))["distance"].max() <= 8 / 255 + 1e-6
    told = {(one.image, one.text): one.yes for one in pope.questions}
    names = dict(zip(pope.pictures.ids.tolist(), pope.names, strict=True))
    for row in rows.iter_rows(named=True):
        assert row["label"] == told[names[row["image"]], row["question"]]
        asking = {
            one.sampling for one in pope.questions if (one.image, one.text) == (names[row["image"]], row["question"])
        }
        assert set(row["samplings"]) == asking
    questions = asked_images(pope, one.square)
    part = rows.filter(model="differential-0", eps=2 / 255)
    assert set(zip(part["sample"], part["question"], strict=True)) == set(
        zip(questions.ids.tolist(), questions.asked(), strict=True)
    )
    by_sample = {
        sample: YesNo(one, question)(questions.images([index])).argmax().item()
        for index, (sample, question) in enumerate(zip(questions.ids.tolist(), questions.asked(), strict=True))
    }
    assert {row["sample"]: row["clean_prediction"] for row in part.iter_rows(named=True)} == by_sample

    def refuse(*some, **more):
        raise AssertionError("attacked again")

    monkeypatch.setattr(import_module("antiphase.attacks.apgd"), "run_search", refuse)
    assert asked([one], [two], pope, PLAN, out) == summary


@pytest.mark.thorough
def test_the_page_has_the_questions_and_the_answers(attacked):
    out, *_ = attacked
    assert report(out) == out / "report.html"
    page = (out / "report.html").read_text(encoding="utf-8")
    words = json.loads((out / "questions.json").read_text())
    assert len(words["questions"]) == 10
    assert all(question in page for question in words["questions"])
    for text in ("truth: no", "False yes, APGD-CE", "False yes, rise, APGD-CE", "false-yes", "2 images"):
        assert text in page
    assert set(words["answers"]) == {"differential-0", "softmax-0"}


def _row(model, image, label, clean, success, eps, samplings=("random",)):
    return {
        "model": model,
        "attention": "softmax",
        "seed": 0,
        "attack": "pgd",
        "norm": "linf",
        "eps": eps,
        "sample": 0,
        "label": label,
        "clean_prediction": clean,
        "prediction": clean ^ success,
        "success": success,
        "image": image,
        "samplings": list(samplings),
    }


def test_the_gallery_begins_with_absent_objects_whose_right_answer_changed():
    kinds = {  # sample: label, clean answer, changed
        1: (1, 1, True),
        2: (0, 1, True),
        3: (0, 0, False),
        4: (0, 0, True),
        5: (1, 1, False),
    }
    rows = [
        _row(model, 0, *kind, eps) | {"sample": sample, "attack": PLAN.attack}
        for sample, kind in kinds.items()
        for model in ("a", "b")
        for eps in PLAN.eps
    ]
    samples = answers.gallery_samples(pl.DataFrame(rows).filter(model="a", eps=PLAN.eps[0]))
    assert samples == [4, 1, 2, 3, 5]


def test_rates_by_hand():
    values = {}
    rows = [
        # image 1: two absent objects, one said to be there, one brought about; one present object lost
        _row("a", 1, 0, 1, True, 0.1),
        _row("a", 1, 0, 0, True, 0.1, ("random", "popular")),
        _row("a", 1, 1, 1, True, 0.1),
        # image 2: nothing changes
        _row("a", 2, 0, 0, False, 0.1),
        _row("a", 2, 1, 1, False, 0.1),
    ]
    for row in answer_rates(pl.DataFrame(rows)).iter_rows(named=True):
        values[row["sampling"], row["metric"], row["eps"], row["image"]] = row["value"]
    assert values[ALL, "false yes", 0.0, 1] == 0.5
    assert values[ALL, "false yes", 0.1, 1] == 1.0
    assert values["popular", "false yes", 0.0, 1] == 0.0
    assert values[ALL, "false no", 0.0, 1] == 0.0
    assert values[ALL, "false no", 0.1, 1] == 1.0
    assert values[ALL, "accuracy", 0.0, 1] == pytest.approx(2 / 3)
    assert values[ALL, "accuracy", 0.1, 1] == 0.0
    assert {value for key, value in values.items() if key[3] == 2 and key[1] != "accuracy"} == {0.0}


@pytest.mark.parametrize(
    ("pairs", "answer"),
    [(2, "Undecided between d and s on false yes: +"), (8, "False yes rises more for d than for s: +")],
)
def test_the_rise_is_compared_over_seeds_and_images(pairs, answer):
    draw = np.random.default_rng(0)
    rows = [
        _row(f"{kind}-{seed}", image, 0, int(draw.random() < 0.2), bool(draw.random() < share), 0.1)
        for kind, share in (("d", 0.8), ("s", 0.3))
        for seed in range(pairs)
        for image in range(60)
    ]
    frame = pl.DataFrame(rows)
    told = summarise_answers(
        frame,
        {kind: [f"{kind}-{seed}" for seed in range(pairs)] for kind in "ds"},
        [(f"d-{seed}", f"s-{seed}") for seed in range(pairs)],
    )
    wrong = frame.with_columns(
        before=pl.col("clean_prediction"), after=(pl.col("clean_prediction") == 1) | pl.col("success")
    )
    rise = {
        kind: wrong.filter(pl.col("model").str.starts_with(kind))
        .select((pl.col("after").cast(pl.Int64) - pl.col("before")).mean())
        .item()
        for kind in "ds"
    }
    (move,) = (
        row
        for row in told["differences"]
        if (row["what"], row["metric"], row["sampling"]) == ("move", "false yes", ALL)
    )
    assert move["value"] == pytest.approx(rise["d"] - rise["s"])
    assert (move["n"], move["seeds"]) == (60, pairs)
    assert 0 < move["low"] < move["value"] < move["high"]
    headline = answers_headline(told)
    title, lead = headline.title, headline.lead
    assert title.startswith(answer)
    assert len(title) <= TITLE
    assert f"{pairs} pairs of models and 60 images" in lead
    assert ("fewer than 8 training seeds decide nothing" in lead) == (pairs < 8)


def test_the_answer_is_judged_where_the_attack_has_not_changed_everything():
    # at 0.2 both say yes to everything: the difference of the rises is what they said before
    rows = [
        _row(name, image, 0, int(image < clean), eps > 0.1 or image >= 10, eps)
        for name, clean in (("d", 4), ("s", 1))
        for eps in (0.1, 0.2)
        for image in range(20)
    ]
    told = summarise_answers(pl.DataFrame(rows), {name: [name] for name in "ds"}, [("d", "s")])
    at_largest = next(
        row
        for row in told["differences"]
        if (row["what"], row["metric"], row["sampling"], row["eps"]) == ("move", "false yes", ALL, 0.2)
    )
    assert at_largest["value"] == pytest.approx(-0.15)
    headline = answers_headline(told)
    title, lead = headline.title, headline.lead
    assert title.startswith("Undecided between d and s on false yes: 0.0 points")
    assert "difference of the two rises at ε = 0.1," in lead


def test_models_of_different_image_sizes_are_attacked_each_on_its_own_pixels(pope, tmp_path):
    one, tower = _vlm(0, "differential"), image_tokens(tiny_vit(image_size=32))
    projector = Projector("linear", tower.width, tower.count, 24, 2)
    two = VisionLanguageModel(tower, projector, tiny_language(), tiny_tokenizer())
    two = with_card(two.eval(), ModelCard("large", "large", "differential", 0, (3, 32, 32), 0))
    few = pope.subset(1)
    asked([one], [two], few, PLAN.model_copy(update={"eps": (2 / 255,)}), tmp_path)
    words = json.loads((tmp_path / "questions.json").read_text())
    assert set(words["answers"]) == {"differential-0"}  # the pictures are those of the first model
    assert report(tmp_path).exists()


@pytest.mark.thorough
@pytest.mark.parametrize("name", list(ATTACKS))
def test_every_attack_applies_to_answers(pope, tmp_path, name):
    settings = {
        "square": {"queries": 5},
        "autoattack": {"steps": 2, "queries": 5},
        "fgsm": {},
        "noise": {},
        "sigma-zero": {"steps": 60},
    }
    norm = {"carlini-wagner": "l2", "sigma-zero": "l0"}.get(name, "linf")
    eps = {"l2": 8, "l0": 200, "linf": 0.5}[norm]
    plan = attack_options((eps,), attack=name, norm=norm, settings=settings.get(name, {"steps": 2}))
    model = _vlm(0, "differential")
    rows, _ = attack_answers("a", model, pope.subset(1), plan, tmp_path)
    assert len(rows) == len(pope.subset(1).asked())
    changed = rows["prediction"] != rows["clean_prediction"]  # of minimal attacks, perhaps beyond ε
    assert (changed | ~rows["success"]).all()
    assert rows["success"].any()


def test_a_result_in_python_counts_images_and_not_questions(attacked, tmp_path, monkeypatch):
    out, (model, _), pope, _ = attacked
    result = read_result(out, "audit")
    assert "results" not in result.summary
    assert repr(result).startswith("<antiphase audit: Undecided between differential-0 and softmax-0 on false yes")
    assert "2 images" in repr(result)
    assert "False yes, rise, APGD-CE" in result._repr_html_()
    assert [axes.get_ylabel() for axes in result.plot().axes] == ["false yes (%)", "accuracy (%)"]
    alone, models = [], (model, _vlm(3, "softmax"))
    for model in models:
        place = tmp_path / str(len(alone))
        asked([model], [], pope, PLAN, place)
        alone.append(read_result(place, "audit"))
    shutil.copytree(place / "cells", tmp_path / "both" / "cells")  # the second is attacked already  # pyright: ignore[reportPossiblyUnboundVariable]
    both = asked([models[0]], [models[1]], pope, PLAN, tmp_path / "both")
    differences, expected = alone[0].compare(alone[1]).to_dicts(), both["pope"]["differences"]
    assert [row["difference"] for row in differences] == [row["value"] for row in expected]
    assert any(row["difference"] for row in differences)
    assert {row["n"] for row in differences} == {2}

    one = PLAN.model_copy(update={"eps": (2 / 255,)})
    asked([models[0]], [], pope, one, tmp_path / "one")
    shared = read_result(tmp_path / "one", "audit").compare(alone[1])
    assert shared["eps"].unique().sort().to_list() == [0.0, 2 / 255]  # 0: without an attack
    other = ap.audit("specimen:vit-0", limit=2, eps="1/255", steps=1, sense_limit=0)
    with pytest.raises(UserError, match="got AnswersResult and AuditResult; expected two results"):
        alone[0].compare(other)


def test_a_classifier_is_refused(run_cli, tmp_path):
    arguments = (
        "audit",
        "specimen:vit-0",
        "--data",
        "emoji-pope",
        "--limit",
        2,
        "--out",
        tmp_path / "out",
        "--out",
        tmp_path / "out",
        "-q",
    )
    code, _, err = run_cli(*arguments)
    assert (code, err.count("\n")) == (2, 1)
    assert "specimen:vit-0: does not answer questions; expected a vision-language model" in err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--sense-limit", 8), "sense_limit 8: is not for questions such as emoji-pope; leave out --sense-limit"),
        (("--sense-limit", 32), "sense_limit 32: is not for questions"),
        (("--skip-bad",), "skip_bad True: is not for questions"),
        (("--prompt", "a {}"), "prompt a {}: is not for questions"),
        (("--objective", "cosine"), "objective cosine: is not for questions"),
        (("--data", "digits", "--suffix", "Answer."), "suffix: is for questions; leave it out, or give --data pope"),
    ],
)
def test_options_that_would_be_ignored_are_refused(run_cli, tmp_path, words, message):
    code, _, err = run_cli("audit", "vlm", "--data", "emoji-pope", *words, "--out", tmp_path / "out")
    assert (code, err.count("\n")) == (2, 1), err
    assert message in err


def test_a_suffix_follows_every_question(pope):
    suffixed = pope.subset(1).followed_by("One word.")
    texts = {one.text for one in pope.subset(1).questions}
    assert {one.text for one in suffixed.questions} == {f"{text}\nOne word." for text in texts}
    assert suffixed.fingerprint() != pope.subset(1).fingerprint() == pope.subset(1).followed_by("").fingerprint()
    plain, other = (asked_images(source, _vlm(0, "softmax").square) for source in (pope, suffixed))
    assert set(plain.ids.tolist()).isdisjoint(other.ids.tolist())  # rows are kept apart


def test_pairs_of_image_and_question_are_a_set_of_two_classes(pope):
    square = _vlm(0, "softmax").square
    questions = asked_images(pope, square)
    told = {(one.image, one.text): one.yes for one in pope.questions}
    assert len(questions) == len(told) < len(pope)
    for index, question in enumerate(questions.asked()):
        name = pope.names[int(questions.places[index])]
        assert bool(questions.labels[index]) == told[name, question]
        by_itself = model_images(pope.pictures, [pope.position()[name]], square)
        assert torch.equal(questions.images([index]), by_itself)
    order = torch.arange(len(questions)).flip(0)
    again = questions.take(order)
    assert torch.equal(again.images(order), questions.images(range(len(questions))))
    assert again.asked() == questions.asked()[::-1]
    assert questions.fingerprint() == asked_images(pope, square).fingerprint() != again.fingerprint()
    fewer = asked_images(pope.subset(1), square)
    assert set(fewer.ids.tolist()) < set(questions.ids.tolist())


def test_a_directory_of_train_vlm_is_loaded_by_its_name(run_cli, tmp_path):
    model = _vlm(0, "differential")
    config = VlmConfig(
        tower_spec="tiny",
        tower=model.tower.reference,
        tower_sha256="",
        merge=2,
        language="tiny",
        language_sha256="",
        prompt=model.prompt.style,
        tuned=True,
    )
    recipe = {"kind": "vlm", "seed": 3, "model": config.model_dump()}
    save_vlm(model, recipe, tmp_path / "vlm", torch.float32)
    loaded = load_model(str(tmp_path / "vlm"))
    assert (loaded.card.name, loaded.card.spec, loaded.card.attention) == ("vlm", str(tmp_path / "vlm"), "differential")
    images = torch.rand(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    question = "Is there a cat in the image?"
    torch.testing.assert_close(YesNo(loaded, question)(images), YesNo(model, question)(images))
    code, out, err = run_cli(
        "evaluate",
        tmp_path / "vlm",
        "--tasks",
        "pope",
        "--data",
        "emoji-pope",
        "--limit",
        1,
        "--out",
        tmp_path / "out",
        "-q",
    )
    assert code == 0, err
    assert "random: unparsed answers" in out
    assert json.loads((tmp_path / "out" / "run.json").read_text())["n"] == [18]
    code, _, err = run_cli("audit", tmp_path / "vlm", "--data", "digits", "--out", tmp_path / "audit", "-q")
    assert (code, err.count("\n")) == (2, 1)
    assert "a vision-language model, which answers questions; give --data pope or emoji-pope" in err
