"""Datasets: what comes out is what was put in, and what is broken is named."""

from __future__ import annotations

import os
import shutil
import threading

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from torch.utils.data import TensorDataset

from helpers.digits import digits
from slimilar.data import (
    DatasetSource,
    Images,
    Normalisation,
    cifar,
    dataset,
    demo_images,
    image_folder,
    unlabelled,
)
from slimilar.data.images import crop_and_flip
from slimilar.errors import DataError, InvalidInput
from slimilar.utils import torchvision_compat as _torchvision

# -- augmentation ----------------------------------------------------------------------------------


def cropped_one_by_one(images, draws, padding, flip):
    """The same as crop_and_flip, as one would write it for a single image."""
    result = []
    for image, (down, right, mirror, *_) in zip(images.numpy(), draws.tolist(), strict=True):
        height, width, _ = image.shape
        padded = np.pad(image, ((padding, padding), (padding, padding), (0, 0)))
        top, left = int(down * (2 * padding + 1)), int(right * (2 * padding + 1))
        part = padded[top : top + height, left : left + width]
        if flip and mirror >= 0.5:
            # The window is mirrored in place: its columns are read from right to left.
            part = part[:, ::-1]
        result.append(part)
    return torch.from_numpy(np.stack(result))


@given(
    count=st.integers(1, 5), height=st.integers(1, 9), width=st.integers(1, 9),
    channels=st.sampled_from([1, 3]), padding=st.integers(0, 4), flip=st.booleans(),
    seed=st.integers(0, 2**16),
)  # fmt: skip
def test_crop_and_flip_equals_one_by_one(count, height, width, channels, padding, flip, seed):
    generator = torch.Generator().manual_seed(seed)
    images = torch.randint(0, 256, (count, height, width, channels), dtype=torch.uint8, generator=generator)
    draws = torch.rand(count, 5, generator=generator)
    expected = cropped_one_by_one(images, draws, padding, flip)
    assert torch.equal(crop_and_flip(images, draws, padding, flip), expected)


def test_crop_reaches_every_shift_and_both_mirrors():
    draws = torch.rand(20_000, 5)
    image = torch.arange(1, 5, dtype=torch.uint8).view(1, 2, 2, 1).expand(20_000, 2, 2, 1)
    found = crop_and_flip(image, draws, 1).view(-1, 4).unique(dim=0)
    assert len(found) == 18  # 3 x 3 shifts, each mirrored or not; all of them look different here


def test_normalisation():
    images = torch.randint(0, 256, (4, 5, 6, 3), dtype=torch.uint8)
    mean, std = (0.1, 0.2, 0.3), (0.4, 0.5, 0.6)
    expected = (images.permute(0, 3, 1, 2).double() / 255 - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(
        std
    ).view(3, 1, 1)
    got = Normalisation(mean, std).apply(images)
    torch.testing.assert_close(got.double(), expected, rtol=1e-5, atol=1e-6)
    assert got.is_contiguous(memory_format=torch.channels_last)


def test_pictures_without_draws_are_untouched():
    dataset = digits(0, 10)
    images, labels = dataset.batch(torch.tensor([3, 7]))
    assert torch.equal(images, dataset.tensor()[[3, 7]])
    assert labels.tolist() == [3, 7]
    assert len(dataset.first(4)) == 4


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (torch.zeros(2, 3, 4, 4), torch.zeros(2), "must be uint8"),
        (torch.zeros(2, 4, 4, dtype=torch.uint8), torch.zeros(2), r"shape \(2, 4, 4\)"),
        (torch.zeros(2, 4, 4, 3, dtype=torch.uint8), torch.zeros(3), "one label for each image"),
    ],
)
def test_wrong_images(images, labels, message):
    with pytest.raises(DataError, match=message):
        Images(images, labels)


def test_samples_draw_the_same_numbers_for_the_same_draws():
    class Noisy(TensorDataset):
        def __getitem__(self, index):
            image, label = super().__getitem__(index)
            return image + torch.rand(()), int(label)

    source = DatasetSource(Noisy(torch.zeros(6, 1, 2, 2), torch.arange(6)))
    state = torch.get_rng_state()
    first = source.batch(torch.tensor([1, 2]), torch.tensor([[0.1] * 5, [0.2] * 5]))
    again = source.batch(torch.tensor([2]), torch.tensor([[0.2] * 5]))
    other = source.batch(torch.tensor([2]), torch.tensor([[0.3] * 5]))
    assert torch.equal(first[0][1:], again[0])
    assert not torch.equal(other[0], again[0])
    assert torch.equal(torch.get_rng_state(), state)
    assert first[1].tolist() == [1, 2]


def test_samples_that_are_no_pairs():
    with pytest.raises(DataError, match=r"sample 1 must be a \(image, label\) pair"):
        DatasetSource(TensorDataset(torch.zeros(4, 1, 2, 2))).batch(torch.tensor([1]))


# -- CIFAR -----------------------------------------------------------------------------------------


def write_npz(path, labels=10, **more):
    images = np.random.default_rng(0).integers(0, 256, (20, 32, 32, 3), dtype=np.uint8)
    answers = (np.arange(20) % labels).astype(np.uint8)
    np.savez(path, x_train=images, y_train=answers, x_test=images[:5], y_test=answers[:5], **more)
    return images


def test_cifar_from_npz(tmp_path, monkeypatch):
    images = write_npz(tmp_path / "cifar10.npz")
    by_file, by_folder = (
        cifar("cifar10", "train", tmp_path / "cifar10.npz"),
        cifar("cifar10", "test", tmp_path),
    )
    assert np.array_equal(by_file.images.numpy(), images)
    assert len(by_folder) == 5
    assert by_folder.class_names[3] == "cat"
    monkeypatch.setenv("SLIMILAR_DATA", str(tmp_path))
    assert len(cifar("cifar10")) == 20


def test_cifar100_carries_its_class_names(tmp_path):
    write_npz(tmp_path / "cifar100.npz", classes=np.array([f"class {i}" for i in range(100)]))
    assert cifar("cifar100", "test", tmp_path).class_names[99] == "class 99"


def test_cifar_as_torchvision_stores_it(tmp_path):
    """torchvision checks hashes of the real files, so a made-up archive is refused."""
    (tmp_path / "cifar-10-batches-py").mkdir()
    (tmp_path / "cifar-10-batches-py" / "data_batch_1").write_bytes(b"made up")
    with pytest.raises(
        DataError, match=r"must hold cifar10.npz or torchvision's cifar10 files.*download=True"
    ):
        cifar("cifar10", "train", tmp_path)


def test_cifar_that_cannot_be_used(tmp_path, monkeypatch):
    monkeypatch.delenv("SLIMILAR_DATA", raising=False)
    with pytest.raises(DataError, match="SLIMILAR_DATA"):
        cifar("cifar10")
    with pytest.raises(InvalidInput, match="must be one of cifar10, cifar100, got 'mnist'"):
        cifar("mnist", path=tmp_path)
    with pytest.raises(InvalidInput, match="must be 'train' or 'test'"):
        cifar("cifar10", "validation", tmp_path)
    with pytest.raises(DataError, match="there is none"):
        cifar("cifar10", "train", tmp_path / "missing.npz")
    write_npz(tmp_path / "cifar10.npz", labels=20)
    with pytest.raises(DataError, match="must lie in 0 to 9, got 0 to 19"):
        cifar("cifar10", "train", tmp_path)
    np.savez(tmp_path / "half.npz", x_train=np.zeros(1))
    with pytest.raises(DataError, match="must hold x_train and y_train"):
        cifar("cifar10", "train", tmp_path / "half.npz")


@pytest.mark.parametrize("size", [0, 10, 20_000])
def test_cifar_file_cut_short(tmp_path, size):
    write_npz(tmp_path / "cifar10.npz")
    content = (tmp_path / "cifar10.npz").read_bytes()
    (tmp_path / "cifar10.npz").write_bytes(content[:size])
    with pytest.raises(DataError, match=r"must be a whole \.npz file"):
        cifar("cifar10", "train", tmp_path)


def test_pickles_are_refused(tmp_path):
    np.savez(tmp_path / "cifar10.npz", x_train=np.array([{}], dtype=object), y_train=np.zeros(1))
    with pytest.raises(DataError, match="without pickles"):
        cifar("cifar10", "train", tmp_path)


# -- folders ---------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path):
    """Real images, a few of each of three digits, as files of several kinds and shapes."""
    images = digits(0, 30)
    for i, (image, label) in enumerate(zip(images.images.numpy(), images.labels.tolist(), strict=True)):
        if label < 3:
            (tmp_path / str(label)).mkdir(exist_ok=True)
            scaled = Image.fromarray(image[:, :, 0]).resize((20 + 5 * label, 24))
            scaled.save(tmp_path / str(label) / f"{i}.{['png', 'jpg', 'bmp'][label]}")
    (tmp_path / "0" / "notes.txt").write_text("not a image")
    (tmp_path / ".hidden").mkdir()
    return tmp_path


def test_image_folder(folder):
    data = image_folder(folder, size=16)
    assert data.class_names == ("0", "1", "2")
    assert data.labels.bincount().tolist() == [3, 3, 3]
    images, labels = data.batch(torch.tensor([0, 4, 8]))
    assert images.shape == (3, 3, 16, 16)
    assert labels.tolist() == [0, 1, 2]


def test_image_folder_equals_torchvision(folder):
    """Labels, order and pixels as torchvision has them, for those who compare accuracies."""
    transforms = _torchvision.import_torchvision("torchvision.transforms")
    datasets = _torchvision.import_torchvision("torchvision.datasets")
    # torchvision takes every folder, also a hidden one that is empty
    (folder / ".hidden").rmdir()
    steps = [transforms.Resize(18), transforms.CenterCrop(16), transforms.ToTensor()]
    steps.append(transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    theirs = datasets.ImageFolder(str(folder), transforms.Compose(steps))
    ours = image_folder(folder, size=16, resize=18)
    images, labels = ours.batch(torch.arange(len(ours)))
    assert labels.tolist() == [label for _, label in theirs]
    torch.testing.assert_close(images, torch.stack([image for image, _ in theirs]), rtol=1e-5, atol=1e-5)


def test_random_part_depends_on_nothing_but_the_draws(folder):
    data = image_folder(folder, size=8)
    draws = torch.rand(2, 5)
    first, _ = data.batch(torch.tensor([0, 5]), draws)
    again, _ = data.batch(torch.tensor([5]), draws[1:])
    other, _ = data.batch(torch.tensor([5]), draws[:1])
    assert torch.equal(first[1:], again)
    assert not torch.equal(other, again)


def test_a_class_folder_missing_in_the_test_set(folder, tmp_path):
    names = image_folder(folder).class_names
    for file in (folder / "1").iterdir():
        file.unlink()
    with pytest.raises(DataError, match=r"1 must hold images, but holds none"):
        image_folder(folder)
    (folder / "1").rmdir()
    assert len(image_folder(folder).class_names) == 2
    with pytest.raises(
        DataError, match=r"same 3 class folders .* but '1' is missing \(1 missing, 0 unknown\)"
    ):
        image_folder(folder, classes=names)
    (folder / "7").mkdir()
    (folder / "1").mkdir()
    with pytest.raises(DataError, match="'7' is not one of them"):
        image_folder(folder, classes=names)


@pytest.mark.parametrize("content", [b"", b"no image at all", None])
def test_a_corrupt_picture_is_named(folder, content):
    broken = next((folder / "1").iterdir())
    broken.write_bytes(broken.read_bytes()[:200] if content is None else content)
    data = image_folder(folder, size=8)
    index = torch.tensor([data.files.index(broken)])
    with pytest.raises(DataError, match=rf"{broken.name} must be a whole image.*replace or remove it"):
        data.batch(index)


def test_folders_that_are_not_there(tmp_path):
    with pytest.raises(DataError, match="must be a folder"):
        image_folder(tmp_path / "nowhere")
    with pytest.raises(DataError, match="must hold one folder for each class"):
        image_folder(tmp_path)
    with pytest.raises(DataError, match="must hold images"):
        unlabelled(tmp_path)


def test_unlabelled_takes_pictures_evenly(folder):
    images = unlabelled(folder, size=12, limit=3)
    assert images.tensor().shape == (3, 3, 12, 12)
    everything = image_folder(folder, size=12).batch(torch.arange(9))[0]
    assert torch.equal(images.tensor(), everything[[0, 4, 8]])
    assert len(unlabelled(folder, size=12)) == 9


def test_dataset_by_name_or_place(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("SLIMILAR_DATA", str(tmp_path))
    write_npz(tmp_path / "cifar100.npz")
    assert len(dataset("cifar100", "test")) == len(dataset(tmp_path / "cifar100.npz", "test")) == 5
    place = tmp_path / "sets"
    place.mkdir()
    with pytest.raises(DataError, match="must hold a folder named test or val or validation"):
        dataset(place, "test")
    for split in ("train", "val"):
        for label in "012":
            shutil.copytree(folder / label, place / split / label)
    assert dataset(place, "train", size=16).size == 16
    assert len(dataset(place, "test")) == 9
    half = Normalisation((0.5,) * 3, (0.5,) * 3)
    assert dataset(place, "test", normalisation=half).normalisation == half
    shutil.rmtree(place / "val" / "1")
    with pytest.raises(DataError, match="'1' is missing"):
        dataset(place, "test")
    with pytest.raises(DataError, match=r"a .npz file or a folder, got 'cifar11'"):
        dataset("cifar11")


def test_demo_pictures_are_cifars():
    test, train = demo_images("test"), demo_images("train")
    assert test.labels.bincount().tolist() == [100] * 10
    assert len(train) == 256
    assert torch.equal(dataset("demo", "train").images, train.images)
    with pytest.raises(InvalidInput, match="must be 'test' or 'train'"):
        demo_images("validation")


def test_torchvision_from_many_threads_at_once():
    found = []
    threads = [
        threading.Thread(target=lambda: found.append(_torchvision.import_torchvision("torchvision.ops")))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert len(_torchvision._declared) <= 1
    assert len(set(map(id, found))) == 1


def test_torchvision_that_is_not_installed():
    with pytest.raises(InvalidInput, match="pip install"):
        _torchvision.import_torchvision("torchvision.no_such_module")


@pytest.mark.skipif(not os.path.exists(os.path.join(os.environ.get("SLIMILAR_DATA", ""), "cifar10.npz")),
                    reason="set SLIMILAR_DATA to a folder with cifar10.npz")  # fmt: skip
def test_real_cifar10():
    train, test = cifar("cifar10", "train"), cifar("cifar10", "test")
    assert train.labels.bincount().tolist() == [5000] * 10
    assert test.labels.bincount().tolist() == [1000] * 10
    mean = train.images.float().mean((0, 1, 2)) / 255
    torch.testing.assert_close(mean, torch.tensor(train.normalisation.mean), atol=1e-3, rtol=0)
    assert torch.equal(demo_images("train").images, train.images[:256])
    known = {
        image.numpy().tobytes(): int(label) for image, label in zip(test.images, test.labels, strict=True)
    }
    shown = demo_images("test")
    assert [known[image.numpy().tobytes()] for image in shown.images] == shown.labels.tolist()
