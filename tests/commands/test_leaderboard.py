"""The page of all cards below a folder: its rows, and sorting in a real browser."""

import copy
import io
import json
from urllib.parse import unquote

import polars as pl
import pytest

from antiphase.commands.audit.card import RobustnessCard, read_card, write_card
from antiphase.commands.leaderboard import LeaderboardOptions
from antiphase.commands.leaderboard.run import answer, rankings, rows_of
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
        fingerprints = {model: f"{digit:x}" * 64 for digit, (model, *_) in enumerate(models, 10 + 2 * len(pairs))}
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
    board = json.loads(out)
    assert (code, board["cards"], len(board["left_out"])) == (0, 2, 1)
    one = {model.name: model for model in read_card(cards / "one").models}
    for row in board["rows"]:
        if row["name"] in one:
            (rate,) = (rate for rate in one[row["name"]].rates if rate.eps == row["eps"])
            assert (row["robust_accuracy"], row["asr"]) == (rate.robust_accuracy.value, rate.asr.value)
    assert [(row["name"], row["against"]) for row in board["rows"]][::2] == [
        ("wide-1", None),
        ("wide-2", None),
        ("diffvit-0", "vit-0"),
        ("vit-0", None),
    ]
    page = (cards / "leaderboard.html").read_text(encoding="utf-8")
    assert "Robustness of 4 models" in page
    csv = unquote(page.split('.csv" href="data:text/csv;charset=utf-8,', 1)[1].split('"', 1)[0])
    ranked = pl.read_csv(io.StringIO(csv))
    assert ranked["robust_value"].is_sorted(descending=True)
    assert set(ranked["model"]) == {"diffvit-0", "vit-0", "wide-1", "wide-2"}
    assert unquote(page).count(r"\begin{tabular}") == 2  # two ε
    code, out, err = run_cli("leaderboard", cards, "--tables", "latex")
    assert (code, out.count(r"\begin{tabular}"), str(cards / "leaderboard.html") in err) == (0, 2, True)
    code, _, err = run_cli("leaderboard", cards / "broken")
    assert (code, err.count("\n")) == (2, 1)


@needs.browser
def test_a_ranking_is_chosen_sorted_and_readable_on_a_phone(cards, browser):  # noqa: F811
    paths, page = sorted(cards.rglob("card.json")), cards / "page.html"
    answer(LeaderboardOptions(folder=cards, out=page), "")
    accuracy = {
        model.name: [rate.robust_accuracy.value for rate in model.rates]
        for path in paths
        for model in read_card(path).models
    }

    def shown(selector: str = "tbody th") -> list[str]:
        script = "return [...document.querySelectorAll('.ranking:not([hidden]) ' + arguments[0])]"
        return browser.execute_script(f"{script}.map(e => e.dataset.value ?? e.textContent)", selector)

    def choose(name: str, value: str) -> None:
        script = "const s = document.querySelector(`[name=${arguments[0]}]`); s.value = arguments[1];"
        browser.execute_script(f"{script} s.dispatchEvent(new Event('change'))", name, value)

    for width in (390, 1280):
        open_page(browser, page, width)
        assert browser.execute_script("return document.documentElement.scrollWidth") <= width
        assert len(shown("h2")) == 1
        choose("eps", "4/255")
        assert shown("h2") == ["digits (test, 60 images), L∞, ε = 4/255"]
        assert shown() == sorted(accuracy, key=lambda name: -accuracy[name][1])
        assert shown("td.rank")[0] == "1"
        right = "return document.querySelector('.ranking:not([hidden]) td.robust').getBoundingClientRect().right"
        assert browser.execute_script(right) <= width  # name and robust accuracy need no scrolling
        heads = browser.find_elements("css selector", ".ranking:not([hidden]) th button")
        assert [head.text for head in heads][:5] == ["#", "Model", "Robust", "Clean", "ASR"]
        for click, sign in ((0, -1), (1, 1)):  # largest first, then smallest
            heads[2].click()
            assert shown() == sorted(accuracy, key=lambda name: sign * accuracy[name][1]), click
        heads[1].click()
        assert shown() == sorted(accuracy)
        links = browser.execute_script(
            "return [...document.querySelectorAll('.ranking td:last-child a')].map(e => e.getAttribute('href'))"
        )
        assert set(links) == {"one/card.json", "deep/er/two/card.json"}
        assert browser.get_log("browser") == []
        assert [url for url in requested(browser) if not url.startswith("data:")] == [page.as_uri()]


def test_a_model_has_one_row_of_its_worst_attack_and_controls_have_no_rank(cards):
    """Noise hurts least of all, so that it would rank first; PGD is worse at one ε, Square at the other."""
    path = cards / "one" / "card.json"
    told = json.loads(path.read_text())
    for model in told["models"]:
        small, large = model["rates"]
        square = [{**large, "eps": small["eps"]}, {**small, "eps": large["eps"]}]  # worse at the smaller ε
        noise = [{**small, "eps": rate["eps"]} for rate in (small, large)]
        model["rates"] = [
            {**rate, "attack": name}
            for name, rates in (("pgd", [small, large]), ("square", square), ("noise", noise))
            for rate in rates
        ]
    path.write_text(json.dumps(told | {"differences": [], "date": "2026-11-27T05:00:00Z"}))
    (cards / "one" / "report.html").touch()
    smaller, larger = rankings(rows_of({path: read_card(path)}), cards)
    assert (smaller["eps"], larger["eps"]) == (1 / 255, 4 / 255)
    for board, worst, place in ((smaller, "Square (L∞)", 1), (larger, "PGD (L∞)", 1)):
        *ranked, first, second = board["lines"]
        assert {line["control"] for line in (first, second)} == {"noise"}
        assert [line["rank"] for line in board["lines"]] == [1, 2, None, None]
        for line in ranked:
            accuracy = line["model"].rates[place].robust_accuracy.value
            assert (line["robust"].value, line["attack"]) == (accuracy, worst)
            assert (len(line["others"]), line["date"]) == (1, "2026-11-27")
            assert line["links"] == {"card": "one/card.json", "report": "one/report.html"}
        assert ranked[0]["robust"].value >= ranked[1]["robust"].value
    answer(LeaderboardOptions(folder=cards / "one", out=cards / "page.html"), "")
    page = (cards / "page.html").read_text(encoding="utf-8")
    assert page.count('<tbody class="controls">') == 2
    assert "worst of 2; also PGD (L∞)" in page


def test_equal_robust_accuracies_share_a_rank_and_a_difference_stands_in_its_row(cards):
    path = cards / "one" / "card.json"
    board = rankings(rows_of({path: read_card(path)}), cards)[0]
    diffvit, vit = sorted(board["lines"], key=lambda line: line["model"].name)
    (difference,) = [one for one in read_card(path).differences if one.eps == 1 / 255]
    assert (diffvit["difference"], vit["difference"]) == (difference, None)
    rows = rows_of({path: read_card(path)})
    same = [row._replace(model=row.model.model_copy(update={"weights": row.model.weights[::-1] + "0"})) for row in rows]
    assert [line["rank"] for line in rankings([*rows, *same], cards)[0]["lines"]] == [1, 1, 3, 3]


def test_models_are_ranked_on_the_same_images_and_patches_of_one_width(cards):
    told = json.loads((cards / "one" / "card.json").read_text())
    for model in told["models"]:
        model["rates"] = [{**model["rates"][0], "attack": "patch"}]
    told["attack"]["settings"]["patch"] = {"width": 2}
    changes = {"same": {}, "wider": {"width": 6}, "others": {"fingerprint": "f" * 64}}
    boards = {}
    for name, change in changes.items():
        copied = copy.deepcopy(told) | {"differences": []}
        copied["attack"]["settings"]["patch"].update({key: value for key, value in change.items() if key == "width"})
        copied["data"].update({key: value for key, value in change.items() if key != "width"})
        boards[name] = RobustnessCard.model_validate(copied)
    drawn = rankings(rows_of({cards / name / "card.json": card for name, card in boards.items()}), cards)
    assert [len(board["lines"]) for board in drawn] == [2] * 3
    assert {board["norm"] for board in drawn} == {"L∞, 2 × 2 pixels", "L∞, 6 × 6 pixels"}


def test_settings_of_another_type_have_no_width(cards):
    told = json.loads((cards / "one" / "card.json").read_text())
    told["attack"]["settings"]["pgd"] = 5
    (board, *_) = rankings(rows_of({cards / "one" / "card.json": RobustnessCard.model_validate(told)}), cards)
    assert board["norm"] == "L∞"
