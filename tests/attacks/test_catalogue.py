"""The settings of an attack, from the signature and docstring of its function."""

import re

import pytest

from antiphase.attacks.catalogue import attack_settings, find_attack, parse_settings
from antiphase.errors import UserError
from antiphase.registry import ATTACKS


@pytest.mark.parametrize("name", [name for name, where in ATTACKS.items() if isinstance(where, str)])
def test_every_setting_has_a_kind_and_a_line_of_help(name):
    for setting, (kind, _, help_line) in attack_settings(name).items():
        assert kind in (int, float, bool, str) or all(isinstance(one, str) for one in kind), setting
        assert len(help_line) > 8, setting
        assert "\n" not in help_line


def test_attack_settings_are_those_of_the_named_attack():
    assert attack_settings("apgd-t")["targets"] == (int, 9, attack_settings("apgd-ce")["targets"].help)
    assert attack_settings("pgd")["step_size"][:2] == (float, "ε/4")
    assert attack_settings("pgd")["schedule"].kind == ("constant", "linear", "cosine")
    assert "budgets" not in attack_settings("square")


@pytest.mark.parametrize(
    ("name", "texts", "settings"),
    [
        ("pgd", ["momentum=0.9", "steps = 7"], {"momentum": 0.9, "steps": 7}),
        ("pgd", ["step_size=1/255", "random_start=false"], {"step_size": 1 / 255, "random_start": False}),
        ("pgd", ["objective=dlr", "schedule=linear"], {"objective": "dlr", "schedule": "linear"}),
        ("square", ["rescale_schedule=none", "p_init=0.5"], {"rescale_schedule": None, "p_init": 0.5}),
        ("autoattack", ["version=plus"], {"version": "plus"}),
        ("noise", [], {}),
    ],
)
def test_parse_settings_reads_what_the_function_takes(name, texts, settings):
    assert parse_settings(name, texts) == settings
    find_attack(name, **parse_settings(name, texts))


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (
            "pgd",
            "momentun=0.9",
            "attack 'pgd' has no setting 'momentun': expected NAME=VALUE with a NAME of steps,",
        ),
        ("pgd", "momentum", "setting 'momentum': expected NAME=VALUE with a NAME of steps,"),
        ("pgd", "steps=many", "steps 'many': expected an integer"),
        ("pgd", "steps=0", "steps 0: expected an integer of at least 1"),
        ("pgd", "momentum=-1", "momentum -1.0: expected a number of at least 0"),
        ("pgd", "step_size=1/0", "step_size '1/0': expected a number or none"),
        ("pgd", "random_start=2", "random_start '2': expected true or false"),
        ("pgd", "schedule=square", "schedule 'square': expected 'constant', 'linear' or 'cosine'"),
        ("apgd-ce", "budgets=0.1", "attack 'apgd-ce' has no setting 'budgets'"),
    ],
)
def test_parse_settings_rejects_in_one_line(name, text, message):
    with pytest.raises(UserError, match=re.escape(message)) as error:
        parse_settings(name, [text])
    assert "\n" not in str(error.value)


def test_find_attack_rejects_a_value_out_of_range():
    with pytest.raises(UserError, match="steps 0: expected an integer of at least 1"):
        find_attack("pgd", steps=0)
