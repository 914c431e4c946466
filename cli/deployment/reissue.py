"""After a theft: a new authority and a new server, whom nobody with the old keys can play any more."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from cli.deployment import authority
from cli.deployment.authority import pem, private_pem, replace_file
from cli.deployment.layout import Layout
from cli.deployment.outside_authority import ALWAYS
from cli.deployment.start_file import ServerFile


def reissue(layout: Layout, settings: ServerFile, now: datetime) -> list[str]:
    """Make the keys and certificates of authority and server anew; return what there is to do, in words.

    Sites keep their keys, and get the new authority's word for them. Who calls this again makes all of it again.
    """
    key, server_key = authority.new_key(), authority.new_key()
    issuer = authority.self_signed_authority(key, now)
    hosts = (*settings.names, *ALWAYS)
    certificate = authority.server_certificate(key, issuer, server_key.public_key(), hosts, now)
    # The keys first: a certificate without its key would look like one whose key is kept elsewhere.
    replace_file(layout.authority_key, private_pem(key), 0o600)
    replace_file(layout.server / settings.key, private_pem(server_key), 0o600)
    replace_file(layout.server / settings.certificate, pem(certificate))
    for copy in (layout.authority, layout.server / settings.ca, layout.operator / "ca.crt"):
        replace_file(copy, pem(issuer))
    said = [f"made a new authority {layout.authority} and a new key of the server: nobody believes the old ones"]
    for public in sorted((layout.server / settings.keys).glob("*.pub")):
        own = authority.site_certificate(key, issuer, authority.read_public_key(public), public.stem)
        said.append(_for_site(layout, public.stem, pem(own), pem(issuer)))
    return said


def _for_site(layout: Layout, site: str, own: bytes, issuer: bytes) -> str:
    kit: Path = layout.kit(site)
    kit.mkdir(mode=0o700, parents=True, exist_ok=True)
    for path, content in ((layout.certificate(site), own), (kit / "site.crt", own), (kit / "ca.crt", issuer)):
        replace_file(path, content)
    return f"{site}: bring {kit / 'ca.crt'} and site.crt beside it to the site, into the place of its own"
