"""Networks of the user's own: what a factory must return, and what is said where it does not."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from common.models import draw_head, get_state, set_prior, set_state
from common.own_network import NetworkError, build_own


class Own(nn.Module):
    """A small network with all that ours have: a body, batch norm, a head, and a parameter that takes no part."""

    def __init__(self, channels: int, image_size: int, classes: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, 4, 3, stride=2)
        self.norm = nn.BatchNorm2d(4)
        self.unused = nn.Parameter(torch.zeros(2))
        self.dropout = nn.Dropout(0.5)
        self.head = nn.Linear(4, classes)

    def forward(self, images: Tensor) -> Tensor:
        features = self.norm(self.first(images)).relu().mean(dim=(2, 3))
        logits: Tensor = self.head(self.dropout(features))
        return logits


@pytest.fixture
def offer(monkeypatch: pytest.MonkeyPatch) -> Callable[[object], str]:
    """Put a factory into a module that can be imported; return what it is called."""

    def put(factory: object) -> str:
        module = ModuleType("clinic_networks")
        module.factory = factory  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "clinic_networks", module)
        return "clinic_networks:factory"

    return put


def built(reference: str, seed: int = 0, classes: int = 3) -> nn.Module:
    return build_own(reference, channels=1, image_size=8, classes=classes, seed=seed)


def test_its_weights_depend_on_the_seed_alone(offer: Callable[[object], str]) -> None:
    reference = offer(Own)
    torch.manual_seed(1)
    one = get_state(built(reference, 7))
    before = torch.random.get_rng_state()
    same, other = get_state(built(reference, 7)), get_state(built(reference, 8))
    assert torch.equal(before, torch.random.get_rng_state())
    assert all(np.array_equal(one[name], same[name]) for name in one)
    assert not np.array_equal(one["head.weight"], other["head.weight"])
    assert set(one) >= {"head.weight", "norm.running_mean"}


def test_the_prior_is_added_to_its_scores_and_is_no_part_of_its_state(offer: Callable[[object], str]) -> None:
    network, shares = built(offer(Own)).eval(), np.array([0.7, 0.2, 0.1])
    images = torch.rand(2, 1, 8, 8)
    plain, names = network(images), set(get_state(network))
    set_prior(network, shares)
    torch.testing.assert_close(network(images), plain + torch.from_numpy(np.log(shares)).float())
    assert set(get_state(network)) == names
    set_prior(network, None)
    torch.testing.assert_close(network(images), plain)
    set_state(network, get_state(built("clinic_networks:factory", 3)))
    draw_head(network, 0)


class Without(Own):
    def __init__(self, *shape: int) -> None:
        super().__init__(*shape)
        self.last = self.head
        del self.head

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.last(self.first(images).mean(dim=(2, 3)))
        return logits


class NotLast(Own):
    def forward(self, images: Tensor) -> Tensor:
        return super().forward(images).softmax(dim=1)


class WithPrior(Own):
    def __init__(self, *shape: int) -> None:
        super().__init__(*shape)
        self.log_prior = 1


class NotFinite(Own):
    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.head(torch.full((len(images), 4), torch.inf))
        return logits


class Fails(Own):
    def forward(self, images: Tensor) -> Tensor:
        raise RuntimeError("something of the site's own")


class WithBuffer(Own):
    def __init__(self, *shape: int) -> None:
        super().__init__(*shape)
        self.register_buffer("scale", torch.ones(4))


class WithConstant(Own):
    def __init__(self, *shape: int) -> None:
        super().__init__(*shape)
        self.register_buffer("scale", torch.ones(4), persistent=False)


class OddlyNamed(Own):
    def __init__(self, *shape: int) -> None:
        super().__init__(*shape)
        self.mean = nn.Module()
        self.mean.running_mean = nn.Parameter(torch.zeros(4))


class Tied(Own):
    def __init__(self, *shape: int) -> None:
        super().__init__(*shape)
        self.below = nn.Linear(4, shape[2])
        self.below.weight = self.head.weight


class Integer(Own):
    def __init__(self, *shape: int) -> None:
        super().__init__(*shape)
        self.steps = nn.Parameter(torch.zeros(2, dtype=torch.int64), requires_grad=False)


def fails(*_: int) -> nn.Module:
    raise KeyError("something of the site's own")


@pytest.mark.parametrize(
    ("factory", "said"),
    [
        (Without, "has no layer `head`"),
        (lambda *_: nn.Identity(), "has no layer `head`"),
        (lambda *_: "network", "must return a torch.nn.Module, not a str"),
        (lambda *shape: Own(*shape).double(), "is torch.float64: parameters must be float32"),
        (lambda *shape: Own(*shape).half(), "is torch.float16: parameters must be float32"),
        (lambda *shape: Own(shape[0], shape[1], shape[2] + 1), r"gives \[2, 4\] for 2 images, not \[2, 3\]"),
        (lambda *shape: Own(shape[0] + 1, *shape[1:]), "failed with RuntimeError on images of shape"),
        (NotLast, "`head` of .* is not its last layer"),
        (WithPrior, "`log_prior`, a name that is taken"),
        (NotFinite, "scores that are not finite"),
        (WithBuffer, "scale of .* is a buffer that is no statistic of batch norm.* persistent=False"),
        (OddlyNamed, "the parameter mean.running_mean of .* has the name of a statistic"),
        (Tied, r"(head|below)\.weight and (head|below)\.weight of .* share their memory"),
        (Integer, "steps of .* is torch.int64: parameters must be float32"),
        (Fails, "failed with RuntimeError on images"),
        (fails, "the factory clinic_networks:factory failed with KeyError"),
        (lambda: None, "failed with TypeError: it is called as factory"),
        ("no function", "clinic_networks has no function factory"),
    ],
)  # fmt: skip
def test_what_methods_cannot_use_is_refused_with_a_sentence(
    offer: Callable[[object], str], factory: object, said: str
) -> None:
    with pytest.raises(NetworkError, match=said) as caught:
        built(offer(factory))
    assert "site's own" not in str(caught.value)


def test_constants_outside_of_the_state_are_its_own_business(offer: Callable[[object], str]) -> None:
    assert "scale" not in get_state(built(offer(WithConstant)))


def test_a_package_that_is_not_there_is_named() -> None:
    with pytest.raises(NetworkError, match="there is no module nowhere here; install the package"):
        built("nowhere.at_all:factory")
