"""The setting `foreign_code` of a site: which bundles may answer in the place of its own code."""

from __future__ import annotations

import re

ANY = "any"  # in the place of a digest: whatever is shipped

_DIGEST = re.compile(r"[0-9a-f]{64}")


def check_foreign_code(names: tuple[str, ...]) -> None:
    """Raise a `ValueError` unless each is the SHA-256 of a bundle, or "any"."""
    for name in names:
        if name != ANY and not _DIGEST.fullmatch(name):
            raise ValueError(f"foreign_code holds {name!r}: it takes the SHA-256 of a bundle, 64 hexadecimal digits")


def allows(setting: str, digest: str) -> bool:
    """Whether a setting, as it stands in the node config, allows a bundle."""
    names = setting.split(",")
    return digest in names or ANY in names
