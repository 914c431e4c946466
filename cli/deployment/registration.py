"""Makes the keys of sites known to a running SuperLink, or shuts them out.

`flwr supernode register` does the same for one key, but each call starts Flower anew, and it cannot tell a key that is
known already from one that was removed on purpose.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from cli.deployment.address import Address, greet
from cli.deployment.authority import read_public_key
from common.config import SettingsError
from server.flower.control import Control, SuperLinkAway, SuperLinkRefuses, connected, key_bytes

Answer = TypeVar("Answer")


def register_sites(control: Address, ca: Path | None, secret: str, keys: Mapping[str, Path]) -> list[str] | None:
    """Register public keys under the names of their sites; return the names that are new to the SuperLink.

    Keys that the SuperLink has or had are left alone: one that the operator unregistered stays out. None if no
    SuperLink answers at `control`; `SettingsError` if it answers but refuses.

    Parameters
    ----------
    control
        Of the SuperLink's Control API.
    ca
        Certificate of the federation's authority; None: without TLS.
    secret
        The operator's; empty: the SuperLink asks for none.
    keys
        Site name → file with its public key.
    """
    public = {name: key_bytes(read_public_key(path)) for name, path in keys.items()}

    def register(superlink: Control) -> list[str]:
        known = superlink.sites()
        new: list[str] = []
        for name in (name for name, key in public.items() if key not in known):
            try:
                superlink.register(public[name], name)
            except SuperLinkRefuses:
                # `coterie provision` and `coterie server` may both see a new kit first.
                if public[name] not in superlink.sites():
                    raise
            else:
                new.append(name)
        return new

    return _talk(control, ca, secret, register)


def unregister_site(control: Address, ca: Path | None, secret: str, key: Path) -> bool | None:
    """Shut out the site with this public key for good; return whether it was in. None if no SuperLink answers."""
    public = key_bytes(read_public_key(key))

    def unregister(superlink: Control) -> bool:
        site = superlink.sites().get(public)
        if site is None or site.is_out:
            return False
        superlink.unregister(site)
        return True

    return _talk(control, ca, secret, unregister)


def _talk(control: Address, ca: Path | None, secret: str, errand: Callable[[Control], Answer]) -> Answer | None:
    if greet(control, ca):
        return None
    try:
        with connected(str(control), ca, secret) as superlink:
            return errand(superlink)
    except SuperLinkAway:
        return None
    except SuperLinkRefuses as error:
        raise SettingsError(f"the SuperLink at {control} refuses: {error}") from None
