"""Masks of objects: from COCO's polygons and run lengths, and of pairs of emoji."""

import json

import numpy as np
import pytest
import torch

from antiphase.data import load_pairs
from antiphase.data.captions import coco_objects
from antiphase.data.emoji import concept_of, held_out, on_white
from antiphase.data.images import ImageObjects, polygon_mask, region_of, run_length_mask, run_lengths
from antiphase.errors import UserError

HEIGHT, WIDTH = 11, 17
SQUARE = [2.0, 3.0, 6.0, 3.0, 6.0, 8.0, 2.0, 8.0]
CORNER = [13.0, 0.0, 17.0, 0.0, 17.0, 4.0]


@pytest.mark.parametrize("seed", range(5))
def test_a_polygon_has_the_pixels_from_whose_centre_a_ray_leaves_it(seed):
    draw = np.random.default_rng(seed)
    angles = np.sort(draw.uniform(0, 2 * np.pi, 9))
    radii = draw.uniform(1, 9, 9)  # a star: it does not cross itself, and reaches out of the image
    points = np.array([8.3, 5.2]) + radii[:, None] * np.c_[np.cos(angles), np.sin(angles)]
    expected = np.zeros((HEIGHT, WIDTH), bool)
    for row, column in np.ndindex(HEIGHT, WIDTH):
        for (x, y), (next_x, next_y) in zip(points, np.roll(points, -1, 0), strict=True):
            if (y <= row + 0.5) != (next_y <= row + 0.5):  # an edge crosses the row of centres
                expected[row, column] ^= x + (row + 0.5 - y) / (next_y - y) * (next_x - x) <= column + 0.5
    mask = polygon_mask(points, HEIGHT, WIDTH)
    assert np.array_equal(mask, expected)
    assert np.array_equal(polygon_mask(points[::-1], HEIGHT, WIDTH), mask)


def test_run_lengths_go_down_the_columns():
    draw = np.random.default_rng(0)
    for mask in (draw.random((HEIGHT, WIDTH)) < 0.4, np.zeros((3, 2), bool), np.ones((3, 2), bool)):
        counts, on, slow = run_lengths(mask), False, []
        for count in counts:  # COCO: off first
            slow += [on] * count
            on = not on
        assert [mask[index % len(mask), index // len(mask)] for index in range(mask.size)] == slow
        assert np.array_equal(run_length_mask(counts, *mask.shape), mask)


def test_objects_of_one_name_are_one_mask():
    both = ImageObjects("cat", ((tuple(SQUARE), tuple(CORNER)), (5, 2, HEIGHT * WIDTH - 7)), HEIGHT, WIDTH)
    mask = both.mask()
    assert mask[3:8, 2:6].all()
    assert mask[5:7, 0].all()
    assert mask.sum() == 20 + 2 + polygon_mask(np.reshape(CORNER, (-1, 2)), HEIGHT, WIDTH).sum()


@pytest.mark.parametrize(
    "bad",
    [
        [[1.0, 2.0, 3.0, 4.0]],
        [[1.0] * 7],
        {"counts": [3, 4], "size": [HEIGHT, WIDTH]},
        {"counts": "a%b", "size": [HEIGHT, WIDTH]},
        {"counts": [HEIGHT * WIDTH], "size": [WIDTH, HEIGHT]},
        {"counts": [-1, HEIGHT * WIDTH + 1], "size": [HEIGHT, WIDTH]},
    ],
)
def test_what_is_no_segmentation_of_the_image_is_refused(bad):
    with pytest.raises(ValueError, match="expected"):
        region_of(bad, HEIGHT, WIDTH)


NOTES = (  # image, category, crowd, area, segmentation
    (7, 2, 0, 20.0, [SQUARE]),
    (7, 1, 0, 12.0, [CORNER]),
    (7, 1, 0, 12.0, [SQUARE, CORNER]),  # 24 in all: larger than category 2
    (7, 2, 1, 900.0, {"counts": [0, 4, HEIGHT * WIDTH - 4], "size": [HEIGHT, WIDTH]}),
    (7, 3, 0, 1.0, [CORNER]),
    (9, 3, 0, 5.0, [SQUARE]),
    (9, 2, 1, 50.0, {"counts": [HEIGHT * WIDTH], "size": [HEIGHT, WIDTH]}),
    (42, 3, 0, 5.0, [SQUARE]),
    (42, 1, 0, 5.0, [CORNER]),
)


@pytest.fixture
def coco(tmp_path, write_image):
    images = [
        {"id": number, "file_name": f"{number:012d}.jpg", "height": HEIGHT, "width": WIDTH} for number in (42, 9, 7)
    ]
    names = ("image_id", "category_id", "iscrowd", "area", "segmentation")
    notes = [{"id": index} | dict(zip(names, note, strict=True)) for index, note in enumerate(NOTES)]
    categories = [{"id": 3, "name": "dog"}, {"id": 1, "name": "cat"}, {"id": 2, "name": "potted plant"}]
    path = tmp_path / "annotations" / "instances_val2014.json"
    path.parent.mkdir()
    path.write_text(json.dumps({"images": images, "annotations": notes, "categories": categories}))
    for image in images:
        write_image(tmp_path / "val2014" / image["file_name"], image["id"])
    return tmp_path, path


def test_coco_has_the_two_largest_categories_of_an_image_with_their_segmentations(coco):
    root, _ = coco
    pairs = coco_objects(root, "test")
    assert (pairs.name, pairs.split) == ("coco-objects", "val")
    assert pairs.captions == (("cat", "potted plant"), ("cat", "dog"))  # a tie goes to the lower category
    assert pairs.skipped == ("val2014/000000000009.jpg has fewer than two categories",)  # the other is a crowd
    (cat, plant), _ = pairs.objects
    square, corner = (polygon_mask(np.reshape(part, (-1, 2)), HEIGHT, WIDTH) for part in (SQUARE, CORNER))
    assert np.array_equal(cat.mask(), square | corner)
    square[:4, 0] = True  # the crowd
    assert np.array_equal(plant.mask(), square)
    last = load_pairs("coco-objects", split="val", root=root).take([1])
    assert [one.name for one in last.objects[0]] == ["cat", "dog"]


def test_damaged_segmentations_are_one_line(coco):
    root, path = coco
    told = json.loads(path.read_text())
    told["annotations"][3]["segmentation"]["counts"] = [1]
    path.write_text(json.dumps(told))
    with pytest.raises(
        UserError, match=r"instances_val2014\.json: expected the published layout .*run lengths"
    ) as caught:
        coco_objects(root, "val")
    assert "\n" not in str(caught.value)
    path.unlink()
    with pytest.raises(UserError, match=r"annotations_trainval2014\.zip"):
        coco_objects(root, "val")


def test_a_scene_shows_two_held_out_emoji_where_their_masks_are():
    scenes = load_pairs("emoji-scenes", split="test", progress=False)
    names = [name for two in scenes.captions for name in two]
    concepts = [concept_of(name) for name in names]
    assert len(set(concepts)) == len(concepts) == 2 * len(scenes)
    assert all(map(held_out, concepts))
    single = load_pairs("openmoji", split="test", progress=False)
    places = {several[0]: row for row, several in enumerate(single.captions)}
    for index in range(6):
        image = scenes.pixels(index)
        first, second = (one.mask() for one in scenes.objects[index])
        assert not (first & second).any()
        assert np.array_equal(on_white(image), first | second)
        assert first[:32].sum() == first.sum()
        assert second[32:].sum() == second.sum()
        left = 32 if index % 2 else 0
        drawing = single.pixels(places[scenes.captions[index][0]]).double()
        small = drawing.reshape(3, 32, 2, 32, 2).mean((2, 4))
        assert torch.allclose(image[:, :32, left : left + 32].double(), small, rtol=0, atol=0.51)
