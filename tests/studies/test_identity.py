"""What makes a cell the same cell."""

import linecache
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import ClassVar

import pytest

from antiphase.errors import UserError
from antiphase.studies.cells import Accuracy, Attack, Own, Sense, TrainVit, given
from antiphase.studies.spec import profile
from antiphase.studies.store import described, identity
from tests.studies.toy_cells import Measure, Train

# what these cells were called when stores were first written; a change here makes every store useless
_MODEL = TrainVit(
    model="diffvit",
    data="digits",
    sizes={"depth": 2, "lambda_init": 0.5},
    recipe={"epochs": 3},
    adversary={"eps": 1 / 255},
)
GOLDEN = {
    "f3f7aa09fb938f5f": TrainVit(model="diffvit", data="digits"),
    "e374a04c6be8a6f3": _MODEL,
    "3a237e8b732bc394": Attack(model=_MODEL, data="digits", eps=(1 / 255, 2 / 255), limit=20, settings={"steps": 5}),
    "5ba301ac469954df": Sense(model=_MODEL, data="digits", part="alignment", limit=3, settings={"probes": 4}),
}


def test_fields_at_their_defaults_are_left_out():
    assert described(Train(number=3)) == {"cell": "Train", "version": 1, "fields": {"number": 3}}
    assert identity(Train(number=3, rate=0.5)) == identity(Train(number=3))
    assert identity(Train(number=3, rate=0.25)) != identity(Train(number=3))


def test_a_field_that_is_added_later_with_a_default_changes_nothing():
    @dataclass(frozen=True, kw_only=True)
    class Train:
        version: ClassVar[int] = 1
        number: int
        added: str = "as before"

    assert identity(Train(number=3)) == identity(globals()["Train"](number=3))


def test_a_new_version_is_another_cell():
    @dataclass(frozen=True, kw_only=True)
    class Train:
        version: ClassVar[int] = 2
        number: int

    assert identity(Train(number=3)) != identity(globals()["Train"](number=3))


def test_what_changes_in_a_cell_that_is_needed_changes_the_cells_that_need_it():
    one, two = (Measure(model=Train(number=1, rate=rate)) for rate in (0.5, 0.75))
    assert identity(one) != identity(two)
    assert identity(one) == identity(replace(two, model=Train(number=1)))


def _double(seed):
    return seed * 2


def _triple(seed):
    return seed * 3


def test_the_text_of_a_users_function_is_part_of_it():
    one, two = (Own(build=build, series="x", image_shape=(1, 8, 8), num_classes=2) for build in (_double, _triple))
    assert identity(one) != identity(two)


def test_weights_in_a_folder_are_part_of_it(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"one")
    before = identity(given(str(tmp_path), "x"))
    (tmp_path / "model.safetensors").write_bytes(b"two")
    assert identity(given(str(tmp_path), "x")) != before


def test_images_in_a_folder_are_part_of_it(tmp_path):
    from PIL import Image

    from antiphase.studies.cells.models import image_content

    for name in ("cats", "dogs"):
        (tmp_path / name).mkdir()
        Image.new("RGB", (4, 4)).save(tmp_path / name / "1.png")
    cell = Accuracy(model=given("specimen:vit-0", "ViT"), data=f"folder:{tmp_path}")
    before = identity(cell)
    Image.new("RGB", (4, 4), "red").save(tmp_path / "dogs" / "2.png")
    image_content.cache_clear()
    assert identity(replace(cell)) != before


@pytest.mark.parametrize("expected", GOLDEN)
def test_golden_identities(expected):
    assert identity(GOLDEN[expected]) == expected


def test_all_kinds_of_cells_tell_themselves_apart():
    model = TrainVit(model="vit", data="digits")
    every = [
        model,
        Attack(model=model, data="digits", eps=(0.1,)),
        Accuracy(model=model, data="digits"),
        *(
            Sense(model=model, data="digits", part=part, limit=3)
            for part in ("alignment", "alignment-perturbed", "depth")
        ),
    ]
    assert len({identity(cell) for cell in every}) == len(every)


def test_a_field_that_cannot_be_written_down_is_refused():
    with pytest.raises(UserError, match="in a cell"):
        identity(Train(number=object()))  # type: ignore[arg-type]


def test_an_edited_file_does_not_change_cells_of_the_running_process(tmp_path):
    from antiphase.studies.plan import load_study

    text = (files("antiphase.studies") / "example.py.txt").read_text(encoding="utf-8")
    path = tmp_path / "mine.py"
    path.write_text(text, encoding="utf-8")
    cells = load_study(path).cells(profile("smoke"))
    before = [identity(cell) for cell in cells]
    path.write_text(text.replace('objective="margin"', 'objective="dlr"'), encoding="utf-8")
    linecache.checkcache()
    assert [identity(cell) for cell in cells] == before


def test_what_affects_no_measurement_is_no_part_of_it():
    one = Attack(model=given("specimen:vit-0", "ViT"), data="digits", eps=(0.1,))
    other = replace(one, model=given("specimen:vit-0", "another name", depth=7))
    assert identity(one) == identity(other)


def test_a_search_in_low_precision_is_what_it_has_come_to_mean():
    cell = Attack(model=given("specimen:vit-0", "ViT"), data="digits", eps=(0.1,))
    low = described(replace(cell, precision="bf16"))
    assert low["fields"]["precision"] == "bf16"
    assert low["content"] == {"precision": "bf16, what is near in float32"}
    assert "content" not in described(cell)


def test_square_with_few_queries_is_another_cell_since_its_schedule_is_rescaled():
    def cell(**settings):
        return Attack(model=_MODEL, data="digits", eps=(1 / 255,), limit=20, attack="square", settings=settings)

    assert cell(queries=1_000).content() == {"rescale_schedule": "chosen"}
    assert cell(queries=1_000, rescale_schedule=False).content() == {}
    assert cell(queries=5_000).content() == cell().content() == {}
