"""The start files of a deployment: `server.toml` for the coordinator and `site.toml` for a site."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self, TypeVar

from pydantic import Field, ValidationError, model_validator

from client.foreign_code import check_foreign_code
from client.policy.policy import Policy
from common.config import FlatValue, Names, SettingsError, allowed
from common.foreign import Unusable, read_toml
from common.section import Section
from common.site_name import RULE, is_site_name


def check_site_name(name: str) -> str:
    """Return the name of a site, which is a file name too, or raise saying what is wrong with it."""
    if not is_site_name(name):
        raise SettingsError(f"site name {name[:80]!r} must be {RULE}")
    return name


class ServerFile(Section):
    """How the coordinator's SuperLink starts. Relative paths start at the folder of the file."""

    address: str = Field(description="where sites call: HOST:PORT; written into the kits of new sites")
    names: Names = Field(description="every host name and IP address of the server, as in its certificate")
    listen: str = Field("0.0.0.0:9092", description="where the SuperLink listens for sites (gRPC)")
    control: str = Field(
        "127.0.0.1:8000",
        description="where it listens for the operator (HTTP), who shows the secret",
    )
    health: str = Field("127.0.0.1:9095", description="gRPC health endpoint, without TLS; empty: none")
    certificate: str = Field("server.crt", description="certificate of the server")
    key: str = Field("server.key", description="private key of the server")
    ca: str = Field("ca.crt", description="certificate of the federation's authority")
    secret: str = Field("operator.secret", description="what the operator must show; readable by its owner alone")
    keys: str = Field("keys", description="folder with the public key of every site, NAME.pub")
    database: str = Field("state.db", description="what the SuperLink must not forget: sites, runs, messages")


class SiteFile(Section):
    """How a site starts. Relative paths start at the folder of the file."""

    site: str = Field(description="the site's own name, in logs, groups and results")
    server: str = Field(description="where the coordinator is: HOST:PORT")
    data: str = Field(
        "", description="the site's folder with one sub-folder per class, CSV manifest, .npz file or table"
    )
    cache: str = Field("", description="folder for embeddings and decoded images; empty: the user's cache folder")
    models: str = Field("models", description="folder for the final model of every run this site took part in")
    memory: str = Field(
        "memory", description="folder for what the site remembers of a run; it cannot be computed again"
    )
    encoder_weights: str = Field("", description="the site's own copy of the encoder's weights, if the run needs one")
    network_weights: str = Field(
        "", description="the site's own copy of the weights of a pretrained network, if the run needs one"
    )
    networks: Names = Field(
        (), description="networks that this site allows, each package.module:factory of a package installed here"
    )
    anchor_secret: str = Field(
        "", description="methods dc-cfl and dc: file with the secret that all sites share and the server does not know"
    )
    anchor_sample: str = Field("", description="public rows or images for collaboration.anchors = interpolated")
    foreign_code: Names = Field(
        (),
        description="SHA-256 of bundles that may run here in the place of the site's own code, with all its rights",
    )
    ca: str = Field("ca.crt", description="certificate of the federation's authority")
    key: str = Field("site.key", description="the site's private key; readable by its owner alone")
    certificate: str = Field(
        "site.crt", description="by which other sites know this one's key; only secure sums need it"
    )
    port: int = Field(9094, ge=1, le=65535, description="local port of the SuperNode; one for each on a machine")
    health: str = Field("", description="gRPC health endpoint, without TLS, such as 127.0.0.1:9096; empty: none")
    tasks: int = Field(
        0, ge=0, description="tasks the warm executor works on at once; 0: chosen by cores or GPU memory"
    )
    partition: int = Field(0, ge=0, description="for demonstrations: which share of the run's common data set this is")
    partitions: int = Field(0, ge=0, description="for demonstrations: number of shares; 0: the site has its own data")
    ledger: str = Field("ledger.jsonl", description="file with what the site was asked and what left it")
    policy: Policy = Field(Policy(), description="what the site answers, whatever a run asks for")

    @model_validator(mode="after")
    def _combinations(self) -> Self:
        check_site_name(self.site)
        check_foreign_code(self.foreign_code)
        if self.partitions and self.data:
            raise ValueError("data and partitions exclude each other: a site has its own data or a demonstration share")
        if self.partition and self.partition >= self.partitions:
            raise ValueError(f"partition = {self.partition} must be less than partitions = {self.partitions}")
        return self


StartFile = TypeVar("StartFile", ServerFile, SiteFile)


def read_start_file(path: Path, model: type[StartFile], changes: Mapping[str, FlatValue] | None = None) -> StartFile:
    """Read and check a start file, or raise `SettingsError` naming the file, the key and what is allowed.

    `changes` win over what the file says.
    """
    try:
        table = _changed(read_toml(path), changes or {})
    except OSError as error:
        raise SettingsError(f"cannot read {path}: {error.strerror}; `coterie provision` makes such files") from None
    except Unusable as error:
        raise SettingsError(f"{path} is not valid TOML: {error}") from None
    _refuse_unknown(path, table, model)
    try:
        return model.model_validate(table)
    except ValidationError as error:
        raise SettingsError("\n".join(f"{path}: {_explain(item, model)}" for item in error.errors())) from None


def _changed(table: dict[str, Any], changes: Mapping[str, FlatValue]) -> dict[str, Any]:
    """A table with other values for some of its keys; `policy.rounds` is a key of the table `policy`."""
    changed = dict(table)
    for key, value in changes.items():
        section, dot, name = key.partition(".")
        changed[section] = _changed(changed.get(section, {}), {name: value}) if dot else value
    return changed


def _refuse_unknown(path: Path, table: Mapping[str, Any], model: type[Section], prefix: str = "") -> None:
    known = model.model_fields
    for key, value in table.items():
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
            hint = f"did you mean {prefix}{near[0]}?" if near else f"known are {', '.join(known)}"
            raise SettingsError(f"{path}: unknown setting {prefix}{key} = {value!r}; {hint}")
        inner = known[key].annotation
        if isinstance(value, Mapping) and isinstance(inner, type) and issubclass(inner, Section):
            _refuse_unknown(path, value, inner, f"{prefix}{key}.")


def located(start_file: Path, value: str) -> Path:
    """Return a path that a start file names, as an absolute one."""
    return (start_file.parent / Path(value).expanduser()).absolute()


def _explain(item: Any, model: type[Section]) -> str:
    names = [part for part in item["loc"] if isinstance(part, str)]
    field, key = None, ""
    for name in names:
        if name not in model.model_fields:
            break
        field, key = model.model_fields[name], f"{key}.{name}".lstrip(".")
        inner = field.annotation
        if not (isinstance(inner, type) and issubclass(inner, Section)):
            break
        model = inner
    if field is None:
        return str(item["msg"]).removeprefix("Value error, ")
    if item["type"] == "missing":
        return f"{key} is missing ({field.description})"
    return f"{key} = {item['input']!r} is not allowed: it takes {allowed(field)} ({field.description})"
