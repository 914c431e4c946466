"""Head paths: the invariants of the type, and the warm-up that makes one."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from client.fingerprints.path import gradient_path
from client.training import TrainingDiverged, train
from common.config import TrainSettings
from common.head_path import MOST_VALUES, HeadPath, InvalidHeadPath
from common.models import build, get_state
from common.randomness import derive_seed

CPU = torch.device("cpu")


def samples(count: int = 40) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.integers(0, 256, (count, 8, 8, 1), dtype=np.uint8), rng.integers(0, 3, count)


def network(seed: int = 0) -> torch.nn.Module:
    return build("mlp", classes=3, channels=1, image_size=8, seed=seed)


def settings(**changes: object) -> TrainSettings:
    return TrainSettings(**({"model": "mlp", "lr": 0.1, "batch_size": 8} | changes))  # type: ignore[arg-type]


def walk(site: str = "a", seed: int = 0, warm_up: int = 4, **changes: object) -> np.ndarray:
    model, chosen = network(), settings(**changes)
    (moved,) = gradient_path(model, *samples(), chosen, epochs=warm_up, seed=seed, site=site, device=CPU)
    return moved


def flat_head(model: torch.nn.Module) -> np.ndarray:
    state = get_state(model)
    return np.concatenate([state["head.bias"], state["head.weight"].ravel()])


def test_each_row_is_what_one_epoch_changed() -> None:
    model = network()
    expected = []
    for epoch in (1, 2, 3, 4):
        before = flat_head(model).copy()
        seed = derive_seed(5, "warm-up", "a", epoch)
        train(model, *samples(), settings(), round_number=1, rounds=1, seed=seed, device=CPU)
        expected.append(flat_head(model) - before)
    changes = walk(seed=5)
    assert changes.shape == (4, 3 * 32 + 3)
    np.testing.assert_array_equal(changes, expected)
    assert all(row.any() for row in changes)


def test_a_warm_up_epoch_is_one_epoch_at_the_full_rate_whatever_the_rounds_do() -> None:
    np.testing.assert_array_equal(walk(epochs=3), walk())
    np.testing.assert_array_equal(walk(schedule="cosine"), walk())


def test_same_seed_same_bits_and_each_site_its_own_order() -> None:
    np.testing.assert_array_equal(walk(), walk())
    assert not np.array_equal(walk(), walk(site="b"))
    assert not np.array_equal(walk(), walk(seed=1))


def test_a_longer_warm_up_goes_on_where_the_shorter_one_ends() -> None:
    np.testing.assert_array_equal(walk(warm_up=2), walk()[:2])


def test_a_diverging_warm_up_says_so() -> None:
    with pytest.raises(TrainingDiverged, match=r"warm-up.*lower train\.lr"):
        walk(lr=1e30)


def test_weights_that_blow_up_in_the_very_last_step_are_noticed() -> None:
    model = network()
    # Large features make large gradients of the head; the loss of the only step is still that of the start.
    torch.nn.init.constant_(model.get_parameter("body.3.bias"), 100.0)
    large_step = settings(lr=3e38, batch_size=40)
    with pytest.raises(TrainingDiverged, match="not finite after the warm-up"):
        gradient_path(model, *samples(), large_step, epochs=1, seed=0, site="a", device=CPU)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ([[1.0]], "2-dimensional float32"),
        (np.ones((2, 3)), "2-dimensional float32"),
        (np.ones(3, np.float32), "2-dimensional float32"),
        (np.ones((1, 2, 3), np.float32), "2-dimensional float32"),
        (np.ones((0, 3), np.float32), "at least one epoch"),
        (np.ones((3, 0), np.float32), "at least one epoch"),
        (np.array([[1, np.nan]], np.float32), "not finite"),
        (np.array([[1, -np.inf]], np.float32), "not finite"),
        (np.broadcast_to(np.float32(1), (2, MOST_VALUES)), "more than"),
    ],
)
def test_invalid_paths_are_refused(changes: np.ndarray, message: str) -> None:
    with pytest.raises(InvalidHeadPath, match=message):
        HeadPath(changes)
