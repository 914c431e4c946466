"""Why a site cannot serve a request, in words that may leave it.

Errors that come from a site's own data may quote file names, patients or paths: they go to the site's log, and only
their kind leaves.
"""

from __future__ import annotations

import errno

from client.collaboration import MapIsGone
from client.data import DataAway, NoUsableData
from client.encoder import EncoderError
from client.identity import Identity
from client.policy.rules import Declined, LedgerUnwritable
from client.secure.credentials import NoCredentials
from client.secure.participant import Distrust
from client.training import TrainingDiverged
from common import wire
from common.config import SettingsError
from common.own_network import NetworkError

# Errors that speak of settings and models, never of a site's data; one that names a file says what is public of it.
_PUBLIC = (EncoderError, NetworkError, TrainingDiverged, Declined, Distrust, NoCredentials, wire.WireError)
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_KINDS = {
    MapIsGone: "its private map is gone",
    NoUsableData: "no usable data",
    DataAway: "its data are not there",
    SettingsError: "its data or node config is not as agreed",
}


def is_passing(error: Exception, identity: Identity | None) -> bool:
    """Whether the same question may well be answered in a while: a folder is not mounted, or a disk is full."""
    if identity is None or identity.is_simulated:
        return False
    if isinstance(error, NoUsableData):
        return error.is_empty
    return _of_disk(error) is not None or isinstance(error, DataAway | LedgerUnwritable)


def _of_disk(error: BaseException) -> OSError | None:
    """What the operating system said, where that is why."""
    return error if isinstance(error, OSError) else error.__cause__ if isinstance(error.__cause__, OSError) else None


def reason_of(error: Exception, identity: Identity | None) -> str:
    """What the server is told of an error; without an identity, the site does not know itself who it is."""
    if identity is None:
        return "its policy or node config cannot be read; the site's own log says more"
    if identity.is_simulated:
        return f"{type(error).__name__}: {error}"
    if isinstance(error, _PUBLIC):
        return f"{type(error).__name__}: {getattr(error, 'public', '') or error}"
    disk = _of_disk(error)
    if disk is not None and disk.errno in _FULL:
        return "its disk is full; the site's own log says more"
    kind = next((text for kind, text in _KINDS.items() if isinstance(error, kind)), type(error).__name__)
    return f"{kind}; the site's own log says more"
