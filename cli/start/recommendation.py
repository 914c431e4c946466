"""What to begin with: settings that learn something on most data in minutes, and what they will cost."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from pathlib import Path

from cli.start.inventory import Inventory, scheme
from cli.toml_text import toml_list, toml_value
from client.data import load_site
from client.embeddings import embeddings
from client.encoder import load_encoder
from client.identity import Identity, cache_folder
from common.config import Config, SettingsError, parse
from common.models import get_state
from common.networks import build_for
from common.readable import duration, megabytes

# A head on a frozen encoder learns in some hundred steps; a round is one pass over a site's training part.
_STEPS, _FEWEST_ROUNDS, _MOST_ROUNDS, _BATCH = 120, 20, 100, 32
_SITE_SAMPLES, _MOST_SITES = 40, 10
_TIMED = 32  # samples that are embedded to see how long it takes
_ROUND_OVERHEAD = 0.02  # seconds a site and round, in one process


@dataclass(frozen=True)
class Recommendation:
    """Settings by flat key, and what is to be expected of them.

    `seconds` is for all embeddings on this machine; `message` is the size of a model; `baseline` what always naming the
    most frequent class gets.
    """

    found: Inventory
    settings: dict[str, object]
    sites: int
    rounds: int
    seconds: float
    message: int
    baseline: float


def recommend(found: Inventory, sites: int = 0, schema: Path | None = None) -> Recommendation:
    """Choose settings for what was found; `sites`: how many to simulate, where the data do not say whose they are."""
    if found.sites and sites and sites != len(found.sites):
        raise SettingsError(f"--sites {sites}, but the data are those of {len(found.sites)} sites: leave --sites out")
    count = len(found.sites) or sites or max(2, min(_MOST_SITES, found.samples // _SITE_SAMPLES))
    typical = sorted(found.sites.values())[count // 2] if found.sites else found.samples / count
    steps = max(1.0, 0.8 * typical / _BATCH)
    rounds = min(_MOST_ROUNDS, max(_FEWEST_ROUNDS, math.ceil(_STEPS / steps)))
    settings: dict[str, object] = {
        "method": "fmcl",
        "rounds": rounds,
        "sites": count,
        "data.source": found.kind,
        "data.path": str(found.path),
        "partition.scheme": scheme(found),
        "cluster.choice": "rehearsal",
        "train.model": "head",
    }
    if not found.sites:
        settings["partition.alpha"] = 0.5
    if found.kind == "table":
        settings |= {"data.table": str(schema), "encoder.name": "columns"}
    else:
        settings |= {
            "data.classes": list(found.classes),
            "data.image_size": 32,
            "data.channels": 1 if found.grey else 3,
            "encoder.image_size": next((size for side, size in ((48, 64), (112, 128)) if found.side <= side), 0),
        }
    config = parse({**settings, "data.classes": ",".join(found.classes)} if "data.classes" in settings else settings)
    message = sum(array.nbytes for array in get_state(build_for(config, 0)).values())
    return Recommendation(
        found, settings, count, rounds, _measured(config, found), message, max(found.counts) / found.samples
    )


def _measured(config: Config, found: Inventory) -> float:
    """Seconds to embed everything, from some samples; a table needs none."""
    if found.table is not None:
        return 0.0
    identity = Identity("000", None, (0, config.sites), None, in_engine=True)
    site = load_site(identity, config.for_site(), rounds=config.rounds)
    encoder = load_encoder(config.encoder, config.seed)
    some = site.train[:_TIMED]
    start = time.perf_counter()
    embeddings(encoder, site.images, some, cache_folder(identity, config.cache), config.encoder.batch_size)
    return (time.perf_counter() - start) / len(some) * found.samples


def expected(chosen: Recommendation) -> list[str]:
    """What a run will cost and has to beat, in lines for people."""
    work = chosen.seconds + chosen.rounds * chosen.sites * _ROUND_OVERHEAD
    both = 2 * chosen.message * chosen.rounds
    return [
        f"about {duration(max(work, 5.0))} on this machine for a simulation, most of it once, to embed the data",
        f"{megabytes(chosen.message)} a message; {megabytes(both)} to and from each site in {chosen.rounds} rounds",
        f"to beat: {chosen.baseline:.1%}, which always naming the most frequent class gets",
    ]


def configuration(chosen: Recommendation, *, federation: bool) -> str:
    """Write the settings as a file for people to read and change."""
    found, settings = chosen.found, chosen.settings

    def line(key: str) -> str:
        value = settings[key]
        text = toml_list(value) if isinstance(value, list) else toml_value(value)  # type: ignore[arg-type]
        return f"{key.rpartition('.')[2]} = {text}"

    source = [line("data.source")] + ([] if federation else [line("data.path")])
    if found.kind == "table":
        source += ["# What all sites must agree on; look at it, it tells about the data.", line("data.table")]
    else:
        source += ["# The agreed list of classes. A site may lack some of them.", line("data.classes")]
        source += ["# For networks that learn from pixels; a head sees what the encoder sees.", line("data.image_size")]
        source += ["# 1: grey, 3: RGB.", line("data.channels")]
    parts = [
        "# Made by `coterie init`: what to begin with. All settings: `coterie config`, or docs/settings.md.",
        *(f"# {text[0].upper()}{text[1:]}." for text in expected(chosen)),
        "",
        "# Sites train one model, or one for each group of sites that are alike.",
        line("method"),
        line("rounds"),
    ]
    if federation:
        parts += ["# The run waits for all sites that are provisioned; sites = 5 would wait for five."]
    else:
        parts += [line("sites")]
    parts += ["", "[data]", *source]
    if not federation:
        why = (
            "# Each site has its own data, as the data say."
            if found.sites
            else "# The data are dealt out to sites that differ in their classes; alpha = 0.1: very much, 10: hardly."
        )
        parts += ["", "[partition]", why, line("partition.scheme")]
        parts += [line("partition.alpha")] if "partition.alpha" in settings else []
    parts += ["", "[encoder]"]
    if found.kind == "table":
        parts += ["# Tables need no encoder: the scaled columns stand in.", line("encoder.name")]
    else:
        parts += [
            "# Side of the images that the frozen encoder sees; 0: the size it was made for. Smaller is quicker.",
            line("encoder.image_size"),
        ]
    parts += [
        "",
        "[cluster]",
        "# Groups only where a short rehearsal shows that they help.",
        line("cluster.choice"),
        "",
        "[train]",
        "# A linear layer on the frozen encoder, with each site's own class shares. It learns from few samples, in",
        "# seconds; networks that learn from pixels (resnet9, timm:…) need hundreds of images a site and many rounds.",
        line("train.model"),
    ]
    return "\n".join(parts) + "\n"
