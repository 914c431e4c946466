"""Signatures with a known truth → K and ARI: `python -m benchmarks.grouping_truth`.

By the published rule, by the guarded one without class shares in the softmax, and by that with them (the default).

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
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import adjusted_rand_score

from client.fingerprints.signature import signature
from common.config import parse
from common.signature import Signature
from common.site_card import SiteCard
from server.clustering import merge_tree
from server.methods.fmcl import METHOD
from server.methods.method import Described

DIMENSION = 64
SPECTRA = {"isotropic": np.ones(DIMENSION), "anisotropic": 1 / np.arange(1, DIMENSION + 1)}
DEVICES = {"weak": 0.1, "medium": 0.3, "strong": 1.0}
RULES = {
    "published": {"cluster": {"rule": "published"}, "train": {"prior": "off"}},
    "prior off": {"train": {"prior": "off"}},
    "prior on": {"train": {"prior": "site"}},
}


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
        return self.looks_differ or self.disjoint

    @property
    def looks_differ(self) -> bool:
        """Whether a class looks different in different groups."""
        return bool(self.device) or self.concept


WORLDS = (
    World("IID"),
    *(World(f"devices, {name}", device=strength) for name, strength in DEVICES.items()),
    World("concept", concept=True),
    World("disjoint", disjoint=True),
    World("devices, medium, Dirichlet 0.5", alpha=0.5, device=DEVICES["medium"]),
    World("devices, strong, Dirichlet 0.1", alpha=0.1, device=DEVICES["strong"]),
    World("concept, Dirichlet 0.1", alpha=0.1, concept=True),
    *(World(f"Dirichlet {alpha:g}", alpha=alpha) for alpha in (0.1, 0.3, 0.5, 1.0)),
)


@dataclass(frozen=True)
class Outcome:
    """What one rule made of one draw; `connected`: the sites share classes, each with all others over some way."""

    k: int
    ari: float
    true_cut: bool
    connected: bool = True


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


@dataclass(frozen=True)
class Site:
    """A site that has introduced itself."""

    card: SiteCard
    fingerprint: Signature


def introduced(drawn: Drawn, least: int = 1) -> tuple[list[Described], NDArray[np.int64]]:
    """The sites that can name a class of `least` samples or more, and their true groups."""
    width = max(int(one.classes[-1]) for one in drawn[0]) + 1
    sites: list[Described] = []
    groups = []
    for number, (site, size, group) in enumerate(zip(drawn[0], drawn[1].tolist(), drawn[2].tolist(), strict=True)):
        if (said := named(site, size, least)) is None:
            continue
        counts = np.zeros(width, np.int64)
        counts[said.classes] = np.rint(site.shares[np.isin(site.classes, said.classes)] * size)
        card = SiteCard(f"{number:04d}", size, 0, tuple(counts.tolist()), 0, (), withheld=size - int(counts.sum()))
        sites.append(Site(card, said))
        groups.append(group)
    return sites, np.array(groups, np.int64)


def outcomes(drawn: Drawn, world: World, rules: Sequence[str] = tuple(RULES), least: int = 1) -> dict[str, Outcome]:
    """What each rule makes of a federation whose sites name classes of `least` samples or more."""
    sites, groups = introduced(drawn, least)
    # Who has nobody to be compared with is not grouped.
    if len(sites) < 2:
        return dict.fromkeys(rules, Outcome(1, 1.0, False))
    assert METHOD.chance is not None
    tested = METHOD.chance(sites, parse({"sites": len(sites)}))
    found = {}
    for rule in rules:
        config = parse({"sites": len(sites), **RULES[rule]})
        chance = replace(tested, shares_count=rule != "prior on")
        apart = METHOD.grouped_by(chance, config)
        assert apart is not None
        distance = apart(sites, config)
        labels = METHOD.partition.form(distance, len(sites), config.cluster, chance).labels
        # Whether the groups can be seen at all does not hang on whether the test sees them.
        seen = METHOD.grouped_by(replace(chance, means=0.0), config) if world.looks_differ else apart
        assert seen is not None
        tree = merge_tree(distance if seen is apart else seen(sites, config))
        true_cut = bool(adjusted_rand_score(groups, tree.cut(min(int(groups.max()) + 1, len(sites)))) == 1)
        ari = adjusted_rand_score(groups, labels)
        found[rule] = Outcome(int(labels.max()) + 1, ari, true_cut, chance.parts == 1)
    return found


def cell(
    world: World, make: Callable[[int, np.random.Generator], Drawn], draws: int, least: int
) -> list[dict[str, Outcome]]:
    """Some draws of one world, the same in every run."""
    seeds = ((hash_of(world.name), number) for number in range(draws))
    return [outcomes(make(seed[1], np.random.default_rng(seed)), world, least=least) for seed in seeds]


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
    print("K (median) · ARI (mean), published → prior off → prior on; without true groups: K · draws grouped.\n")
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
    """How often federations are grouped: without groups, and with groups that the tree of merges shows."""
    rules = ("prior off", "prior on")
    worlds = [world for world in WORLDS if world.has_groups or world.alpha in (None, 0.1)]
    print(f"Draws that are grouped, {' · '.join(rules)}; with groups: of those whose true cut is right.\n")
    print("| N | C | sizes |" + "".join(f" {world.name} |" for world in worlds))
    print("|---:|---:|---|" + "---:|" * len(worlds))
    for count in sites:
        for width in classes:
            for equal in (True, False):
                cells = []
                for world in worlds:
                    found = []
                    for number in range(draws if world is WORLDS[0] else max(draws // 5, 1)):
                        rng = np.random.default_rng((hash_of(world.name), number, width, count, equal))
                        spectrum = list(SPECTRA.values())[number % 2]
                        drawn = draw(world, count, width, equal=equal, spectrum=spectrum, rng=rng)
                        found.append(outcomes(drawn, world, rules, least))
                    cells.append(" · ".join(_rate(world, [one[rule] for one in found], rule) for rule in rules))
                label = "equal" if equal else "lognormal"
                print(f"| {count} | {width} | {label} | " + " | ".join(cells) + " |", flush=True)


def _rate(world: World, found: list[Outcome], rule: str) -> str:
    """Of the draws that should be grouped, or of those that should not."""
    if world.has_groups:
        found = [one for one in found if one.true_cut]
    elif rule == "prior on":
        # Where nothing connects the sites they are grouped whatever the shares.
        found = [one for one in found if one.connected]
    share = sum(one.k > 1 for one in found) / len(found) if found else 0.0
    return f"{100 * share:.3g}% of {len(found)}" if found else "–"


if __name__ == "__main__":
    main()
