"""What a reader sees first: the picture of all claims, the paragraphs above the tables, and the block of a README."""

import itertools
from dataclasses import replace

import pytest

from antiphase.errors import UserError
from antiphase.studies.claims import Check, Claim
from antiphase.studies.report.forest import LOOKS, deciding, forest_figure, forest_lines, forest_svg
from antiphase.studies.report.site import replace_findings, write_findings
from antiphase.studies.report.tables import markdown_claims, markdown_summary
from antiphase.studies.report.words import answer, counted, findings, headlines, sentence, summary
from tests.studies.report import made_up_studies as made_up
from tests.studies.report.made_up_studies import over_seeds

HEADLINE = Claim(
    "fragile-at-depth-1",
    "Section 5.2, Figure 2(a)",
    "DiffViT is more fragile at λ_init 0.8.",
    [
        Check("at 1/255", over_seeds(0.05, 0.04, 0.06, 1000)),
        Check("at 2/255", over_seeds(0.03, 0.02, 0.04, 1000)),
    ],
)
OPEN = Claim(
    "angle-raises-asr",
    "ours",
    "The angle matters more than the size.",
    [Check("angle − size", over_seeds(0.1, -0.1, 0.3, 50), "")],
    seconds=90.0,
)


def results():
    found = made_up.studies()
    return [
        *found,
        replace(made_up.table_1(), name="figure-2a", claims=[HEADLINE]),
        replace(made_up.table_1(), name="causes", claims=[OPEN]),
    ]


def test_a_claim_is_drawn_by_the_check_that_decides_it():
    assert deciding(HEADLINE) is HEADLINE.checks[1]
    both = Claim("x", "s", "y", [HEADLINE.checks[0], Check("no", over_seeds(-0.05, -0.06, -0.04, 100))])
    assert both.verdict == "contradicted"
    assert deciding(both) is both.checks[1]
    assert deciding(Claim("x", "s", "y", [Check("none", None)])) is None


def test_lines_are_grouped_by_unit_and_section_and_all_verdicts_are_there():
    lines = forest_lines(results())
    assert {line.verdict for line in lines} == set(LOOKS)
    assert [line.block for line in lines] == sorted((line.block for line in lines), reverse=True)
    keys = [(line.block, line.section) for line in lines]
    assert len(list(itertools.groupby(keys))) == len(set(keys))  # a section is not torn apart
    headline = next(line for line in lines if line.statement == HEADLINE.statement)
    assert (headline.value, headline.low, headline.high) == pytest.approx((3.0, 2.0, 4.0))
    assert headline.margin == pytest.approx(2.0)
    assert headline.numbers == ("+3.0 points [2.0, 4.0]", "least favourable of 2")
    other = next(line for line in lines if line.statement == OPEN.statement)
    assert other.value == pytest.approx(0.1 / (0.2 / 2.13))  # in standard errors
    assert other.numbers[1].startswith("a verdict takes ")
    assert forest_lines([made_up.empty()]) == []


@pytest.mark.parametrize("narrow", [False, True])
def test_every_interval_is_where_its_axis_says_and_no_line_hides_another(narrow):
    lines = forest_lines(results())
    (axes,) = forest_figure(lines, narrow=narrow).axes
    thick = [line for line in axes.lines if line.get_linewidth() == 1.8]
    marks = [line for line in axes.lines if len(line.get_xdata()) == 1][-len(lines) :]
    assert len(thick) == len(marks) == len(lines)
    heights = [float(line.get_ydata()[0]) for line in thick]
    assert all(two - one > 0.25 for one, two in itertools.pairwise(heights))
    points = [(line, thick[at], marks[at]) for at, line in enumerate(lines) if "points" in line.block]
    zero = next(line.get_xdata()[0] for line in axes.lines if line.get_color() == "#9a9ca1")
    for line, interval, mark in points:
        low, high = interval.get_xdata()
        assert low <= mark.get_xdata()[0] <= high
        assert (low > zero) == (line.low > 0)
        assert (high < zero) == (line.high < 0)
        assert mark.get_color() == LOOKS[line.verdict][0]
    texts = {text.get_text() for text in axes.texts}
    assert {"Sensitivity paper, Section 5.2", "Sensitivity paper, ours"} <= texts
    width, height = axes.figure.get_size_inches()
    bottoms = [text.get_position()[1] for text in axes.texts]
    assert max(bottoms) < height
    assert width == (3.9 if narrow else 10.4)


def test_its_text_is_text():
    svg = forest_svg(forest_lines(results()))
    assert "DiffViT is more fragile at λ_init 0.8." in svg
    assert "Verdana" in svg
    assert svg == forest_svg(forest_lines(results()))
    assert len(svg) < 60_000


def test_a_claim_on_clips_has_a_question_of_its_own():
    clips = replace(
        HEADLINE, name="zero-shot", statement="DiffCLIP has a higher zero-shot accuracy than CLIP."
    )
    told = summary([*results(), replace(made_up.table_1(), name="diffclip-table-2", claims=[clips])])
    at = told.index("## Does it help a CLIP?")
    assert told[at + 1] == "Yes: DiffCLIP is better than CLIP in the one task tested."
    assert told[at + 2].startswith("A CLIP and its twin DiffCLIP are trained alike")
    assert told[at + 3].startswith(
        "- DiffCLIP has a higher zero-shot accuracy than CLIP: **holds** (1/255: +5.0 points"
    )
    assert told[at + 4] == "## How sure is that?"


def test_three_questions_are_answered_with_numbers_and_prices():
    told = summary(results())
    assert [line for line in told if line.startswith("## ")] == [
        "## Is differential attention more fragile?",
        "## Why?",
        "## How sure is that?",
    ]
    fragile, why, sure = (
        told[told.index(f"## {question}") + 1 :]
        for question in ("Is differential attention more fragile?", "Why?", "How sure is that?")
    )
    assert fragile[0] == (
        "Yes, with one layer: under PGD DiffViT's ASR is 3.0 to 5.0 points higher than ViT's (at 1/255 to 2/255)."
    )
    assert fragile[1] == (
        "- DiffViT is more fragile at λ_init 0.8: **holds** "
        "(1/255: +5.0 points [4.0, 6.0]; 2/255: +3.0 points [2.0, 4.0])."
    )
    assert why[0] == ("Whether opposed gradients of the two maps, the paper's explanation, raise it is open.")
    assert why[1].startswith(
        "- The angle matters more than the size: **undecided** (angle − size: +0.10 [−0.10, 0.30]; "
    )
    assert why[1].endswith("a verdict would take about 113 seeds, 3 core-hours in all).")
    assert sure[0] == counted(results())
    assert "16 training seeds" in sure[1]
    assert told[-1].endswith(
        "A verdict on 1 of the 2 undecided claims would take at least 3 core-hours in all, if the differences seen are "
        "the true ones."
    )
    assert summary([made_up.empty()]) == []
    assert headlines(results()) == [
        f"- **Is differential attention more fragile?** {fragile[0]}",
        f"  - {sentence(HEADLINE)}",
        f"- **Why?** {why[0]}",
        f"  - {sentence(OPEN)}",
        f"- **All claims:** {counted(results())}",
    ]


def test_verdicts_are_counted_for_each_paper():
    whole = made_up.table_1()
    few = Claim("", "", "", [Check("at 1/255", over_seeds(0.1, 0.05, 0.15, 100, seeds=5))])
    untested = Claim("", "", "", [Check("", None)])
    assert counted(
        [replace(whole, claims=[HEADLINE, OPEN, untested]), replace(whole, claims=[HEADLINE])]
    ) == ("The sensitivity paper, 3 of 4 claims tested: 2 hold and 1 is undecided.")
    assert counted(
        [replace(whole, claims=[OPEN]), replace(whole, paper="diffclip", claims=[HEADLINE, few])]
    ) == (
        "The sensitivity paper, the one claim tested: 1 is undecided. "
        "DiffCLIP's paper, 1 of 2 claims tested: 1 holds."
    )
    assert counted([replace(whole, claims=[untested, few])]) == ""
    elsewhere = replace(HEADLINE, source="not in the paper")
    of_the_paper = replace(OPEN, source="Section 4.1", paper="robustness")
    assert counted(
        [replace(whole, claims=[elsewhere]), replace(whole, paper="own", claims=[of_the_paper])]
    ) == (
        "The sensitivity paper, the one claim tested: 1 is undecided. Our own questions, the one claim tested: 1 holds."
    )
    assert forest_lines([replace(whole, claims=[few])]) == []
    assert "| **undecided** (too few seeds: 8 seeds) |" in markdown_claims([replace(whole, claims=[few])])


def test_an_absent_difference_is_told_with_the_margin_it_lies_within():
    small = [
        Check("at 1/255", over_seeds(0.01, -0.005, 0.015, 1000)),
        Check("at 2/255", over_seeds(0.03, 0.02, 0.04, 1000)),
    ]
    told = sentence(Claim("", "", "It is higher.", small))
    assert told.startswith(
        "It is higher: **absent** in 1 of 2 cases, within ±2 points (1/255: +1.0 points [−0.5, 1.5], absent; "
    )
    told = sentence(Claim("", "", "It is higher.", small[:1], margin=0.03))
    assert told == "It is higher: **absent**, within ±3 points (at 1/255: +1.0 points [−0.5, 1.5])."
    open_ = Check("at 4/255", over_seeds(0.01, -0.05, 0.07, 1000))
    told = sentence(Claim("", "", "It is higher.", [*small[:1], open_], exceptions=1))
    assert told.startswith("It is higher: **absent** in 1 of 2 cases, within ±2 points (")


@pytest.mark.parametrize(
    ("ends", "told"),
    [
        ((0.01, 0.03), "Yes, with one layer: under PGD DiffViT's ASR is 2.0 points higher than ViT's."),
        (
            (-0.03, -0.01),
            "Not throughout, with one layer: under PGD DiffViT's ASR is 2.0 points lower than ViT's.",
        ),
        (
            (-0.01, 0.015),
            "Hardly, with one layer: under PGD DiffViT's ASR is 0.2 points higher than ViT's, too",
        ),
        (
            (-0.05, 0.07),
            "That is open with one layer: under PGD DiffViT's ASR is 1.0 points higher than ViT's, within",
        ),
    ],
)
def test_the_plain_answer_follows_from_the_verdict(ends, told):
    check = Check("at 1/255", over_seeds(sum(ends) / 2, *ends, 1000))
    result = replace(results()[-2], claims=[replace(HEADLINE, checks=[check])])
    assert answer([result], findings()["questions"][0]).startswith(told)
    assert answer([made_up.empty()], findings()["questions"][0]) == ""


def test_every_answer_has_words_for_every_verdict():
    for question in findings()["questions"]:
        assert {frozenset(phrases) - {"claim"} for phrases in question["answers"]} == {frozenset(LOOKS)}


def test_how_high_the_rates_are_comes_first():
    first = results()[-2]
    assert first.artefact
    noted = [replace(first, artefact=replace(first.artefact, notes=["It is 15 %.", "More."])), results()[-1]]
    told = summary(noted)
    assert told[told.index("## Is differential attention more fragile?") + 2] == "It is 15 %."
    assert headlines(noted)[0].endswith("(at 1/255 to 2/255). It is 15 %.")


def test_the_parts_of_the_difference_are_told_once_they_can_be_judged():
    causes = results()[-1]
    assert causes.artefact
    noted = replace(causes, artefact=replace(causes.artefact, notes=["It is mostly the margins."]))
    told = summary([noted])
    assert told[told.index("## Why?") + 2].startswith("- The angle")  # a table has the parts
    assert headlines([noted])[1] == "  - It is mostly the margins."
    early = replace(noted, claims=[replace(OPEN, checks=[Check("angle − size", None)])])
    assert summary([early]) == []


def test_an_unfinished_study_is_a_line_of_a_list():
    begun = replace(
        made_up.table_1(), done=3, total=248, claims=[replace(HEADLINE, checks=[Check("", None)])]
    )
    text = markdown_summary([begun, made_up.table_1()])
    assert text.count("## Table 1") == 1
    assert "## Not finished\n\n- Table 1: " in text
    assert text.endswith("(3 of 248 cells)\n")


def test_a_page_opens_with_them_and_a_readme_shows_ten_lines(tmp_path):
    page, readme = tmp_path / "docs" / "findings.md", tmp_path / "README.md"
    page.parent.mkdir()
    write_findings(results(), page)
    text = page.read_text(encoding="utf-8")
    order = [
        "# What the studies found",
        "## Is differential",
        "Yes, with one layer",
        "- DiffViT is more",
        "## How sure",
        counted(results()),
        "The claims were tested",
        "<picture>",
        "## Claims",
        "| claim |",
        "## Table 1",
    ]
    assert [text.index(each) for each in order] == sorted(text.index(each) for each in order)
    assert 'srcset="claims-narrow.svg"' in text
    readme.write_text(
        "before\n<!-- findings -->\nformer lines\n<!-- /findings -->\nafter\n", encoding="utf-8"
    )
    replace_findings(results(), readme, page.parent)
    shown = readme.read_text(encoding="utf-8")
    assert shown.startswith("before\n<!-- findings -->\n<picture>")
    assert shown.endswith("<!-- /findings -->\nafter\n")
    assert 'src="docs/claims.svg"' in shown
    assert "former lines" not in shown
    assert len([line for line in shown.splitlines() if line]) <= 10 + 5
    again = readme.read_bytes()
    replace_findings(results(), readme, page.parent)
    assert readme.read_bytes() == again
    readme.write_text("no marks", encoding="utf-8")
    with pytest.raises(UserError, match="expected a line <!-- findings -->"):
        replace_findings(results(), readme, page.parent)


def test_a_picture_is_kept_while_its_data_stay_the_same(tmp_path):
    page, picture = tmp_path / "findings.md", tmp_path / "claims.svg"
    write_findings(results(), page)
    drawn = picture.read_text(encoding="utf-8")
    elsewhere = drawn.replace("10.4", "10.40")  # as another processor or matplotlib may write it
    picture.write_text(elsewhere + "\n", encoding="utf-8")
    write_findings(results(), page)
    assert picture.read_text(encoding="utf-8") == elsewhere + "\n"
    write_findings(results()[:-1], page)
    assert picture.read_text(encoding="utf-8") not in (drawn, elsewhere)
