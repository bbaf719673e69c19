"""What is said of the time that a measurement takes."""

import pytest

from antiphase.data import load_data
from antiphase.errors import UserError
from antiphase.models import load_model
from antiphase.runs.expectation import check_ends, passes, sense_expectation
from antiphase.runs.sense_plan import SensePlan


def test_a_year_is_the_limit():
    check_ends(364 * 86400, "much")
    with pytest.raises(UserError, match=r"^much: about 2 years; expected at most one"):
        check_ends(730 * 86400, "much")


@pytest.mark.parametrize(
    ("part", "field"),
    [("alignment", "probes"), ("lipschitz", "samples"), ("lipschitz", "points"), ("depth", "steps")],
)
def test_twice_as_much_of_what_a_part_uses_costs_more(part, field):
    few, many = SensePlan(**{field: 40}), SensePlan(**{field: 80})
    assert passes(part, few, 3) < passes(part, many, 3)


def test_what_is_long_is_said_and_what_is_short_is_not(monkeypatch):
    models, images = [load_model("specimen:vit-0")], load_data("specimen-fashion-mnist", limit=2)
    seconds = iter([7.0, 900.0])
    monkeypatch.setattr("antiphase.runs.expectation.sense_seconds", lambda *_: next(seconds))
    short, long = (sense_expectation(models, images, SensePlan(), ["depth"], 8) for _ in range(2))
    assert short is None
    assert long == "about 15 min 0 s for 2 images, less what is on disk"
