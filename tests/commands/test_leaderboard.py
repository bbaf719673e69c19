"""The page of all cards below a folder: its rows, and sorting in a real browser."""

import json

import pytest

from antiphase.commands.audit.card import read_card, write_card
from antiphase.commands.leaderboard.run import rate_tables, rows_of, write_leaderboard
from tests import needs
from tests.commands.audits import audited
from tests.commands.test_browser import browser, open_page, requested  # noqa: F401 (browser is a fixture)

LINEUP = [("diffvit-0", "differential", 0, 2.0), ("vit-0", "softmax", 0, 1.0)]
OTHERS = [("wide-1", "softmax", 1, 0.5), ("wide-2", "softmax", 2, 3.0)]


@pytest.fixture
def cards(tmp_path, make_run, make_rows):
    """Two audits of made-up models, with their cards."""
    for name, models, pairs in (("one", LINEUP, [("diffvit-0", "vit-0")]), ("deep/er/two", OTHERS, [])):
        rows = make_rows(models, eps=(1 / 255, 4 / 255), n=60)
        fingerprints = {model: f"{at:x}" * 64 for at, (model, *_) in enumerate(models, 10 + 2 * len(pairs))}
        run = make_run(tmp_path / name, models, pairs, rows=rows)
        record = json.loads((run / "run.json").read_text()) | {
            "fingerprints": fingerprints,
            "data_fingerprint": 64 * "0",
            "data": "digits",
            "models": {model: f"specimen:{model}" for model, *_ in models},
            "options": {"split": "test", "eps": [1 / 255, 4 / 255]},
            "settings": {"attack": "pgd", "norm": "linf", "attack seed": 0, "pgd": {"steps": 20}},
        }
        (run / "run.json").write_text(json.dumps(record))
        assert write_card(audited(run), run)
    return tmp_path


def test_rows_are_those_of_the_cards_and_what_is_no_card_is_left_out(cards, run_cli):
    (cards / "broken").mkdir()
    (cards / "broken" / "card.json").write_text("{}")
    code, out, _ = run_cli("leaderboard", cards, "--json")
    found = json.loads(out)
    assert (code, found["cards"], len(found["left_out"])) == (0, 2, 1)
    one = {model.name: model for model in read_card(cards / "one").models}
    for row in found["rows"]:
        if row["name"] in one:
            (at,) = (at for at in one[row["name"]].rates if at.eps == row["eps"])
            assert (row["robust_accuracy"], row["asr"]) == (at.robust_accuracy.value, at.asr.value)
    assert [(row["name"], row["against"]) for row in found["rows"]][::2] == [
        ("wide-1", None),
        ("wide-2", None),
        ("diffvit-0", "vit-0"),
        ("vit-0", None),
    ]
    page = (cards / "leaderboard.html").read_text(encoding="utf-8")
    assert "Robustness of 4 models" in page
    code, _, err = run_cli("leaderboard", cards / "broken")
    assert (code, err.count("\n")) == (2, 1)


@needs.browser
def test_columns_sort_in_a_browser(cards, browser):  # noqa: F811
    paths = sorted(cards.rglob("card.json"))
    page = write_leaderboard({path: read_card(path) for path in paths}, [], cards / "page.html")
    accuracy = {
        model.name: [at.robust_accuracy.value for at in model.rates]
        for path in paths
        for model in read_card(path).models
    }

    def shown() -> list[str]:
        return browser.execute_script(
            "return [...document.querySelectorAll('.panel:not([hidden]) tbody th')].map(e => e.dataset.value)"
        )

    for width in (390, 1280):
        open_page(browser, page, width)
        assert browser.execute_script("return document.documentElement.scrollWidth") <= width
        assert shown() == sorted(accuracy, key=lambda name: [-value for value in accuracy[name]])
        heads = browser.find_elements("css selector", ".panel:not([hidden]) th button")
        assert [head.text for head in heads] == ["Model", "Attack", "Images", "Clean", "1/255", "4/255"]
        for click, sign in ((0, -1), (1, 1)):  # largest first, then smallest
            heads[5].click()
            assert shown() == sorted(accuracy, key=lambda name: sign * accuracy[name][1]), click
        heads[0].click()
        assert shown() == sorted(accuracy)
        sticky = "return getComputedStyle(document.querySelector('.panel:not([hidden]) tbody th')).position"
        assert browser.execute_script(sticky) == "sticky"
        assert browser.get_log("browser") == []
        assert [url for url in requested(browser) if not url.startswith("data:")] == [page.as_uri()]


@pytest.mark.parametrize("metric", ["robust_accuracy", "asr"])
def test_a_model_has_one_row_of_its_worst_attack_and_controls_are_below(cards, metric):
    """Noise hurts least of all, so that it would rank first; PGD is worse at one ε, Square at the other."""
    path = cards / "one" / "card.json"
    told = json.loads(path.read_text())
    own = {}
    for model in told["models"]:
        pgd = model["rates"]
        own[model["name"]] = {
            "pgd": pgd,
            "square": [
                {**pgd[1], "eps": pgd[0]["eps"]},
                {**pgd[0], "eps": pgd[1]["eps"]},
            ],  # worse at the smaller ε
            "noise": [{**pgd[0], "eps": at["eps"]} for at in pgd],
        }
        model["rates"] = [
            {**at, "attack": name} for name, rates in own[model["name"]].items() for at in rates
        ]
    path.write_text(json.dumps(told | {"differences": []}))
    tables = {table["title"]: table for table in rate_tables(rows_of({path: read_card(path)}))}
    lines = tables[{"robust_accuracy": "Robust accuracy", "asr": "ASR"}[metric]]["lines"]
    worst = min if metric == "robust_accuracy" else max
    ranked, controls = ([line for line in lines if bool(line["control"]) == side] for side in (False, True))
    assert len(ranked) == len(own)
    for line in ranked:
        assert line["attack"] == "PGD (L∞), Square (L∞)"
        (smaller, first), (larger, second) = line["cells"]
        rates = [at[metric]["value"] for at in own[line["model"].name]["pgd"]]
        assert (smaller.value, larger.value) == (worst(rates), worst(rates))
        assert (first, second) == ("Square (L∞)", "PGD (L∞)")
    assert {(line["model"].name, line["attack"]) for line in controls} == {
        (name, "Noise (L∞)") for name in own
    }
    page = write_leaderboard({path: read_card(path)}, [], cards / "page.html").read_text(encoding="utf-8")
    assert page.count('<tbody class="controls">') == page.count("<table") == 3
