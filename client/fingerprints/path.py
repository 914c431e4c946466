"""The gradient path of FedCM: how head and body move in a short warm-up on a site's own data."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from client.training import TrainingDiverged, train
from common.config import TrainSettings
from common.models import get_state
from common.randomness import derive_seed
from common.state import State, flat_head

# What is looked at of a network, as one vector.
Part = Callable[[State], NDArray[np.float64]]


def gradient_path(
    model: nn.Module,
    inputs: NDArray[np.uint8] | NDArray[np.float32],
    labels: NDArray[np.int64],
    settings: TrainSettings,
    *,
    epochs: int,
    seed: int,
    site: str,
    device: torch.device,
    parts: Sequence[Part] = (flat_head,),
) -> list[NDArray[np.float32]]:
    """Train `model` in place for some epochs; return what each changes in each part: float32[epochs, p] (FedCM).

    Parameters
    ----------
    model
        The network as all sites received it.
    inputs : uint8[n, h, w, c] or float32[n, m]
        The site's training images or rows.
    labels : int64[n]
        Index of each image's class in the agreed class list.
    epochs
        Of the warm-up (T in the paper).
    seed, site
        Of the run and the site; with the epoch they fix the order of the samples.
    parts
        Of the network that are looked at.
    """
    epoch_settings = settings.model_copy(update={"epochs": 1})
    paths: list[list[NDArray[np.float32]]] = [[] for _ in parts]
    before = [part(get_state(model)) for part in parts]
    for epoch in range(1, epochs + 1):
        try:
            train(
                model,
                inputs,
                labels,
                epoch_settings,
                # The warm-up precedes round 1 and has its learning rate, however many rounds follow.
                round_number=1,
                rounds=1,
                seed=derive_seed(seed, "warm-up", site, epoch),
                device=device,
            )
        except TrainingDiverged as error:
            raise TrainingDiverged(f"warm-up epoch {epoch}: {error}") from None
        after = [part(get_state(model)) for part in parts]
        for path, now, then in zip(paths, after, before, strict=True):
            path.append((now - then).astype(np.float32))
        before = after
    found = [np.stack(path) for path in paths]
    if not all(np.isfinite(path).all() for path in found):
        # The losses only show what came before the last step.
        raise TrainingDiverged("the network is not finite after the warm-up: a lower train.lr may help")
    return found
