"""What a site keeps when a run is over: its group's final model, on its own disk."""

from __future__ import annotations

import os
import time
from pathlib import Path

from client.identity import Identity
from common.config import SiteSettings
from common.kept_model import ModelCard, preprocessing, result_of, save_model
from common.metrics import Metrics
from common.models import State

MODEL, CARD = "model.safetensors", "model.json"


def keep_model(
    folder: Path,
    state: State,
    metrics: Metrics,
    *,
    settings: SiteSettings,
    classes: tuple[str, ...],
    identity: Identity,
    group: int,
    round_number: int,
    run: int,
) -> Path:
    """Write the model and its card to `folder`/run-<number>; return the model's path.

    The folder is the site's own; of what the server says only a number takes part in a path.
    """
    card = ModelCard(
        network=settings.train.model,
        classes=classes,
        image_size=settings.data.image_size,
        channels=settings.data.channels,
        preprocessing=preprocessing(settings.data.image_size, settings.data.channels),
        group=group,
        round=round_number,
        seed=settings.seed,
        site=identity.name,
        run=str(run),
        date=time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        test=result_of(metrics),
    )
    place = folder / f"run-{run:d}"
    # A model may betray what it was trained on; nobody else on this machine need have it.
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    save_model(place / MODEL, state, card)
    # For people; programs find the same card in the model file itself.
    temporary = place / f".{CARD}.tmp"
    temporary.write_text(card.model_dump_json(indent=1) + "\n", encoding="utf-8")
    os.replace(temporary, place / CARD)
    return place / MODEL
