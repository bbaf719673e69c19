"""What a GPU computes against what the CPU computes; run with ``pytest -m cuda`` where there is one."""

import json

import polars as pl
import pytest
import torch

import antiphase as ap
from antiphase.attention import differential_attention
from antiphase.precision import exact_float32

pytestmark = pytest.mark.cuda

SETTINGS = {
    "pgd": {"steps": 5},
    "fgsm": {},
    "apgd": {"steps": 10},
    "fab": {"steps": 10},
    "square": {"queries": 100},
    "carlini_wagner": {"search_steps": 2, "steps": 30},
    "patch_pgd": {"steps": 5, "width": 6},
}


@pytest.fixture(scope="module")
def data():
    return ap.load_data("specimen-fashion-mnist", limit=60, seed=0)


@pytest.fixture(scope="module")
def models():
    return {device: ap.load_model("specimen:diffvit-0").eval().to(device) for device in ("cpu", "cuda")}


def attack(name, model, images, **settings):
    threat = ap.attacks.Threat(
        norm="l2" if name == "carlini_wagner" else "linf",
        eps=1.0 if name in ("carlini_wagner", "patch_pgd") else 4 / 255,
    )
    return getattr(ap.attacks, name)(model, images, None, threat, **SETTINGS[name], **settings)


@pytest.mark.parametrize("name", SETTINGS)
def test_attack_on_cuda_breaks_what_the_cpu_model_misclassifies(name, models, data):
    images = data.images(range(60))
    on_gpu, on_cpu = attack(name, models["cuda"], images.cuda()), attack(name, models["cpu"], images)
    adversarial = on_gpu.adversarial.cpu()
    with torch.no_grad():
        logits = models["cpu"](adversarial)
        clean = models["cpu"](images).argmax(1)
    top = logits.sort(1, descending=True).values
    success = on_gpu.success.cpu()
    sure = success & ((top[:, 0] - top[:, 1]) > 1e-3)  # closer ones may be decided by rounding
    assert bool((logits.argmax(1) != clean)[sure].all())
    assert success.any() == on_cpu.success.any()
    assert abs(float(on_gpu.asr) - float(on_cpu.asr)) <= 0.05


@pytest.mark.parametrize("name", ["pgd", "apgd", "square"])
def test_verdicts_on_cuda_do_not_depend_on_the_batch_size(name, models, data):
    images = data.images(range(60)).cuda()
    small, whole = (attack(name, models["cuda"], images, batch_size=size) for size in (7, 60))
    again = attack(name, models["cuda"], images, batch_size=60)
    assert torch.equal(whole.success, again.success)
    assert torch.equal(whole.adversarial, again.adversarial)
    assert torch.equal(small.success, whole.success)


@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_search_precision_on_cuda_leaves_confirmed_successes(precision, models, data):
    images = data.images(range(60)).cuda()
    result = attack("pgd", models["cuda"], images, precision=precision)
    with torch.no_grad(), exact_float32(images.device):
        prediction = models["cuda"](result.adversarial.cuda()).argmax(1)
        clean = models["cuda"](images).argmax(1)
    assert torch.equal((prediction != clean).cpu(), result.success.cpu())


def test_convolution_in_exact_float32_is_no_tf32():
    draw = torch.Generator().manual_seed(0)
    x, w = torch.rand(4, 64, 32, 32, generator=draw), torch.rand(64, 64, 3, 3, generator=draw)
    truth = torch.nn.functional.conv2d(x.double(), w.double())
    before = torch.backends.cudnn.conv.fp32_precision
    with exact_float32(torch.device("cuda")):
        exact = torch.nn.functional.conv2d(x.cuda(), w.cuda()).cpu()
    assert torch.backends.cudnn.conv.fp32_precision == before
    assert float(((exact - truth) / truth).abs().amax()) < 3e-6  # TF32: 1e-4


@pytest.mark.parametrize("backend", ["auto", "eager", "sdpa"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-5), (torch.bfloat16, 3e-2)])
def test_differential_attention_on_cuda_agrees_with_float64(backend, dtype, tolerance):
    draw = torch.Generator().manual_seed(1)
    shapes = [(3, 5, 37, 16)] * 4 + [(3, 5, 37, 32)]
    parts = [torch.randn(shape, generator=draw, dtype=torch.float64) for shape in shapes]
    lam = torch.tensor([0.2, 0.5, 0.8, 0.3, 0.0], dtype=torch.float64)

    def run(device, dtype, backend):
        leaves = [part.to(device, dtype).requires_grad_() for part in (*parts, lam)]
        out = differential_attention(*leaves[:5], leaves[5], backend=backend)
        return [out, *torch.autograd.grad(out.square().sum(), leaves)]

    for value, truth in zip(run("cuda", dtype, backend), run("cpu", torch.float64, "eager"), strict=True):
        assert float((value.detach().cpu().double() - truth).norm() / truth.norm().clamp_min(1e-9)) < tolerance


def test_backend_for_the_cpu_refuses_a_gpu():
    parts = torch.zeros(1, 1, 4, 8, device="cuda")
    with pytest.raises(ValueError, match="on a CPU"):
        differential_attention(parts, parts, parts, parts, parts, 0.5, backend="native")


@pytest.mark.parametrize("part", ["alignment", "lipschitz"])
def test_sense_on_cuda_agrees_with_the_cpu(part, tmp_path):
    summaries = [
        ap.sense("specimen:diffvit-0", limit=4, parts=part, device=device, out=tmp_path / device, quiet=True)
        for device in ("cpu", "cuda")
    ]
    for name in ("alignment", "lipschitz"):
        tables = [tmp_path / device / f"{name}.parquet" for device in ("cpu", "cuda")]
        if not tables[0].exists():
            continue
        cpu, gpu = (pl.read_parquet(table, glob=False) for table in tables)
        assert cpu.shape == gpu.shape
        for column in cpu.select(pl.col(pl.Float64, pl.Float32)).columns:
            if "second" in column:
                continue
            a, b = (torch.tensor(t[column].fill_null(0.0).fill_nan(0.0).to_numpy().copy()) for t in (cpu, gpu))
            assert torch.allclose(a.double(), b.double(), rtol=2e-2, atol=1e-3), column
    assert summaries[0].summary.keys() == summaries[1].summary.keys()


@pytest.mark.parametrize(
    "command",
    [
        "audit specimen:diffvit-0 --against specimen:vit-0 --limit 40 --eps 1/255,4/255 --steps 5 --sense-limit 2",
        "attack specimen:diffvit-0 --attack autoattack --queries 50 --steps 10 --limit 40",
        "attack specimen:diffvit-0 --attack pgd --precision bf16 --limit 40",
        "certify specimen:diffvit-0 --limit 3 --samples 200 --select 20",
        "train --model diffvit --data digits --epochs 1 --depth 1 --dim 32 --patch-size 2",
        "train --model vit --data digits --epochs 1 --depth 1 --dim 32 --patch-size 2 --adversarial 1/255",
    ],
)
def test_command_runs_on_cuda(command, tmp_path, run_cli):
    device = [] if command.startswith("train") else ["--device", "cuda"]  # training takes the GPU there is
    code, _, error = run_cli(*command.split(), *device, "--out", tmp_path / "o", "-q")
    assert code == 0, error
    record = json.loads((tmp_path / "o" / "run.json").read_text()) if (tmp_path / "o" / "run.json").exists() else {}
    assert "NVIDIA" in json.dumps(record) or command.startswith("train")
