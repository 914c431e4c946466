"""What a site may say about itself before training, one file for each kind."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from client.collaboration import Collaborator
from client.fingerprints.mean import mean_feature
from client.fingerprints.path import Part, gradient_path
from client.fingerprints.subspace import subspace
from client.request import Request
from client.training import default_device
from common.collaboration import Collaboration
from common.head_change import HeadChange
from common.head_path import HeadPath
from common.mean_feature import MeanFeature
from common.methods import fedclust, fedcm, pacfl
from common.models import set_prior
from common.signature import Signature
from common.site_card import Fingerprint
from common.state import flat_body, flat_head
from common.subspace import Subspace
from common.whole_path import WholePath


def _signature(request: Request) -> Signature:
    return request.discretion.signature()


def _mean(request: Request) -> MeanFeature:
    return mean_feature(request.embedded())


def _subspace(request: Request) -> Subspace:
    vectors = request.settings.of(pacfl.Settings).vectors
    return subspace(request.embedded(), request.site.train_labels, vectors)


def _path(request: Request) -> HeadPath:
    return HeadPath(*_warmed_up(request, request.settings.of(fedcm.Settings).warm_up))


def _whole_path(request: Request) -> WholePath:
    warm_up = request.settings.of(fedcm.Settings).warm_up
    return WholePath(*_warmed_up(request, warm_up, (flat_head, flat_body)))


def _head(request: Request) -> HeadChange:
    (changes,) = _warmed_up(request, request.settings.of(fedclust.Settings).warm_up)
    return HeadChange(changes.sum(axis=0, dtype=np.float64).astype(np.float32))


def _warmed_up(request: Request, epochs: int, parts: Sequence[Part] = (flat_head,)) -> list[NDArray[np.float32]]:
    visit = request.visit()
    network = visit.load(visit.received)
    # A path tells sites apart by how they move the head, and the shares would spare it most of the way.
    set_prior(network, None)
    return gradient_path(
        network,
        request.site.train_inputs(),
        request.site.train_labels,
        request.settings.train,
        epochs=epochs,
        seed=request.settings.seed,
        site=request.site.name,
        device=default_device(),
        parts=parts,
    )


def collaborator(request: Request) -> Collaborator:
    """The site as one that takes part in a single round."""
    encoder = request.encoder() if request.settings.data.input == "embedding" else None
    return Collaborator(request.identity, request.settings, request.site, encoder)


def _collaboration(request: Request) -> Collaboration:
    return collaborator(request).offer()


# Kind, which is also the query that asks for it → how it is made.
FINGERPRINTS: dict[str, Callable[[Request], Fingerprint]] = {
    Signature.kind: _signature,
    MeanFeature.kind: _mean,
    Subspace.kind: _subspace,
    HeadPath.kind: _path,
    WholePath.kind: _whole_path,
    HeadChange.kind: _head,
    Collaboration.kind: _collaboration,
}
