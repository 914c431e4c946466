"""What must be known of an encoder without loading it: how long its embeddings are."""

from __future__ import annotations

from functools import lru_cache

from common.config import DataSettings, EncoderSettings, SettingsError
from common.presets import PACKAGED, PACKAGED_WIDTH, PRESETS

# Networks on the numbers of a frozen encoder.
HEADS = ("head", "head-mlp")

# No network at all: the image itself, 3 x 32 x 32 values between 0 and 1 unless encoder.image_size says otherwise.
PIXELS = "pixels"
PIXEL_SIDE = 32
# No network either: the scaled columns of a table.
COLUMNS = "columns"


def embedding_width(settings: EncoderSettings, data: DataSettings) -> int:
    """Length of an embedding, the same at the server, which has no encoder, and at a site."""
    if settings.name == COLUMNS:
        if data.table is None:
            raise SettingsError("encoder.name = 'columns' reads a table: set data.source = 'table' and data.table")
        return data.table.width
    if settings.dimensions:
        return settings.dimensions
    if settings.name == PIXELS:
        return 3 * (settings.image_size or PIXEL_SIDE) ** 2
    if settings.name in PACKAGED:
        return PACKAGED_WIDTH
    if preset := PRESETS.get(settings.name):
        return preset.dimension
    return _width(settings.name.partition(":")[2])


@lru_cache(maxsize=8)
def _width(architecture: str) -> int:
    import timm
    import torch
    from timm.data.config import resolve_model_data_config

    try:
        # Without memory for its weights: only a shape is asked for. Some have a layer more behind their `num_features`.
        with torch.device("meta"):
            model = timm.create_model(architecture, pretrained=False, num_classes=0).eval()
            made_for = resolve_model_data_config(model)  # type: ignore[no-untyped-call]
            return int(model(torch.zeros(1, *made_for["input_size"])).shape[1])
    except Exception as error:  # the hub's client, which knows what hf-hub: names are, raises a dozen kinds
        raise SettingsError(f"encoder.name: timm has no model {architecture!r}: {error}") from None


# Where the pretrained weights of a network come from (train.weights) that is no file of somebody's.
NO_FILE = ("packaged", "hub", "random")
