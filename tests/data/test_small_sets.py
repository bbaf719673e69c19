import hashlib
import io
import pickle
import tarfile

import numpy as np
import pytest
import torch
import torchvision.datasets
from sklearn.datasets import load_digits

from antiphase.data import image_sets, load_data
from antiphase.errors import UserError
from tests import needs


def test_digits_are_scikit_learns_scaled_to_0_and_1_in_two_parts_without_overlap():
    train, test = load_data("digits", split="train"), load_data("digits", split="test")
    assert (len(train), len(test)) == (1438, 359)
    assert train.image_shape == test.image_shape == (1, 8, 8)

    values, labels = load_digits(return_X_y=True)
    parts = [(part.images(range(len(part))), part.labels) for part in (train, test)]
    both = torch.cat([torch.cat([pixels.flatten(1) * 16, y[:, None].float()], 1) for pixels, y in parts])
    whole = np.concatenate([values, labels[:, None]], axis=1)
    assert sorted(map(tuple, both.tolist())) == sorted(map(tuple, whole.tolist()))


def test_digits_hold_out_a_fifth_of_each_class():
    train, test = load_data("digits", split="train"), load_data("digits", split="test")
    share = test.labels.bincount() / (train.labels.bincount() + test.labels.bincount())
    assert share.min() > 0.195
    assert share.max() < 0.205


def test_the_digits_split_is_the_same_everywhere():
    # A golden value: it moves if scikit-learn's data or NumPy's random stream do, and results with them.
    golden = "c4862a5b6f45dcdabc3faf02aa0b72eedc16fbe90e242e614b6dedb21d140939"
    assert load_data("digits").fingerprint() == golden


@pytest.mark.parametrize(("split", "prefix"), [("test", "t10k"), ("train", "train")])
def test_fashion_mnist_reads_debians_files(tmp_path, monkeypatch, write_fashion_mnist, split, prefix):
    monkeypatch.setattr(image_sets, "DEBIAN_FASHION_MNIST", tmp_path / "debian")
    images, labels = write_fashion_mnist(tmp_path / "debian", prefix)
    made = load_data("fashion-mnist", split=split, root=tmp_path / "none")
    assert (made.name, made.split, made.image_shape) == ("fashion-mnist", split, (1, 28, 28))
    assert made.class_names == tuple(torchvision.datasets.FashionMNIST.classes)
    assert np.array_equal(made.images(range(23))[:, 0] * 255, images)
    assert np.array_equal(made.labels, labels)
    assert made.ids.tolist() == list(range(23))


@needs.fashion_mnist
@pytest.mark.parametrize(("split", "count"), [("test", 1000), ("train", 6000)])
def test_the_real_fashion_mnist_has_its_known_counts(split, count):
    whole = load_data("fashion-mnist", split=split)
    assert whole.labels.bincount().tolist() == [count] * 10
    assert whole.image_shape == (1, 28, 28)


def test_fashion_mnist_is_downloaded_by_torchvision_and_then_read_from_the_root(
    tmp_path, monkeypatch, no_debian, served, write_fashion_mnist
):
    folder, url = served
    images, _ = write_fashion_mnist(folder, "t10k")
    write_fashion_mnist(folder, "train", count=29)
    sums = [(path.name, hashlib.md5(path.read_bytes()).hexdigest()) for path in sorted(folder.iterdir())]
    monkeypatch.setattr(torchvision.datasets.FashionMNIST, "resources", sums)
    monkeypatch.setattr(torchvision.datasets.FashionMNIST, "mirrors", [url])
    root = tmp_path / "root"
    first = load_data("fashion-mnist", root=root)
    assert np.array_equal(first.images(range(23))[:, 0] * 255, images)

    for path in folder.iterdir():
        path.unlink()
    assert load_data("fashion-mnist", root=root).fingerprint() == first.fingerprint()
    assert len(load_data("fashion-mnist", split="train", root=root)) == 29


def test_fashion_mnist_without_files_or_network_is_one_line(tmp_path, monkeypatch, no_debian, closed_url):
    monkeypatch.setattr(torchvision.datasets.FashionMNIST, "mirrors", [closed_url])
    with pytest.raises(UserError, match=r"download failed .*apt-get install dataset-fashion-mnist") as caught:
        load_data("fashion-mnist", root=tmp_path)
    assert "\n" not in str(caught.value)


def test_damaged_fashion_mnist_files_are_one_line(tmp_path, monkeypatch, write_idx, write_fashion_mnist):
    monkeypatch.setattr(image_sets, "DEBIAN_FASHION_MNIST", tmp_path)
    write_fashion_mnist(tmp_path)
    images, labels = tmp_path / "t10k-images-idx3-ubyte.gz", tmp_path / "t10k-labels-idx1-ubyte.gz"
    whole = images.read_bytes()
    images.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError, match=r"damaged files .*: delete t10k-images-idx3-ubyte\.gz and"):
        load_data("fashion-mnist")
    images.write_bytes(whole)
    write_idx(labels, np.zeros(22))
    with pytest.raises(UserError, match="damaged files"):
        load_data("fashion-mnist")
    write_idx(labels, np.full(23, 12))
    with pytest.raises(UserError, match="label 12: expected 0 to 9"):
        load_data("fashion-mnist")


CIFARS = {
    "cifar10": (torchvision.datasets.CIFAR10, b"labels", 10),
    "cifar100": (torchvision.datasets.CIFAR100, b"fine_labels", 100),
}


def write_cifar(name, folder, monkeypatch):
    """Write ``name`` in its real layout, and tell torchvision the sums of these files, which it does check.

    Returns the pixels and labels of both splits.
    """
    dataset, label_key, classes = CIFARS[name]
    generator = np.random.default_rng(classes)
    splits = {}

    def write(file, content):
        # Python 2's pickles, which the real files are, have byte strings for keys: protocol 2 keeps them.
        (folder / dataset.base_folder / file).write_bytes(pickle.dumps(content, protocol=2))
        return hashlib.md5((folder / dataset.base_folder / file).read_bytes()).hexdigest()

    (folder / dataset.base_folder).mkdir(parents=True)
    for split, entries in (("train", dataset.train_list), ("test", dataset.test_list)):
        pixels, labels, sums = [], [], []
        for file, _ in entries:
            pixels.append(generator.integers(0, 256, size=(3, 3072), dtype=np.uint8))
            labels += (batch_labels := generator.integers(0, classes, size=3).tolist())
            sums.append([file, write(file, {"data": pixels[-1], label_key.decode(): batch_labels})])
        monkeypatch.setattr(dataset, f"{split}_list", sums)
        splits[split] = np.concatenate(pixels).reshape(-1, 3, 32, 32), labels
    names = [f"class_{k}" for k in range(classes)]
    meta = dataset.meta | {"md5": write(dataset.meta["filename"], {dataset.meta["key"]: names})}
    monkeypatch.setattr(dataset, "meta", meta)
    return splits


few = pytest.mark.filterwarnings("ignore:cifar.* were published")


@few
@pytest.mark.parametrize("name", CIFARS)
def test_cifar_reads_the_official_pickles(tmp_path, monkeypatch, name):
    splits = write_cifar(name, tmp_path, monkeypatch)
    for split, (pixels, labels) in splits.items():
        made = load_data(name, split=split, root=tmp_path)
        assert (made.name, made.split, made.image_shape) == (name, split, (3, 32, 32))
        assert np.array_equal(made.images(range(len(made))) * 255, pixels)
        assert made.labels.tolist() == labels
        assert made.class_names == tuple(f"class {k}" for k in range(CIFARS[name][2]))


def test_cifar_of_another_size_is_warned_of(tmp_path, monkeypatch):
    write_cifar("cifar10", tmp_path, monkeypatch)
    with pytest.warns(UserWarning, match=r"cifar10 \(test\): images 3, classes 10; 10,000 and 10 were"):
        load_data("cifar10", root=tmp_path)


@few
def test_cifar_is_downloaded_and_unpacked(tmp_path, monkeypatch, served):
    folder, url = served
    dataset = torchvision.datasets.CIFAR10
    splits = write_cifar("cifar10", tmp_path / "made", monkeypatch)
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w:gz") as tar:
        tar.add(tmp_path / "made" / dataset.base_folder, dataset.base_folder)
    (folder / dataset.filename).write_bytes(archive.getvalue())
    monkeypatch.setattr(dataset, "url", url + dataset.filename)
    monkeypatch.setattr(dataset, "tgz_md5", hashlib.md5(archive.getvalue()).hexdigest())
    made = load_data("cifar10", root=tmp_path / "root")
    assert np.array_equal(made.images(range(3)) * 255, splits["test"][0])


@pytest.mark.parametrize("name", CIFARS)
def test_cifar_without_files_or_network_is_one_line(tmp_path, monkeypatch, closed_url, name):
    dataset = CIFARS[name][0]
    monkeypatch.setattr(dataset, "url", closed_url + dataset.filename)
    with pytest.raises(UserError, match=f"{name} is missing or incomplete in .*download failed .*cifar.html") as caught:
        load_data(name, root=tmp_path)
    assert "\n" not in str(caught.value)
    assert str(tmp_path) in str(caught.value)


def test_a_damaged_cifar_file_is_fetched_again_or_is_one_line(tmp_path, monkeypatch, closed_url):
    write_cifar("cifar10", tmp_path, monkeypatch)
    monkeypatch.setattr(torchvision.datasets.CIFAR10, "url", closed_url + "cifar-10-python.tar.gz")
    path = tmp_path / "cifar-10-batches-py" / "test_batch"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(UserError, match="cifar10 is missing or incomplete"):
        load_data("cifar10", root=tmp_path)


def random_set(**changes):
    return load_data("random", **({"image_size": 11, "channels": 3, "num_classes": 7} | changes))


def test_random_images_are_uniform_8_bit_noise_with_uniform_labels():
    made = random_set()
    assert len(made) == 1000
    assert made.image_shape == (3, 11, 11)
    assert len(made.class_names) == 7
    levels = (made.images(range(1000)) * 255).round().long().flatten().bincount(minlength=256)
    mean = 1000 * 363 / 256
    assert len(levels) == 256
    assert (levels - mean).abs().max() < 5 * mean**0.5
    assert (made.labels.bincount(minlength=7) - 1000 / 7).abs().max() < 5 * (1000 / 7) ** 0.5


def test_random_images_depend_on_seed_and_split_and_are_a_prefix_for_a_smaller_limit():
    prints = {random_set(seed=seed, split=split).fingerprint() for seed in (0, 1) for split in ("train", "test")}
    assert len(prints) == 4
    assert random_set().fingerprint() == random_set(seed=0).fingerprint()
    assert random_set(limit=13, seed=5).fingerprint() == random_set(seed=5).subset(13).fingerprint()
    assert len(random_set(limit=1009)) == 1009


@pytest.mark.parametrize("missing", ["image_size", "channels", "num_classes"])
def test_random_needs_its_three_sizes(missing):
    with pytest.raises(UserError, match=f"random: has no {missing} of its own; expected a model"):
        random_set(**{missing: None})
