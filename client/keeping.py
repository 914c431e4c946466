"""What a site keeps when a run is over: a final model, on its own disk."""

from __future__ import annotations

import os
import time
from pathlib import Path

from client.identity import Identity
from common.config import SiteSettings
from common.kept_model import ModelCard, describe, save_model
from common.metrics import Metrics
from common.site_card import Spending
from common.state import State

MODEL, CARD = "model.safetensors", "model.json"


def site_card(
    settings: SiteSettings,
    classes: tuple[str, ...],
    identity: Identity,
    metrics: Metrics,
    *,
    group: int,
    round_number: int,
    method: str = "",
    run: str = "",
    trained_on: tuple[int, ...] = (),
    shares: tuple[float, ...] = (),
    kept: str = "group",
    blend: float | None = None,
    note: str = "",
    weights_digest: str = "",
    spending: Spending | None = None,
) -> ModelCard:
    """The card of a model that the site keeps; `metrics` are those of its own test split, `shares` its classes'."""
    about = {
        "trained_on": trained_on,
        "shares": shares,
        "site": identity.name,
        "method": method,
        "run": run,
        "date": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "kept": kept,
        "blend": blend,
        "note": note,
        "weights_digest": weights_digest,
        "epsilon": spending and spending.spent,
        "delta": spending and spending.delta,
    }
    return describe(settings, classes, group, round_number, metrics).model_copy(update=about)


def keep_model(folder: Path, run: str, state: State, card: ModelCard) -> Path:
    """Write the model and its card to `folder`/run-<stamp>; return the model's path.

    The folder is the site's own; of what the server says only hexadecimal digits take part in a path.
    """
    place = folder / f"run-{int(run, 16):0{len(run)}x}"
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    save_model(place / MODEL, state, card)
    # For people; programs find the same card in the model file itself.
    temporary = place / f".{CARD}.tmp"
    temporary.write_text(card.model_dump_json(indent=1) + "\n", encoding="utf-8")
    os.replace(temporary, place / CARD)
    return place / MODEL
