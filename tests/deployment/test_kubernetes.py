"""The manifests for Kubernetes: held against its own schema, what they promise, whether their pods could start."""

from __future__ import annotations

import copy
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from cli.commands.server import check_credentials as check_server
from cli.deployment.federation import connection_to
from cli.deployment.layout import Layout
from cli.deployment.site_start import check_credentials as check_site
from cli.deployment.start_file import ServerFile, SiteFile, read_start_file
from cli.main import main
from common.config import parse_override
from tests.support.federation import ROOT

MANIFESTS = sorted((ROOT / "docker" / "kubernetes").glob("*.yaml"))
OLDEST, NEWEST = "1.25", kubernetes_validate.latest_version()


def parts(path: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(path.read_text(encoding="utf-8")))


def pod(path: Path) -> dict[str, Any]:
    (found,) = (part for part in parts(path) if part["kind"] == "Deployment")
    spec: dict[str, Any] = found["spec"]["template"]["spec"]
    return spec


def texts(value: object) -> Iterator[str]:
    """Every key and text in it."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield str(key)
            yield from texts(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from texts(inner)
    else:
        yield str(value)


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.stem)
@pytest.mark.parametrize("version", [OLDEST, NEWEST])
def test_every_part_is_what_kubernetes_takes(path: Path, version: str) -> None:
    for part in parts(path):
        kubernetes_validate.validate(part, version, strict=True)
        spoiled = copy.deepcopy(part)
        spoiled["spec"]["replica"] = 1
        with pytest.raises(kubernetes_validate.ValidationError):
            kubernetes_validate.validate(spoiled, version, strict=True)


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.stem)
def test_pods_have_no_rights_that_they_do_not_need(path: Path) -> None:
    spec = pod(path)
    assert "hostPath" not in set(texts(parts(path)))
    assert not any(key.startswith("host") for key in spec)
    assert spec["securityContext"]["runAsNonRoot"]
    assert spec["securityContext"]["runAsUser"] > 0
    assert spec["automountServiceAccountToken"] is False
    for container in (*spec["initContainers"], *spec["containers"]):
        confined = {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert container["securityContext"] == confined
        assert not set(texts(container.get("env", []))), "secrets are files"
    (running,) = spec["containers"]
    for probe in ("startupProbe", "livenessProbe"):
        assert running[probe]["exec"]["command"] == ["python", "-m", "cli.deployment.health"]
    (policy,) = (part for part in parts(path) if part["kind"] == "NetworkPolicy")
    assert set(policy["spec"]["policyTypes"]) == {"Ingress", "Egress"}
    opened = [port["port"] for rule in policy["spec"]["ingress"] for port in rule["ports"]]
    assert opened == (["fleet"] if path.stem == "server" else [])


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.stem)
def test_what_is_mounted_is_there_or_is_told_how_to_make(path: Path) -> None:
    spec = pod(path)
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    mounted = {
        mount["name"]
        for container in (*spec["initContainers"], *spec["containers"])
        for mount in container["volumeMounts"]
    }
    assert mounted == set(volumes)
    claims = {part["metadata"]["name"] for part in parts(path) if part["kind"] == "PersistentVolumeClaim"}
    guide = (ROOT / "docs" / "deployment.md").read_text(encoding="utf-8")
    for volume in volumes.values():
        if "persistentVolumeClaim" in volume:
            assert volume["persistentVolumeClaim"]["claimName"] in {*claims, "coterie-data"}
        for kind, key in (("secret", "secretName"), ("configMap", "name")):
            if kind in volume:
                assert re.search(rf"kubectl create {kind.lower()}[^\n]* {volume[kind][key]}\b", guide), volume


@pytest.fixture
def fed(tmp_path: Path) -> Layout:
    server = ["--server", "fl.example.org", "--control", "127.0.0.1:9"]
    assert main(["provision", str(tmp_path / "fed"), *server, "--sites", "clinic-a"]) == 0
    return Layout(tmp_path / "fed")


def mount(folder: Path, *files: Path, **named: Path) -> None:
    """As a Secret is mounted for a pod with an fsGroup: readable by the group."""
    folder.mkdir(parents=True)
    for name, file in {**{file.name: file for file in files}, **named}.items():
        shutil.copyfile(file, folder / name)
        (folder / name).chmod(0o440)


def prepare(path: Path, **moved: Path) -> None:
    """Do what the first container of a pod does, with its folders elsewhere; twice, as after a restart."""
    (first,) = pod(path)["initContainers"]
    script = first["args"][0]
    for name, place in moved.items():
        script = re.sub(rf"(?<![\w/])/{name}(?=[/ \n])", str(place), script)
    for _ in range(2):
        subprocess.run([*first["command"], script], check=True)


def test_a_coordinator_could_start_from_its_secrets(fed: Layout, tmp_path: Path) -> None:
    secret, place, keys = tmp_path / "secret", tmp_path / "pod", tmp_path / "keys"
    place.mkdir()
    config = {"operator.toml": fed.operator / "config.toml"}
    mount(secret / "server", *(fed.server / name for name in ("server.toml", "ca.crt", "operator.secret")), **config)
    mount(secret / "tls", **{"tls.crt": fed.server / "server.crt", "tls.key": fed.server / "server.key"})
    mount(keys, *(fed.server / "keys").iterdir())
    prepare(MANIFESTS[0], secret=secret, fed=place, keys=keys)
    there = Layout(place)
    check_server(there.server_file, read_start_file(there.server_file, ServerFile))
    assert there.public_key("clinic-a").exists()
    assert connection_to(place).secret == connection_to(fed.root).secret
    assert str(place / "operator" / "ca.crt") in (there.operator / "config.toml").read_text()
    assert pod(MANIFESTS[0])["containers"][0]["args"] == ["server", "/fed/server/server.toml"]


def test_a_site_could_start_from_its_kit(fed: Layout, tmp_path: Path) -> None:
    secret, kit = tmp_path / "secret", tmp_path / "kit"
    kit.mkdir()
    mount(secret, *fed.kit("clinic-a").iterdir())
    prepare(MANIFESTS[1], secret=secret, kit=kit)
    command, file, *options = pod(MANIFESTS[1])["containers"][0]["args"]
    changes = dict(parse_override(option.removeprefix("--set=")) for option in options)
    settings = read_start_file(kit / Path(file).name, SiteFile, changes)
    check_site(kit / Path(file).name, settings)
    mounts = {one["mountPath"] for one in pod(MANIFESTS[1])["containers"][0]["volumeMounts"]}
    for key in ("data", "ledger", "models", "memory", "cache"):
        assert any(Path(getattr(settings, key)).is_relative_to(place) for place in mounts), key
    assert command == "site"
