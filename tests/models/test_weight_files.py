"""Files of weights as common training code writes them: the right tensors, or one line that says what is the matter."""

import json
import os
import warnings
import zipfile

import numpy as np
import pytest
import torch
from safetensors.torch import save_file, save_model
from torch import nn

from antiphase.errors import UserError
from antiphase.models import checkpoints, load_model
from antiphase.models.checkpoints import read_state
from antiphase.models.schemes.python_code import code_content, split_spec


def net():
    torch.manual_seed(1)
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(2 * 36, 3))


NET = net()
STATE = {name: value + 1 for name, value in NET.state_dict().items()}
OTHER = {name: value + 2 for name, value in STATE.items()}


def under(prefix, state=STATE):
    return {prefix + name: value for name, value in state.items()}


def averaged():
    model = torch.optim.swa_utils.AveragedModel(net())
    model.module.load_state_dict(STATE)
    return model.state_dict()


def read(path, module=NET):
    """Return what was read, checked by loading it strictly, and what was said."""
    model = net()
    with warnings.catch_warnings(record=True) as records:
        warnings.simplefilter("always")
        state = read_state(str(path), module.state_dict())
    checkpoints.load_into(model, state, str(path))
    return model.state_dict(), " ".join(str(record.message) for record in records)


def same(state, expected):
    return all(torch.equal(state[name], value) for name, value in expected.items())


LOOP = {"state_dict": STATE}
LOOP["itself"] = LOOP

QUIET = {
    "plain": STATE,
    "DDP": under("module."),
    "compile of DDP": under("_orig_mod.module."),
    "a compiled part": {name.replace("3.", "3._orig_mod."): value for name, value in STATE.items()},
    "net": {"net": under("module."), "acc": 95.0, "epoch": 100},
    "deepspeed": {"module": STATE, "ds_version": "0.1", "global_steps": 10},
    "nested twice": {"checkpoint": {"weights": under("model.net.")}, "args": {"lr": 0.1}},
    "lightning": {"state_dict": under("model."), "epoch": 1, "pytorch-lightning_version": "2.0"},
    "an optimizer": {"model": STATE, "optimizer": {"state": {0: {"exp_avg": torch.ones(3)}}, "param_groups": []}},
    "before torch 0.4.1": {name: value for name, value in STATE.items() if "num_batches" not in name},
    "parameters": {name: nn.Parameter(value, requires_grad=False) for name, value in STATE.items()},
    "refers to itself": LOOP,
}


@pytest.mark.parametrize("checkpoint", QUIET.values(), ids=QUIET)
def test_weights_are_found_by_the_model_s_names(tmp_path, checkpoint):
    torch.save(checkpoint, tmp_path / "a.pt")
    state, message = read(tmp_path / "a.pt")
    expected = {name: value for name, value in STATE.items() if "num_batches" not in name}
    assert same(state, expected)
    assert not message


@pytest.mark.parametrize(
    ("checkpoint", "ignored"),
    [
        (averaged(), "n_averaged"),
        ({"state_dict": under("model.") | {"criterion.weight": torch.ones(3)}}, "state_dict.criterion.weight"),
        (STATE | {"loss_fn.weight": torch.ones(3)}, "loss_fn.weight"),
        (STATE | {"total_ops": torch.zeros(1), "0.total_params": torch.zeros(1)}, "total_ops, 0.total_params"),
        ({"model": STATE, "discriminator": {"weight": torch.ones(1)}}, "discriminator.weight"),
        ({"model": STATE, "epoch": torch.tensor(3)}, "epoch"),
        (
            {"model": STATE, "ema": {"shadow_params": [torch.ones(3), torch.ones(2)]}},
            "ema.shadow_params.0, ema.shadow_params.1; a moving average among them is not used",
        ),
    ],
)
def test_what_is_no_weight_of_the_model_is_ignored_and_named(tmp_path, checkpoint, ignored):
    torch.save(checkpoint, tmp_path / "a.pt")
    state, message = read(tmp_path / "a.pt")
    assert same(state, STATE)
    assert message == f"{tmp_path / 'a.pt'}: ignored, not in the model: {ignored}"


@pytest.mark.parametrize(
    ("checkpoint", "average", "rest"),
    [
        ({"state_dict": OTHER, "state_dict_ema": STATE}, "state_dict_ema", "state_dict"),
        ({"model": OTHER, "model_ema": averaged()}, "model_ema.module", "model"),
        ({"params": OTHER, "params_ema": STATE}, "params_ema", "params"),
        ({"state_dict": under("model.", OTHER) | under("swa_model.")}, "state_dict.swa_model", "state_dict.model"),
        (OTHER | {"ema": STATE}, "ema", "."),
        ({"non_ema": OTHER, "ema": STATE}, "ema", "non_ema"),
    ],
)
def test_a_moving_average_goes_first_and_the_other_can_be_chosen(tmp_path, checkpoint, average, rest):
    torch.save(checkpoint, tmp_path / "a.pt")
    state, message = read(tmp_path / "a.pt")
    assert same(state, STATE)
    assert f"loaded the moving average {average}; for the other weights: {tmp_path / 'a.pt'}#{rest}" in message
    assert same(read(f"{tmp_path / 'a.pt'}#{rest}")[0], OTHER)
    assert same(read(f"{tmp_path / 'a.pt'}#{average}")[0], STATE)


def test_several_sets_of_weights_are_to_be_chosen_from(tmp_path):
    path = tmp_path / "a.pt"
    torch.save({"state_dict": under("student.") | under("teacher.", OTHER)}, path)
    with pytest.raises(UserError, match=r"several sets .* state_dict\.student, state_dict\.teacher; choose one: .*#"):
        read(path)
    assert same(read(f"{path}#student")[0], STATE)
    assert same(read(f"{path}#state_dict.teacher")[0], OTHER)
    with pytest.raises(UserError, match=r"no weights 'ema' that fit the model; the file has state_dict\.student"):
        read(f"{path}#ema")
    for other in ("model_no_ema", "non_ema", "state_dict_before_swa"):  # no moving average
        torch.save({"model": STATE, other: OTHER}, path)
        with pytest.raises(UserError, match="several sets"):
            read(path)
    torch.save({"best": STATE, "last": OTHER, "model_ema": STATE}, path)
    with pytest.raises(UserError, match="several sets"):  # the average of which?
        read(path)
    wide = {name: torch.zeros(7, *value.shape[1:]) if name == "3.weight" else value for name, value in OTHER.items()}
    torch.save({"teacher": wide, "student": STATE}, path)
    assert same(read(path)[0], STATE)  # the only one of these shapes
    torch.save({"state_dict": wide | under("teacher.")}, path)  # part of a model of other shapes
    with pytest.raises(UserError, match=r"state_dict has the model's names, and only state_dict\.teacher its shapes"):
        read(path)
    assert same(read(f"{path}#teacher")[0], STATE)


class WithMore(nn.Linear):
    """State that is no tensor, as that of quantised layers."""

    def get_extra_state(self):
        return {"scale": 3}

    def set_extra_state(self, state):
        assert state == {"scale": 3}


def test_state_that_is_no_tensor_stays(tmp_path):
    model = WithMore(4, 3)
    torch.save({"weight": torch.ones(3, 4), "bias": torch.zeros(3)}, tmp_path / "a.pt")
    checkpoints.load_into(model, read_state(tmp_path / "a.pt", model.state_dict()), "a.pt")
    assert torch.equal(model(torch.ones(1, 4)), torch.full((1, 3), 4.0))
    checkpoints.check_finite(model.state_dict(), "a")


def test_two_tensors_of_one_name_are_refused_unless_they_are_equal(tmp_path):
    path = tmp_path / "a.pt"
    torch.save({"state_dict": STATE | under("_orig_mod.")}, path)
    assert same(read(path)[0], STATE)
    torch.save({"state_dict": STATE | under("_orig_mod.", OTHER)}, path)
    with pytest.raises(UserError, match=r"a\.pt: two tensors are called 'state_dict\.\d.* without wrappers; save the"):
        read(path)
    both = checkpoints.unshared(STATE | under("_orig_mod.", OTHER))
    save_file(both, tmp_path / "a.safetensors")
    with pytest.raises(UserError, match="two tensors are called"):
        read(tmp_path / "a.safetensors")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda state: state | {"4.weight": torch.ones(1)}, "'4.weight' is not in the model"),
        (lambda state: {name: value for name, value in state.items() if name != "3.bias"}, "'3.bias' is missing"),
        (lambda state: state | {"3.bias": torch.ones(4)}, r"'3.bias' has shape \(4,\), expected \(3,\)"),
        (lambda state: state | {"3.bias": state["3.bias"].to_sparse()}, "'3.bias' is sparse or has no values"),
        (lambda state: state | {"3.bias": state["3.bias"].to("meta")}, "'3.bias' is sparse or has no values"),
        (
            lambda state: {"encoder." + name: value for name, value in state.items() if name[0] != "3"},
            "'3.bias' is missing",
        ),
    ],
)
def test_nothing_is_loaded_in_part(tmp_path, change, told):
    torch.save({"state_dict": under("model.", change(STATE))}, tmp_path / "a.pt")
    with pytest.raises(UserError, match=told):
        read(tmp_path / "a.pt")


def test_a_flipped_bit_in_a_file_of_torch_save_is_refused(tmp_path):
    torch.save(STATE, tmp_path / "a.pt")
    content = bytearray((tmp_path / "a.pt").read_bytes())
    with zipfile.ZipFile(tmp_path / "a.pt") as archive:
        largest = max(archive.infolist(), key=lambda member: member.file_size)
        data = archive.read(largest)
    content[bytes(content).index(data) + len(data) // 2] ^= 1
    (tmp_path / "a.pt").write_bytes(content)
    with pytest.raises(UserError, match=r"is damaged or has no checksums \(a/data/.*\); copy or download it again"):
        read(tmp_path / "a.pt")


def test_a_checkpoint_in_several_files_is_read_by_its_index(tmp_path):
    names = sorted(STATE)
    for number, part in enumerate((names[:3], names[3:])):
        save_file({name: STATE[name] for name in part}, tmp_path / f"{number}.safetensors")
    places = {name: f"{int(name in names[3:])}.safetensors" for name in names}
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": places}))
    assert same(read(index)[0], STATE)
    save_file({name: OTHER[name] for name in names[2:]}, tmp_path / "1.safetensors")
    with pytest.raises(UserError, match="two of its files have a tensor of the same name"):
        read(index)
    for broken in (
        "{",
        "[]",
        "{}",
        '{"weight_map": {"a": "../../a.pt"}}',
        '{"weight_map": {"a": 3.5}}',
        '{"weight_map": {"a": ""}}',
        '{"weight_map": {"a": ".."}}',
    ):
        index.write_text(broken)
        with pytest.raises(UserError) as caught:
            read(index)
        assert "\n" not in str(caught.value)


def test_the_content_says_what_a_file_is_not_its_name(tmp_path):
    save_file(STATE, tmp_path / "a.pt", {"format": "pt"})
    torch.save(STATE, tmp_path / "old.bin", _use_new_zipfile_serialization=False)
    assert same(read(tmp_path / "a.pt")[0], STATE)
    assert same(read(tmp_path / "old.bin")[0], STATE)


def _torchscript(path):
    with warnings.catch_warnings(action="ignore"):
        torch.jit.trace(NET.eval(), torch.rand(1, 1, 8, 8)).save(path)


LFS = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 12345\n"
WRONG = {
    "lfs.pt": (lambda path: path.write_text(LFS), "is a pointer of Git LFS; get the weights with git lfs pull"),
    "lfs.safetensors": (lambda path: path.write_text(LFS), "is a pointer of Git LFS"),
    "page.pth": (lambda path: path.write_text("\n<!DOCTYPE html><title>Sign in</title>"), "is a web page"),
    "error.bin": (lambda path: path.write_text('{"error": "Repository not found"}'), "is a web page or other text"),
    "empty.pt": (lambda path: path.touch(), "is empty"),
    "empty.safetensors": (lambda path: path.touch(), "is empty"),
    "none.pt": (lambda path: None, "no such file"),
    "folder": (lambda path: path.mkdir(), "is a folder; expected a file in it"),
    "pipe": (os.mkfifo, "is no regular file"),
    "script.pt": (_torchscript, "is a TorchScript archive; save its weights alone"),
    "arrays.npz": (lambda path: np.savez(path, a=np.ones(3)), "is an archive of something else"),
    "cut.safetensors": (lambda path: save_file(STATE, path) or os.truncate(path, 200), "incomplete or invalid"),
    "cut.pt": (lambda path: torch.save(STATE, path) or os.truncate(path, 900), "is incomplete; copy or download"),
    "whole.pth": (lambda path: torch.save(NET, path), "contains 'torch.nn.modules.container.Sequential', and a pickle"),
    "numpy.pt": (lambda path: torch.save({"a": np.float64(1)}, path), "cannot be read safely .*numpy"),
    "list.pt": (lambda path: torch.save([STATE], path), "no weights found; expected a dictionary of tensors"),
    "noise.pt": (lambda path: path.write_bytes(bytes(range(256))), "cannot be read safely"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_no_file_of_weights_is_named(tmp_path, name):
    write, told = WRONG[name]
    write(tmp_path / name)
    with pytest.raises(UserError, match=f"{name}: {told}" if "cannot" in told else told) as caught:
        read(tmp_path / name)
    assert "\n" not in str(caught.value)


def test_a_run_whose_weights_are_a_pointer_is_named(tmp_path):
    (tmp_path / checkpoints.WEIGHTS_FILE).write_text(LFS)
    with pytest.raises(UserError, match="is a pointer of Git LFS"):
        checkpoints.read_weights(tmp_path / checkpoints.WEIGHTS_FILE)


CODE = """
import torch
from torch import nn
def build(depth=1):
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(2 * 36, 3))
"""


@pytest.mark.parametrize("name", ["1e3", "epoch=3-acc=0.9.ckpt", "lr=0.1,wd=0/best.pt", "a#b.pt", "True"])
def test_a_user_s_model_takes_weights_from_a_file_of_any_name(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(CODE)
    (tmp_path / name).parent.mkdir(exist_ok=True)
    torch.save({"state_dict": OTHER, "state_dict_ema": STATE}, name)
    spec = f"net.py:build?depth=2,weights={name}"
    with pytest.warns(UserWarning, match="moving average"):
        assert same(load_model(f"python:{spec}").state_dict(), STATE)
    assert same(load_model(f"python:{spec}#state_dict").state_dict(), OTHER)
    assert split_spec(spec)[2] == {"depth": 2, "weights": name}
    assert len({code_content(spec), code_content(f"{spec}#state_dict"), code_content("net.py:build")}) == 3


@pytest.mark.parametrize("prefix", ["", "model."])
@pytest.mark.parametrize("first", [True, False])
def test_weights_that_are_tied_may_be_in_a_file_once(tmp_path, prefix, first):
    def tied():
        model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 2))
        model[1].weight = model[0].weight
        return model

    model, path = tied(), tmp_path / "tied.safetensors"
    if prefix:
        dropped = "1.weight" if first else "0.weight"
        kept = {name: value.clone() for name, value in model.state_dict().items() if name != dropped}
        save_file(under(prefix, kept), path)
    else:
        save_model(model, str(path))
    other = tied()
    checkpoints.load_into(other, read_state(str(path), other.state_dict()), str(path))
    assert same(other.state_dict(), model.state_dict())
    assert other[0].weight is other[1].weight
