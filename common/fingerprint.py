"""What a site may say about itself before training: the kinds of fingerprints, by name."""

from __future__ import annotations

from common.collaboration import Collaboration
from common.head_change import HeadChange
from common.head_path import HeadPath
from common.mean_feature import MeanFeature
from common.signature import Signature
from common.site_card import Fingerprint
from common.subspace import Subspace
from common.whole_path import WholePath

KINDS: dict[str, type[Fingerprint]] = {
    kind.kind: kind for kind in (Signature, HeadPath, WholePath, HeadChange, MeanFeature, Subspace, Collaboration)
}

__all__ = ["KINDS", "Fingerprint"]
