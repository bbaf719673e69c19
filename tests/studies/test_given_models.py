"""Studies of CLIPs that are given, not trained: files in the layout of the authors' checkpoints, random weights."""

import argparse
import json

import polars as pl
import pytest
import torch

from antiphase.cli import main
from antiphase.data.shards import CC3M, CC12M
from antiphase.errors import UserError
from antiphase.models import clip, diffclip, load_model, write_model
from antiphase.models.schemes.diffclip import to_released
from antiphase.models.zeroshot import as_dual_encoder
from antiphase.studies.options import RowsOptions, RunOptions, StudyOptions
from antiphase.studies.papers.diffclip.bench import PAIR, bench, given_models, models, settings
from antiphase.studies.plan import select
from antiphase.studies.results import results_of
from antiphase.studies.spec import Profile, profile
from antiphase.studies.store import identity

SIZES = {
    "vision": {"image_size": 32, "patch_size": 16, "dim": 128, "depth": 1, "num_heads": 2},
    "text": {"dim": 128, "depth": 1, "num_heads": 2},
    "embed_dim": 16,
}
KINDS = {"clip": None, "diffclip": "both", "vision": "vision"}
NOTE = "ignore:.*cannot be checked"


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Checkpoints as the authors' code writes them, one of each kind, with random weights."""
    folder = tmp_path_factory.mktemp("released")
    for number, (name, towers) in enumerate(KINDS.items()):
        build = clip if towers is None else diffclip
        model = build("b16", init="released", seed=number, **SIZES, **({} if towers is None else {"towers": towers}))
        state = {f"module.{key}": weight for key, weight in to_released(model).items()}
        checkpoint = {"epoch": 40, "state_dict": state, "args": argparse.Namespace(lr=5e-4)}
        torch.save(checkpoint, folder / f"{name}.pt")
    return folder


@pytest.fixture
def call(monkeypatch, capsys):
    def run(*words):
        monkeypatch.setattr("sys.argv", ["antiphase", "study", *map(str, words)])
        try:
            main()
        except SystemExit as ended:
            return ended.code or 0, *capsys.readouterr()
        return 0, *capsys.readouterr()

    return run


def under(name, *specs):
    return Profile(name, (0, 1), specs)


@pytest.mark.filterwarnings(NOTE)
def test_a_table_of_released_files_is_one_command(call, files, tmp_path):
    given = f"diffclip:{files}/clip.pt,diffclip:{files}/diffclip.pt#lambda_init=0.8"
    words = ("diffclip-table-2", "--profile", "smoke", "--models", given, "--store", tmp_path / "store")
    code, _, err = call("run", *words)
    assert code == 0, err
    assert "4 to make (4 evaluate)" in err  # and no training
    code, _, err = call("run", *words)
    assert (code, "4 cells, all there" in err) == (0, True)
    code, _, err = call("rows", *words, "--table", "evaluate", "--out", tmp_path / "rows.parquet")
    assert code == 0, err
    rows = pl.read_parquet(tmp_path / "rows.parquet").filter(task="zero-shot")
    (cell,) = [
        one
        for one in select(StudyOptions(names=words[:1], profile="smoke", models=given)).cells
        if one.task == "zero-shot" and one.model.series == "DiffCLIP"
    ]
    encoder = as_dual_encoder(load_model(cell.model.spec))
    assert encoder.square.size == 32
    diffclip_rows = rows.filter(series="DiffCLIP")
    assert (len(diffclip_rows), set(rows["trained_on"]), set(rows["training_seed"])) == (120, {CC12M}, {0})
    assert not diffclip_rows["rank"].equals(rows.filter(series="CLIP")["rank"])
    code, out, _ = call("claims", *words, "--json")
    (study,) = json.loads(out)
    checks = [check for claim in study["claims"] for check in claim["checks"]]
    assert [check["what"] for check in checks] == [
        f"{task}: DiffCLIP − CLIP, trained on CC12M" for task in ("image retrieval", "text retrieval", "zero-shot")
    ]
    assert all(check["value"] is not None for check in checks[2:])
    code, _, err = call("report", *words, "--out", tmp_path / "site")
    assert code == 0, err
    page = (tmp_path / "site" / "diffclip-table-2.html").read_text()
    assert f"{files}/diffclip.pt#lambda_init=0.8 (λ_init is assumed" in page
    assert f"--models &#39;{given}&#39;" in page
    assert "AdamW" not in page.partition("Settings")[2].partition("Versions")[0]


@pytest.mark.filterwarnings(NOTE)
def test_kinds_and_training_sets_are_read_from_the_file_and_its_path(files, tmp_path):
    (tmp_path / "cc3m").mkdir()
    (tmp_path / "cc3m" / "checkpoint_best.pt").symlink_to(files / "diffclip.pt")
    specs = (
        f"diffclip:{files}/clip.pt",
        f"diffclip:{files}/diffclip.pt#lambda_init=0.7",
        f"diffclip:{files}/diffclip.pt#lambda_init=depth",
        f"diffclip:{files}/vision.pt#lambda_init=0.8",
        f"diffclip:{tmp_path}/cc3m#lambda_init=0.8",
        f"diffclip:{files}/diffclip.pt#lambda_init=0.6",
        "open_clip:ViT-B-16/openai",
    )
    entries = given_models(under("laptop", *specs))
    facts = [one.factors() for one in entries]
    assert [row["series"] for row in facts] == [
        "CLIP",
        "DiffCLIP",
        "DiffCLIP*",
        "DiffCLIP†",
        "DiffCLIP",
        "DiffCLIP",
        "ViT-B-16",
    ]
    assert [row["trained_on"] for row in facts] == [CC12M] * 4 + [CC3M, CC12M, "openai"]
    assert [row["training_seed"] for row in facts] == [0, 0, 0, 0, 0, 1, 0]  # the second DiffCLIP of CC12M
    assert [row.get("lambda_init") for row in facts] == [None, 0.7, 0.8, 0.8, 0.8, 0.6, None]
    assert {row["depth"] for row in facts[:6]} == {1}
    assert all(one.content for one in entries[:6])
    assert len({identity(bench(profile("paper")).evaluate(one, "zero-shot", "imagenet")) for one in entries}) == 7
    changed = torch.load(files / "diffclip.pt", weights_only=False)
    changed["state_dict"]["module.logit_scale"] += 1
    (tmp_path / "cc3m" / "checkpoint_best.pt").unlink()
    torch.save(changed, tmp_path / "cc3m" / "checkpoint_best.pt")
    assert given_models(under("laptop", specs[4]))[0].content != entries[4].content


@pytest.mark.filterwarnings(NOTE)
def test_every_study_of_clips_takes_given_models_and_trains_no_other(files):
    given = f"diffclip:{files}/clip.pt,diffclip:{files}/diffclip.pt#lambda_init=0.8"
    for name in ("paper", "laptop", "smoke"):
        options = StudyOptions(names=("diffclip", "figure-2b", "figure-2d"), profile=name, models=given)
        chosen = select(options)
        for study in chosen.studies:
            cells = study.cells(chosen.profile)
            measured = options.models[1:] if study.name == "map-correlation" else options.models  # needs two maps
            # Table 3 trains more on them
            towers = [getattr(cell.model, "tower", cell.model) for cell in cells]
            assert {tower.spec for tower in towers} == set(measured), study.name
            assert measured[0] in json.dumps(dict(study.settings(chosen.profile)))
    four = select(StudyOptions(names=("figure-5",), models=given))
    assert {cell.model.spec for cell in four.cells if hasattr(cell.model, "spec")} == {options.models[1]}


def test_runs_of_train_clip_are_models_with_the_facts_of_their_recipes(tmp_path):
    for name, model in (("clip", clip(**SIZES)), ("diff", diffclip(schedule="depth", **SIZES))):
        write_model(model, tmp_path / name)
        recipe = json.loads((tmp_path / name / "recipe.json").read_text())
        (tmp_path / name / "recipe.json").write_text(json.dumps(recipe | {"data": "openmoji", "seed": 3}))
    specs = (str(tmp_path / "clip"), str(tmp_path / "diff"))
    facts = [one.factors() for one in given_models(under("laptop", *StudyOptions(names=("all",), models=specs).models))]
    assert [one["series"] for one in facts] == ["CLIP", "DiffCLIP*"]
    assert {one["trained_on"] for one in facts} == {"openmoji"}
    assert [one.get("lambda_schedule") for one in facts] == [None, "depth"]
    contents = [one.content for one in given_models(under("laptop", *specs))]
    assert all(contents)
    assert len(set(contents)) == 2
    (tmp_path / "diff" / "recipe.json").write_text('{"model": {}}')
    with pytest.raises(UserError, match="is no CLIP; expected a directory of antiphase train-clip"):
        given_models(under("laptop", specs[1]))


def test_the_released_pair_has_an_unverified_name():
    for names, more in ((("figure-2b",), {}), (("figure-4",), {}), (("diffclip-table-2",), {"models": "released"})):
        cells = select(StudyOptions(names=names, profile="paper", **more)).cells
        assert {cell.model.spec for cell in cells if hasattr(cell.model, "spec")} == set(PAIR)
    for one in (under("paper", "released"), under("paper")):
        setting = settings(one).get("models", "")
        assert ("unverified" in setting) == bool(one.models)


def test_the_dry_run_says_that_the_name_is_unverified(call):
    for words in (("figure-2b",), ("diffclip-table-2", "--models", "released")):
        code, out, err = call("run", *words, "--profile", "paper", "--dry-run")
        assert code == 0, err
        assert f"given: {PAIR[0]}: its name on the hub is inferred and unverified" in out
        assert "differs" not in out
        assert "clip.epochs" not in out


def test_rows_and_workers_get_the_same_models():
    options = RunOptions(names=("diffclip",), models="open_clip:ViT-B-16/openai,released", seeds=2)
    assert options.words == ["--profile", "laptop", "--seeds", "2", "--models", "open_clip:ViT-B-16/openai,released"]
    assert RunOptions(**options.record()) == options
    rows = RowsOptions(names=("diffclip-table-2",), models="released")
    assert rows.words == ["--profile", "laptop", "--models", "released"]


def test_seeds_on_the_page_are_those_of_the_models(files, tmp_path):
    given = f"diffclip:{files}/clip.pt"
    options = StudyOptions(names=("diffclip-table-2",), profile="paper", models=given, store=tmp_path)
    (result,) = results_of(options)
    assert result.seeds == (0,)
    assert len(models(profile("paper"))) == 12


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("--models", "timm:vit"),
            "models 'timm:vit': expected a directory of train-clip, diffclip:PATH#lambda_init=0.8, diffclip:PATH",
        ),
        (("--models", "diffclip:"), "models 'diffclip:': expected"),
        (("--models", "released,released"), "models 'released': given twice"),
        (("--models", "diffclip:{}/none.pt"), "none.pt: no such file"),
        (("--models", "diffclip:{}/diffclip.pt"), "diffclip.pt: λ_init missing"),
        (("--models", "diffclip:{}/diffclip.pt#x=1"), "expected #lambda_init=0.8"),
    ],
)
def test_a_mistake_is_one_line(call, files, tmp_path, words, message):
    words = [word.format(files) for word in words]
    code, _, err = call("run", "diffclip-table-2", "--store", tmp_path, *words)
    assert (code, err.count("\n")) == (2, 1)
    assert message in err


def test_models_without_effect_are_refused():
    with pytest.raises(UserError, match="--models: has no effect on table-1 under profile laptop; it is for studies"):
        select(StudyOptions(names=("table-1",), models="released"))
