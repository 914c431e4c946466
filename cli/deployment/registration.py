"""Makes the keys of sites known to a running SuperLink, or shuts them out. Only this file uses Flower's Control API.

`flwr supernode register` does the same for one key, but each call starts Flower anew, and it cannot tell a key that is
known already from one that was removed on purpose.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

import httpx
from flwr.proto.control_pb2 import ListNodesRequest, RegisterNodeRequest, UnregisterNodeRequest
from flwr.proto.node_pb2 import NodeInfo
from flwr.supercore.constant import NodeStatus
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supercore.primitives.asymmetric import public_key_to_bytes

from cli.deployment.address import Address, greet
from cli.deployment.authority import read_public_key
from common.config import SettingsError

Answer = TypeVar("Answer")


def register_sites(control: Address, ca: Path | None, keys: Mapping[str, Path]) -> list[str] | None:
    """Register public keys under the names of their sites; return the names that are new to the SuperLink.

    Keys that the SuperLink has or had are left alone: one that the operator unregistered stays out. None if no
    SuperLink answers at `control`; `SettingsError` if it answers but refuses.

    Parameters
    ----------
    control
        Of the SuperLink's Control API.
    ca
        Certificate of the federation's authority; None: without TLS.
    keys
        Site name → file with its public key.
    """
    public = {name: public_key_to_bytes(read_public_key(path)) for name, path in keys.items()}

    def register(client: ControlHttpClient) -> list[str]:
        known = _nodes(client)
        new: list[str] = []
        for name in (name for name, key in public.items() if key not in known):
            try:
                client.RegisterNode(RegisterNodeRequest(public_key=public[name], name=name))
            except httpx.HTTPStatusError:
                # `coterie provision` and `coterie server` may both see a new kit first.
                if public[name] not in _nodes(client):
                    raise
            else:
                new.append(name)
        return new

    return _talk(control, ca, register)


def unregister_site(control: Address, ca: Path | None, key: Path) -> bool | None:
    """Shut out the site with this public key for good; return whether it was in. None if no SuperLink answers."""
    public = public_key_to_bytes(read_public_key(key))

    def unregister(client: ControlHttpClient) -> bool:
        node = _nodes(client).get(public)
        if node is None or node.status == NodeStatus.UNREGISTERED:
            return False
        client.UnregisterNode(UnregisterNodeRequest(node_id=node.node_id))
        return True

    return _talk(control, ca, unregister)


def _talk(control: Address, ca: Path | None, errand: Callable[[ControlHttpClient], Answer]) -> Answer | None:
    if greet(control, ca):
        return None
    client = ControlHttpClient.from_server_address(
        str(control),
        insecure=ca is None,
        root_certificates=ca.read_bytes() if ca else None,
        interceptors=[RuntimeVersionHttpInterceptor(component_name="flwr CLI")],
    )
    try:
        return errand(client)
    except httpx.TransportError:
        return None
    except httpx.HTTPStatusError as error:
        raise SettingsError(f"the SuperLink at {control} refuses: {error}") from None
    finally:
        client.close()


def _nodes(client: ControlHttpClient) -> dict[bytes, NodeInfo]:
    return {node.public_key: node for node in client.ListNodes(ListNodesRequest()).nodes_info}
