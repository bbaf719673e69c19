"""The layout of the released checkpoints: read, checked against the formulas, written back."""

import argparse
import math
import pickle

import pytest
import torch
from safetensors.torch import load_file, save_file

from antiphase.errors import UserError
from antiphase.models import clip, diffclip, load_model, write_model
from antiphase.models.clip import bare_clip, configure_clip
from antiphase.models.schemes.diffclip import CONFIG, _translation, to_released
from antiphase.models.zoo import RELEASED_WEIGHTS, fingerprint
from tests.reference import clip as slow

SMALL = {
    "vision": {"image_size": 32, "patch_size": 16, "dim": 128, "depth": 2, "num_heads": 2},
    "text": {"dim": 128, "depth": 2, "num_heads": 2, "vocab_size": 101, "context_length": 11},
    "embed_dim": 29,
}
VARIANTS = (None, "both", "vision", "text")


def build(towers, seed=0):
    if towers is None:
        return clip("b16", seed=seed, init="released", **SMALL)
    return diffclip("b16", towers=towers, init="released", seed=seed, **SMALL)


@pytest.fixture
def released(tmp_path):
    """Write a checkpoint as the authors' training code leaves it; return its path and its weights."""

    def write(towers, **more):
        state = to_released(build(towers, seed=5))
        state = {name: weight + 0.01 * torch.randn_like(weight) for name, weight in state.items()}
        path = tmp_path / "checkpoint_best.pt"
        checkpoint = {
            "epoch": 40,
            "state_dict": {f"module.{name}": weight for name, weight in state.items()},
            "optimizer": {"state": {}, "param_groups": [{"lr": 5e-4, "betas": (0.9, 0.98)}]},
            "scaler": {"scale": 65536.0},
            "best_acc1": 31.8,
            "args": argparse.Namespace(model="DiffCLIP_VITB16", lr=5e-4, output_dir="out"),
        }
        torch.save(checkpoint | more, path)
        return path, state

    return write


@pytest.mark.parametrize(("towers", "keys"), [(None, 301), ("both", 517), ("vision", 409), ("text", 409)])
def test_the_full_size_has_as_many_keys_as_the_released_files(towers, keys):
    names = [name for several in _translation(configure_clip("b16", towers=towers)).values() for name in several]
    assert len(names) == len(set(names)) == keys


def test_the_full_sizes_shapes_are_the_released_files():
    with torch.device("meta"):
        state = to_released(bare_clip(configure_clip("b16", towers="vision")))
    shapes = {
        "positional_embedding": (77, 512),
        "image_projection": (768, 512),
        "text_projection": (512, 512),
        "logit_scale": (),
        "token_embedding.weight": (49_408, 512),
        "visual.cls_token": (1, 1, 768),
        "visual.pos_embed": (1, 197, 768),
        "visual.blocks.3.attn.q_proj.weight": (768, 768),
        "visual.blocks.3.attn.lambda_q1": (64,),
        "visual.blocks.3.attn.diff_norm.weight": (128,),
        "transformer.resblocks.3.attn.in_proj_weight": (1536, 512),
        "transformer.resblocks.3.mlp.c_fc.weight": (2048, 512),
    }
    assert {name: tuple(state[name].shape) for name in shapes} == shapes


@pytest.mark.parametrize("towers", VARIANTS)
def test_embeddings_are_the_formulas(released, towers):
    path, state = released(towers)
    spec = f"diffclip:{path}" + ("" if towers is None else "#lambda_init=0.6")
    if towers is None:
        model = load_model(spec)
    else:
        with pytest.warns(UserWarning, match="λ_init = 0.6 cannot be checked"):
            model = load_model(spec)
    model, state = model.double(), {name: weight.double() for name, weight in state.items()}
    image = torch.rand(3, 32, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    eps = 1e-5 if towers in ("both", "vision") else 1e-6
    expected = slow.embed_image(state, image, mean=mean, std=std, lambda_init=0.6, eps=eps)
    # mean and std are stored in float32
    torch.testing.assert_close(model.encode_image(image[None])[0], expected, rtol=0, atol=1e-6)
    tokens = [99, 3, 17, 100, 0, 0]
    expected = slow.embed_text(state, tokens[:4], lambda_init=0.6)
    embedding = model.encode_text(torch.tensor([tokens]))[0]
    torch.testing.assert_close(embedding, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("towers", VARIANTS)
@pytest.mark.filterwarnings("ignore:.*cannot be checked")
def test_a_checkpoint_goes_round(released, tmp_path, towers):
    path, state = released(towers)
    model = load_model(f"diffclip:{path}" + "#lambda_init=0.7" * bool(towers))
    back = to_released(model)
    assert back.keys() == state.keys()
    assert all(torch.equal(back[name], state[name]) for name in state)
    write_model(model, tmp_path / "ours")
    again = load_model(str(tmp_path / "ours"))
    images = torch.rand(2, 3, 32, 32)
    assert torch.equal(again.encode_image(images), model.encode_image(images))
    assert again.config == model.config
    write_model(again, tmp_path / "theirs", layout="released")
    assert (tmp_path / "theirs" / RELEASED_WEIGHTS).exists()


@pytest.mark.filterwarnings("ignore:.*cannot be checked")
def test_the_depth_schedule_is_another_model(released):
    path, _ = released("both")
    one, two = (load_model(f"diffclip:{path}#lambda_init={value}") for value in ("0.8", "depth"))
    assert [layer.attn.lambda_init for layer in two.visual.blocks] == pytest.approx(
        [0.2, 0.8 - 0.6 * 2.718281828**-0.3]
    )
    assert not torch.allclose(one.encode_text(torch.tensor([[99, 100]])), two.encode_text(torch.tensor([[99, 100]])))


@pytest.mark.filterwarnings("ignore:.*cannot be checked")
def test_a_fingerprint_tells_lambda_init_and_heads_apart(released):
    path, _ = released("both")
    models = [load_model(f"diffclip:{path}#lambda_init={value}") for value in ("0.8", "0.2", "depth")]
    assert len({fingerprint(model) for model in models}) == 3
    small = {"vision": {"dim": 24, "num_heads": 2}, "text": {"dim": 24, "num_heads": 2}}
    wide, narrow = (clip(seed=0, **{t: small[t] | {"num_heads": n} for t in small}) for n in (2, 4))
    assert torch.equal(wide.image_projection, narrow.image_projection)
    assert fingerprint(wide) != fingerprint(narrow)
    assert fingerprint(load_model(f"diffclip:{path}", lambda_init=0.2)) == fingerprint(models[1])


@pytest.mark.parametrize(
    ("spec", "value"),
    [("specimen:diffvit-0", 0.3), ("specimen:vit-0", "a"), ("diffclip:x#lambda_init=1", 0.8), ("diffclip:x", math.nan)],
)
def test_a_lambda_init_that_is_no_checkpoints_is_refused(spec, value):
    with pytest.raises(UserError, match="lambda_init"):
        load_model(spec, lambda_init=value)


@pytest.mark.parametrize(
    ("make", "more"),
    [(clip, {}), (diffclip, {}), (diffclip, {"schedule": "depth"}), (diffclip, {"towers": "text", "lambda_init": 0.3})],
)
def test_a_model_of_any_head_width_goes_round_in_the_released_layout(tmp_path, make, more):
    narrow = {tower: SMALL[tower] | {"num_heads": 8} for tower in ("vision", "text")}
    model = make(**SMALL | narrow, **more)
    path = write_model(model, tmp_path, layout="released")
    again = load_model(f"diffclip:{path}")
    assert again.config == model.config
    images, tokens = torch.rand(2, 3, 32, 32), torch.tensor([[99, 3, 17, 100]])
    assert torch.equal(again.encode_image(images), model.encode_image(images))
    assert torch.equal(again.encode_text(tokens), model.encode_text(tokens))
    with pytest.raises(UserError, match="the file's header has it already"):
        load_model(f"diffclip:{path}#lambda_init=0.8")


@pytest.mark.parametrize("text", ["{", "[]", '{"vision": 3}', "[" * 100_000])
def test_a_damaged_header_is_one_line(tmp_path, text):
    path = write_model(clip(**SMALL), tmp_path, layout="released")
    save_file(load_file(path), path, {CONFIG: text})
    with pytest.raises(UserError, match=r"released\.safetensors: ") as caught:
        load_model(f"diffclip:{path}")
    assert "\n" not in str(caught.value)


def test_lambda_init_is_required_and_not_guessed(released):
    path, _ = released("vision")
    with pytest.raises(UserError, match="λ_init missing"):
        load_model(f"diffclip:{path}")
    with pytest.raises(UserError, match=r"expected #lambda_init=0\.8"):
        load_model(f"diffclip:{path}#lambda=0.8")
    with pytest.raises(UserError, match=r"expected #lambda_init=0\.8"):
        load_model(f"diffclip:{path}#lambda_init=nan")


@pytest.mark.parametrize("value", ["nan", "inf", "deep", "True", "[0.8]", f"1{400 * '0'}"])
def test_a_lambda_init_that_is_no_number_is_refused(released, value):
    path, _ = released("vision")
    with pytest.raises(UserError, match="lambda_init") as caught:
        load_model(f"diffclip:{path}#lambda_init={value}")
    assert "\n" not in str(caught.value)


def test_lambda_init_without_a_differential_tower_is_refused(released):
    path, _ = released(None)
    with pytest.raises(UserError, match="no tower has a λ"):
        load_model(f"diffclip:{path}#lambda_init=0.8")


class Malicious:
    def __reduce__(self):
        return (print, ("run by a pickle",))


def test_a_pickle_that_would_run_code_is_refused(released, capsys):
    path, _ = released(None, args=Malicious())
    with pytest.raises(UserError, match="cannot be read safely"):
        load_model(f"diffclip:{path}")
    assert "run by a pickle" not in capsys.readouterr().out
    path.write_bytes(pickle.dumps({"state_dict": 3})[:-2])
    with pytest.raises(UserError, match=r"checkpoint_best\.pt: cannot be read safely"):
        load_model(f"diffclip:{path}")


@pytest.mark.parametrize(
    ("name", "axes"), [("positional_embedding", 2), ("visual.pos_embed", 3), ("image_projection", 2)]
)
def test_a_shape_that_is_not_the_layouts_is_one_line(released, name, axes):
    path, state = released(None)
    torch.save(state | {name: state[name].flatten()}, path)
    with pytest.raises(
        UserError, match=rf"'{name}' has shape \(\d+,\), expected {axes} non-empty axes; expected the layout"
    ) as caught:
        load_model(f"diffclip:{path}")
    assert "\n" not in str(caught.value)


@pytest.mark.filterwarnings("ignore:.*cannot be checked")
def test_projections_that_do_not_fit_together_are_one_line(released):
    path, state = released("both")
    name = "transformer.resblocks.1.attn.k_proj.weight"
    torch.save(state | {name: state[name][:, :-1]}, path)
    with pytest.raises(UserError, match=r"k_proj\.weight.* have different shapes"):
        load_model(f"diffclip:{path}#lambda_init=0.8")


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (lambda weight: weight.index_fill(0, torch.tensor([0]), float("nan")), "'text.norm.bias' contains NaN"),
        (lambda weight: weight.index_fill(0, torch.tensor([1]), float("inf")), "'text.norm.bias' contains NaN"),
        (lambda weight: weight.long(), "'text.norm.bias' has type torch.int64; expected torch.float32"),
    ],
)
def test_weights_that_are_no_finite_real_numbers_are_refused(released, change, line):
    path, state = released(None)
    torch.save(state | {"ln_final.bias": change(state["ln_final.bias"])}, path)
    with pytest.raises(UserError, match=line):
        load_model(f"diffclip:{path}")


def test_what_does_not_fit_is_named(released, tmp_path):
    path, state = released(None)
    torch.save({"state_dict": {name: w for name, w in state.items() if name != "visual.norm.bias"}}, path)
    with pytest.raises(UserError, match=r"parameter 'visual\.norm\.bias' is missing"):
        load_model(f"diffclip:{path}")
    torch.save({"state_dict": {"a": torch.zeros(1)}}, path)
    with pytest.raises(UserError, match="no attention under"):
        load_model(f"diffclip:{path}")
    torch.save({"state_dict": "weights"}, path)
    with pytest.raises(UserError, match="expected a dictionary of tensors"):
        load_model(f"diffclip:{path}")
    with pytest.raises(UserError, match="no such file"):
        load_model(f"diffclip:{tmp_path / 'none.pt'}")


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        ({"variant": "v2"}, "attention v2, expected differential"),
        ({"vision": {"head_norm": False}}, "head_norm False, expected True"),
        ({"vision": {"temperature": 2.0}}, "temperature 2.0, expected 1.0"),
        ({"vision": {"lambda_max": 0.9}}, "lambda_max 0.9, expected None"),
    ],
)
def test_what_the_authors_code_does_not_compute_is_not_written_for_it(fields, line):
    with pytest.raises(UserError, match=f"the released layout cannot store {line}"):
        to_released(diffclip(**fields))
