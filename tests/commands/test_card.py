"""Robustness cards: the numbers of the rows, a schema, a page that the hub's own library reads, and ``verify``."""

import copy
import json
import shutil
from datetime import datetime
from pathlib import Path

import polars as pl
import pytest
from huggingface_hub import ModelCard
from jsonschema import Draft202012Validator
from markdown_it import MarkdownIt
from scipy import stats

import antiphase as ap
from antiphase.commands.audit import card as cards
from antiphase.commands.audit.card import RobustnessCard, card_markdown, read_card, write_card
from antiphase.errors import UserError

N, EPS = 30, (1 / 255, 4 / 255)


@pytest.fixture(scope="module")
def audited(tmp_path_factory):
    """The directory of an audit of a specimen against its twin."""
    out = tmp_path_factory.mktemp("card") / "run"
    ap.audit(
        "specimen:diffvit-0",
        against="specimen:vit-0",
        eps=EPS,
        limit=N,
        attack="fgsm",
        sense_limit=0,
        out=out,
        quiet=True,
    )
    return out


@pytest.fixture
def changed(audited, tmp_path):
    """Write the card with some fields changed, each given by its path, and return the new file."""

    def write(**fields):
        content = json.loads((audited / "card.json").read_text())
        for path, value in fields.items():
            *way, last = (int(part) if part.isdigit() else part for part in path.split("__"))
            place = content
            for part in way:
                place = place[part]
            place[last] = value
        (tmp_path / "card.json").write_text(json.dumps(content))
        return tmp_path / "card.json"

    return write


def test_a_card_has_the_numbers_of_the_rows(audited):
    card, rows = read_card(audited), pl.read_parquet(audited / "rows.parquet")
    assert [(model.name, model.role) for model in card.models] == [("diffvit-0", "model"), ("vit-0", "twin")]
    success = {}
    for model in card.models:
        loaded = ap.load_model(model.spec)
        assert model.parameters == sum(weight.numel() for weight in loaded.parameters())
        assert [rate.eps for rate in model.rates] == list(EPS)
        for rate in model.rates:
            part = rows.filter(model=model.name, eps=rate.eps)
            correct = part.filter(pl.col("clean_prediction") == pl.col("label"))
            success[model.name, rate.eps] = part["success"].to_numpy()
            interval = stats.binomtest(int(part["success"].sum()), N).proportion_ci(method="wilson")
            assert (rate.asr.value, rate.asr.low, rate.asr.high) == pytest.approx((part["success"].mean(), *interval))
            assert rate.asr_correct.value == pytest.approx(correct["success"].mean())
            assert rate.robust_accuracy.value == pytest.approx((~correct["success"]).sum() / N)
    for one in card.differences:
        mine, other = (success[name, one.eps] for name in ("diffvit-0", "vit-0"))
        apart = [int((mine & ~other).sum()), int((other & ~mine).sum())]
        assert one.difference == pytest.approx((apart[0] - apart[1]) / N)
        assert one.p_value == pytest.approx(stats.binomtest(apart[0], sum(apart)).pvalue if any(apart) else 1)
    assert len(card.models[0].lam) == 1
    assert card.models[1].lam == []


def test_the_schema_and_the_model_agree(audited):
    shipped = json.loads(Path(cards.__file__).with_name("card.schema.json").read_text(encoding="utf-8"))
    assert shipped == RobustnessCard.model_json_schema()
    Draft202012Validator.check_schema(shipped)
    validator = Draft202012Validator(shipped)
    good = json.loads((audited / "card.json").read_text())
    assert validator.is_valid(good)
    for way, value in (
        (("models", 0, "clean_accuracy", "value"), 1.5),
        (("models", 0, "weights"), "abc"),
        (("data", "n"), 0),
        (("attack", "norm"), "l7"),
        (("models",), []),
        (("version",), 2),
        (("more",), 1),
        (("models", 1, "link"), "javascript:alert(1)"),
        (("attack", "autoattack"), "no"),
        (("models", 0, "lambda"), ["0.7"]),
    ):
        bad = copy.deepcopy(good)
        place = bad
        for part in way[:-1]:
            place = place[part]
        place[way[-1]] = value
        assert not validator.is_valid(bad), way
        with pytest.raises(ValueError, match="validation error"):
            RobustnessCard.model_validate_json(json.dumps(bad), strict=True)


def test_the_page_is_a_model_card_of_the_hub(audited):
    page = ModelCard.load(audited / "CARD.md")
    card = read_card(audited)
    assert page.data.model_name == "diffvit-0"
    assert page.data.library_name == "antiphase"
    values = {(one.metric_type, one.metric_name): one.metric_value for one in page.data.eval_results}
    for rate, eps in zip(card.models[0].rates, ("1/255", "4/255"), strict=True):
        value = values["robust_accuracy", f"Robust accuracy, FGSM (L∞), ε = {eps}"]
        assert value == pytest.approx(rate.robust_accuracy.value)
    assert "| vit-0 | twin | softmax |" in page.text


@pytest.mark.parametrize(
    "name",
    [
        "<img src=x onerror=alert(1)>",
        "[a](javascript:b)",
        "a|b`c`*d*",
        "x\n# y\n- z",
        "\x1b[2J\u202e<b>",
        "&lt;b>~~c~~",
    ],
)
def test_the_page_shows_names_as_they_are(audited, name):
    content = json.loads((audited / "card.json").read_text())
    before = card_markdown(RobustnessCard.model_validate(content)).split("---\n", 2)[2]
    content["name"] = content["data"]["dataset"] = content["hardware"] = name
    content["models"][0]["architecture"] = content["attack"]["settings"]["nested"] = name
    content["warnings"] = [name]
    page = card_markdown(RobustnessCard.model_validate(content)).split("---\n", 2)[2]
    assert not set("\x1b\u202e") & set(page)
    html = MarkdownIt("commonmark").enable("table").render(page)
    whole = MarkdownIt("commonmark").enable("table").render(before)
    assert "<img" not in html
    assert [html.count(tag) for tag in ("<h1", "<h2", "<td", "<a ", "<code", "<em")] == [
        whole.count(tag) for tag in ("<h1", "<h2", "<td", "<a ", "<code", "<em")
    ] or html.count("<code") == whole.count("<code") - 1


def test_a_card_is_confirmed(audited, run_cli, tmp_path):
    code, out, _ = run_cli("verify", audited, "-q", "--json")
    answer = json.loads(out)
    assert (code, answer["confirmed"], answer["differences"]) == (0, True, [])
    assert answer["numbers"] > 70
    shutil.copy(audited / "card.json", tmp_path)
    verdict = ap.verify(tmp_path / "card.json", out=tmp_path / "again", quiet=True)
    assert verdict.confirmed
    assert repr(verdict).startswith("confirmed: ")
    card, again = (json.loads((folder / "card.json").read_text()) for folder in (audited, tmp_path / "again"))
    assert datetime.fromisoformat(again.pop("date")) >= datetime.fromisoformat(card.pop("date"))
    assert again == card


def test_a_changed_number_is_named(audited, changed, run_cli):
    p_value = read_card(audited).differences[1].p_value
    file = changed(differences__1__p_value=p_value / 2, data__split="train")
    code, out, _ = run_cli("verify", file, "-q")
    assert code == 1
    assert "differences[1].p_value" in out
    assert "data.split" in out
    assert "not confirmed" in out
    # what does not fit the other numbers is seen without measuring
    code, out, err = run_cli("verify", changed(models__1__rates__0__asr__value=0.0), "-q")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "models[1].rates[0].asr: 0 [" in err
    for fields, line in (
        ({"models__0__rates__1__robust_accuracy__n": N - 1}, r"models\[0\].rates\[1\].robust_accuracy: "),
        ({"differences__0__difference": 0.5}, r"differences\[0\].difference 0.5 does not fit the ASR"),
    ):
        with pytest.raises(UserError, match=line):
            ap.verify(changed(**fields))


def test_other_weights_and_data_are_one_line(changed, run_cli, monkeypatch):
    monkeypatch.setattr("antiphase.commands.audit.run.measure", None)  # nothing is attacked
    for field, line in (
        ("models__1__weights", "weights of vit-0: specimen:vit-0 has SHA-256 "),
        ("data__fingerprint", "data: specimen-fashion-mnist has SHA-256 "),
    ):
        code, out, _ = run_cli("verify", changed(**{field: 64 * "0"}), "-q")
        assert (code, out.count("\n")) == (1, 1)
        assert line in out


def test_code_runs_only_if_that_is_said(changed, run_cli, tmp_path):
    (tmp_path / "model.py").write_text("raise SystemExit('run')")
    spec = f"python:{tmp_path}/model.py:build"
    for model in ([spec], f"specimen:vit-0, {spec}"):
        code, _, err = run_cli("verify", changed(options__model=model, options__against=[]))
        assert (code, err.count("\n")) == (2, 1)
        assert "runs code; read that code, then add --run-code" in err


def test_what_was_filled_in_by_hand_stays(audited, tmp_path):
    content = json.loads((audited / "card.json").read_text())
    content["models"][0] |= {"link": "https://arxiv.org/abs/2510.00517", "venue": "ICLR 2026"}
    (tmp_path / "card.json").write_text(json.dumps(content))
    assert write_card(ap.open(audited), tmp_path) == tmp_path / "card.json"
    assert read_card(tmp_path).models[0].venue == "ICLR 2026"
    page = (tmp_path / "CARD.md").read_text(encoding="utf-8")
    assert "| [diffvit-0](https://arxiv.org/abs/2510.00517) |" in page


@pytest.mark.parametrize("text", ["", "[]", '{"version": 1}', None])
def test_what_is_no_card_is_one_line(tmp_path, run_cli, text):
    if text is not None:
        (tmp_path / "card.json").write_text(text)
    code, out, err = run_cli("verify", tmp_path, "--json")
    assert (code, out, err.count("\n")) == (2, "", 1)


def test_what_was_filled_in_by_hand_stays_when_the_command_is_repeated(tmp_path, run_cli):
    words = ("attack", "specimen:vit-0", "--attack", "fgsm", "--eps", "1/255", "--limit", "3", "-q", "--out", tmp_path)
    assert run_cli(*words)[0] == 0
    content = json.loads((tmp_path / "card.json").read_text())
    content["models"][0] |= {"venue": "ICLR 2026"}
    (tmp_path / "card.json").write_text(json.dumps(content))
    assert run_cli(*words)[0] == 0
    assert read_card(tmp_path).models[0].venue == "ICLR 2026"


def test_a_finished_run_does_not_confirm_itself(audited, run_cli):
    before = {path.name: path.read_bytes() for path in audited.iterdir() if path.is_file()}
    code, _, err = run_cli("verify", audited, "--out", audited)
    assert code == 2
    assert "holds a finished run; give a new directory with --out" in err
    assert before == {path.name: path.read_bytes() for path in audited.iterdir() if path.is_file()}
