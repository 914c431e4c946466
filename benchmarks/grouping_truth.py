"""Signatures with a known truth → K and ARI, published and guarded: `python -m benchmarks.grouping_truth`.

A site's class means and scatters are drawn directly as those of normal samples: noise of spread 1 in 64 directions, or
as anisotropic as 1, 1/2, 1/3, … (effective dimension 14); sites of 100 samples, or of lognormal sizes (spread 1.2: a
thousandfold between the largest and the smallest of 200). Each combination has a quarter of the draws. Classes lie 0.5
apart per direction, so do devices by their strength. `--digits` does the same with scikit-learn's digits, whose samples
are dealt without replacement. `--withhold 10` lets sites name only classes of ten samples or more, as deployed ones do
(`policy.class_samples`); a site that could name none is left out.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import adjusted_rand_score

from client.fingerprints.signature import signature
from common.config import ClusterSettings
from common.signature import Signature
from server.clustering import Chance, chance_of, merge_tree, overlap_distance
from server.methods.partition import Agglomerative

DIMENSION = 64
SPECTRA = {"isotropic": np.ones(DIMENSION), "anisotropic": 1 / np.arange(1, DIMENSION + 1)}
DEVICES = {"weak": 0.1, "medium": 0.3, "strong": 1.0}
RULES = ("published", "guarded")


@dataclass(frozen=True)
class World:
    """A way of dealing data: Dirichlet concentration of the labels (None: alike), and what parts the groups."""

    name: str
    alpha: float | None = None
    device: float = 0.0
    concept: bool = False
    disjoint: bool = False

    @property
    def has_groups(self) -> bool:
        """Whether there is a true grouping."""
        return bool(self.device) or self.concept or self.disjoint


WORLDS = (
    World("IID"),
    *(World(f"devices, {name}", device=strength) for name, strength in DEVICES.items()),
    World("concept", concept=True),
    World("disjoint", disjoint=True),
    *(World(f"Dirichlet {alpha:g}", alpha=alpha) for alpha in (0.1, 0.3, 0.5, 1.0)),
)


@dataclass(frozen=True)
class Outcome:
    """What one rule made of one draw."""

    k: int
    ari: float
    true_cut: bool


def truth(world: World, sites: int, classes: int) -> NDArray[np.int64]:
    """The group of each site; one group where the world has none."""
    if not world.has_groups:
        return np.zeros(sites, np.int64)
    most = 5 if world.disjoint else 3
    return np.arange(sites) % max(2, min(most, sites // 2, classes))


def class_counts(
    world: World, groups: NDArray[np.int64], sizes: NDArray[np.int64], classes: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    """int64[N, C]."""
    shares = np.full((len(sizes), classes), 1 / classes)
    if world.disjoint:
        owner = np.arange(classes) % (groups.max() + 1)
        shares = np.equal.outer(groups, owner) / np.bincount(owner)[groups][:, None]
    elif world.alpha is not None:
        # Each class is dealt out to the sites, so that all of them are somewhere.
        shares = rng.dirichlet(np.full(len(sizes), world.alpha), classes).T + 1e-9
        shares /= shares.sum(axis=1, keepdims=True)
    return np.stack([rng.multinomial(size, share) for size, share in zip(sizes, shares, strict=True)])


def site_sizes(sites: int, equal: bool, samples: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Training samples of each site."""
    if equal:
        return np.full(sites, samples)
    return np.maximum(rng.lognormal(np.log(samples), 1.2, sites), 5).astype(np.int64)


def draw(
    world: World, sites: int, classes: int, *, equal: bool, spectrum: NDArray[np.float64], rng: np.random.Generator
) -> tuple[list[Signature], NDArray[np.int64], NDArray[np.int64]]:
    """Signatures, sizes and true groups of one federation."""
    groups = truth(world, sites, classes)
    sizes = site_sizes(sites, equal, 100, rng)
    counts = class_counts(world, groups, sizes, classes, rng)
    # Differences are spread over all directions alike, and as large beside the noise in either spectrum.
    scale = np.sqrt(spectrum.mean())
    centres = 0.5 * scale * (rng.normal(size=(classes, DIMENSION)) + rng.normal(size=DIMENSION))
    shifts = world.device * scale * rng.normal(size=(groups.max() + 1, DIMENSION))
    found = []
    for row, group in zip(counts, groups, strict=True):
        present = np.flatnonzero(row)
        own = row[present]
        named = (present + group) % classes if world.concept else present
        noise = rng.normal(size=(len(present), DIMENSION)) * np.sqrt(spectrum / own[:, None])
        scatter = (rng.chisquare(np.maximum(own - 1, 1e-9)[:, None], (len(own), DIMENSION)) @ spectrum) / own
        means = (centres[named] + shifts[group] + noise).astype(np.float32)
        found.append(Signature(present, means, own / own.sum(), np.where(own > 1, scatter, 0.0)))
    return found, sizes, groups


def draw_digits(
    world: World, sites: int, *, equal: bool, rng: np.random.Generator
) -> tuple[list[Signature], NDArray[np.int64], NDArray[np.int64]]:
    """The same from digits, as far as the samples reach; a device adds a fixed picture to each of its images."""
    from sklearn.datasets import load_digits

    data = load_digits()
    images, labels = data.data / 16.0, data.target
    groups = truth(world, sites, 10)
    sizes = site_sizes(sites, equal, min(60, 1200 // sites), rng)
    counts = class_counts(world, groups, sizes, 10, rng)
    shifts = world.device * images.std(axis=0).mean() * rng.normal(size=(groups.max() + 1, images.shape[1]))
    piles = [rng.permutation(np.flatnonzero(labels == label)) for label in range(10)]
    found, kept = [], []
    for row, group in zip(counts, groups, strict=True):
        taken = []
        for label, count in enumerate(row):
            taken.append(piles[label][:count])
            piles[label] = np.roll(piles[label], -count)  # around, once a class is used up
        chosen = np.concatenate(taken)
        names = (labels[chosen] + group) % 10 if world.concept else labels[chosen]
        found.append(signature((images[chosen] + shifts[group]).astype(np.float32), names.astype(np.int64)))
        kept.append(len(chosen))
    return found, np.array(kept), groups


Drawn = tuple[list[Signature], NDArray[np.int64], NDArray[np.int64]]


def named(site: Signature, size: int, least: int) -> Signature | None:
    """What a site says that names only classes of `least` samples or more; None where there are none."""
    large = np.rint(site.shares * size) >= least
    if not large.any():
        return None
    shares = site.shares[large] / site.shares[large].sum()
    return Signature(site.classes[large], site.prototypes[large], shares, site.scatter[large])


def outcomes(drawn: Drawn, rules: Sequence[str] = RULES, least: int = 1) -> dict[str, Outcome]:
    """What each rule makes of a federation whose sites name classes of `least` samples or more."""
    told = [
        (said, round(float(site.shares[np.isin(site.classes, said.classes)].sum()) * size), size, group)
        for site, size, group in zip(drawn[0], drawn[1].tolist(), drawn[2].tolist(), strict=True)
        if (said := named(site, size, least)) is not None
    ]
    # Who has nobody to be compared with is not grouped.
    if len(told) < 2:
        return dict.fromkeys(rules, Outcome(1, 1.0, False))
    signatures = [said for said, *_ in told]
    sizes, samples, groups = (np.array(column) for column in list(zip(*told, strict=True))[1:])
    chance: Chance = chance_of(signatures, sizes.tolist(), samples - sizes)
    found = {}
    for rule in rules:
        settings = ClusterSettings(rule=rule)
        distance = overlap_distance(signatures, rule=settings.rule)
        labels = Agglomerative().form(distance, len(sizes), settings, chance).labels
        true_cut = bool(adjusted_rand_score(groups, merge_tree(distance).cut(int(groups.max()) + 1)) == 1)
        found[rule] = Outcome(int(labels.max()) + 1, adjusted_rand_score(groups, labels), true_cut)
    return found


def cell(
    world: World, make: Callable[[int, np.random.Generator], Drawn], draws: int, least: int
) -> list[dict[str, Outcome]]:
    """Some draws of one world, the same in every run."""
    seeds = ((hash_of(world.name), number) for number in range(draws))
    return [outcomes(make(seed[1], np.random.default_rng(seed)), least=least) for seed in seeds]


def hash_of(name: str) -> int:
    """A number for a name, the same in every process."""
    return int.from_bytes(name.encode(), "big") % (2**31)


def described(found: list[dict[str, Outcome]], world: World, rule: str) -> str:
    """K (median) and ARI (mean), or how many draws had one group where there are none."""
    results = [one[rule] for one in found]
    k = np.median([one.k for one in results])
    if world.has_groups:
        return f"{k:g} · {np.mean([one.ari for one in results]):.2f}"
    return f"{k:g} · {sum(one.k > 1 for one in results)}/{len(results)}"


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sites", type=int, nargs="+", default=[3, 6, 20, 200])
    parser.add_argument("--classes", type=int, nargs="+", default=[3, 10, 100])
    parser.add_argument("--draws", type=int, default=20, help="a cell")
    parser.add_argument(
        "--calibration", type=int, default=0, metavar="DRAWS", help="only the rates, so many draws each"
    )
    parser.add_argument("--worlds", nargs="+", default=[world.name for world in WORLDS], help="rows of the table")
    parser.add_argument("--digits", action="store_true", help="digits in the place of normal draws")
    parser.add_argument("--withhold", type=int, default=1, metavar="N", help="classes of fewer samples are not named")
    options = parser.parse_args()
    start = time.perf_counter()
    if options.calibration:
        _calibration(options.sites, options.classes, options.calibration, options.withhold)
    else:
        worlds = [world for world in WORLDS if world.name in options.worlds]
        classes = [10] if options.digits else options.classes
        _table(worlds, options.sites, classes, options.draws, options.digits, options.withhold)
    print(f"\n{time.perf_counter() - start:.0f} s")


def _maker(world: World, sites: int, classes: int, digits: bool) -> Callable[[int, np.random.Generator], Drawn]:
    def make(number: int, rng: np.random.Generator) -> Drawn:
        equal, spectrum = number % 2 == 0, list(SPECTRA.values())[number // 2 % 2]
        if digits:
            return draw_digits(world, sites, equal=equal, rng=rng)
        return draw(world, sites, classes, equal=equal, spectrum=spectrum, rng=rng)

    return make


def _table(worlds: Sequence[World], sites: list[int], classes: list[int], draws: int, digits: bool, least: int) -> None:
    print("K (median) · ARI (mean), published → guarded; without true groups: K · draws that were grouped.\n")
    print("| world | N |" + "".join(f" C = {count} |" for count in classes))
    print("|---|---:|" + "---|" * len(classes))
    for world in worlds:
        for count in sites:
            cells = []
            for width in classes:
                found = cell(world, _maker(world, count, width, digits), draws, least)
                cells.append(" → ".join(described(found, world, rule) for rule in RULES))
            print(f"| {world.name} | {count} | " + " | ".join(cells) + " |", flush=True)


def _calibration(sites: list[int], classes: list[int], draws: int, least: int) -> None:
    """How often federations are grouped: without groups, and with groups that the dendrogram shows."""
    print("Draws that are grouped under the guarded rule, over all C; with groups: of those whose true cut is right.\n")
    worlds = [world for world in WORLDS if world.has_groups or world.alpha == 0.1]
    print("| N | sizes | noise | IID |" + "".join(f" {world.name} |" for world in worlds))
    print("|---:|---|---|---:|" + "---:|" * len(worlds))
    for count in sites:
        for equal in (True, False):
            for noise, spectrum in SPECTRA.items():
                cells = []
                for world in (WORLDS[0], *worlds):
                    found = []
                    for number in range(draws if world is WORLDS[0] else max(draws // 5, 1)):
                        for width in classes:
                            rng = np.random.default_rng((hash_of(world.name), number, width, count, equal, len(noise)))
                            drawn = draw(world, count, width, equal=equal, spectrum=spectrum, rng=rng)
                            found.append(outcomes(drawn, ("guarded",), least)["guarded"])
                    shown = [one for one in found if one.true_cut or not world.has_groups]
                    grouped = sum(one.k > 1 for one in shown)
                    cells.append(f"{grouped / len(shown):.1%} of {len(shown)}" if shown else "–")
                label = "equal" if equal else "lognormal"
                print(f"| {count} | {label} | {noise} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
