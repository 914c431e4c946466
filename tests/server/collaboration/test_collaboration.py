"""The mathematics of DC-CFL, each step against a slow and obvious version."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from client.collaboration.anchors import gaussian_anchors, interpolated_anchors, mark, uniform_anchors
from client.collaboration.outgoing import aggregated, blurred
from client.collaboration.reduction import fit_private_map, random_rotation
from client.collaboration.validation import held_out_groups, held_out_rows
from common.collaboration import Collaboration, InvalidCollaboration
from common.config import TrainSettings
from common.models import build, set_state
from common.randomness import generator
from common.table import Column, Table
from server.clustering import agglomerate
from server.collaboration import solve as solving
from server.collaboration.divergence import total_variation
from server.collaboration.integration import gather, integrate, with_constant
from server.collaboration.solve import THRESHOLDS, solve
from server.collaboration.training import Job, initial_network, scores, train_networks

DIGEST = np.zeros(32, np.uint8)
counts = st.lists(st.lists(st.integers(0, 50), min_size=4, max_size=4).filter(any), min_size=2, max_size=9)


# --- total variation -------------------------------------------------------------------------------------------


@given(counts)
def test_total_variation_is_half_the_sum_of_differences(rows: list[list[int]]) -> None:
    found = total_variation(np.array(rows, np.int64))
    for i, one in enumerate(rows):
        for j, other in enumerate(rows):
            expected = 0.5 * sum(abs(a / sum(one) - b / sum(other)) for a, b in zip(one, other, strict=True))
            assert found[i, j] == pytest.approx(expected, abs=1e-12)
    assert found.min() >= 0
    assert found.max() <= 1
    assert (np.diag(found) == 0).all()


@given(counts, st.sampled_from(THRESHOLDS))
def test_no_cluster_is_wider_than_the_threshold(rows: list[list[int]], threshold: float) -> None:
    distance = total_variation(np.array(rows, np.int64))
    labels = agglomerate(distance, threshold=threshold, linkage="complete")
    for i, j in combinations(range(len(rows)), 2):
        if labels[i] == labels[j]:
            assert distance[i, j] <= threshold


# --- private map -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "shape", [(40, 6), (3, 6), (1, 6), (40, 1)], ids=["plenty", "few rows", "one row", "one column"]
)
def test_a_private_map_is_an_orthonormal_frame_of_the_leading_directions(shape: tuple[int, int]) -> None:
    rng = np.random.default_rng(0)
    rows = rng.normal(size=shape) * np.linspace(3, 0.1, shape[1])
    dimensions = max(shape[1] - 1, 1)
    private = fit_private_map(rows, dimensions, rng)
    np.testing.assert_allclose(private.components.T @ private.components, np.eye(dimensions), atol=1e-10)
    np.testing.assert_allclose(private(rows).mean(axis=0), 0, atol=1e-10)
    # As much of the variance as any frame of that size can keep.
    values = np.linalg.svd(rows - rows.mean(axis=0), compute_uv=False)
    assert (private(rows) ** 2).sum() == pytest.approx((values[:dimensions] ** 2).sum(), rel=1e-9, abs=1e-9)


def test_constant_columns_do_not_spoil_a_map() -> None:
    rows = np.hstack([np.random.default_rng(0).normal(size=(20, 3)), np.ones((20, 2))])
    assert np.isfinite(fit_private_map(rows, 4, np.random.default_rng(1))(rows)).all()


def test_rotations_are_orthogonal_and_differ() -> None:
    one, other = random_rotation(5, np.random.default_rng(0)), random_rotation(5, np.random.default_rng(1))
    np.testing.assert_allclose(one @ one.T, np.eye(5), atol=1e-12)
    assert not np.allclose(one, other)


def test_another_secret_gives_another_map_of_the_same_rows() -> None:
    rows = np.random.default_rng(0).normal(size=(30, 4))
    one, other = (fit_private_map(rows, 3, np.random.default_rng(seed)) for seed in (1, 2))
    assert not np.allclose(one(rows), other(rows))
    assert not np.array_equal(one.ticket, other.ticket)
    # And yet the same geometry: distances between rows are kept.
    np.testing.assert_allclose(np.linalg.norm(one(rows), axis=1), np.linalg.norm(other(rows), axis=1), rtol=1e-9)


# --- anchors ---------------------------------------------------------------------------------------------------

TABLE = Table(
    label="y",
    classes=("a", "b"),
    columns=(
        Column(name="u", minimum=-3.0, maximum=3.0, mean=0.0, spread=1.0),
        Column(name="v", minimum=0.0, maximum=10.0, mean=5.0, spread=1.0),
        Column(name="w", categories=("p", "q", "r")),
    ),
    correlations=tuple(
        tuple(1.0 if i == j else 0.8 if {i, j} == {0, 1} else 0.0 for j in range(5)) for i in range(5)
    ),
)  # fmt: skip


def test_gaussian_anchors_have_the_agreed_moments_and_ranges() -> None:
    rows = gaussian_anchors(20_000, TABLE.width, TABLE, 7)
    np.testing.assert_allclose(rows.mean(axis=0), 0, atol=0.05)
    np.testing.assert_allclose(np.corrcoef(rows.T)[0, 1], 0.8, atol=0.03)
    assert np.abs(rows[:, 0]).max() <= 3
    assert np.array_equal(rows, gaussian_anchors(20_000, TABLE.width, TABLE, 7))
    assert not np.array_equal(mark(rows), mark(gaussian_anchors(20_000, TABLE.width, TABLE, 8)))


def test_uniform_anchors_fill_the_ranges_and_choose_one_category() -> None:
    rows = uniform_anchors(5000, TABLE, 7)
    assert rows[:, 1].min() == pytest.approx(-5, abs=0.05)
    assert rows[:, 1].max() == pytest.approx(5, abs=0.05)
    assert ((rows[:, 2:] > 0).sum(axis=1) == 1).all()


def test_interpolated_anchors_lie_between_public_rows_and_are_none_of_them() -> None:
    public = np.random.default_rng(0).normal(size=(10, 3))
    rows = interpolated_anchors(500, public, 7)
    assert (rows >= public.min(axis=0)).all()
    assert (rows <= public.max(axis=0)).all()
    assert np.linalg.norm(rows[:, None] - public, axis=2).min() > 0


def read_by_moments(anchors: NDArray, private: Callable[[NDArray], NDArray], rows: NDArray, law: NDArray) -> NDArray:
    """|correlation| of the rows' principal coordinates with what a server makes of f(rows), without the anchors.

    It has f(X_anc), f(X_i) and the anchors' law, a covariance Σ = V Λ Vᵀ. cov(f(X_anc)) = Cᵀ Σ C = W Λ Wᵀ, so f(x) W
    are the coordinates of x along V, up to signs.
    """
    _, turned = np.linalg.eigh(np.cov(private(anchors).T))
    _, axes = np.linalg.eigh(law)
    kept = turned.shape[1]
    guess, truth = private(rows) @ turned, rows @ axes[:, -kept:]
    return np.array([abs(np.corrcoef(guess[:, i], truth[:, i])[0, 1]) for i in range(kept)])


def test_correlated_anchors_give_the_rows_away_without_the_secret_and_isotropic_ones_do_not() -> None:
    """What docs/dc-cfl.md says of the anchors' distribution."""
    rng = np.random.default_rng(0)
    axes, spreads = random_rotation(6, rng), np.array([0.05, 0.2, 0.5, 1.0, 1.75, 2.5])
    law = (axes * spreads) @ axes.T
    scale = np.sqrt(np.diag(law))
    law = law / scale / scale[:, None]
    table = Table(
        label="y",
        classes=("a", "b"),
        columns=tuple(Column(name=f"c{i}", minimum=-9.0, maximum=9.0, mean=0.0, spread=1.0) for i in range(6)),
        correlations=tuple(tuple(row) for row in ((law + law.T) / 2).tolist()),
    )
    # The site's rows follow the schema, as the site's data do of which it was made.
    rows = rng.multivariate_normal(np.zeros(6), law, size=400)
    private = fit_private_map(rows, 5, rng)
    assert read_by_moments(gaussian_anchors(2000, 6, table, 7), private, rows, law).min() > 0.95
    # By the same law, but with anchors of no correlations: their covariance looks the same from all sides.
    assert read_by_moments(gaussian_anchors(2000, 6, None, 7), private, rows, law).mean() < 0.7
    # Rows that follow a known law give most coordinates away by themselves; those of close variances are mixed up.
    assert np.median(read_by_moments(rows, private, rows, law)) > 0.95


# --- what is sent ----------------------------------------------------------------------------------------------


def test_averaging_keeps_class_means_and_never_sends_fewer_than_that_many_people() -> None:
    rng = np.random.default_rng(0)
    rows, labels = rng.normal(size=(23, 4)), np.repeat([0, 1, 2], [12, 9, 2])
    sent, kinds = aggregated(rows, labels, 3)
    assert np.bincount(kinds).tolist() == [4, 3]  # the class with two rows is left out
    np.testing.assert_allclose(sent[kinds == 0].mean(axis=0), rows[labels == 0].mean(axis=0))
    assert not (np.linalg.norm(sent[:, None] - rows, axis=2) < 1e-9).any()
    assert len(aggregated(rows[:2], labels[:2], 3)[0]) == 0
    assert aggregated(rows, labels, 1)[0] is rows


def test_noise_has_the_size_that_was_asked_for() -> None:
    rows = np.random.default_rng(0).normal(0, 5, size=(5000, 4))
    noisy = blurred(rows, 0.1, np.random.default_rng(1))
    assert (noisy - rows).std() == pytest.approx(0.5, rel=0.05)
    assert blurred(rows, 0.0, np.random.default_rng(1)) is rows


# --- integration -----------------------------------------------------------------------------------------------


def seen(sites: int, width: int = 6, anchors: int = 50, seed: int = 0) -> tuple[list, list[NDArray], NDArray]:
    """Private maps of sites with data of their own, what they make of common anchors, and the anchors."""
    rng = np.random.default_rng(seed)
    common = rng.normal(size=(anchors, width))
    maps = [fit_private_map(rng.normal(i, 1, size=(30, width)), width - 1, rng) for i in range(sites)]
    return maps, [private(common) for private in maps], common


def slow_mappings(anchors: list[NDArray], most: int) -> list[NDArray]:
    """As the paper writes it, with NumPy's own pseudo-inverse on the full matrices."""
    blocks = [with_constant(block) for block in anchors]
    left, values, _ = np.linalg.svd(np.hstack(blocks), full_matrices=False)
    kept = min(most, int((values >= 1e-2).sum()))
    sizes = values[:kept] / np.sqrt(np.mean(values[:kept] ** 2))
    return [np.linalg.pinv(block) @ left[:, :kept] @ np.diag(sizes) * np.sqrt(len(block)) for block in blocks]


@pytest.mark.parametrize("members", [(0,), (1, 3), (0, 1, 2, 3)])
def test_integration_is_the_papers(members: tuple[int, ...]) -> None:
    _, anchors, _ = seen(4)
    found = integrate(gather(anchors), members, most_columns=7)
    slow = slow_mappings([anchors[i] for i in members], 7)
    for mine, theirs, i in zip(found, slow, members, strict=True):
        # A singular vector is known up to its sign; what it makes of the anchors is compared column by column.
        one, other = with_constant(anchors[i]) @ mine, with_constant(anchors[i]) @ theirs
        signs = np.sign((one * other).sum(axis=0))
        np.testing.assert_allclose(one, other * signs, atol=1e-6)


def test_integrated_rows_of_different_sites_are_the_same_for_the_same_row() -> None:
    """What the anchors are for: each site sees a row through a map of its own, and after G_i they agree."""
    maps, anchors, _ = seen(3)
    mappings = integrate(gather(anchors), (0, 1, 2), most_columns=7)
    row = np.random.default_rng(5).normal(size=(4, 6))
    views = [with_constant(private(row)) @ mapping for private, mapping in zip(maps, mappings, strict=True)]
    scale = np.abs(views[0]).mean()
    assert np.abs(views[0] - views[1]).mean() < 0.5 * scale
    untreated = [private(row) for private in maps]
    assert np.abs(untreated[0] - untreated[1]).mean() > np.abs(views[0] - views[1]).mean()
    # Without a dropped dimension the agreement is exact.
    whole = [
        fit_private_map(np.random.default_rng(i).normal(i, 1, (30, 6)), 6, np.random.default_rng(i)) for i in (1, 2)
    ]
    common = np.random.default_rng(9).normal(size=(50, 6))
    first, second = integrate(gather([private(common) for private in whole]), (0, 1), most_columns=7)
    np.testing.assert_allclose(with_constant(whole[0](row)) @ first, with_constant(whole[1](row)) @ second, atol=1e-8)


def test_deficient_anchors_are_told_and_stay_finite() -> None:
    rng = np.random.default_rng(0)
    flat = np.outer(rng.normal(size=40), rng.normal(size=4)).astype(np.float32)
    good = rng.normal(size=(40, 4)).astype(np.float32)
    found = gather([flat, good])
    assert found.ranks == [2, 5]  # one direction and the constant
    assert found.conditions[0] == float("inf")
    assert 1 <= found.conditions[1] < 100
    for mapping in integrate(found, (0, 1), most_columns=6):
        assert np.isfinite(mapping).all()


def test_values_are_of_about_one_on_the_anchors_and_small_directions_stay_small() -> None:
    rng = np.random.default_rng(0)
    anchors = rng.normal(size=(50, 4)) * [3.0, 1.0, 0.5, 0.01]
    (mapping,) = integrate(gather([anchors]), (0,), most_columns=7)
    sizes = (((with_constant(anchors) @ mapping) ** 2).mean(axis=0)) ** 0.5
    assert (sizes**2).mean() == pytest.approx(1.0)
    assert sizes[0] / sizes[-1] == pytest.approx(300, rel=0.3)


def test_bits_do_not_depend_on_the_number_of_threads() -> None:
    rng = np.random.default_rng(0)
    rows, anchors = rng.normal(size=(1001, 307)), [rng.normal(size=(1000, 119)) for _ in range(3)]
    bits = []
    for threads in (1, 2):
        with threadpool_limits(limits=threads, user_api="blas"):
            private = fit_private_map(rows, 306, np.random.default_rng(1))
            gathered = gather(anchors)
            bits.append((private.ticket.tobytes(), gathered.blocks[0].tobytes()))
            bits[-1] += tuple(part.tobytes() for part in integrate(gathered, (0, 2), 121))
    assert [one == other for one, other in zip(*bits, strict=True)] == [True] * 4


# --- training --------------------------------------------------------------------------------------------------


def alone(job: Job, sgd: TrainSettings, classes: int, seed: int) -> dict[str, NDArray]:
    """The same network with torch's own autograd and optimiser."""
    model = build("mlp", classes=classes, features=job.rows.shape[1], hidden=job.hidden, seed=None)
    set_state(model, initial_network(job.rows.shape[1], classes, job.hidden, seed))
    optimizer = torch.optim.SGD(model.parameters(), lr=sgd.lr, momentum=sgd.momentum, weight_decay=sgd.weight_decay)
    rows, labels = torch.from_numpy(job.rows), torch.from_numpy(job.labels)
    for epoch in range(sgd.epochs):
        order = torch.from_numpy(generator(seed, "collaboration", job.name, epoch).permutation(len(rows)))
        for batch in order.split(sgd.batch_size):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(rows[batch]), labels[batch]).backward()
            optimizer.step()
    return {name: tensor.numpy() for name, tensor in model.state_dict().items()}


def test_networks_trained_together_are_those_trained_alone() -> None:
    rng = np.random.default_rng(0)
    sgd = TrainSettings(lr=0.1, momentum=0.5, weight_decay=0.01, batch_size=8, epochs=4)
    jobs = []
    for name, size, width in (("a", 31, 5), ("b", 8, 5), ("c", 1, 4), ("d", 70, 3)):
        rows, labels = rng.normal(size=(size, width)).astype(np.float32), rng.integers(0, 3, size)
        jobs += [Job(name, rows, labels, (64, 32)), Job(name, rows, labels, (32, 16))]
    together = train_networks(jobs, sgd, classes=3, seed=5)
    for job, state in zip(jobs, together, strict=True):
        expected = alone(job, sgd, 3, 5)
        assert state.keys() == expected.keys()
        for key, array in state.items():
            np.testing.assert_allclose(array, expected[key], atol=2e-5, err_msg=f"{job.name} {job.hidden} {key}")


def test_training_starts_anew_each_time_and_leaves_the_threads_alone() -> None:
    rng = np.random.default_rng(0)
    job = Job("a", rng.normal(size=(40, 4)).astype(np.float32), rng.integers(0, 2, 40), (32, 16))
    torch.set_num_threads(2)
    sgd = TrainSettings(lr=0.1, epochs=3)
    first, second = (train_networks([job], sgd, classes=2, seed=0)[0] for _ in range(2))
    assert torch.get_num_threads() == 2
    assert all(np.array_equal(first[key], second[key]) for key in first)
    assert not np.array_equal(first["head.weight"], initial_network(4, 2, (32, 16), 0)["head.weight"])


def test_scores_are_those_of_the_network() -> None:
    rows = np.random.default_rng(0).normal(size=(9, 4)).astype(np.float32)
    model = build("mlp", classes=3, features=4, hidden=(32, 16), seed=1)
    state = initial_network(4, 3, (32, 16), 1)
    with torch.no_grad():
        np.testing.assert_allclose(scores(state, rows), model(torch.from_numpy(rows)).numpy(), atol=1e-6)


# --- the whole -------------------------------------------------------------------------------------------------

SGD = TrainSettings(lr=0.05, momentum=0.5, epochs=20, batch_size=16)


def federation(kinds: list[list[int]], rows: int = 60, width: int = 6, seed: int = 0) -> dict[str, Collaboration]:
    """Sites with the given classes; class c lies around c on all axes."""
    rng = np.random.default_rng(seed)
    anchors = rng.normal(1.0, 2.0, size=(80, width))
    sites = {}
    for number, classes in enumerate(kinds):
        labels = np.sort(rng.choice(classes, rows)).astype(np.int64)
        data = rng.normal(size=(rows, width)) + 2.5 * np.eye(width)[labels]
        private = fit_private_map(data, width - 1, rng)
        sites[f"{number:03d}"] = Collaboration(
            private(data).astype(np.float32),
            labels,
            held_out_rows(labels, rng).astype(np.uint8),
            private(anchors).astype(np.float32),
            DIGEST,
            private.ticket,
        )
    return sites


def groupings(sites: dict[str, Collaboration]) -> dict[float, NDArray[np.int64]]:
    distance = total_variation(np.stack([np.bincount(site.labels, minlength=4) for site in sites.values()]))
    return {t: agglomerate(distance, threshold=t, linkage="complete") for t in THRESHOLDS}


def test_the_solution_serves_every_site() -> None:
    sites = federation([[0, 1], [0, 1], [2, 3], [2, 3], [3]])
    found = solve(sites, groupings(sites), SGD, classes=4, seed=0)
    assert found.labels[0] == found.labels[1] != found.labels[2]
    assert set(found.models) == set(found.labels.tolist())
    for label, mapping, site in zip(found.labels, found.mappings, sites.values(), strict=True):
        guess = scores(found.models[int(label)], with_constant(site.rows) @ mapping).argmax(axis=1)
        assert (guess == site.labels).mean() > 0.9
    assert max(found.validation.values()) == found.validation[found.threshold, found.hidden]


def test_a_network_that_diverged_scores_no_hit() -> None:
    sites = federation([[0], [0], [0, 1]])
    with np.errstate(all="ignore"):
        found = solve(sites, groupings(sites), SGD.model_copy(update={"lr": 1e30}), classes=4, seed=0)
    assert not np.isfinite(found.models[0]["head.weight"]).all()
    assert set(found.validation.values()) == {0.0}


def test_the_order_of_candidates_leaves_no_trace_and_equal_groupings_are_one_candidate() -> None:
    sites = federation([[0, 1], [0, 1], [2, 3]])
    candidates = groupings(sites)
    one = solve(sites, candidates, SGD, classes=4, seed=0)
    other = solve(sites, dict(reversed(candidates.items())), SGD, classes=4, seed=0)
    assert one.threshold == other.threshold
    assert all(np.array_equal(a, b) for a, b in zip(one.mappings, other.mappings, strict=True))
    assert len({t for t, _ in one.validation}) == len({labels.tobytes() for labels in candidates.values()})


def test_no_cluster_is_trained_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    trained: list[str] = []
    real = solving.train_networks

    def counted(jobs: list[Job], *args: object, **kwargs: object) -> list:
        trained.extend(f"{job.name} {job.hidden} {len(job.rows)}" for job in jobs)
        return real(jobs, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(solving, "train_networks", counted)
    sites = federation([[0, 1], [0, 1], [2, 3], [0, 3]])
    solve(sites, groupings(sites), SGD, classes=4, seed=0)
    assert len(trained) == len(set(trained))


@settings(max_examples=15)
@given(
    st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=4), min_size=1, max_size=4),
    st.integers(1, 12),
    st.integers(0, 100),
)
def test_any_federation_is_solved(kinds: list[list[int]], rows: int, seed: int) -> None:
    """One class, one row, one site, fewer rows than columns: everything stays finite and everybody has a model."""
    sites = federation(kinds, rows=rows, seed=seed)
    quick = SGD.model_copy(update={"epochs": 1})
    found = solve(sites, groupings(sites), quick, classes=4, seed=0)
    assert len(found.mappings) == len(sites)
    assert all(np.isfinite(mapping).all() for mapping in found.mappings)
    assert all(np.isfinite(array).all() for model in found.models.values() for array in model.values())


def test_the_held_out_share_is_a_fifth_of_every_class() -> None:
    labels = np.repeat([0, 1, 2, 3], [50, 100, 1, 2])
    small = 0
    for seed in range(50):
        held = held_out_rows(labels, np.random.default_rng(seed))
        assert 10 <= held[labels == 0].sum() <= 11
        assert 20 <= held[labels == 1].sum() <= 21
        assert held[labels == 2].sum() == 0
        small += int(held[labels == 3].sum())
    assert 10 <= small <= 30  # of 50 × 2 rows, by lot


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 12), st.integers(1, 60))
def test_no_patient_is_learnt_from_and_validated_on(seed: int, patients: int, rows: int) -> None:
    rng = np.random.default_rng(seed)
    groups = rng.integers(0, patients, rows).astype(str)
    labels = rng.integers(0, 3, rows)
    held = held_out_groups(labels, groups, rng)
    assert not set(groups[held]) & set(groups[~held])
    assert not held.all()
    assert held.any() == (len(set(groups)) > 1)


def test_no_candidate_learns_from_rows_that_validate(monkeypatch: pytest.MonkeyPatch) -> None:
    sites = federation([[0, 1], [0, 1]])
    seen: list[int] = []
    real = solving.train_networks

    def counted(jobs: list[Job], *args: object, **kwargs: object) -> list:
        seen.append(max(len(job.rows) for job in jobs))
        return real(jobs, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(solving, "train_networks", counted)
    solve(sites, {0.1: np.zeros(2, np.int64)}, SGD, classes=4, seed=0)
    validate = sum(int(site.validates.sum()) for site in sites.values())
    assert validate > 0
    assert seen == [120 - validate, 120]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"rows": np.full((4, 2), np.nan, np.float32)}, "not finite"),
        ({"rows": np.full((4, 2), -1e38, np.float32)}, "not scaled"),
        ({"anchors": np.full((5, 2), 1e7, np.float32)}, "not scaled"),
        ({"rows": np.zeros((4, 2))}, "rows must be a 2-dimensional float32"),
        ({"rows": np.zeros((0, 2), np.float32), "labels": np.zeros(0, np.int64)}, "nothing to learn"),
        ({"labels": np.array([0, 1, 2], np.int64)}, "do not match"),
        ({"labels": np.array([0, 1, 2, -1], np.int64)}, "negative"),
        ({"anchors": np.ones((5, 3), np.float32)}, "do not match"),
        ({"anchors": np.ones((1, 2), np.float32)}, "too few"),
        ({"anchors": np.zeros((5, 2), np.float32)}, "all zero"),
        ({"mark": np.zeros(3, np.uint8)}, "32 bytes"),
        ({"validates": np.zeros(3, np.uint8)}, "0 or 1 of each row"),
        ({"validates": np.full(4, 2, np.uint8)}, "0 or 1 of each row"),
        ({"validates": np.zeros(4, np.int64)}, "1-dimensional uint8"),
        ({"validates": np.ones(4, np.uint8)}, "nothing to learn from"),
    ],
)
def test_collaborations_that_cannot_be_are_refused(change: dict[str, NDArray], words: str) -> None:
    good = {
        "rows": np.ones((4, 2), np.float32),
        "labels": np.zeros(4, np.int64),
        "validates": np.array([0, 0, 1, 0], np.uint8),
        "anchors": np.ones((5, 2), np.float32),
        "mark": DIGEST,
        "ticket": DIGEST,
    }
    Collaboration(**good)
    with pytest.raises(InvalidCollaboration, match=words):
        Collaboration(**good | change)
