"""The settings of an attack, from the signature of its function."""

import re

import pytest

from antiphase.attacks.catalogue import find_attack, parse_settings
from antiphase.errors import UserError


@pytest.mark.parametrize(
    ("name", "texts", "settings"),
    [
        ("pgd", ["momentum=0.9", "steps = 7"], {"momentum": 0.9, "steps": 7}),
        ("pgd", ["momentum=1"], {"momentum": 1.0}),
        ("pgd", ["step_size=1/255", "random_start=false"], {"step_size": 1 / 255, "random_start": False}),
        ("pgd", ["objective=dlr", "schedule=linear"], {"objective": "dlr", "schedule": "linear"}),
        ("square", ["rescale_schedule=none", "p_init=0.5"], {"rescale_schedule": None, "p_init": 0.5}),
        ("autoattack", ["version=plus"], {"version": "plus"}),
        ("noise", [], {}),
    ],
)
def test_parse_settings_reads_what_the_function_takes(name, texts, settings):
    assert repr(parse_settings(name, texts)) == repr(settings)  # a float where the function takes one
    find_attack(name, **parse_settings(name, texts))


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("pgd", "momentun=0.9", "attack 'pgd' has no setting 'momentun': expected NAME=VALUE with a NAME of steps,"),
        ("pgd", "momentum", "setting 'momentum': expected NAME=VALUE with a NAME of steps,"),
        ("pgd", "steps=many", "steps 'many': expected an integer"),
        ("pgd", "steps=0", "steps 0: expected an integer of at least 1"),
        ("pgd", "momentum=-1", "momentum -1.0: expected a number of at least 0"),
        ("pgd", "step_size=1/0", "step_size '1/0': expected a number above 0 or None"),
        ("pgd", "random_start=2", "random_start '2': expected True or False"),
        ("pgd", "schedule=square", "schedule 'square': expected 'constant', 'linear' or 'cosine'"),
    ],
)
def test_parse_settings_rejects_in_one_line(name, text, message):
    with pytest.raises(UserError, match=re.escape(message)) as error:
        parse_settings(name, [text])
    assert "\n" not in str(error.value)


def test_find_attack_rejects_a_value_out_of_range():
    with pytest.raises(UserError, match="steps 0: expected an integer of at least 1"):
        find_attack("pgd", steps=0)
