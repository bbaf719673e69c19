"""Pictures through a model's own preprocessing, against the library's own transform of the same pictures."""

import json
import runpy
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import timm
import torch
import torchvision
import transformers
from PIL import Image
from timm.data import create_transform
from torch import nn

from antiphase.commands.lineup import load_lineup
from antiphase.data import load_data
from antiphase.data.decoding import Square, describe_transform
from antiphase.errors import UserError
from antiphase.models import load_model
from antiphase.models.card import ModelCard, card_of, doubts_about, size_for, square_of, with_card
from antiphase.models.preprocessing import Normalize, of_open_clip, of_processor, of_timm, of_torchvision

ROOT = Path(__file__).parents[2]
SHAPES = (
    (33, 61),
    (50, 25),
    (11, 19),
    (7, 6),
    (24, 24),
)  # larger and smaller than the models' images, and of their size
SIZE = {"height": 24, "width": 24}
SHORTER = {"shortest_edge": 24}
COLOUR = {"image_mean": [0.1, 0.2, 0.3], "image_std": [0.4, 0.5, 0.6]}


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """Pictures of several sizes, none of them grey, with a folder of the same."""
    folder, rng = tmp_path_factory.mktemp("pictures"), np.random.default_rng(5)
    (folder / "a").mkdir()
    made = []
    for number, (height, width) in enumerate(SHAPES):
        pixels = rng.integers(0, 256, (height, width, 3)) * np.array([1.0, 0.6, 0.3])
        made.append(Image.fromarray(pixels.astype(np.uint8)))
        made[-1].save(folder / "a" / f"{number}.png")
    return made, folder


def own_pixels(preprocessing, folder):
    """Return what a model gets of the files of a folder."""
    images = load_data(f"folder:{folder}", image_size=preprocessing.square.size).resized(preprocessing.square)
    return preprocessing.normalize()(images.images(range(len(images))))


PROCESSORS = {
    "squashed": ("ViT", {"size": SIZE, **COLOUR}),
    "squashed, then cropped": ("DeiT", {"size": {"height": 29, "width": 29}, "crop_size": SIZE}),
    "shorter side, cropped": ("CLIP", {"size": SHORTER, "crop_size": SIZE}),
    "shorter side larger, cropped": ("MobileNetV1", {"size": {"shortest_edge": 30}, "crop_size": SIZE}),
    "crop larger than the picture": ("Bit", {"size": {"shortest_edge": 19}, "crop_size": SIZE}),
    "256/224": ("Levit", {"size": SHORTER, "crop_size": SIZE}),
    "crop fraction": ("PoolFormer", {"size": SHORTER, "crop_size": SIZE, "crop_pct": 0.83}),
    "crop fraction of ConvNeXt": ("ConvNext", {"size": SHORTER, "crop_pct": 0.9}),
    "BGR": ("MobileViT", {"size": {"shortest_edge": 27}, "crop_size": SIZE}),
    "offset": (
        "EfficientNet",
        {
            "size": SIZE,
            "include_top": False,
            "rescale_factor": 1 / 127.5,
            "rescale_offset": True,
            "do_normalize": False,
        },
    ),
    "normalised twice": ("EfficientNet", {"size": SIZE, "include_top": True, **COLOUR}),
    "nearest, 0 to 255": ("Segformer", {"size": SIZE, "resample": 0, "do_rescale": False, "do_normalize": False}),
    "Lanczos, one mean": ("Siglip", {"size": SIZE, "resample": 1, "image_mean": 0.4, "image_std": 0.2}),
}


@pytest.mark.parametrize("case", PROCESSORS)
def test_a_processor_of_transformers_gives_the_same_pixels(case, pictures):
    name, settings = PROCESSORS[case]
    processor = getattr(transformers, f"{name}ImageProcessorPil")(**settings)
    preprocessing = of_processor(processor, 3, "hf:x")
    expected = torch.cat([processor(one, return_tensors="pt")["pixel_values"] for one in pictures[0]])
    torch.testing.assert_close(own_pixels(preprocessing, pictures[1]), expected.float(), atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize(
    ("name", "settings", "reason"),
    [
        ("ImageGPT", {"clusters": [[0.0, 0.0, 0.0], [1.0, 1.0, 1.0]], "size": SIZE}, "fails on a picture"),
        ("Siglip2", {}, "gives images of different sizes"),
        ("Donut", {"size": {"height": 32, "width": 24}}, "takes images of 32×24 pixels, which are not square"),
        ("TextNet", {}, "gives images of different sizes"),
        ("TextNet", {"size": SHORTER, "do_center_crop": True, "crop_size": SIZE}, "its pixels differ by up to"),
        ("Perceiver", {"size": SIZE, "crop_size": {"height": 27, "width": 27}}, r"gives \(3, 24, 24\)"),
        ("ViT", {"size": SIZE, "do_resize": False}, "gives "),
        ("CLIP", {"size": SHORTER | {"longest_edge": 48}, "crop_size": SIZE}, "a longest edge beside the shortest one"),
        ("ViT", {"size": SIZE, "image_std": [0.5, 0.0, 0.5]}, "fails on a picture|std above 0"),
        ("ViT", {"size": SIZE, "image_mean": "grey"}, "its settings are not understood"),
    ],
)
def test_a_processor_that_does_something_else_is_refused_in_one_line(name, settings, reason):
    processor = getattr(transformers, f"{name}ImageProcessorPil")(**settings)
    with pytest.raises(UserError, match=f"hf:x: {name}.*cannot be reproduced: {reason}") as caught:
        of_processor(processor, 3, "hf:x")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "settings",
    [
        {"crop_pct": 0.875, "crop_mode": "center", "interpolation": "bilinear"},
        {"crop_pct": 0.8, "crop_mode": "squash", "interpolation": "bicubic"},
        {"crop_pct": 1.0, "crop_mode": "squash", "interpolation": "lanczos"},
        {"crop_pct": 0.9, "crop_mode": "center", "interpolation": "nearest"},
    ],
)
def test_a_data_configuration_of_timm_gives_the_same_pixels(settings, pictures):
    settings |= {"input_size": (3, 24, 24), "mean": (0.1, 0.2, 0.3), "std": (0.4, 0.5, 0.6)}
    transform = create_transform(**settings, is_training=False)
    expected = torch.stack([transform(one) for one in pictures[0]])
    torch.testing.assert_close(own_pixels(of_timm(settings, "timm:x"), pictures[1]), expected)


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"crop_mode": "border"}, "crop mode 'border'"),
        ({"input_size": (3, 32, 24)}, "32×24 pixels, which are not square"),
        ({"interpolation": "random"}, "interpolation 'random'"),
    ],
)
def test_a_data_configuration_of_timm_that_cannot_be_reproduced_is_refused(changed, reason):
    settings = {"input_size": (3, 24, 24), "mean": (0.5,) * 3, "std": (0.5,) * 3, "crop_pct": 0.9}
    with pytest.raises(UserError, match=f"timm:x: preprocessing cannot be reproduced: .*{reason}"):
        of_timm({**settings, "crop_mode": "center", "interpolation": "bicubic"} | changed, "timm:x")


@pytest.mark.parametrize("weights", ["IMAGENET1K_V1", "IMAGENET1K_V2", "IMAGENET1K_SWAG_E2E_V1"])
def test_a_preset_of_torchvision_gives_the_same_pixels(weights, pictures):
    preset = torchvision.models.RegNet_Y_16GF_Weights[weights].transforms()
    preprocessing = of_torchvision(preset, "torchvision:x")
    wide = pictures[0][:2]
    expected = torch.stack([preset(one) for one in wide])
    ours = torch.stack([preprocessing.normalize()(preprocessing.square.apply(one).float() / 255) for one in wide])
    torch.testing.assert_close(ours, expected)
    assert of_torchvision(preset, "torchvision:x", 2 * preprocessing.square.size).square == preprocessing.square.at(
        2 * preprocessing.square.size
    )


def test_the_presets_of_torchvision_are_chosen_by_name(tmp_path):
    net = torchvision.models.mobilenet_v2(num_classes=3)
    torch.save(net.state_dict(), tmp_path / "net.pt")
    plain = load_model(f"torchvision:mobilenet_v2@{tmp_path / 'net.pt'}")
    assert plain.card.preprocessing.square == Square(224, "bilinear", 232)
    assert "used is that of IMAGENET1K_V2" in plain.card.doubts[0]
    named = load_model(f"torchvision:mobilenet_v2.IMAGENET1K_V1@{tmp_path / 'net.pt'}")
    assert (named.card.preprocessing.square, named.card.doubts) == (Square(224, "bilinear", 256), ())
    assert load_model("torchvision:mobilenet_v2", random_weights=True).card.doubts == ()
    with pytest.raises(UserError, match="has no weights 'V1'; expected one of IMAGENET1K_V1, IMAGENET1K_V2"):
        load_model("torchvision:mobilenet_v2.V1")


def test_a_file_of_timm_without_a_tag_names_the_weights_that_it_is_taken_for(tmp_path):
    torch.save(timm.create_model("resnet18", num_classes=3).state_dict(), tmp_path / "net.pt")
    (doubt,) = load_model(f"timm:resnet18@{tmp_path / 'net.pt'}").card.doubts
    assert "used is that of a1_in1k, shorter side 235 bicubic" in doubt
    assert "give timm:resnet18." in doubt
    torch.save(timm.create_model("resnet10t", num_classes=3).state_dict(), tmp_path / "net10.pt")
    assert load_model(f"timm:resnet10t@{tmp_path / 'net10.pt'}").card.doubts == ()  # has one recipe alone
    named = load_model(f"timm:resnet18.tv_in1k@{tmp_path / 'net.pt'}").card
    assert (named.doubts, named.preprocessing.square) == ((), Square(224, "bilinear", 256))


@pytest.mark.parametrize("mode", ["shortest", "squash"])
def test_a_configuration_of_open_clip_gives_the_same_pixels(mode, pictures):
    from open_clip.transform import PreprocessCfg, image_transform_v2

    settings = {"size": 24, "mean": (0.1, 0.2, 0.3), "std": (0.4, 0.5, 0.6), "interpolation": "bilinear"}
    settings |= {"resize_mode": mode}
    transform = image_transform_v2(PreprocessCfg(**settings), is_train=False)
    expected = torch.stack([transform(one) for one in pictures[0]])
    torch.testing.assert_close(own_pixels(of_open_clip(settings, "open_clip:x"), pictures[1]), expected)
    with pytest.raises(UserError, match="resize mode 'longest' is not supported"):
        of_open_clip(settings | {"resize_mode": "longest"}, "open_clip:x")


def save_vit(folder, **settings):
    torch.manual_seed(1)
    config = transformers.ViTConfig(
        hidden_size=12,
        num_hidden_layers=1,
        num_attention_heads=3,
        intermediate_size=20,
        image_size=24,
        patch_size=8,
        num_labels=2,
        id2label={0: "a", 1: "b"},
        label2id={"a": 0, "b": 1},
    )
    model = transformers.ViTForImageClassification(config).eval()
    processor = transformers.ViTImageProcessorPil(size=SIZE, **settings)
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return model, processor


def test_pictures_of_a_folder_reach_a_classifier_as_its_processor_makes_them(tmp_path, pictures):
    vit, processor = save_vit(tmp_path / "vit", **COLOUR)
    options = {
        "model": [f"hf:{tmp_path / 'vit'}"],
        "data": f"folder:{pictures[1]}",
        "against": [],
        "split": "test",
        "limit": None,
        "random_weights": False,
        "prompt": None,
        "device": "cpu",
        "quiet": True,
        "skip_bad": False,
        "image_size": None,
        "resize": None,
    }
    lineup = load_lineup(SimpleNamespace(**options))
    (model,), images = lineup.models, lineup.data
    with torch.no_grad():
        expected = torch.cat([vit(**processor(one, return_tensors="pt")).logits for one in pictures[0]])
        torch.testing.assert_close(model(images.images(range(len(images)))), expected)
    assert images.square == Square(24, "bilinear", squash=True)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("{not json", "JSON"),
        ('{"image_processor_type": "FooImageProcessor"}', "unknown type 'FooImageProcessor'"),
        ('{"feature_extractor_type": "BarFeatureExtractor"}', "unknown type 'BarFeatureExtractor'"),
        ("[1, 2]", "list"),
        ('{"image_processor_type": "ViTImageProcessor", "size": {"breadth": 3}}', "size"),
        ("", "JSON"),
    ],
)
def test_a_processor_that_is_there_but_cannot_be_read_is_not_called_missing(tmp_path, content, reason):
    save_vit(tmp_path)
    (tmp_path / "preprocessor_config.json").write_text(content)
    with pytest.raises(UserError, match=f"preprocessor_config.json cannot be used .*({reason})") as caught:
        load_model(f"hf:{tmp_path}")
    assert "\n" not in str(caught.value)


def test_what_is_stored_of_plain_squares_has_not_changed():
    assert repr(Square(224)) == "Square(size=224, interpolation='bicubic')"
    assert describe_transform(Square(64, "bilinear"), 1) == "shorter side 64 bilinear antialias, centre crop 64, L"
    assert repr(Square(24, resize=30, floor=True)) == "Square(size=24, interpolation='bicubic', resize=30, floor=True)"
    assert Square(24, resize=30).at(48) == Square(48, resize=60)


def test_a_model_of_blue_green_and_red_has_another_fingerprint_and_order():
    x = torch.rand(2, 3, 4, 5, generator=torch.Generator().manual_seed(0))
    plain, flipped = (
        Normalize((0.1, 0.2, 0.3), (1.0, 2.0, 3.0)),
        Normalize((0.1, 0.2, 0.3), (1.0, 2.0, 3.0), bgr=True),
    )
    assert torch.equal(flipped(x), plain(x)[:, [2, 1, 0]])
    assert (repr(plain), repr(flipped)) == ("Normalize()", "Normalize(bgr)")


class Flat(nn.Sequential):
    def __init__(self, shape):
        super().__init__(nn.Flatten(), nn.Linear(int(np.prod(shape)), 2))
        self.image_shape = shape


def flat(name="x", shape=(3, 24, 24), **facts):
    return with_card(Flat(shape), ModelCard(name, name, "none", None, shape, 2, **facts))


def test_twins_of_unequal_weights_or_preprocessing_or_size_are_doubted():
    settings = {"input_size": (3, 24, 24), "mean": (0.5,) * 3, "std": (0.5,) * 3, "crop_mode": "center"}
    one = of_timm({**settings, "crop_pct": 0.9, "interpolation": "bicubic"}, "x")
    model = flat("timm:wee", preprocessing=one, tag="sbb_in1k")
    assert doubts_about([model], [flat("timm:dwee", preprocessing=one, tag="sbb_in1k")]) == []
    assert doubts_about([model], [flat("y")]) == []  # of which nothing is known
    (tags,) = doubts_about([model], [flat("timm:dwee", preprocessing=one, tag="sbb_nadamuon_in1k")])
    assert "timm:wee and its twin timm:dwee differ" in tags
    assert tags.endswith("tags of the weights sbb_in1k and sbb_nadamuon_in1k")
    (pixels,) = doubts_about([model], [flat(preprocessing=replace(one, bgr=True))])
    assert pixels.endswith("BGR")
    (sizes,) = doubts_about([model], [flat(shape=(3, 32, 32))])
    assert sizes.endswith("input sizes 3×24×24 and 3×32×32")
    with pytest.raises(UserError, match=r"timm:wee takes images of shape .*, x of .*; measure each in its own run"):
        size_for([model, flat(shape=(3, 32, 32))])


@pytest.mark.long
@pytest.mark.parametrize(
    "command",
    [
        ["audit", "--eps", "1/255", "--steps", "1", "--sense-limit", "0"],
        ["sense", "--parts", "alignment", "--probes", "2"],
        ["evaluate", "--tasks", "probe"],
    ],
)
def test_unequal_twins_are_doubted_by_every_command(tmp_path, run_cli, command, capsys):
    rng = np.random.default_rng(3)
    for split in ("train", "test"):
        for label in "ab":
            (tmp_path / "data" / split / label).mkdir(parents=True)
            for number in range(6):
                pixels = rng.integers(0, 256, (30, 40, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(tmp_path / "data" / split / label / f"{number}.png")
    save_vit(tmp_path / "one")
    save_vit(tmp_path / "other", **COLOUR)
    capsys.readouterr()
    code, out, err = run_cli(
        command[0],
        f"hf:{tmp_path}/one",
        "--against",
        f"hf:{tmp_path}/other",
        "--data",
        f"folder:{tmp_path}/data",
        *command[1:],
        "--out",
        tmp_path / "run",
    )
    assert code == 0, err
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    (doubt,) = [line for line in record["warnings"] if "differ in more than their attention: preprocessing" in line]
    assert doubt[:40] in out + err
    assert record["preprocessing"]["other"]["square"]["squash"] is True
    assert "differ in more than their attention" in (tmp_path / "run" / "report.html").read_text()
    if command[0] == "audit":
        assert "differ in more than their attention" in (tmp_path / "run" / "CARD.md").read_text()


CODE = """
import torch
class Wide(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.image_shape = (3, 8, 12)
        self.head = torch.nn.Linear(3 * 8 * 12, 2)
    def forward(self, x):
        return self.head(x.flatten(1))
"""


def test_images_that_are_not_square_are_the_models_and_never_the_datas_fault(tmp_path, pictures, run_cli):
    (tmp_path / "wide.py").write_text(CODE)
    np.savez(tmp_path / "wide.npz", images=np.random.default_rng(0).random((4, 3, 8, 12)), labels=[0, 1, 0, 1])
    model = load_model(f"python:{tmp_path / 'wide.py'}:Wide")
    assert size_for([model]) == (None, 3)
    with pytest.raises(UserError, match="takes images of 8×12 pixels, not square; give npz:FILE"):
        square_of(model)
    assert card_of(model).image_shape == (3, 8, 12)
    arguments = [
        "audit",
        f"python:{tmp_path / 'wide.py'}:Wide",
        "--eps",
        "1/255",
        "--steps",
        1,
        "--sense-limit",
        0,
        "--out",
        tmp_path / "run",
        "--data",
    ]
    for data in (f"folder:{pictures[1]}", "random"):
        code, _, err = run_cli(*arguments, data)
        assert code == 2
        assert "Wide: takes images of 8×12 pixels" in err
    code, _, err = run_cli(*arguments, f"npz:{tmp_path / 'wide.npz'}")
    assert code == 0, err


@pytest.mark.thorough
def test_every_family_of_transformers_is_the_same_or_refused(pictures):
    from transformers.models.auto.image_processing_auto import IMAGE_PROCESSOR_MAPPING_NAMES as known
    from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES as families

    refused = set()
    for family in families:
        kinds = dict(known.get(family) or {})
        name = kinds.get("pil") or kinds.get("torchvision")
        if name is None or name == "TimmWrapperImageProcessor":  # that is timm's
            continue
        processor = getattr(transformers, name)()
        try:
            preprocessing = of_processor(processor, 3, f"hf:{family}")
        except UserError:
            refused.add(family)
            continue
        for one in pictures[0]:
            expected = processor(one, return_tensors="pt")["pixel_values"][0]
            ours = preprocessing.normalize()(preprocessing.square.apply(one).float() / 255)
            torch.testing.assert_close(ours, expected.float(), atol=1e-4, rtol=1e-5)
    assert refused == {"donut-swin", "imagegpt", "perceiver", "pp_lcnet", "siglip2", "textnet"}


@pytest.mark.thorough
def test_the_table_of_the_notes_is_what_the_script_finds():
    page = (ROOT / "dev/models.md").read_text(encoding="utf-8")
    script = runpy.run_path(str(ROOT / "benchmarks/preprocessing.py"))
    for library in ("transformers", "torchvision"):
        table = script[f"{library}_table"]()
        same = sum(verdict == "same" for verdict in table.values())
        (line,) = [line for line in page.splitlines() if line.startswith(f"| {library}, ")]
        assert line.endswith(f" | {same} | {len(table) - same} |")
