"""Labels of a data set brought into a model's order: by name, or not at all."""

import json

import polars as pl
import pytest
import torch
from PIL import Image
from torch.utils.data import ConcatDataset, DataLoader, Subset, random_split
from torchvision import transforms
from torchvision.datasets import ImageFolder

from antiphase.data import load_data
from antiphase.data.image_sets import FASHION_MNIST_CLASSES, prompt_names, published_wnids
from antiphase.data.images import ArrayImages
from antiphase.errors import UserError
from antiphase.evaluation.rates import not_above_chance
from antiphase.models import load_model
from antiphase.models.card import ModelCard
from antiphase.models.class_names import in_model_order, read_class_names
from antiphase.training import make_recipe, train_classifier


def card(class_names=None, num_classes=3, spec="toy", **more):
    return ModelCard("toy", spec, "softmax", 0, (1, 2, 2), num_classes, class_names=class_names, **more)


def images(*class_names, name="folder:x"):
    """One image of each class, in order."""
    ids = torch.arange(len(class_names))
    return ArrayImages(
        name=name, split="test", class_names=class_names, ids=ids, labels=ids, pixels=torch.zeros(len(ids), 1, 2, 2)
    )


def specimen_folder(root, count=40):
    """The package's own images as files, one folder a class, and their labels in order of class name."""
    data = load_data("specimen-fashion-mnist", limit=count, seed=0)
    for row, label in enumerate(data.labels.tolist()):
        folder = root / FASHION_MNIST_CLASSES[label].replace("/", "_").lower()
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(data.pixels[row, 0].numpy()).save(folder / f"{row}.png")
    return data


def test_a_folder_of_the_packages_images_has_the_accuracy_of_the_images_themselves(tmp_path, run_cli):
    data = specimen_folder(tmp_path / "images")
    model = load_model("specimen:vit-0")
    expected = (model(data.images(range(len(data)))).argmax(1) == data.labels).float().mean()
    command = ("audit", "specimen:vit-0", "--sense-limit", 0, "--eps", "1/255", "--steps", 1, "--quiet")
    code, out, err = run_cli(*command, "--data", f"folder:{tmp_path / 'images'}", "--out", tmp_path / "run")
    assert code == 0, err
    assert "warning" not in out
    accuracy = json.loads((tmp_path / "run" / "summary.json").read_text())["models"][0]["clean_accuracy"]
    assert accuracy == pytest.approx(float(expected))
    assert accuracy > 0.8


@pytest.mark.parametrize(
    ("classes", "outputs"),
    [
        (("cat", "dog", "snow leopard"), [0, 1, 2]),
        (("dog", "snow leopard", "cat"), [1, 2, 0]),
        (("Snow_Leopard", "DOG"), [2, 1]),
        (("snow-leopard",), [2]),
    ],
)
def test_classes_are_matched_by_exact_then_by_similar_name(classes, outputs):
    made, warnings = in_model_order([card(("cat", "dog", "snow leopard"))], images(*classes))
    assert made.labels.tolist() == outputs
    assert [made.class_names[output] for output in outputs] == list(classes)
    assert len(made.class_names) == 3
    assert warnings == []


@pytest.mark.parametrize(("model", "data"), [("C", "C++"), ("15", "1.5"), ("C", "C#")])
def test_signs_that_make_another_name_count(model, data):
    with pytest.raises(UserError, match="expected one of the classes of toy"):
        in_model_order([card((model, "dog"), 2)], images(data, "dog"))


def test_a_name_in_composed_and_in_decomposed_letters_is_one():
    made, _ = in_model_order([card(("dog", "caf\u00e9"), 2)], images("cafe\u0301", "dog"))
    assert made.labels.tolist() == [1, 0]


def test_an_exact_name_goes_before_a_similar_one():
    made, _ = in_model_order([card(("us", "US", "U_S"))], images("US", "us"))
    assert made.labels.tolist() == [1, 0]


@pytest.mark.parametrize(
    ("cards", "classes", "line"),
    [
        (
            [card(("cat", "dog", "emu"))],
            ("dog", "fox"),
            r"class 'fox' of folder:x: expected one of the classes of toy \(cat, dog, emu\);",
        ),
        ([card(("cat", "cat_", "emu"))], ("CAT",), "class 'CAT' of folder:x: expected one of"),
        ([card(("cat", "dog", "emu"))], ("Dog", "dog"), "'Dog' and 'dog' of folder:x both match 'dog' of toy"),
        ([card()], ("cat", "dog"), r"toy has 3 classes and does not store their names, .* 2 \(cat, dog\)"),
        (
            [card(("cat", "dog", "emu")), card(("emu", "dog", "cat"), spec="twin")],
            ("cat", "dog"),
            "toy and twin order the classes of folder:x differently",
        ),
    ],
)
def test_what_has_no_match_is_one_line(cards, classes, line):
    with pytest.raises(UserError, match=line) as caught:
        in_model_order(cards, images(*classes))
    assert "\n" not in str(caught.value)


def test_a_model_without_names_takes_as_many_classes_in_sorted_order_with_a_warning():
    data = images("cat", "dog", "emu")
    made, warnings = in_model_order([card()], data)
    assert made is data
    assert len(warnings) == 1
    assert "(cat, dog, emu)" in warnings[0]
    assert "--classes" in warnings[0]
    assert in_model_order([card(recipe={"data": "folder:x"})], data)[1] == []  # the data it was trained on


def test_numbers_of_a_wds_set_are_the_models_outputs_with_a_warning():
    data = images("0", "1", name="wds:x")
    made, warnings = in_model_order([card(("cat", "dog", "emu"))], data)
    assert made.labels.tolist() == [0, 1]
    assert "wds:x has no class names" in warnings[0]


@pytest.mark.parametrize("name", ["array", "dataset:Wrapper", "parquet:x", "npz:x"])
def test_more_numbers_than_outputs_are_refused(name):
    with pytest.raises(UserError, match=rf"{name} has labels up to 3 without class names, but toy has 3 classes"):
        in_model_order([card(("cat", "dog", "emu"))], images("0", "1", "2", "3", name=name))


@pytest.mark.parametrize("wrap", ["random_split", "Subset", "ConcatDataset", "DataLoader"])
def test_a_wrapped_folder_of_torch_has_the_accuracy_of_the_whole(tmp_path, wrap):
    specimen_folder(tmp_path, 24)
    whole = ImageFolder(tmp_path, transforms.Compose([transforms.Grayscale(), transforms.ToTensor()]))
    wrapped = {
        "random_split": lambda: random_split(whole, [24, 0], torch.Generator().manual_seed(0))[0],
        "Subset": lambda: Subset(whole, range(24)),
        "ConcatDataset": lambda: ConcatDataset([Subset(whole, range(9)), Subset(whole, range(9, 24))]),
        "DataLoader": lambda: DataLoader(whole, batch_size=5),
    }[wrap]()
    model = load_model("specimen:vit-0")

    def accuracy(data):
        made, warnings = in_model_order([model.card], load_data(data))
        assert warnings == []
        return (model(made.images(range(24))).argmax(1) == made.labels).float().mean()

    assert accuracy(wrapped) == accuracy(whole) > 0.7


def test_a_timm_model_knows_imagenets_classes_by_id_and_by_name():
    known = load_model("timm:test_vit", random_weights=True).card
    made, _ = in_model_order([known], images("n01443537", "n01440764"))
    assert made.labels.tolist() == [1, 0]
    made, _ = in_model_order([known], images("great_white_shark", "Tench", "Carassius auratus"))
    assert made.labels.tolist() == [2, 0, 1]
    with pytest.raises(UserError, match="class 'crane'"):  # a bird and a machine
        in_model_order([known], images("crane"))


@pytest.mark.parametrize("name", ["imagenet-r", "imagenet-sketch"])
def test_a_variant_of_imagenet_is_matched_by_id_though_two_classes_share_a_name(name):
    known = load_model("timm:test_vit", random_weights=True).card
    wnids, prompted = published_wnids(name) or (), prompt_names()
    data = images(*(prompted[wnid] for wnid in wnids), name=name)
    for class_names in (known.class_names, tuple(prompted.values())):
        made, _ = in_model_order([card(class_names, 1000)], data)
        assert [known.class_names[output] for output in made.labels.tolist()] == list(wnids)


def test_a_trained_model_stores_its_class_names(tmp_path):
    train = load_data("digits", split="train", limit=32)
    recipe = make_recipe("vit", train, {"dim": 8, "num_heads": 2}, data="digits", epochs=1)
    log = train_classifier(recipe, train, train, tmp_path, progress=False)
    assert load_model(str(tmp_path)).card.class_names == tuple("0123456789")
    assert train_classifier(recipe, train, train, tmp_path, progress=False) == log
    stored = json.loads((tmp_path / "recipe.json").read_text())
    del stored["class_names"]  # as older versions wrote it
    (tmp_path / "recipe.json").write_text(json.dumps(stored))
    assert load_model(str(tmp_path)).card.class_names is None
    assert train_classifier(recipe, train, train, tmp_path, progress=False) == log
    (tmp_path / "recipe.json").write_text(json.dumps(stored | {"class_names": ["0"]}))
    with pytest.raises(UserError, match="class_names: expected a list of 10 names"):
        load_model(str(tmp_path))


def test_a_file_names_the_classes_in_the_models_order(tmp_path, run_cli):
    specimen_folder(tmp_path / "images", 12)
    for number, name in enumerate(FASHION_MNIST_CLASSES):
        folder = tmp_path / "images" / name.replace("/", "_").lower()
        if folder.exists():
            folder.rename(tmp_path / "images" / f"article {9 - number}")
    file = tmp_path / "classes.txt"
    command = ("audit", "specimen:vit-0", "--sense-limit", 0, "--eps", "1/255", "--steps", 1, "--quiet")
    command += ("--data", f"folder:{tmp_path / 'images'}", "--out", tmp_path / "run")
    code, _, err = run_cli(*command)
    assert code == 2
    assert err.count("\n") == 1
    assert "class 'article 0'" in err
    assert "--classes" in err
    assert not (tmp_path / "run").exists()
    file.write_text("".join(f"article {9 - number}\n" for number in range(10)))
    code, _, err = run_cli(*command, "--classes", file)
    assert code == 0, err
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["models"][0]["clean_accuracy"] > 0.7
    code, _, err = run_cli("audit", "specimen:vit-0", "--data", "random", "--classes", file, "--out", tmp_path / "new")
    assert code == 2
    assert "random images have none" in err


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a\nb\n", "2 lines, expected 3"),
        ("a\n\na\n", "duplicate name 'a'"),
        (b"\xff\n", "not UTF-8"),
        (None, "No such"),
    ],
)
def test_a_file_of_classes_that_does_not_fit_is_one_line(tmp_path, text, line):
    file = tmp_path / "classes.txt"
    if text is not None:
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(UserError, match=line):
        read_class_names(file, 3)


def test_a_blank_line_is_an_output_that_the_data_lack(tmp_path):
    (tmp_path / "classes.txt").write_text("a\n\nb\n")
    names = read_class_names(tmp_path / "classes.txt", 3)
    made, _ = in_model_order([card(names)], images("b", "a"))
    assert made.labels.tolist() == [2, 0]
    assert made.class_names == ("a", "1", "b")


@pytest.mark.parametrize("command", [("certify", "--samples", 10, "--select", 5, "--sigma", 0.05)])
def test_accuracy_at_chance_is_warned_of(tmp_path, run_cli, command):
    file = tmp_path / "classes.txt"
    file.write_text("".join(f"{name}\n" for name in (*FASHION_MNIST_CLASSES[5:], *FASHION_MNIST_CLASSES[:5])))
    name, *options = command
    options += ["--limit", 8, "--quiet", "--classes", file, "--out", tmp_path / "run"]
    code, out, err = run_cli(name, "specimen:vit-0", *options)
    assert code == 0, err
    stored = {"audit": "run.json", "certify": "summary.json"}[name]
    (warning,) = json.loads((tmp_path / "run" / stored).read_text())["warnings"]
    assert "vit-0: clean accuracy 0.0 % [0.0, " in warning
    assert "not above chance, 10 %" in warning
    assert f"warning: {warning}" in out


def test_chance_is_one_in_the_number_of_classes():
    rows = pl.DataFrame(
        {"model": ["a", "b"], "value": [0.5, 0.5], "low": [0.26, 0.25], "high": [0.7, 0.7], "n": [9, 9]}
    )
    (warning,) = not_above_chance(rows, {"a": 4, "b": 4})
    assert warning.startswith("b: clean accuracy 50.0 % [25.0, 70.0] on 9 images is not above chance, 25 %")
