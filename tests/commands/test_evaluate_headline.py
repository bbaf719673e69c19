"""The headline of an evaluation reads every difference on its page."""

from antiphase.commands.evaluate.result import headline as headlined
from antiphase.report.page import TITLE


def headline(told):
    """The title, and the lead with its condition."""
    result = headlined(told)
    assert len(result.title) <= TITLE
    return result.title, f"{result.condition}. {result.lead}"


def summary(*differences):
    """A model and its twin; each difference is (task, metric, headline, value, low, high)."""
    keys = ("task", "metric", "headline", "difference", "low", "high")
    about = {"model": "diffclip", "twin": "clip", "data": "openmoji", "setting": "80", "n": 60, "p": None}
    kinds = {"diffclip": "differential", "clip": "softmax"}
    models = [{"name": name, "attention": kind, "seed": None} for name, kind in kinds.items()]
    number = {"data": "openmoji", "task": "retrieval", "setting": "image", "metric": "R@5", "n": 60}
    number |= {"model": "diffclip", "value": 0.5, "low": 0.4, "high": 0.6, "chance": 0.1}
    return {
        "models": models,
        "results": [number | {"headline": True}],
        "differences": [about | dict(zip(keys, values, strict=True)) for values in differences],
    }


UNDECIDED = ("retrieval", "R@5", True, 0.01, -0.05, 0.07)
PER_CLASS = ("zero-shot", "per class", True, -0.2, -0.5, 0.1)
TOP_1 = ("zero-shot", "top-1", False, -0.467, -0.595, -0.31)
MMVP = ("mmvp", "mean of 9", True, 0.2, 0.1, 0.3)
EPISODES = ("few-shot", "accuracy", True, -0.05, -0.07, -0.03)


def test_a_difference_that_is_decided_is_in_the_title_whichever_metric_it_is_of():
    title, lead = headline(summary(UNDECIDED, PER_CLASS, TOP_1))
    assert title == ("diffclip scores lower than clip in 1 of 3 numbers: −46.7 points [−59.5, −31.0]")
    assert lead.startswith(
        "zero-shot, 80 prompts, top-1 on openmoji, n = 60. All numbers: differences above zero: 0, below: 1, "
    )


def test_nothing_decided_is_said_with_the_number_that_stands_for_its_task():
    title, lead = headline(summary(UNDECIDED, PER_CLASS))
    assert title.startswith("No difference shown between diffclip and clip: +1.0 points [−5.0, 7.0]")
    assert lead.startswith("retrieval")


def test_both_sides_are_named_and_the_other_decided_numbers_listed():
    title, lead = headline(summary(MMVP, PER_CLASS, TOP_1))
    assert title.startswith("diffclip scores higher than clip in 1 of 3 numbers, lower in 1: +20.0 points")
    assert "Decided, too: −46.7 points [−59.5, −31.0]" in lead


def test_few_shot_episodes_do_not_decide_the_title_but_are_not_contradicted():
    title, lead = headline(summary(UNDECIDED, EPISODES))
    assert title.startswith("Undecided between diffclip and clip outside few-shot episodes: +1.0")
    assert "Few-shot episodes, which share their images: differences above zero: 0, below: 1" in lead
    assert "scores lower than clip in 1 of 1 numbers: −5.0 points" in headline(summary(EPISODES))[0]


def test_a_share_of_which_more_is_not_better_decides_nothing():
    more_yes = ("pope", "yes", False, 0.2, 0.1, 0.3)
    unparsed = ("pope", "unparsed", False, 0.2, 0.1, 0.3)
    accuracy = ("pope", "accuracy", True, -0.1, -0.2, 0.0)
    title, lead = headline(summary(more_yes, unparsed, accuracy))
    assert title.startswith("No difference shown between diffclip and clip: −10.0 points")
    assert "All numbers: differences above zero: 0, below: 0, undecided: 1" in lead


def test_a_difference_without_interval_is_undecided():
    title, _ = headline(summary(("zero-shot", "per class", True, -0.5, None, None)))
    assert title.startswith("No difference shown between diffclip and clip: −50.0 points (no interval)")


def test_several_pairs_and_none():
    both = summary(TOP_1)
    others = zip(both["models"], ("other", "its twin"), strict=True)
    both["models"] += [model | {"name": name} for model, name in others]
    both["differences"].append(both["differences"][0] | {"model": "other", "twin": "its twin", "low": -0.7})
    assert headline(both)[0].startswith(
        "2 models score lower than their twins in 2 of 2 numbers: −46.7 points [−59.5, −31.0]"
    )
    assert headline(summary())[0] == "diffclip, clip: image R@5 50.0 % [40.0, 60.0] on openmoji"


def test_numbers_are_decided_together_and_by_their_p_too():
    barely = ("zero-shot", "top-1", True, 0.1, 0.002, 0.198)  # p = 0.046
    assert headline(summary(barely))[0].startswith("diffclip scores higher than clip in 1 of 1")
    assert headline(summary(barely, UNDECIDED))[0].startswith("No difference shown")
    not_by_p = summary(MMVP)
    not_by_p["differences"][0]["p"] = 0.07
    assert headline(not_by_p)[0].startswith("No difference shown between diffclip and clip: +20.0 points [10.0")


def test_a_few_training_seeds_leave_it_undecided():
    told = summary(TOP_1)
    told["models"] = [
        {"name": f"{name}-{seed}", "seed": seed, "attention": "differential" if name == "diffclip" else "softmax"}
        for name in ("diffclip", "clip")
        for seed in (0, 1)
    ]
    (one,) = told["differences"]
    told["differences"] = [one | {"model": f"diffclip-{seed}", "twin": f"clip-{seed}"} for seed in (0, 1)]
    assert headline(told)[0].startswith("Undecided between diffclip and clip with 2 training seeds: −46.7")


def test_the_figure_has_the_numbers_that_stand_for_their_tasks_and_that_of_the_title():
    told = summary(UNDECIDED, PER_CLASS, TOP_1)
    differences, quoted = headlined(told).plot().figure.axes
    drawn = {
        line.get_text().partition(" ")[0]: line.get_weight() for line in differences.texts if line.get_text().strip()
    }
    assert drawn == {"−46.7": "bold", "+1.0": "normal", "−20.0": "normal"}
    assert quoted.get_title(loc="left") == "80 prompts, top-1, openmoji, %"
    (rates,) = headlined(summary()).plot().figure.axes
    levels = [line.get_xdata()[0] for line in rates.lines if line.get_linestyle() == "--"]
    assert levels == [10.0]  # chance
