"""What a site may say about itself before training: one type for each kind of fingerprint.

Every kind has a name (`kind`, the query that asks for it), a `form` in words that all sites of a run must share for
their fingerprints to be comparable, and the `agreement` between sites that makes it so.
"""

from __future__ import annotations

from common.collaboration import Collaboration
from common.head_path import HeadPath
from common.mean_feature import MeanFeature
from common.signature import Signature
from common.subspace import Subspace

Fingerprint = Signature | HeadPath | MeanFeature | Subspace | Collaboration
KINDS: dict[str, type[Fingerprint]] = {
    kind.kind: kind for kind in (Signature, HeadPath, MeanFeature, Subspace, Collaboration)
}
