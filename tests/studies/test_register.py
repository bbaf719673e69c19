"""The registers of claims: each claim of a study is in one, each of a paper is tested or has a reason why not."""

import tomllib
from importlib.resources import files

import pytest

PAPERS = files("antiphase.studies.papers")


def read(paper, name):
    return tomllib.loads((PAPERS / paper / name).read_text(encoding="utf-8"))


def stated(words):
    return {f"{study}/{claim}" for study, own in words.items() if "claims" in own for claim in own["claims"]}


@pytest.fixture(params=["robustness", "diffclip"])
def paper(request):
    return request.param


def test_register_names_every_claim_of_the_papers_studies_and_no_other(paper):
    register = read(paper, "claims.toml")
    tested = {claim for entry in register["claims"] for claim in entry.get("claims", ())}
    own = stated(tomllib.loads((files("antiphase.studies.own") / "studies.toml").read_text(encoding="utf-8")))
    assert not tested & set(register["ours"])
    assert (tested | set(register["ours"])) - own == stated(read(paper, "studies.toml"))


def test_register_says_of_every_claim_what_tests_it_or_why_nothing_does(paper):
    entries = read(paper, "claims.toml")["claims"]
    names = [entry["name"] for entry in entries]
    assert len(set(names)) == len(names)
    for entry in entries:
        assert {"name", "source", "quote", "kind"} <= entry.keys(), entry["name"]
        assert entry["kind"] in ("theorem", "experiment", "explanation", "general"), entry["name"]
        assert any(entry.get(field) for field in ("claims", "parts", "proof", "why")), entry["name"]
        assert set(entry.get("parts", ())) <= set(names), entry["name"]
