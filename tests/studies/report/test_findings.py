"""What a reader sees first: the picture of all claims, the paragraphs above the tables, and the block of a README."""

import itertools
import re
from dataclasses import replace

import pytest

from antiphase.errors import UserError
from antiphase.studies.claims import Check, Claim, no_worse
from antiphase.studies.paper_settings import RIGHT, UNTESTED, WRONG, entries
from antiphase.studies.report.figures import text_svg
from antiphase.studies.report.findings import QUESTIONS, replace_findings, summary, write_findings
from antiphase.studies.report.forest import LOOKS, answer_lines, forest_figure, forest_lines
from antiphase.studies.report.tables import counts_sheet
from antiphase.studies.report.words import TESTED, deciding, tally
from tests.studies.report import made_up_studies as made_up
from tests.studies.report.made_up_studies import over_seeds

HEADLINE = Claim(
    "fragile-at-depth-1",
    "Section 5.2, Figure 2(a)",
    "DiffViT is more fragile at λ_init 0.8.",
    [Check("at 1/255", over_seeds(0.05, 0.04, 0.06, 1000)), Check("at 2/255", over_seeds(0.03, 0.02, 0.04, 1000))],
)
BELOW = Claim("zero-shot", "Table 2", "It gains.", [Check("a − b", over_seeds(0.0, -0.01, 0.01, 50))], effects=(0.02,))
OPEN = Claim(
    "angle-raises-asr",
    "ours",
    "The angle matters more than the size.",
    [Check("angle − size", over_seeds(0.1, -0.1, 0.3, 50), "")],
    seconds=90.0,
)


def results():
    studies = made_up.studies()
    return [
        *studies,
        replace(made_up.table_1(), name="figure-2a", claims=[HEADLINE, BELOW]),
        replace(made_up.table_1(), name="causes", claims=[OPEN]),
    ]


def test_a_claim_is_drawn_by_the_check_that_decides_it():
    assert deciding(HEADLINE) is HEADLINE.checks[1]
    both = Claim("x", "s", "y", [HEADLINE.checks[0], Check("no", over_seeds(-0.05, -0.06, -0.04, 100))])
    assert both.verdict == "contradicted"
    assert deciding(both) is both.checks[1]
    (line,) = forest_lines([replace(made_up.table_1(), claims=[both])])
    assert line.numbers[1] == "the contradicted one of 2"
    assert deciding(Claim("x", "s", "y", [Check("none", None)])) is None
    least = Claim("x", "s", "y", [no_worse(Check("no", over_seeds(-0.01, -0.02, 0.0, 100)), 0.03)])
    (line,) = forest_lines([replace(made_up.table_1(), claims=[least])])
    assert (line.verdict, line.numbers) == ("holds", ("−1.0 points [−2.0, 0.0]", "above −3.0"))  # two lines: one is cut


def test_lines_are_grouped_by_unit_and_section_and_all_verdicts_are_there():
    lines = forest_lines(results())
    assert {line.verdict for line in lines} == set(LOOKS)
    assert [line.unit for line in lines] == sorted((line.unit for line in lines), reverse=True)
    keys = [(line.unit, line.section) for line in lines]
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
    figure = forest_figure(lines, narrow=narrow)
    points, others = figure.axes
    intervals = [line for axes in figure.axes for line in axes.lines if line.get_linewidth() == 1.8]
    assert len(intervals) == len(lines)
    shown = [line for line in lines if line.unit == "points"]
    drawn = [line for line in points.lines if line.get_linewidth() == 1.8]
    for line, interval in zip(shown, drawn, strict=True):
        assert interval.get_xdata() == pytest.approx((line.low, line.high))
        assert interval.get_color() == LOOKS[line.verdict][0]
    heights = [float(interval.get_ydata()[0]) for interval in drawn]
    assert all(two - one > 1.4 for one, two in itertools.pairwise(heights))  # lines of text
    assert {"Sensitivity paper, Section 5.2"} <= {text.get_text() for text in points.texts}
    for axes in (points, others):
        assert max(text.get_position()[1] for text in axes.texts) < axes.get_ylim()[0]
    assert figure.get_figwidth() == (3.9 if narrow else 10.4)


def test_its_text_is_text():
    svg = text_svg(forest_figure(forest_lines(results())))
    assert "DiffViT is more fragile at λ_init 0.8." in svg
    assert "Verdana" in svg
    assert len(svg) < 60_000


def page(*results):
    return summary(results, "findings.md", picture=False)


def test_the_questions_are_answered_with_numbers_and_prices():
    told = page(*results())
    assert [line for line in told.splitlines() if line.startswith("## ")][:4] == [
        "## Is differential attention more fragile?",
        "## Why?",
        "## What this does not show",
        "## How sure is that?",
    ]
    first = (
        "Yes for its first form, DiffViT, in small models of one layer, from both initial weights, uniform and "
        "N(0, 0.02): "
        "PGD changes more of DiffViT's predictions than of ViT's (1/255: +5.0 points [4.0, 6.0]; "
        "2/255: +3.0 [2.0, 4.0])."
    )
    second = (
        "In the small models, from uniform initial weights, whether opposed gradients of the two maps, the paper's "
        "explanation, raise it is open "
        "(angle − size: +0.10 [−0.10, 0.30])."
    )
    assert first in told
    assert second in told
    assert "16 training seeds and " in told
    assert "(113 seeds, 2.8 core-hours)" in told
    assert "## Is" not in page(made_up.empty())
    assert f"\n| DiffCLIP | {len(entries('diffclip'))} |" in told


def test_readme_has_the_answers_in_brief_with_what_decides_them():
    over = replace(HEADLINE, checks=[*HEADLINE.checks[:1], replace(HEADLINE.checks[1], decides=False)])
    block = summary([replace(results()[-2], claims=[over]), results()[-1]], "readme.md", prefix="docs/")
    yes = "differential attention more fragile?** Its first form is, in one-layer models under PGD (+5.0 [4.0, 6.0]; "
    assert yes in block
    assert "- **Why?** Whether opposed gradients, the paper's explanation, add to it, to first order, is open" in block
    assert "chosen: largest ASR gap of three" in block
    assert 'src="docs/answers.svg"' in block
    assert "| claims of |" not in block
    (depth, angle) = answer_lines([replace(results()[-2], claims=[over]), results()[-1]], QUESTIONS)
    assert depth.numbers == ("+5.0 points [4.0, 6.0]",)
    assert depth.beside == pytest.approx((3.0,))
    assert (depth.section, angle.section) == ("Is differential attention more fragile?", "Why?")
    axes = forest_figure([depth]).axes[0]
    assert [list(line.get_xdata()) for line in axes.lines if line.get_marker() == "."] == [pytest.approx([3.0])]


def test_further_claims_of_a_question_follow_its_answer():
    clips = replace(HEADLINE, name="zero-shot", statement="DiffCLIP has a higher zero-shot accuracy.")
    told = page(*results(), replace(made_up.table_1(), name="diffclip-table-2", claims=[clips]))
    assert "## Does it help a CLIP?" not in told  # no claim that answers the question was tested
    better = replace(clips, name="more-focused")
    told = page(
        replace(made_up.table_1(), name="diffclip-table-2", claims=[clips]),
        replace(made_up.table_1(), name="diffclip-attention", claims=[better]),
    )
    assert "DiffCLIP's attention maps single out the object better (1/255: +5.0 points" in told
    assert "\n- DiffCLIP has a higher zero-shot accuracy: **holds** (1/255: +5.0 points" in told


def test_verdicts_are_counted_for_each_paper():
    whole = made_up.table_1()
    few = Claim("", "", "", [Check("at 1/255", over_seeds(0.1, 0.05, 0.15, 100, seeds=5))])
    untested = Claim("", "", "", [Check("", None)])
    elsewhere = replace(HEADLINE, source="not in the paper")
    of_the_paper = replace(OPEN, source="Section 4.1", paper="robustness")
    sheet = counts_sheet(
        [
            replace(whole, claims=[HEADLINE, elsewhere, untested]),
            replace(whole, paper="own", claims=[of_the_paper]),
            replace(whole, paper="diffclip", claims=[HEADLINE, few]),
        ]
    )
    assert sheet.columns[2:] == (*TESTED, RIGHT, WRONG, UNTESTED)
    counted = {row[0].text: [int(field.text) for field in row[1:]] for row in sheet.rows}
    for paper, name in (("robustness", "Sensitivity paper"), ("diffclip", "DiffCLIP")):
        assert counted[name][0] == sum(counted[name][1:]) == len(entries(paper))
    assert counted["Our own questions"] == [1, 1, 0, 0, 0, 0, 0, 0, 0]
    assert tally([HEADLINE, few]) == "holds 1, too few seeds 1"
    assert forest_lines([replace(whole, claims=[few])]) == []
    assert "| undecided (too few seeds; 8 seeds) |" in page(replace(whole, claims=[few]))


@pytest.mark.parametrize(
    ("ends", "told"),
    [
        ((0.01, 0.03), "Yes for its first form, DiffViT, in small models of one layer"),
        ((-0.03, -0.01), "No, in small models of one layer"),
        ((-0.01, 0.015), "Hardly, in small models of one layer"),
        ((-0.05, 0.07), "That is open for small models of one layer"),
    ],
)
def test_the_plain_answer_follows_from_the_verdict(ends, told):
    check = Check("at 1/255", over_seeds(sum(ends) / 2, *ends, 1000))
    assert f"\n{told}" in page(replace(results()[-2], claims=[replace(HEADLINE, checks=[check])]))


def test_every_answer_has_words_for_every_verdict():
    for question in QUESTIONS:
        for words in question["answers"]:
            for phrases in (set(words) - {"claim", "row", "brief"}, set(words.get("brief", LOOKS))):
                assert {"holds", "contradicted", "undecided"} <= phrases <= set(LOOKS)  # the last for what is left out
    assert sum("row" in words for question in QUESTIONS for words in question["answers"]) == 11


def test_each_study_has_a_page_with_its_figures_for_light_and_dark(tmp_path):
    file = tmp_path / "findings.md"
    write_findings(results(), file)
    text = file.read_text(encoding="utf-8")
    pages = re.findall(r"^- \[.*?\]\((findings/.*?\.md)\)$", text, re.MULTILINE)
    assert len(pages) == len(set(pages)) == text.partition("## Studies")[2].count("](findings/")
    for page in (tmp_path / name for name in pages):
        shown = page.read_text(encoding="utf-8")
        assert re.match(r"# .+\n", shown)
        for target in re.findall(r"\]\(([^)#\s]+\.(?:svg|md))", shown):
            assert (page.parent / target).exists(), target
        for anchor in re.findall(r"\]\(#(claim-\d+)\)", shown):
            assert f'<a id="{anchor}">' in shown
    for claim in re.findall(r"\(findings/([^)#]+)#(claim-\d+)\)", text):
        assert f'id="{claim[1]}"' in (tmp_path / "findings" / claim[0]).read_text(encoding="utf-8")
    pictures = sorted((tmp_path / "findings").glob("*.svg"))
    assert pictures
    for picture in pictures:
        assert "prefers-color-scheme:dark" in picture.read_text(encoding="utf-8")


def test_the_first_note_of_a_study_follows_the_answer_once_it_is_judged():
    first = results()[-2]
    noted = replace(first, artefact=replace(first.artefact, notes=["It is 15 %.", "More."]))
    assert "[2.0, 4.0]).\n\nIt is 15 %.\n\n## What this" in page(noted)
    early = replace(noted, claims=[replace(HEADLINE, checks=[Check("at 1/255", None)])])
    assert "## How sure" not in page(early)


def test_an_unfinished_study_is_a_line_of_a_list():
    begun = replace(made_up.table_1(), done=3, total=248, claims=[replace(HEADLINE, checks=[Check("", None)])])
    text = page(begun, made_up.table_1())
    assert text.partition("## Studies")[2].count("- Table 1: ") == 2  # finished, and not
    assert "## Not finished\n\n- Table 1: " in text
    assert text.endswith("(3 of 248 cells)\n")


def test_findings_and_readme_are_written_and_a_picture_is_kept_while_its_data_stay_the_same(tmp_path):
    file, readme = tmp_path / "docs" / "findings.md", tmp_path / "README.md"
    picture = file.with_name("claims.svg")
    file.parent.mkdir()
    write_findings(results(), file)
    text = file.read_text(encoding="utf-8")
    assert text.index("<picture>") < text.index("## Claims") < text.index("| claim |") < text.index("## Studies")
    assert 'srcset="claims-narrow.svg"' in text
    elsewhere = picture.read_text(encoding="utf-8").replace("10.4", "10.40")  # as another matplotlib may write it
    picture.write_text(elsewhere, encoding="utf-8")
    *others, drawn = HEADLINE.checks
    for change, kept in [(0.0, True), (1e-15, True), (1e-3, False)]:  # the last digits depend on the processor
        moved = replace(drawn, estimate=replace(drawn.estimate, value=drawn.estimate.value + change))
        changed = replace(HEADLINE, checks=[*others, moved])
        with_moved = [
            replace(one, claims=[changed if claim == HEADLINE else claim for claim in one.claims]) for one in results()
        ]
        write_findings(with_moved, file)
        assert (picture.read_text(encoding="utf-8") == elsewhere) is kept
    write_findings(results()[:-1], file)
    assert picture.read_text(encoding="utf-8") != elsewhere

    readme.write_text("before\n<!-- findings -->\nformer\n<!-- /findings -->\nafter\n", encoding="utf-8")
    for _ in range(2):
        replace_findings(results(), readme, file.parent)
        shown = readme.read_text(encoding="utf-8")
        assert shown.startswith("before\n<!-- findings -->\n<picture>")
        assert shown.endswith("<!-- /findings -->\nafter\n")
        assert 'src="docs/answers.svg"' in shown
        assert "former" not in shown
    readme.write_text("no marks", encoding="utf-8")
    with pytest.raises(UserError, match="expected a line <!-- findings -->"):
        replace_findings(results(), readme, file.parent)
