"""Tuned backbones as a server and a site have them: what is their state, what it weighs, and what LoRA does."""

from __future__ import annotations

import numpy as np
import pytest
import timm
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from common import low_rank
from common.backbones import assemble, blank, set_size
from common.config import SettingsError
from common.models import get_state, set_prior, set_state
from common.tensor_names import is_head, is_parameter

TINY = ["test_vit", "test_efficientnet", "test_resnet"]
TUNES = ["head", "last:1", "lora:2", "all"]
SIZE = 64


def pretrained(architecture: str, seed: int = 0) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        backbone = timm.create_model(architecture, num_classes=0)
    set_size(architecture, backbone, SIZE)
    return backbone


def tuned(architecture: str, tune: str, classes: int = 3) -> nn.Module:
    return assemble(architecture, pretrained(architecture), classes=classes, size=SIZE, tune=tune)


def images(count: int = 3, channels: int = 3) -> Tensor:
    return torch.rand(count, channels, SIZE, SIZE, generator=torch.Generator().manual_seed(1)) * 2 - 1


def start(architecture: str, tune: str, seed: int = 0) -> dict[str, np.ndarray]:
    return get_state(blank(architecture, classes=3, size=SIZE, tune=tune, seed=seed))


@pytest.mark.parametrize("tune", TUNES)
@pytest.mark.parametrize("architecture", TINY)
def test_a_server_without_weights_starts_from_the_state_that_sites_have(architecture: str, tune: str) -> None:
    theirs, ours = start(architecture, tune), get_state(tuned(architecture, tune))
    assert list(theirs) == list(ours)
    assert all((theirs[name].dtype, theirs[name].shape) == (ours[name].dtype, ours[name].shape) for name in ours)
    # At the start nothing is tuned: a difference of zero, and an A that the seed draws.
    drawn = {name for name, array in theirs.items() if array.any()}
    assert drawn == {name for name in theirs if name.endswith(".down")}


@pytest.mark.parametrize("tune", TUNES)
@pytest.mark.parametrize("architecture", TINY)
def test_at_the_start_the_features_are_those_of_the_backbone(architecture: str, tune: str) -> None:
    network = tuned(architecture, tune).eval()
    set_state(network, start(architecture, tune))
    features = pretrained(architecture).eval()
    config = features.pretrained_cfg
    mean, spread = (torch.tensor(config[name]).view(1, 3, 1, 1) for name in ("mean", "std"))  # type: ignore[index]
    with torch.no_grad():
        plain = features((images() + 1) / 2 / spread - mean / spread)
        found = network.body(images())  # type: ignore[operator]
    torch.testing.assert_close(nn.functional.normalize(found), nn.functional.normalize(plain), atol=1e-5, rtol=1e-4)
    assert not network(images()).any(), "the head starts from zeros"


@pytest.mark.parametrize("architecture", TINY)
def test_grey_images_are_repeated(architecture: str) -> None:
    network = tuned(architecture, "head").eval()
    grey = images(channels=1)
    torch.testing.assert_close(network.body(grey), network.body(grey.repeat(1, 3, 1, 1)))  # type: ignore[operator]


def test_only_what_is_tuned_is_a_parameter_or_part_of_the_state() -> None:
    assert set(start("test_vit", "head")) == {"head.weight", "head.bias"}
    last = {name.split(".")[3] for name in start("test_vit", "last:2") if name.startswith("body.backbone.blocks")}
    assert last == {"4", "5"}
    # What follows the blocks belongs to the last.
    assert "body.backbone.norm.weight" in start("test_vit", "last:1")
    everything = tuned("test_efficientnet", "all")
    assert sum(one.numel() for one in everything.parameters()) - 3 * 257 == sum(
        one.numel() for one in pretrained("test_efficientnet").parameters()
    )
    for tune in TUNES:
        network = tuned("test_efficientnet", tune)
        trained = {name for name, _ in network.named_parameters()}
        assert trained == {name for name in get_state(network) if is_parameter(name)}


def test_bytes_that_travel() -> None:
    """ViT of 6 blocks, width 64: of each block four layers, 64→192, 64→64, 64→192, 192→64."""

    def size(tune: str) -> int:
        return sum(array.nbytes for array in start("test_vit", tune).values())

    head = 4 * (3 * 64 + 3)
    assert size("head") == head
    assert size("lora:2") == head + 6 * 4 * 2 * (64 + 192 + 64 + 64 + 64 + 192 + 192 + 64)
    assert size("lora:4") - head == 2 * (size("lora:2") - head)
    assert len(start("test_vit", "lora:2")) == 2 + 6 * 4 * 2
    assert size("head") < size("lora:2") < size("last:1") < size("all")


@pytest.mark.parametrize("architecture", TINY)
def test_a_state_survives_the_way_through_a_network(architecture: str) -> None:
    """Up to the rounding of base + difference - base."""
    for tune in TUNES:
        network, rng = tuned(architecture, tune), np.random.default_rng(0)
        state = start(architecture, tune)
        state = {
            name: rng.normal(scale=0.1, size=array.shape).astype(array.dtype) if array.dtype == np.float32 else array
            for name, array in state.items()
        }
        set_state(network, state)
        for name, array in get_state(network).items():
            np.testing.assert_allclose(array, state[name], atol=1e-5)


@pytest.mark.parametrize("tune", TUNES)
def test_frozen_batch_norm_stays_as_it_was_and_tuned_batch_norm_learns(tune: str) -> None:
    network = tuned("test_efficientnet", tune).train()
    before = {name: tensor.clone() for name, tensor in network.named_buffers()}
    network(images())
    changed = {name for name, tensor in network.named_buffers() if not torch.equal(tensor, before[name])}
    assert changed == {name for name in get_state(network) if not is_parameter(name)}
    assert bool(changed) == (tune in ("last:1", "all"))
    assert all(tensor.is_floating_point() or "num_batches" in name for name, tensor in before.items())


def test_nothing_is_dropped_at_random() -> None:
    backbone = timm.create_model("test_vit", num_classes=0, drop_path_rate=0.5, proj_drop_rate=0.5, img_size=SIZE)
    network = assemble("test_vit", backbone, classes=3, size=SIZE, tune="all").train()
    nn.init.normal_(network.head.weight)
    torch.testing.assert_close(network(images()), network(images()))


def test_gradients_reach_what_is_tuned_and_nothing_else() -> None:
    for tune in TUNES:
        network = tuned("test_vit", tune)
        state = start("test_vit", tune)
        state["head.weight"] = np.ones_like(state["head.weight"])
        set_state(network, state)
        set_prior(network, np.full(3, 1 / 3))
        nn.functional.cross_entropy(network(images()), torch.tensor([0, 1, 2])).backward()  # type: ignore[no-untyped-call]
        # At B = 0 no gradient comes to A: its first step is one of nothing.
        assert all(one.grad is not None for one in network.parameters())


# --- LoRA ------------------------------------------------------------------------------------------------------


@given(
    inputs=st.integers(1, 9), outputs=st.integers(1, 9), rank=st.integers(1, 12), bias=st.booleans(),
    conv=st.booleans(), stride=st.integers(1, 2), seed=st.integers(0, 99),
)  # fmt: skip
def test_an_adapted_layer_is_w_plus_b_a_and_at_b_0_it_is_w(
    inputs: int, outputs: int, rank: int, bias: bool, conv: bool, stride: int, seed: int
) -> None:
    torch.manual_seed(seed)
    layer = nn.Conv2d(inputs, outputs, 1, stride, bias=bias) if conv else nn.Linear(inputs, outputs, bias=bias)
    network = nn.Sequential(layer)
    given = torch.randn(2, inputs, 4, 4) if conv else torch.randn(2, 5, inputs)
    plain, weight = network(given), layer.weight.detach().clone()
    assert low_rank.adapt(network, rank) == 1
    torch.testing.assert_close(network(given), plain)
    down, up = network[0].down, network[0].up
    assert down.shape == (min(rank, inputs, outputs), inputs)
    nn.init.normal_(down)
    torch.testing.assert_close(network(given), plain, msg="at B = 0 it is W, whatever A")
    nn.init.normal_(up)
    found = network(given)
    # By the definition, one output channel after the other.
    whole = weight.reshape(outputs, inputs) + sum(torch.outer(up[:, k], down[k]) for k in range(down.shape[0]))  # type: ignore[misc]
    pixels = given[:, :, ::stride, ::stride].permute(0, 2, 3, 1) if conv else given
    slow = pixels @ whole.T + (layer.bias if bias else 0)
    torch.testing.assert_close(found, slow.permute(0, 3, 1, 2) if conv else slow, atol=1e-4, rtol=1e-4)
    low_rank.merge(network)
    assert type(network[0]) is type(layer)
    torch.testing.assert_close(network(given), found, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("architecture", [*TINY, "test_convnext"])
def test_a_merged_network_says_what_the_adapted_one_said(architecture: str) -> None:
    network = tuned(architecture, "lora:2").eval()
    rng = np.random.default_rng(0)
    state = {name: rng.normal(scale=0.1, size=a.shape).astype(np.float32) for name, a in get_state(network).items()}
    set_state(network, state)
    with torch.no_grad():
        adapted = network(images())
        low_rank.merge(network)
        torch.testing.assert_close(network(images()), adapted, atol=1e-3, rtol=1e-3)
    assert not any(isinstance(one, low_rank.LowRankLinear | low_rank.LowRankConv) for one in network.modules())


def test_attention_that_reads_the_weight_by_itself_sees_the_change() -> None:
    """BEiT's calls no layer for queries, keys and values, but multiplies by its weight."""
    backbone = timm.create_model("beit_base_patch16_224", num_classes=0, depth=1, embed_dim=32, num_heads=2)
    network = assemble("beit_base_patch16_224", backbone, classes=2, size=224, tune="lora:2").eval()
    given = torch.rand(1, 3, 224, 224)
    with torch.no_grad():
        before = network.body(given)
        attention = backbone.blocks[0].attn.qkv  # type: ignore[index, union-attr]
        nn.init.normal_(attention.down)
        nn.init.normal_(attention.up, std=1.0)
        assert not torch.allclose(network.body(given), before, atol=1e-2)


def test_the_seed_draws_a() -> None:
    one, same, other = (start("test_vit", "lora:2", seed) for seed in (1, 1, 2))
    name = "body.backbone.blocks.0.attn.qkv.down"
    assert np.array_equal(one[name], same[name])
    assert not np.array_equal(one[name], other[name])
    assert 0.4 < np.abs(one[name]).max() <= 4 / 8


# --- what cannot be --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("architecture", "tune", "size", "said"),
    [
        ("resnet_of_dreams", "head", 64, "timm has no model 'resnet_of_dreams'"),
        ("test_vit", "last:9", 64, "has 6 blocks; 'all' tunes the whole of it"),
        ("test_resnet", "last:5", 64, "has 4 blocks"),
        ("beit_base_patch16_224", "head", 64, "does not take images of 64 px .* made for data.image_size = 224"),
        ("vgg11_bn", "lora:2", 64, "no linear layer and no convolution of a single pixel"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_said(architecture: str, tune: str, size: int, said: str) -> None:
    if architecture == "vgg11_bn":
        # Its last layers are convolutions of 7 pixels.
        network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        network.pretrained_cfg = {"input_size": (3, 64, 64), "mean": (0.5,) * 3, "std": (0.5,) * 3}  # type: ignore[assignment]
        with pytest.raises(SettingsError, match=said):
            assemble(architecture, network, classes=3, size=size, tune=tune)
        return
    with pytest.raises(SettingsError, match=said):
        blank(architecture, classes=3, size=size, tune=tune, seed=0)


def test_every_tuned_network_has_a_head_by_name() -> None:
    assert {name for name in start("test_resnet", "last:1") if is_head(name)} == {"head.weight", "head.bias"}
