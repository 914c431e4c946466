"""What a site asks of a run before it sends anything: limits of its own, in site.toml."""

from __future__ import annotations

from client.identity import Identity
from common.config import SettingsError, SiteSettings
from common.methods.dc_cfl import Settings as CollaborationSettings
from common.table import InvalidTable, read_table


class Unacceptable(SettingsError):
    """A run that asks for more than the site gives; the message names the setting and nothing of the data."""


def check_limits(identity: Identity, settings: SiteSettings) -> None:
    """Raise `Unacceptable` if a run averages or blurs less than the site demands, or comes with another schema."""
    asked = settings.of(CollaborationSettings)
    if asked.aggregate < identity.least_aggregate:
        raise Unacceptable(
            f"collaboration.aggregate = {asked.aggregate} is below this site's least_aggregate = "
            f"{identity.least_aggregate}"
        )
    if asked.noise < identity.least_noise:
        raise Unacceptable(
            f"collaboration.noise = {asked.noise:g} is below this site's least_noise = {identity.least_noise:g}"
        )
    if identity.schema is not None:
        try:
            agreed = read_table(str(identity.schema))
        except InvalidTable as error:
            raise SettingsError(f"agreed_schema in site.toml: {error}") from None
        if agreed != settings.data.table:
            raise Unacceptable("data.table is not the schema that this site agreed to (agreed_schema in site.toml)")
