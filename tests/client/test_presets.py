"""Published encoders: their own files give the numbers that their authors' code would, and other files are refused.

No published file is at hand, so files of random values are written in the layout of each, and what must come of them is
computed here by the letter of the papers, without the libraries that the project uses.
"""

from __future__ import annotations

import zipfile
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor

from client.encoder import Encoder, EncoderError, load_encoder
from client.identity import identify
from client.presets import _ClassAndMean, build, pooled
from client.pretrained import Asker
from client.request import own_encoder
from common.config import DataSettings, EncoderSettings, SettingsError, parse
from common.encoders import embedding_width
from common.presets import NAMED, PRESETS

ASKER = Asker("encoder.name", "encoder.weights", EncoderError)
Weights = OrderedDict[str, Tensor]


def picture(size: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.random.default_rng(3).integers(0, 256, (1, size, size, 3), dtype=np.uint8)


def seen(name: str, size: int = 0) -> Tensor:
    """The picture as the encoder is to see it."""
    preset = PRESETS[name]
    scaled = (picture(size or preset.size) / 255 - np.array(preset.mean)) / np.array(preset.std)
    return torch.tensor(scaled.transpose(0, 3, 1, 2)).float()


def encoder(name: str, path: Path) -> Encoder:
    return load_encoder(EncoderSettings(name=name, weights=str(path)), 0)


class Draw:
    """Random weights under the names of a published file; halves, as they are what many files hold."""

    def __init__(self) -> None:
        self.weights: Weights = OrderedDict()
        self._generator = torch.Generator().manual_seed(5)

    def __call__(self, name: str, *shape: int, scale: float = 0.0, around: float = 0.0) -> None:
        scale = scale or shape[-1] ** -0.5
        self.weights[name] = (around + scale * torch.randn(shape, generator=self._generator)).half()

    def linear(self, name: str, out: int, into: int, bias: bool = True) -> None:
        self(f"{name}.weight", out, into)
        if bias:
            self(f"{name}.bias", out, scale=0.1)

    def norm(self, name: str, width: int) -> None:
        self(f"{name}.weight", width, scale=0.2, around=1)
        self(f"{name}.bias", width, scale=0.1)


class Given:
    """The same weights, to compute with."""

    def __init__(self, weights: Weights) -> None:
        self.weights = {name: tensor.float() for name, tensor in weights.items() if tensor.is_floating_point()}

    def __getitem__(self, name: str) -> Tensor:
        return self.weights[name]

    def linear(self, name: str, x: Tensor) -> Tensor:
        return F.linear(x, self[f"{name}.weight"], self.weights.get(f"{name}.bias"))

    def norm(self, name: str, x: Tensor, eps: float) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], self[f"{name}.weight"], self[f"{name}.bias"], eps)


def attention(q: Tensor, k: Tensor, v: Tensor, heads: int, bias: Tensor | float = 0.0) -> Tensor:
    """Each token, [n, tokens, width], as a mixture of all; `bias` is added before the softmax."""
    q, k, v = (x.unflatten(-1, (heads, -1)).transpose(1, 2) for x in (q, k, v))
    weights = (q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5 + bias).softmax(-1)
    return (weights @ v).transpose(1, 2).flatten(2)


# --- CHIEF -----------------------------------------------------------------------------------------------------------

DEPTHS, HEADS, WINDOW = (2, 2, 6, 2), (3, 6, 12, 24), 7


def chief_file() -> Weights:
    draw = Draw()
    for place, out, into, kernel in ((0, 12, 3, 3), (3, 24, 12, 3), (6, 96, 24, 1)):
        draw(f"patch_embed.proj.{place}.weight", out, into, kernel, kernel, scale=(into * kernel**2) ** -0.5)
    draw("patch_embed.proj.6.bias", 96, scale=0.1)
    for place, width in ((1, 12), (4, 24)):
        draw.norm(f"patch_embed.proj.{place}", width)
        draw(f"patch_embed.proj.{place}.running_mean", width, scale=0.1)
        draw(f"patch_embed.proj.{place}.running_var", width, scale=0.1, around=1)
        draw.weights[f"patch_embed.proj.{place}.num_batches_tracked"] = torch.tensor(9)
    draw.norm("patch_embed.norm", 96)
    for stage, (depth, heads) in enumerate(zip(DEPTHS, HEADS, strict=True)):
        width = 96 * 2**stage
        for block in range(depth):
            name = f"layers.{stage}.blocks.{block}"
            if block % 2 and stage < 3:
                draw.weights[f"{name}.attn_mask"] = torch.zeros(4 ** (3 - stage), 49, 49)
            draw.norm(f"{name}.norm1", width)
            draw(f"{name}.attn.relative_position_bias_table", (2 * WINDOW - 1) ** 2, heads, scale=0.5)
            draw.weights[f"{name}.attn.relative_position_index"] = torch.zeros(49, 49, dtype=torch.int64)
            draw.linear(f"{name}.attn.qkv", 3 * width, width)
            draw.linear(f"{name}.attn.proj", width, width)
            draw.norm(f"{name}.norm2", width)
            draw.linear(f"{name}.mlp.fc1", 4 * width, width)
            draw.linear(f"{name}.mlp.fc2", width, 4 * width)
        if stage < 3:
            # At the end of the stage: today's timm has it at the beginning of the next one.
            draw.linear(f"layers.{stage}.downsample.reduction", 2 * width, 4 * width, bias=False)
            draw.norm(f"layers.{stage}.downsample.norm", 4 * width)
    draw.norm("norm", 768)
    return draw.weights


def chief(given: Given, images: Tensor) -> Tensor:
    """A Swin transformer behind a stem of convolutions, in evaluation."""
    x = images
    for place, stride in ((0, 2), (3, 2), (6, 1)):
        bias = given.weights.get(f"patch_embed.proj.{place}.bias")
        x = F.conv2d(x, given[f"patch_embed.proj.{place}.weight"], bias, stride, padding=int(stride == 2))
        if place < 6:
            parts = (given[f"patch_embed.proj.{place + 1}.{part}"][:, None, None] for part in _BATCH_NORM)
            mean, variance, weight, shift = parts
            x = torch.relu((x - mean) / torch.sqrt(variance + 1e-5) * weight + shift)
    x = given.norm("patch_embed.norm", x.permute(0, 2, 3, 1), 1e-5)
    for stage, (depth, heads) in enumerate(zip(DEPTHS, HEADS, strict=True)):
        for block in range(depth):
            shift = WINDOW // 2 if block % 2 and x.shape[1] > WINDOW else 0
            x = swin_block(given, f"layers.{stage}.blocks.{block}", x, heads, shift)
        if stage < 3:
            quarters = [x[:, row::2, column::2] for column in (0, 1) for row in (0, 1)]
            x = given.norm(f"layers.{stage}.downsample.norm", torch.cat(quarters, -1), 1e-5)
            x = given.linear(f"layers.{stage}.downsample.reduction", x)
    return given.norm("norm", x, 1e-5).mean(dim=(1, 2))


_BATCH_NORM = ("running_mean", "running_var", "weight", "bias")


def swin_block(given: Given, name: str, x: Tensor, heads: int, shift: int) -> Tensor:
    """Each window of 7 by 7 by itself: a token sees the others of its window, unless the shift alone brought them."""
    side, normed = x.shape[1], given.norm(f"{name}.norm1", x, 1e-5)
    table = given[f"{name}.attn.relative_position_bias_table"]
    mixed = torch.empty_like(x)
    starts = range(0, side, WINDOW)
    for top in starts:
        for left in starts:
            # Rows and columns of the image in this window, which goes around its border where it is shifted.
            rows = [(top + step + shift) % side for step in range(WINDOW)]
            columns = [(left + step + shift) % side for step in range(WINDOW)]
            places = [(row, column) for row in rows for column in columns]
            bias = torch.empty(heads, len(places), len(places))
            for one, (row, column) in enumerate(places):
                for other, (far_row, far_column) in enumerate(places):
                    down = rows.index(row) - rows.index(far_row)
                    right = columns.index(column) - columns.index(far_column)
                    bias[:, one, other] = table[(down + WINDOW - 1) * (2 * WINDOW - 1) + right + WINDOW - 1]
                    apart = abs(row - far_row) >= WINDOW or abs(column - far_column) >= WINDOW
                    if apart:
                        bias[:, one, other] = -100.0
            tokens = torch.stack([normed[:, row, column] for row, column in places], dim=1)
            q, k, v = given.linear(f"{name}.attn.qkv", tokens).chunk(3, -1)
            out = given.linear(f"{name}.attn.proj", attention(q, k, v, heads, bias))
            for place, (row, column) in enumerate(places):
                mixed[:, row, column] = out[:, place]
    x = x + mixed
    hidden = F.gelu(given.linear(f"{name}.mlp.fc1", given.norm(f"{name}.norm2", x, 1e-5)))
    return x + given.linear(f"{name}.mlp.fc2", hidden)


# --- USFM ------------------------------------------------------------------------------------------------------------

GRID = 14


def usfm_file() -> Weights:
    draw, width = Draw(), 768
    draw("cls_token", 1, 1, width, scale=1)
    draw("mask_token", 1, 1, width, scale=1)
    draw("patch_embed.proj.weight", width, 3, 16, 16, scale=768**-0.5)
    draw("patch_embed.proj.bias", width, scale=0.1)
    draw("rel_pos_bias.relative_position_bias_table", (2 * GRID - 1) ** 2 + 3, 12, scale=0.5)
    draw.weights["rel_pos_bias.relative_position_index"] = torch.zeros(197, 197, dtype=torch.int64)
    for block in range(12):
        name = f"blocks.{block}"
        draw(f"{name}.gamma_1", width, scale=0.05, around=0.3)
        draw(f"{name}.gamma_2", width, scale=0.05, around=0.3)
        draw.norm(f"{name}.norm1", width)
        draw(f"{name}.attn.q_bias", width, scale=0.1)
        draw(f"{name}.attn.v_bias", width, scale=0.1)
        draw.linear(f"{name}.attn.qkv", 3 * width, width, bias=False)
        draw.linear(f"{name}.attn.proj", width, width)
        draw.norm(f"{name}.norm2", width)
        draw.linear(f"{name}.mlp.fc1", 4 * width, width)
        draw.linear(f"{name}.mlp.fc2", width, 4 * width)
    draw.norm("norm", width)
    return draw.weights


def usfm(given: Given, images: Tensor) -> Tensor:
    """BEiT, whose blocks share one table of relative positions; its patches' mean, brought to mean 0 and spread 1."""
    patches = F.conv2d(images, given["patch_embed.proj.weight"], given["patch_embed.proj.bias"], 16)
    x = torch.cat([given["cls_token"].expand(len(images), -1, -1), patches.flatten(2).transpose(1, 2)], dim=1)
    table = given["rel_pos_bias.relative_position_bias_table"]
    index = torch.empty(197, 197, dtype=torch.int64)
    for one in range(196):
        for other in range(196):
            down, right = one // GRID - other // GRID, one % GRID - other % GRID
            index[one + 1, other + 1] = (down + GRID - 1) * (2 * GRID - 1) + right + GRID - 1
    index[0, :], index[:, 0], index[0, 0] = len(table) - 3, len(table) - 2, len(table) - 1
    bias = table[index].permute(2, 0, 1)
    for block in range(12):
        name = f"blocks.{block}"
        q, k, v = given.linear(f"{name}.attn.qkv", given.norm(f"{name}.norm1", x, 1e-6)).chunk(3, -1)
        mixed = attention(q + given[f"{name}.attn.q_bias"], k, v + given[f"{name}.attn.v_bias"], 12, bias)
        x = x + given[f"{name}.gamma_1"] * given.linear(f"{name}.attn.proj", mixed)
        hidden = F.gelu(given.linear(f"{name}.mlp.fc1", given.norm(f"{name}.norm2", x, 1e-6)))
        x = x + given[f"{name}.gamma_2"] * given.linear(f"{name}.mlp.fc2", hidden)
    return F.layer_norm(x[:, 1:].mean(dim=1), (768,), eps=1e-6)


@pytest.mark.parametrize(
    ("name", "write", "compute", "wrapped"), [("chief", chief_file, chief, True), ("usfm", usfm_file, usfm, False)]
)
def test_a_file_as_it_was_published_gives_what_was_published(
    name: str, write: Callable[[], Weights], compute: Callable[[Given, Tensor], Tensor], wrapped: bool, tmp_path: Path
) -> None:
    weights, path = write(), tmp_path / "published.pth"
    torch.save({"model": weights} if wrapped else weights, path)
    found = encoder(name, path)
    assert (found.size, found.dimension) == (224, 768) == (PRESETS[name].size, PRESETS[name].dimension)
    expected = compute(Given(weights), seen(name)).numpy()
    np.testing.assert_allclose(found.embed(picture(224)), expected, rtol=2e-3, atol=2e-4 * np.abs(expected).max())
    # Its spread is far beyond the tolerance, or this would compare nothing.
    assert expected.std() > 0.1


# --- by transformers -------------------------------------------------------------------------------------------------


def transformer_file(kind: str, width: int, blocks: int, patches: int, kernel: int) -> Weights:
    """In the layout in which transformers 4 wrote such files."""
    draw = Draw()
    draw("embeddings.cls_token", 1, 1, width, scale=1)
    if kind == "dinov2":
        draw("embeddings.mask_token", 1, width, scale=1)
    draw("embeddings.position_embeddings", 1, patches + 1, width, scale=0.5)
    draw("embeddings.patch_embeddings.projection.weight", width, 3, kernel, kernel, scale=(3 * kernel**2) ** -0.5)
    draw("embeddings.patch_embeddings.projection.bias", width, scale=0.1)
    first, second, before, after = LAYOUT[kind]
    for block in range(blocks):
        name = f"encoder.layer.{block}"
        for part in ("query", "key", "value"):
            draw.linear(f"{name}.attention.attention.{part}", width, width)
        draw.linear(f"{name}.attention.output.dense", width, width)
        draw.norm(f"{name}.{before}", width)
        draw.norm(f"{name}.{after}", width)
        draw.linear(f"{name}.{first}", 4 * width, width)
        draw.linear(f"{name}.{second}", width, 4 * width)
        if kind == "dinov2":
            draw(f"{name}.layer_scale1.lambda1", width, scale=0.1, around=0.5)
            draw(f"{name}.layer_scale2.lambda1", width, scale=0.1, around=0.5)
    draw.norm("layernorm", width)
    if kind == "vit":
        draw.linear("pooler.dense", width, width)
    return draw.weights


LAYOUT = {
    "vit": ("intermediate.dense", "output.dense", "layernorm_before", "layernorm_after"),
    "dinov2": ("mlp.fc1", "mlp.fc2", "norm1", "norm2"),
}


def transformer(given: Given, kind: str, images: Tensor, blocks: int, heads: int, kernel: int) -> Tensor:
    """A vision transformer's class token."""
    eps = 1e-12 if kind == "vit" else 1e-6
    name = "embeddings.patch_embeddings.projection"
    patches = F.conv2d(images, given[f"{name}.weight"], given[f"{name}.bias"], kernel).flatten(2).transpose(1, 2)
    x = torch.cat([given["embeddings.cls_token"].expand(len(images), -1, -1), patches], dim=1)
    x = x + given["embeddings.position_embeddings"]
    first, second, before, after = LAYOUT[kind]
    for block in range(blocks):
        name = f"encoder.layer.{block}"
        normed = given.norm(f"{name}.{before}", x, eps)
        q, k, v = (given.linear(f"{name}.attention.attention.{part}", normed) for part in ("query", "key", "value"))
        scales = [given.weights.get(f"{name}.layer_scale{place}.lambda1", 1.0) for place in (1, 2)]
        x = x + scales[0] * given.linear(f"{name}.attention.output.dense", attention(q, k, v, heads))
        hidden = F.gelu(given.linear(f"{name}.{first}", given.norm(f"{name}.{after}", x, eps)))
        x = x + scales[1] * given.linear(f"{name}.{second}", hidden)
    return given.norm("layernorm", x, eps)[:, 0]


@pytest.mark.parametrize("name", ["rad-dino", "phikon"])
def test_transformers_files_give_their_class_token(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers")
    preset = PRESETS[name]
    small = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 96}
    kernel = int(str(preset.arguments["patch_size"]))
    small |= {"image_size": 4 * kernel}
    tiny = replace(preset, arguments={**preset.arguments, **small}, size=4 * kernel)
    monkeypatch.setitem(PRESETS, name, tiny)  # type: ignore[arg-type]
    weights = transformer_file(preset.architecture, 24, 2, 16, kernel)
    path = tmp_path / "published.safetensors"
    save_file(weights, path)
    expected = transformer(Given(weights), preset.architecture, seen(name), 2, 2, kernel).numpy()
    np.testing.assert_allclose(encoder(name, path).embed(picture(tiny.size)), expected, rtol=1e-3, atol=1e-4)
    # It is the same encoder whoever loads it: nothing in it is drawn.
    first = encoder(name, path).identity
    load_encoder(EncoderSettings(name="random:test_efficientnet", image_size=32), 0)
    assert encoder(name, path).identity == first
    del weights["layernorm.bias"]
    weights["stray"] = torch.ones(2)
    save_file(weights, tmp_path / "wrong.safetensors")
    with pytest.raises(EncoderError, match=r"missing: layernorm.bias; unexpected: stray"):
        encoder(name, tmp_path / "wrong.safetensors")


# --- all of them -----------------------------------------------------------------------------------------------------


def test_every_preset_gives_vectors_of_the_length_it_names() -> None:
    for name, preset in PRESETS.items():
        with torch.device("meta"):
            network = pooled(build(preset, ASKER), preset).eval()
            if hasattr(network, "set_input_size"):
                network.set_input_size(img_size=(preset.size, preset.size))
            shape = tuple(network(torch.zeros(1, 3, preset.size, preset.size)).shape)
        assert shape == (1, preset.dimension), name
        settings = EncoderSettings(name=name)
        assert embedding_width(settings, DataSettings()) == preset.dimension
    assert {"chief", "usfm", "uni", "uni2-h", "virchow2", "gigapath", "rad-dino", "phikon"} < set(NAMED)


def test_class_token_and_mean_of_patches_leave_registers_out() -> None:
    network: Any = timm.create_model("test_vit", num_classes=0, reg_tokens=3).eval()
    images = torch.randn(2, 3, 160, 160)
    with torch.no_grad():
        tokens = network.forward_features(images)
        vectors = _ClassAndMean(network)(images)
    assert tokens.shape[1] == 1 + 3 + 100
    expected = torch.cat([tokens[:, 0], torch.stack([tokens[:, 4 + place] for place in range(100)]).mean(0)], dim=1)
    torch.testing.assert_close(vectors, expected)


def test_another_file_is_told_by_what_it_looks_like(tmp_path: Path) -> None:
    with torch.device("meta"):
        other: Any = timm.create_model("vit_small_patch14_dinov2", num_classes=0)
    path = tmp_path / "other.pth"
    torch.save({name: torch.zeros(tensor.shape).half() for name, tensor in other.state_dict().items()}, path)
    with pytest.raises(EncoderError) as caught:
        encoder("timm:test_vit", path)
    assert "of another shape: cls_token" in str(caught.value)
    assert "looks like encoder.name = 'dinov2-small'" in str(caught.value)
    assert "dinov2" not in caught.value.public


def test_resampled_weights_are_another_encoder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Timm would fit a position embedding of another size by interpolation, which nobody asked for."""
    monkeypatch.setattr("client.weights_file.outlines", lambda: ())  # it takes seconds
    model: Any = timm.create_model("test_vit", num_classes=0, img_size=96)
    torch.save(model.state_dict(), tmp_path / "small.pth")
    with pytest.raises(EncoderError, match="of another shape: pos_embed"):
        encoder("timm:test_vit", tmp_path / "small.pth")


def test_files_that_declare_more_than_they_hold_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "weights.pth"
    torch.save({"cls_token": torch.zeros(1).expand(10**13)}, path)
    with pytest.raises(EncoderError, match="more values than it holds"):
        encoder("timm:test_vit", path)
    torch.save({"cls_token": torch.zeros(9).to_sparse()}, path)
    with pytest.raises(EncoderError, match="not a state_dict"):
        encoder("timm:test_vit", path)
    torch.save({"cls_token": torch.zeros(100_000)}, tmp_path / "plain.pth")
    with zipfile.ZipFile(tmp_path / "plain.pth") as plain, zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
        for name in plain.namelist():
            packed.writestr(name, plain.read(name))
    with pytest.raises(EncoderError, match="is compressed"):
        encoder("timm:test_vit", path)
    torch.save({"cls_token": torch.zeros(3)}, path, _use_new_zipfile_serialization=False)
    with pytest.raises(EncoderError, match="no archive of torch"):
        encoder("timm:test_vit", path)


def test_a_model_of_the_hub_is_named_with_its_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def config_of(repository: str, **_: object) -> tuple[dict[str, Any], str, dict[str, Any]]:
        asked.append(repository)
        return (
            {"input_size": (3, 160, 160), "mean": (0.5,) * 3, "std": (0.5,) * 3, "fixed_input_size": True},
            "test_vit",
            {},
        )

    monkeypatch.setattr("timm.models._factory.load_model_config_from_hf", config_of)
    model: Any = timm.create_model("test_vit", num_classes=0)
    save_file(model.state_dict(), tmp_path / "w.safetensors")
    name = "timm:hf-hub:clinic/tiny-vit"
    found = encoder(name, tmp_path / "w.safetensors")
    with torch.no_grad():
        expected = model.eval()(torch.tensor(picture(160).transpose(0, 3, 1, 2) / 127.5 - 1).float()).numpy()
    np.testing.assert_allclose(found.embed(picture(160)), expected, rtol=1e-3, atol=1e-4)
    assert embedding_width(EncoderSettings(name=name), DataSettings()) == found.dimension
    assert set(asked) == {"clinic/tiny-vit"}


def test_presets_of_the_hub_are_fetched_there(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, Any]] = []

    def create_model(name: str, **arguments: Any) -> None:
        asked.append((name, arguments["pretrained"]))
        raise ConnectionError("Access to model MahmoodLab/UNI is restricted")

    monkeypatch.setattr(timm, "create_model", create_model)
    with pytest.raises(EncoderError, match=r"UNI.*restricted.*set encoder.weights to a local file"):
        load_encoder(EncoderSettings(name="uni"), 0)
    assert asked == [("hf-hub:MahmoodLab/UNI", True)]


def test_whose_file_it_is(tmp_path: Path) -> None:
    with pytest.raises(EncoderError, match=r"'chief' are a file that its authors hand out: set encoder.weights"):
        load_encoder(EncoderSettings(name="chief"), 0)
    simulated, bare = identify({"partition-id": 0, "num-partitions": 2}, 0), identify({"data-path": "/d"}, 0)
    own = identify({"data-path": "/d", "encoder-weights": "/d/own.pth"}, 0)
    chief_, uni = EncoderSettings(name="chief"), EncoderSettings(name="uni")
    assert own_encoder(chief_, own).weights == own_encoder(uni, own).weights == "/d/own.pth"
    assert own_encoder(EncoderSettings(name="efficientnet_lite0"), own).weights == ""
    assert own_encoder(chief_.model_copy(update={"weights": "here.pth"}), simulated).weights == "here.pth"
    assert own_encoder(uni, bare).weights == ""
    for settings in (chief_, uni.model_copy(update={"weights": "servers.pth"})):
        with pytest.raises(EncoderError, match=r"set encoder_weights in site.toml"):
            own_encoder(settings, bare)
    assert parse({"encoder.name": "usfm", "encoder.weights": "u.pth"}).encoder.weights == "u.pth"
    with pytest.raises(SettingsError, match="published encoder, not with 'efficientnet_lite2'"):
        parse({"encoder.name": "efficientnet_lite2", "encoder.weights": "u.pth"})
    with pytest.raises(SettingsError, match=r"encoder.name"):
        parse({"encoder.name": "chief2"})
