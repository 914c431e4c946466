"""FedCM: clustering by the similarity of gradient paths, and migration of sites whose data drift."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from common.config import Config
from common.whole_path import WholePath
from server.clustering import cosine_similarity, path_similarity
from server.methods.method import Described, Method
from server.methods.partition import Agglomerative, KMeans, Modularity


def _distance(sites: Sequence[Described], config: Config) -> NDArray[np.float64]:
    return 1.0 - path_similarity([site.fingerprint for site in sites])


# What else can be compared, in the order in which it is shown: the paper's figure 3.
VIEWS = ("head path", "head update", "body path", "body update")


def _views(sites: Sequence[Described]) -> Mapping[str, NDArray[np.float64]]:
    """Cosines of paths, and of what the warm-up changes in all: of the head, and of the body if sites tell it."""
    parts: list[list[NDArray[np.float32]]] = [[site.fingerprint.changes for site in sites]]
    if all(isinstance(site.fingerprint, WholePath) for site in sites):
        parts.append([site.fingerprint.body for site in sites])
    compared = []
    for changes in parts:
        compared.append(cosine_similarity([one.ravel() for one in changes]))
        compared.append(cosine_similarity([one.sum(axis=0, dtype=np.float64) for one in changes]))
    return dict(zip(VIEWS, compared, strict=False))


METHOD = Method(
    name="fedcm",
    title="FedCM",
    about=(
        "When there is no encoder that sees what matters: sites are grouped by how their heads move in a warm-up, "
        "and who drifts moves on. Costs a model down, `fedcm.warm_up` heads up and as many epochs before "
        "training. Its published migration moves the innocent, whatever τ ([drift.md](drift.md)): the default is "
        "the guarded rule."
    ),
    paper="Wang et al., FedCM: Client Clustering and Migration in Federated Learning via Gradient Path Similarity and "
    "Update Direction Deviation, IJCAI 2025",
    summary="group sites by how their heads move in a warm-up; sites whose data drift move to another group",
    family="clustered before training",
    fingerprint="path",
    distance=_distance,
    views=_views,
    partition=Modularity(),
    fingerprint_needs_model=True,
    migration="guarded",
    settings_used=("fedcm.warm_up", "cluster.resolution"),
)

# Its Table 2: the same similarities, grouped otherwise.
BY_K_MEANS = METHOD.variant(
    name="fedcm-k-means",
    title="FedCM (k-means)",
    about="A row of FedCM's Table 2, for those who know K.",
    summary="as fedcm, grouped by k-means on the similarities: an ablation; needs cluster.k",
    partition=KMeans(),
    settings_used=("fedcm.warm_up", "cluster.k"),
    needs_k=True,
)
HIERARCHICAL = METHOD.variant(
    name="fedcm-hierarchical",
    title="FedCM (hierarchical)",
    about="A row of FedCM's Table 2: `cluster.threshold` is its L.",
    summary="as fedcm, grouped by agglomerative clustering of 1 − similarity: an ablation",
    partition=Agglomerative(),
    settings_used=("fedcm.warm_up", "cluster.k", "cluster.threshold", "cluster.linkage"),
)
# Its figure 3: the groups are the same, and the page shows what else could be compared.
WHOLE = METHOD.variant(
    name="fedcm-whole",
    title="FedCM (whole network)",
    about=(
        "For FedCM's Figure 3 and nothing else: `fedcm.warm_up` models travel from each site before training, and "
        "the server keeps them. A site answers only if its policy names `whole_path`."
    ),
    summary="as fedcm, and sites also tell how the rest of the network moves, for pictures on the page alone",
    fingerprint="whole_path",
)

METHODS = (METHOD, BY_K_MEANS, HIERARCHICAL, WHOLE)
