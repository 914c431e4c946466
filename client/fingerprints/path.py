"""The gradient path of FedCM: how the head moves in a short warm-up on a site's own data."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from client.training import TrainingDiverged, train
from common.config import TrainSettings
from common.head_path import HeadPath
from common.models import get_state
from common.randomness import derive_seed
from common.state import flat_head


def head_path(
    model: nn.Module,
    inputs: NDArray[np.uint8] | NDArray[np.float32],
    labels: NDArray[np.int64],
    settings: TrainSettings,
    *,
    epochs: int,
    seed: int,
    site: str,
    device: torch.device,
) -> HeadPath:
    """Train `model` in place for some epochs and record what each changes in the head (FedCM).

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
    """
    epoch_settings = settings.model_copy(update={"epochs": 1})
    changes = []
    before = flat_head(get_state(model))
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
        after = flat_head(get_state(model))
        changes.append(after - before)
        before = after
    path = np.stack(changes).astype(np.float32)
    if not np.isfinite(path).all():
        # The losses only show what came before the last step.
        raise TrainingDiverged("the head is not finite after the warm-up: a lower train.lr may help")
    return HeadPath(path)
