"""The registers of claims: each claim of a study is in one, each of a paper is tested or has a reason why not."""

import tomllib
from importlib.resources import files

import pytest

from antiphase.statistics.seeds_by_images import CrossedEstimate, Spread
from antiphase.studies.claims import Check, Claim
from antiphase.studies.paper_settings import RIGHT, UNTESTED, WRONG, effects, outcome

PAPERS = files("antiphase.studies.papers")


def read(paper, name):
    return tomllib.loads((PAPERS / paper / name).read_text(encoding="utf-8"))


def stated(words):
    return {f"{study}/{claim}" for study, entry in words.items() if "claims" in entry for claim in entry["claims"]}


@pytest.fixture(params=["robustness", "diffclip"])
def paper(request):
    return request.param


def test_register_names_every_claim_of_the_papers_studies_and_no_other(paper):
    register = read(paper, "claims.toml")
    tested = {claim for entry in register["claims"] for claim in entry.get("claims", ())}
    own_claims = stated(tomllib.loads((files("antiphase.studies.own") / "studies.toml").read_text(encoding="utf-8")))
    assert not tested & set(register["ours"])
    assert (tested | set(register["ours"])) - own_claims == stated(read(paper, "studies.toml"))


def test_outcome_of_a_claim_is_the_joint_verdict_of_what_tests_it():
    def claim(value):
        estimate = CrossedEstimate(value, value - 0.01, value + 0.01, 90, Spread(8, 90, 0.004**2, 0.0, 0.0))
        return Claim("", "", "", [Check("a − b", estimate)])

    claims = {"s/yes": claim(0.1), "s/no": claim(-0.1), "s/open": Claim("", "", "", [Check("a − b", None)])}
    told = {
        "holds": {"claims": ["s/yes"]},
        "contradicted": {"claims": ["s/yes", "s/no"]},
        UNTESTED: {"claims": ["s/open", "s/elsewhere"], "why": "Needs a year."},
        RIGHT: {"claims": ["s/open"], "proof": "Right."},
        WRONG: {"proof": "Wrong as printed: a counterexample."},
    }
    for expected, entry in told.items():
        assert outcome(entry, "robustness", claims) == expected
    assert outcome({"claims": ["s/yes"], "proof": "Right."}, "robustness", claims) == "holds"


def test_effects_of_a_claim_are_those_that_the_paper_prints_for_each_difference_or_the_smallest():
    assert effects("diffclip")["diffclip-figure-4/fine-grained"] == (0.057,)
    assert effects("diffclip")["diffclip-table-1/probe-average"] == (0.003,)
    assert effects("diffclip")["diffclip-table-2/retrieval"] == (0.0, 0.007)  # with CC12M
    assert effects("robustness")["table-3/training-lowers-asr"] == (0.0773, 0.1927, 0.4196)
    assert "figure-2a/fragile-at-depth-1" not in effects("robustness")


def test_register_says_of_every_claim_what_tests_it_or_why_nothing_does(paper):
    entries = read(paper, "claims.toml")["claims"]
    names = [entry["name"] for entry in entries]
    assert len(set(names)) == len(names)
    for entry in entries:
        assert {"name", "source", "quote", "kind"} <= entry.keys(), entry["name"]
        assert entry["kind"] in ("theorem", "experiment", "explanation", "general"), entry["name"]
        assert any(entry.get(field) for field in ("claims", "parts", "proof", "why")), entry["name"]
        assert set(entry.get("parts", ())) <= set(names), entry["name"]
