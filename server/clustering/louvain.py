"""Greedy modularity moves on a dense graph (Louvain; Blondel et al. 2008).

The same moves in the same order as networkx makes, and so the same groups: that keeps a dictionary for every edge, of
which N sites that all have something in common have N² / 2. Here a graph is its matrix of weights.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float64]
Index = NDArray[np.int64]

# Modularity must grow by more than this for another level.
THRESHOLD = 1e-7


@dataclass(frozen=True)
class _Graph:
    """Symmetric weights float64[n, n], loops on the diagonal, and per node its neighbours in the order of its edges.

    A loop makes a node its own neighbour. None: everybody is a neighbour, if only by an edge of weight 0, in order.
    """

    weights: Matrix
    neighbours: list[Index] | None = None

    def edges(self, node: int) -> tuple[Index | slice, Matrix]:
        """The neighbours of a node, and the weights of their edges."""
        if self.neighbours is None:
            return slice(None), self.weights[node]
        others = self.neighbours[node]
        return others, self.weights[node, others]


def louvain(weights: Matrix, *, resolution: float = 1.0, seed: int = 0) -> Index:
    """Labels int64[N], numbered by first member, of a graph with weights float64[N, N] ≥ 0 and no loops.

    `resolution` weighs what chance would give. Nodes are tried in an order drawn by the seed. O(N^2) a pass.
    """
    count = len(weights)
    labels = np.arange(count)
    lots = random.Random(seed)
    graph = _Graph(weights)
    degrees = _degrees(graph)
    total = _in_order(degrees) / 2
    if total == 0:
        return labels
    modularity = _modularity(graph, degrees, labels, total, resolution)
    while True:
        # By the nodes of this level; of the first, these are the sites.
        joined = _one_level(graph, degrees, total, resolution, lots)
        labels = joined[labels]
        before, modularity = modularity, _modularity(graph, degrees, joined, total, resolution)
        if len(degrees) == joined.max() + 1 or modularity - before <= THRESHOLD:
            return np.unique(np.unique(labels, return_index=True)[1][labels], return_inverse=True)[1].astype(np.int64)
        graph = _merged(graph, joined)
        degrees = _degrees(graph)


def _one_level(graph: _Graph, degrees: Matrix, total: float, resolution: float, lots: random.Random) -> Index:
    """Move nodes one by one to the neighbouring community that gains most, until nobody moves: labels 0..K−1."""
    count = len(degrees)
    community = np.arange(count)
    sums = degrees.copy()
    loops = graph.weights.diagonal() > 0
    order = list(range(count))
    lots.shuffle(order)
    moved = True
    while moved:
        moved = False
        for node in order:
            others, row = graph.edges(node)
            theirs = community[others]
            if loops[node]:
                theirs, row = theirs[others != node], row[others != node]
            # Summed one after the other, in the order of the neighbours.
            linked = np.bincount(theirs, row, count)
            own, degree = int(community[node]), float(degrees[node])
            sums[own] -= degree
            lost = -float(linked[own]) / total + resolution * (float(sums[own]) * degree) / (2 * total**2)
            gains = lost + linked / total - resolution * (sums * degree) / (2 * total**2)
            gains[linked == 0.0] = 0.0
            best = float(gains.max())
            chosen = own
            if best > 0:
                # Of equally good ones that of the first neighbour.
                equal = gains == best
                chosen = int(theirs[int(np.argmax(equal[theirs] & (row > 0)))])
            sums[chosen] += degree
            if chosen != own:
                community[node] = chosen
                moved = True
    return np.unique(community, return_inverse=True)[1].astype(np.int64)


def _merged(graph: _Graph, joined: Index) -> _Graph:
    """The graph of the communities: weights are summed edge by edge, and neighbours come as their edges do."""
    count, size = int(joined.max()) + 1, len(joined)
    sums = np.zeros((count, count))
    first = np.full((count, count), np.iinfo(np.int64).max)
    for node in range(size):
        others = np.arange(size) if graph.neighbours is None else graph.neighbours[node]
        # Each edge once, with the node that comes first.
        others = others[(others >= node) & (graph.weights[node, others] > 0)]
        # Between two communities whichever of them comes first, so that there is one sum for both directions.
        pair = np.minimum(joined[node], joined[others]), np.maximum(joined[node], joined[others])
        np.add.at(sums, pair, graph.weights[node, others])
        np.minimum.at(first, pair, node * size + np.arange(len(others)))
    weights = np.triu(sums) + np.triu(sums, 1).T
    first = np.minimum(first, first.T)
    neighbours = []
    for node in range(count):
        order = np.argsort(first[node], kind="stable")
        neighbours.append(order[weights[node, order] > 0])
    return _Graph(weights, neighbours)


def _degrees(graph: _Graph) -> Matrix:
    """The summed weights of each node's edges; a loop counts twice."""
    return np.array([_in_order(graph.edges(node)[1]) for node in range(len(graph.weights))]) + graph.weights.diagonal()


def _in_order(values: Matrix) -> float:
    return float(np.add.accumulate(values)[-1]) if len(values) else 0.0


def _modularity(graph: _Graph, degrees: Matrix, labels: Index, total: float, resolution: float) -> float:
    """Q = sum over communities of L / m − γ (d / 2m)², with L the weight within and d the summed degrees."""
    groups = int(labels.max()) + 1
    inside = np.zeros(groups)
    for node, label in enumerate(labels.tolist()):
        row = graph.weights[node]
        inside[label] += float(row[labels == label].sum()) + float(row[node])
    summed = np.bincount(labels, degrees, groups)
    return float((inside / 2 / total - resolution * (summed / (2 * total)) ** 2).sum())
