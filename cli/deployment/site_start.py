"""What a site's start file leads to: credentials and data that are there, and the node config of its ClientApp."""

from __future__ import annotations

import sys
from pathlib import Path

from cli.deployment import authority
from cli.deployment.address import FLEET_PORT, parse_address
from cli.deployment.start_file import SiteFile, located
from cli.deployment.supernode import BELL, OPEN_BUNDLES
from cli.toml_text import toml_value
from client.policy.ledger import Ledger, LedgerBroken
from client.policy.policy import Policy
from common.config import FlatValue, SettingsError


def check_credentials(path: Path, settings: SiteFile) -> None:
    """Raise if the site could not trust the server or prove who it is."""
    authority.read_authority(located(path, settings.ca), authority.present())
    authority.read_private_key(located(path, settings.key))


def require_data(path: Path, settings: SiteFile) -> None:
    """Raise if the start file does not say where the data are, or they are not there."""
    if settings.partitions:
        return
    if not settings.data:
        raise SettingsError(f"{path}: data is empty; set it to the folder, manifest or .npz file of this site")
    if not located(path, settings.data).exists():
        raise SettingsError(f"{path}: data = {settings.data!r} does not exist; correct it")


def require_ledger(path: Path, settings: SiteFile) -> None:
    """Raise if the site could answer nothing, because its ledger was changed or cannot be written."""
    if settings.partitions:
        return
    ledger = Ledger(located(path, settings.ledger))
    try:
        with ledger.held():
            pass
    except LedgerBroken as error:
        raise SettingsError(f"{error}. Find out who changed it, then move the file away") from None
    except OSError as error:
        raise SettingsError(f"{path}: ledger = {settings.ledger!r} cannot be written: {error.strerror}") from None


def policy_of(path: Path, settings: SiteFile) -> Policy:
    """The policy of a start file, with the whole path of its schema."""
    schema = settings.policy.agreed_schema
    return settings.policy.model_copy(update={"agreed_schema": str(located(path, schema))} if schema else {})


def as_node_config(path: Path, settings: SiteFile) -> str:
    """Return what the ClientApp will know of its site, as Flower's node config in TOML."""
    entries: dict[str, FlatValue] = {"site": settings.site}
    for key, value in (
        ("data-path", settings.data),
        ("cache", settings.cache),
        ("models", settings.models),
        ("memory", settings.memory),
        ("encoder-weights", settings.encoder_weights),
        ("network-weights", settings.network_weights),
        ("anchor-secret", settings.anchor_secret),
        ("anchor-sample", settings.anchor_sample),
        ("ledger", settings.ledger),
        ("key", settings.key),
        ("certificate", settings.certificate),
        ("authority", settings.ca),
    ):
        if value:
            entries[key] = str(located(path, value))
    # Flower's node config has no lists.
    entries |= {"networks": ",".join(settings.networks)} if settings.networks else {}
    entries["policy"] = policy_of(path, settings).model_dump_json()
    entries |= {"foreign-code": ",".join(settings.foreign_code)} if settings.foreign_code else {}
    if settings.partitions:
        entries |= {"partition-id": settings.partition, "num-partitions": settings.partitions}
    return "".join(f"{key} = {toml_value(value)}\n" for key, value in entries.items())


def supernode_command(
    path: Path, settings: SiteFile, node_config: Path, bell: Path | None, *, insecure: bool
) -> list[str]:
    """Return the command of a site's SuperNode; `bell` is where the executor hears of its questions."""
    # -P: modules that lie in the folder of the start file are not for it.
    node = [sys.executable, "-P", "-m", "cli.deployment.supernode"]
    node += [OPEN_BUNDLES] if settings.foreign_code else []
    node += [BELL, str(bell), runtime_api(settings)] if bell is not None else []
    node += ["--superlink", str(parse_address(settings.server, FLEET_PORT))]
    node += ["--host", "127.0.0.1", "--port", str(settings.port), "--node-config", str(node_config)]
    node += ["--health-server-address", settings.health] if settings.health else []
    if insecure:
        return [*node, "--insecure"]
    node += ["--root-certificates", str(located(path, settings.ca))]
    return [*node, "--auth-supernode-private-key", str(located(path, settings.key))]


def runtime_api(settings: SiteFile) -> str:
    """Where a SuperNode speaks to the executor."""
    return f"127.0.0.1:{settings.port}"
