"""Models of timm, torchvision and transformers: weights from files, normalisation, names of classes."""

import json

import pytest
import timm
import torch
import torchvision
import transformers
from safetensors.torch import load_file, save_file
from torch.testing import assert_close

from antiphase.errors import UserError
from antiphase.models import load_model, zero_shot_classifier
from antiphase.models.image_towers import image_tower
from antiphase.models.zoo import fingerprint
from antiphase.sensitivity import attention_maps


def images(*shape, seed=0):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed))


def test_timm_with_weights_of_a_file_has_the_files_classes_channels_and_size(tmp_path):
    torch.manual_seed(0)
    original = timm.create_model("vit_tiny_patch16_224", num_classes=7, img_size=64, in_chans=1).eval()
    torch.save({"model": original.state_dict()}, tmp_path / "own.pt")
    model = load_model(f"timm:vit_tiny_patch16_224@{tmp_path / 'own.pt'}")
    assert (model.card.image_shape, model.card.num_classes, model.card.seed) == ((1, 64, 64), 7, None)
    x = images(2, 1, 64, 64)
    with torch.no_grad():
        assert_close(model(x), original((x - 0.5) / 0.5))
    net = timm.create_model("resnet10t", num_classes=5)
    torch.save(net.state_dict(), tmp_path / "net.pt")
    assert load_model(f"timm:resnet10t@{tmp_path / 'net.pt'}").card.num_classes == 5
    with pytest.raises(UserError, match=r"net.pt: parameter .* the architecture does not match"):
        load_model(f"timm:vit_tiny_patch16_224@{tmp_path / 'net.pt'}")


def test_torchvision_takes_pixels_and_gives_its_own_logits(tmp_path):
    model = load_model("torchvision:mobilenet_v3_small", random_weights=True, seed=3)
    transform = torchvision.models.MobileNet_V3_Small_Weights.DEFAULT.transforms()
    x = images(2, 3, 224, 224)
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (transform.mean, transform.std))
    with torch.no_grad():
        assert_close(model(x), model.model((x - mean) / std))
    assert (model.card.image_shape, model.card.class_names[0]) == ((3, 224, 224), "n01440764")


def tiny_vit(
    *, weights: torchvision.models.ViT_B_16_Weights | None = None, image_size=224, **sizes
) -> torchvision.models.VisionTransformer:
    """A model that torchvision lists, of few weights."""
    shape = {"patch_size": 16, "num_layers": 2, "num_heads": 3, "hidden_dim": 24, "mlp_dim": 32}
    return torchvision.models.VisionTransformer(image_size=image_size, **shape, **sizes)


tiny_vit.__module__ = "torchvision.models.tiny"
torchvision.models._api.register_model()(tiny_vit)


def test_a_vision_transformer_of_torchvision_with_weights_of_a_file(tmp_path):
    original = torchvision.models.get_model("tiny_vit", num_classes=4, image_size=32)
    weights = {f"module.{name}": torch.randn(value.shape) * 0.1 for name, value in original.state_dict().items()}
    torch.save(weights, tmp_path / "own.pt")
    vit = load_model(f"torchvision:tiny_vit@{tmp_path / 'own.pt'}")
    assert (vit.card.image_shape, vit.card.num_classes) == ((3, 32, 32), 4)
    tower = image_tower(vit)
    x = images(2, 3, 32, 32)
    with torch.no_grad():
        assert_close(vit.model.heads(tower.features(x)), vit(x))
    maps = attention_maps(vit, x)
    assert len(maps) == 2
    assert maps["model.encoder.layers.encoder_layer_0.self_attention"].positive.shape == (2, 3, 5, 5)


def test_torchvision_without_a_network_says_what_to_download(monkeypatch):
    def fail(*arguments, **options):
        raise OSError("no route to host\nsecond line")

    monkeypatch.setattr("torch.hub.load_state_dict_from_url", fail)
    monkeypatch.setattr("torchvision.models._api.load_state_dict_from_url", fail)
    with pytest.raises(UserError, match=r"no route to host\); download https://.*vit_b_16.*--random-weights") as caught:
        load_model("torchvision:vit_b_16")
    assert "\n" not in str(caught.value)
    with pytest.raises(UserError, match="no classifier 'vit_b_17'; did you mean vit_b_16"):
        load_model("torchvision:vit_b_17")


def save_vit(folder, processor=True, **labels):
    torch.manual_seed(1)
    config = transformers.ViTConfig(
        hidden_size=12,
        num_hidden_layers=2,
        num_attention_heads=3,
        intermediate_size=20,
        image_size=14,
        patch_size=7,
        **({} if "id2label" in labels else {"num_labels": 3}),
        **labels,
    )
    model = transformers.ViTForImageClassification(config).eval()
    model.save_pretrained(folder)
    if processor:
        size = {"height": 14, "width": 14}
        transformers.ViTImageProcessor(
            size=size, image_mean=[0.1, 0.2, 0.3], image_std=[0.4, 0.5, 0.6]
        ).save_pretrained(folder)
    return model


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (
            lambda name: name.replace("classifier", "head"),
            r"its files lack 2 of the model's weights, such as classifier",
        ),
        (lambda name: f"module.{name}", r"its files lack 40 of .*; expected all, by the names that save_pretrained"),
    ],
)
def test_weights_that_transformers_would_draw_are_refused(tmp_path, change, line):
    save_vit(tmp_path)
    state = load_file(tmp_path / "model.safetensors")
    save_file({change(name): value for name, value in state.items()}, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(UserError, match=line):
        load_model(f"hf:{tmp_path}")


def test_weights_of_another_shape_or_beyond_the_model_are_named(tmp_path):
    save_vit(tmp_path)
    state, file = load_file(tmp_path / "model.safetensors"), tmp_path / "model.safetensors"
    save_file(state | {"more": torch.ones(2)}, file, {"format": "pt"})
    with pytest.warns(UserWarning, match=r"ignored, not in the model: more \(1\)"):
        load_model(f"hf:{tmp_path}")
    save_file(state | {"classifier.bias": torch.ones(5)}, file, {"format": "pt"})
    with pytest.raises(UserError, match=r"'classifier.bias' has shape \(5,\), expected \(3,\); see its config.json"):
        load_model(f"hf:{tmp_path}")
    file.write_text("version https://git-lfs.github.com/spec/v1\n")
    with pytest.raises(UserError, match=r"cannot be loaded \(.*\); expected a directory written by save_pretrained"):
        load_model(f"hf:{tmp_path}")


def test_a_model_in_timms_layout_for_the_hub_is_a_classifier(tmp_path):
    original = timm.create_model("resnet10t", num_classes=5).eval()
    about = {"architecture": "resnet10t", "num_classes": 5, "model_type": "timm_wrapper"}
    cfg = {"mean": [0.1, 0.2, 0.3], "std": [0.4, 0.5, 0.6], "input_size": [3, 64, 64], "num_classes": 5}
    (tmp_path / "config.json").write_text(json.dumps(about | {"pretrained_cfg": cfg}))
    save_file(original.state_dict(), tmp_path / "model.safetensors", {"format": "pt"})
    model, x = load_model(f"hf:{tmp_path}"), images(2, 3, 64, 64)
    mean, std = (torch.tensor(cfg[name]).view(3, 1, 1) for name in ("mean", "std"))
    with torch.no_grad():
        assert_close(model(x), original((x - mean) / std))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "vit"}))
    with pytest.raises(UserError, match="names no architectures"):
        load_model(f"hf:{tmp_path}")


def test_a_folder_with_code_of_its_own_is_refused_without_a_question(tmp_path, monkeypatch):
    code = {"AutoConfig": "code.Own", "AutoModel": "code.Own"}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "own", "auto_map": code}))
    (tmp_path / "code.py").write_text("raise SystemExit('it ran')")
    monkeypatch.setattr("builtins.input", lambda *words: "y")
    with pytest.raises(UserError, match=r"cannot be loaded .*custom code"):
        load_model(f"hf:{tmp_path}")


@pytest.mark.parametrize(
    ("labels", "aim"),
    [
        ({"problem_type": "multi_label_classification"}, "multi label classification, of 3 labels"),
        ({"problem_type": "regression"}, "regression, of 3 labels"),
        ({"id2label": {0: "price"}, "label2id": {"price": 0}}, "regression, of 1 labels"),
    ],
)
def test_a_head_that_does_not_choose_one_class_is_refused(tmp_path, labels, aim):
    save_vit(tmp_path, **labels)
    with pytest.raises(UserError, match=f"made for {aim}; expected one class for each image"):
        load_model(f"hf:{tmp_path}")


def test_a_classifier_of_transformers_normalises_as_its_processor(tmp_path):
    vit = save_vit(tmp_path / "vit", id2label={0: "cat", 1: "dog", 2: "cow"}, label2id={"cat": 0, "dog": 1, "cow": 2})
    model = load_model(f"hf:{tmp_path / 'vit'}")
    card = model.card
    assert (card.name, card.image_shape, card.num_classes) == ("vit", (3, 14, 14), 3)
    assert (card.class_names, card.attention) == (("cat", "dog", "cow"), "softmax")
    x = images(2, 3, 14, 14)
    processor = transformers.ViTImageProcessor.from_pretrained(tmp_path / "vit", do_resize=False, do_rescale=False)
    pixels = processor(list(x), return_tensors="pt", input_data_format="channels_first")["pixel_values"]
    with torch.no_grad():
        assert_close(model(x), vit(pixel_values=pixels).logits)
        assert_close(vit.classifier(image_tower(model).features(x)), model(x))
    assert [maps.positive.shape for maps in attention_maps(model, x).values()] == [(2, 3, 5, 5)] * 2
    again = load_model(f"hf:{tmp_path / 'vit'}", random_weights=True, seed=2)
    assert fingerprint(again) == fingerprint(load_model(f"hf:{tmp_path / 'vit'}", random_weights=True, seed=2))
    assert fingerprint(again) != fingerprint(model)


def test_without_a_processor_images_are_not_normalised_and_that_is_said(tmp_path):
    vit = save_vit(tmp_path, processor=False)
    with pytest.warns(UserWarning, match="no preprocessor_config.json: its images are not normalised"):
        model = load_model(f"hf:{tmp_path}")
    x = images(2, 3, 14, 14)
    assert model.card.class_names is None
    with torch.no_grad():
        assert_close(model(x), vit(pixel_values=x).logits)


def test_a_model_without_labels_is_no_classifier(tmp_path):
    save_vit(tmp_path)
    model = transformers.ViTForImageClassification(transformers.ViTConfig.from_pretrained(tmp_path, num_labels=0))
    model.save_pretrained(tmp_path)
    with pytest.raises(UserError, match=r"config.json has no labels, so that it gives features; expected a classifier"):
        load_model(f"hf:{tmp_path}")


@pytest.fixture
def clip(tmp_path):
    """A CLIP of transformers with a tokenizer of a few words."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    words = {word: n for n, word in enumerate(("<pad>", "a", "photo", "of", "mug", "dog", "<unk>", "<s>", "</s>"))}
    plain = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    plain.pre_tokenizer = pre_tokenizers.Whitespace()
    plain.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 7), ("</s>", 8)])
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=plain, pad_token="<pad>", eos_token="</s>")
    torch.manual_seed(2)
    sizes = {"hidden_size": 12, "num_hidden_layers": 2, "intermediate_size": 20}
    config = transformers.CLIPConfig(
        text_config=sizes
        | {
            "vocab_size": 9,
            "num_attention_heads": 2,
            "max_position_embeddings": 8,
            "eos_token_id": 8,
            "bos_token_id": 7,
            "pad_token_id": 0,
        },
        vision_config=sizes | {"num_attention_heads": 3, "image_size": 14, "patch_size": 7},
        projection_dim=6,
    )
    model = transformers.CLIPModel(config).eval()
    for part in (model, tokenizer, transformers.CLIPImageProcessor(size={"shortest_edge": 14}, crop_size=14)):
        part.save_pretrained(tmp_path)
    return tmp_path, model, tokenizer


def test_a_dual_encoder_of_transformers_gives_its_own_logits(clip):
    folder, original, tokenizer = clip
    model = load_model(f"hf:{folder}")
    assert (model.card.image_shape, model.card.num_classes, model.square.size) == ((3, 14, 14), 0, 14)
    x, texts = images(2, 3, 14, 14), ["a photo of mug", "dog"]
    with torch.no_grad():
        expected = original(**tokenizer(texts, padding=True, return_tensors="pt"), pixel_values=model.normalize(x))
        logits = zero_shot_classifier(model, ["mug", "dog"], prompts=[[text] for text in texts])(x)
    assert_close(logits, expected.logits_per_image)
    assert_close(model.normalize.mean.flatten(), torch.tensor([0.48145466, 0.4578275, 0.40821073]))
    maps = attention_maps(model, x, call=model.encode_image)
    assert [one.positive.shape for one in maps.values()] == [(2, 3, 5, 5)] * 2


def test_a_text_model_shows_its_maps_in_python_and_is_one_line_in_a_command(tmp_path, run_cli, capsys):
    torch.manual_seed(3)
    config = transformers.DiffLlamaConfig(
        vocab_size=31,
        hidden_size=24,
        intermediate_size=20,
        num_hidden_layers=2,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=6,
    )
    transformers.DiffLlamaForCausalLM(config).save_pretrained(tmp_path / "llama")
    model = load_model(f"hf:{tmp_path / 'llama'}")
    assert model.card.attention == "differential"
    tokens = torch.randint(0, 31, (2, 7), generator=torch.Generator().manual_seed(0))
    assert all(maps.negative is not None for maps in attention_maps(model, {"input_ids": tokens}).values())
    capsys.readouterr()  # the progress bar of save_pretrained
    code, _, err = run_cli("sense", f"hf:{tmp_path / 'llama'}", "--data", "digits", "--out", tmp_path / "out")
    assert code == 2
    assert err.count("\n") == 1
    assert "neither classifies images nor encodes images and texts; in Python" in err


def test_a_folder_that_is_no_model_is_one_line(tmp_path):
    with pytest.raises(UserError, match=r"cannot be loaded .* save_pretrained") as caught:
        load_model(f"hf:{tmp_path}")
    assert "\n" not in str(caught.value)
