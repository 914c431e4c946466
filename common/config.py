"""Every setting once: type, default, bounds and one line of help.

A configuration is a TOML file with sections, or the same keys written flat (`train.lr`), which is what Flower's run
config holds. Both become one frozen `Config`, or a `SettingsError` that names the key, the value and what is allowed.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypeVar, get_args

from pydantic import BaseModel, BeforeValidator, Field, ValidationError, create_model, model_validator
from pydantic.fields import FieldInfo

from common.drift import DriftEvent, InvalidScenario, Scenario, check_scenario, read_scenario, write_scenario
from common.foreign import Unusable, parse_toml, read_toml
from common.methods import AGREEMENTS
from common.presets import NAMED, PACKAGED, PRESETS
from common.privacy import PrivacySettings
from common.section import Section
from common.table import InvalidTable, Table, check_table, read_table, write_table

FlatValue = bool | int | float | str


class SettingsError(ValueError):
    """Settings that cannot be used; the message tells the user what to change.

    `public` is what others may read of a message that names something of the site's own; empty: all of it.
    """

    public = ""


def _split_names(value: object) -> object:
    """Flower's run config has no lists, so a list of names may also be one comma-separated string."""
    if isinstance(value, str):
        return tuple(name.strip() for name in value.split(",") if name.strip())
    return tuple(value) if isinstance(value, list) else value


Names = Annotated[tuple[str, ...], BeforeValidator(_split_names)]


class DataSettings(Section):
    """Where the samples are and how they look to the model."""

    source: Literal["demo", "folder", "manifest", "npz", "torchvision", "table"] = Field(
        "demo", description="kind of data; a site with a folder of its own overrides it by its node config"
    )
    path: str = Field(
        "",
        description="folder, CSV manifest, .npz file, or table (.csv, .parquet); for torchvision the download folder",
    )
    table: Table | None = Field(None, description="agreed schema of a table: a TOML file (`coterie schema` drafts one)")
    name: Literal["", "Imagenette", "CIFAR10", "CIFAR100", "FashionMNIST", "SVHN"] = Field(
        "", description="torchvision data set (source = torchvision)"
    )
    classes: Names = Field(
        (), description="agreed class list, in the order of the model's outputs; empty: known from the source"
    )
    image_size: int = Field(32, ge=8, le=1024, description="side in pixels of the square images the model trains on")
    channels: Literal[1, 3] = Field(3, description="1: grey, 3: RGB; images are converted")
    input: Literal["own", "embedding"] = Field(
        "own",
        description="what is learnt from: pixels or columns; embedding: images as the encoder sees them (dc-cfl, dc)",
    )
    test_fraction: float = Field(0.2, gt=0, lt=1, description="share of a site's samples held out for testing")
    validate_share: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="share of a simulated site's training samples on which models are tested, in the place of its test "
        "samples, which nobody then reads: to choose settings by",
    )
    watch: bool = Field(False, description="a site reads its own data anew in every round, because they may change")


class PartitionSettings(Section):
    """How one data set is dealt out to simulated sites."""

    scheme: Literal["dirichlet", "classes", "disjoint", "iid", "group", "own"] = Field(
        "dirichlet",
        description="dirichlet: label skew; classes: k classes per site; disjoint: label groups; iid; group: by column"
        "; own: the data say whose they are (a folder for each site, or a column `site`)",
    )
    alpha: float = Field(0.1, gt=0, description="concentration of the Dirichlet label skew; small: very skewed")
    min_size: int = Field(10, ge=2, description="fewest samples a simulated site may get")
    classes_per_site: int = Field(2, ge=1, description="scheme = classes: how many classes each site holds")
    groups: int = Field(5, ge=1, description="scheme = disjoint: number of groups with disjoint labels")
    overlap: int = Field(0, ge=0, description="scheme = disjoint: classes that a group shares with the next one")
    shift: Literal["none", "devices", "concept"] = Field(
        "none",
        description="how kinds of sites differ apart from label skew; devices: other images; concept: other labels",
    )
    kinds: int = Field(
        3, ge=2, le=100, description="shift: how many kinds of sites there are; kind 0: data as they are"
    )


class EncoderSettings(Section):
    """The frozen foundation model behind the signatures."""

    name: str = Field(
        "efficientnet_lite0",
        pattern=rf"^({'|'.join(map(re.escape, NAMED))}|pixels|columns|"
        r"timm:(hf-hub:[\w.\-]+/)?[\w.\-@]+|random:[\w.\-]+)$",
        description="efficientnet_lite0, efficientnet_lite2 (packaged), a published one by name (docs/encoders.md), "
        "timm:<model>, random:<model> (untrained, shared seed), pixels, or columns (of a table)",
    )
    weights: str = Field(
        "",
        description="local weights file of a published encoder or timm:<model> (.safetensors, .pth, .bin); empty: hub",
    )
    image_size: int = Field(
        0, ge=0, le=1024, description="side in pixels the encoder sees; 0: the size it was made for"
    )
    batch_size: int = Field(32, ge=1, le=4096, description="images embedded at once")
    dimensions: int = Field(
        0,
        ge=0,
        le=65_536,
        description="length of an embedding after a random projection, the same everywhere; fewer numbers need less "
        "noise; 0: as the encoder gives it",
    )
    precision: Literal["auto", "float32"] = Field("auto", description="auto: mixed precision on CUDA, float32 on CPU")


class ClusterSettings(Section):
    """From signatures to groups."""

    rule: Literal["guarded", "published"] = Field(
        "guarded", description="guarded: groups only where sites differ by more than chance; published: as in the paper"
    )
    choice: Literal["silhouette", "rehearsal"] = Field(
        "silhouette",
        description="what decides how many groups; rehearsal: heads are trained for every number, before training",
    )
    k: int = Field(0, ge=0, description="fixed number of groups; 0: chosen")
    threshold: float = Field(0.0, ge=0, description="stop merging above this distance; 0: not used")
    k_max: int = Field(10, ge=1, description="largest K the automatic choice may fall back to")
    linkage: Literal["average", "complete", "single"] = Field("average", description="agglomerative linkage")
    resolution: float = Field(1.0, gt=0, le=100, description="of modularity (fedcm); larger: more and smaller groups")
    overlap: bool = Field(True, description="weigh distances by the overlap of the class shares; false: ablation")
    alpha: float = Field(1.0, ge=0, description="exponent of the overlap penalty")
    beta: float = Field(100.0, ge=1, description="upper bound of the overlap penalty")
    epsilon: float = Field(1e-3, gt=0, description="guard against division by zero")


# Names of networks. Of timm's none is a path: a server names nothing on a site's disk.
NETWORK = (
    r"^(resnet9(-gn)?|resnet18(-gn)?|lenet5|mlp|head|head-mlp|timm:(hf-hub:[\w.\-]+/)?[\w.\-@]+|python:[\w.]+:\w+)$"
)


class TrainSettings(Section):
    """Local training at a site."""

    model: str = Field(
        "resnet9",
        pattern=NETWORK,
        description="resnet9, resnet18, lenet5, mlp: from scratch (resnet9-gn, resnet18-gn: with group norm); head, "
        "head-mlp: one or two layers on the frozen encoder; timm:<name>: a pretrained backbone; "
        "python:<package.module>:<factory>: your own",
    )
    weights: str = Field(
        "",
        description="timm:<name>: packaged, hub, random (drawn by the seed), or a local file; empty: packaged if there "
        "is a package, else hub",
    )
    tune: str = Field(
        "",
        pattern=r"^(|head|all|last:[1-9][0-9]{0,2}|lora:[1-9][0-9]{0,3})$",
        description="timm:<name>: what is trained, and all that travels: head (also if empty), last:<n> blocks, "
        "lora:<rank>, or all",
    )
    rule: str = Field(
        "", description="how sites train in the groups of a method that only groups them: fedprox, scaffold, ditto, …"
    )
    lr: float = Field(0.01, gt=0, description="learning rate of SGD")
    momentum: float = Field(0.0, ge=0, lt=1, description="momentum of SGD")
    weight_decay: float = Field(0.0, ge=0, description="L2 penalty of SGD")
    schedule: Literal["constant", "cosine"] = Field("constant", description="learning rate over the rounds")
    epochs: int = Field(1, ge=1, description="local epochs per round")
    batch_size: int = Field(32, ge=2, description="samples per step")
    batch_norm: Literal["round", "running"] = Field(
        "round",
        description="statistics a site sends: of this round's batches, or torch's moving average, which lags behind",
    )
    prior: Literal["site", "off"] = Field(
        "site",
        description="site: a site's own class shares are part of its softmax, and never sent; off: as published",
    )
    fraction: float = Field(1.0, gt=0, le=1, description="share of the sites that train in a round; at least one")
    draw: Literal["group", "all"] = Field(
        "group",
        description="from whom that share is drawn: group: of every group, by itself; all: of all sites, whose groups "
        "may be left out of a round",
    )
    threads: int = Field(
        0, ge=0, description="CPU threads per site; 0: one in a simulation, all cores at a site of its own"
    )


class AggregateSettings(Section):
    """What becomes of the updates of a group."""

    rule: Literal["mean", "clipped", "trimmed", "median", "secure"] = Field(
        "mean",
        description="mean: by samples, as published; clipped: no update reaches much farther than its peers'; "
        "trimmed, median: of every weight without its extremes, each site counting once; secure: the mean, of updates "
        "that nobody sees but their sites",
    )
    cap: float = Field(
        0.0, ge=0, description="most samples a site counts for, in multiples of its group's median; 0: no limit"
    )
    clip: float = Field(2.0, gt=0, description="clipped: reach of an update, in multiples of the last round's median")
    trim: float = Field(0.2, ge=0, lt=0.5, description="trimmed: share of the updates left out at either end")


class RoundSettings(Section):
    """Who is waited for, and how long."""

    deadline: float = Field(3600.0, gt=0, description="seconds after which a stage goes on without the missing sites")
    start_timeout: float = Field(300.0, gt=0, description="seconds to wait for the sites to connect")
    in_flight: int = Field(0, ge=0, description="most messages under way at once; 0: no limit")
    min_replies: int = Field(1, ge=1, description="fewest updates that change a group's model")
    max_message_mb: int = Field(1024, ge=1, description="a reply larger than this is refused")
    enough: float = Field(
        1.0, gt=0, le=1, description="a round closes when this share of every group's sites has answered; 1: all"
    )
    late: Literal["drop", "next"] = Field(
        "drop",
        description="what becomes of an update that comes after its round has closed; next: it enters the round it "
        "comes in, and counts the less the older it is",
    )


class SimulateSettings(Section):
    """A virtual clock: how long simulated sites would take, whatever this machine takes."""

    clock: float = Field(
        0.0, ge=0, le=1e6, description="virtual seconds in which a usual site trains on 1,000 samples; 0: no clock"
    )
    spread: float = Field(
        0.5, ge=0, le=5, description="how unlike in speed sites are: standard deviation of the logarithm, per site"
    )
    jitter: float = Field(0.1, ge=0, le=5, description="how unlike in speed a site's rounds are: the same, per round")


class TestSettings(Section):
    """When the groups' models are tested on the sites' own test splits."""

    __test__ = False  # or pytest would take it for a test

    every: int = Field(1, ge=1, description="rounds between two tests; the models of the last round are always tested")
    held: bool = Field(
        False, description="also test what a site holds right after its own training, as many papers' tables do"
    )


class MigrationSettings(Section):
    """When a site whose data changed moves to another group."""

    rule: Literal["auto", "off", "guarded", "fedcm"] = Field(
        "auto", description="auto: as the method has it (off for fmcl, guarded for fedcm); fedcm: the published rule"
    )
    tau: float = Field(
        0.0, ge=-1, le=1, description="a site is an outlier if its cosine with its group's direction is below"
    )
    norm_ratio: float = Field(
        3.0, ge=1, description="guarded: a suspect's update is so many times its peers' or its own usual one"
    )
    patience: int = Field(2, ge=1, description="guarded: rounds in a row in which a site must be an outlier")
    dwell: int = Field(3, ge=0, description="guarded: rounds a site rests after a move or a false alarm")
    look: int = Field(
        1, ge=0, description="guarded: rounds between two looks of a site at itself, where data may change; 0: none"
    )
    fit: float = Field(
        0.1, ge=-1, le=1, description="guarded, where sites send no signature: least cosine with the group moved to"
    )


# The sections that methods declare in `common/methods`, each under its own name.
_SECTIONS: dict[str, Any] = {
    agreement.section: (agreement.settings, agreement.settings())
    for agreement in AGREEMENTS.values()
    if agreement.settings is not None
}
if TYPE_CHECKING:

    class MethodSettings(Section):
        """One section for each method that has settings."""

else:
    MethodSettings = create_model("MethodSettings", __base__=Section, **_SECTIONS)
_METHODS = "methods"

S = TypeVar("S", bound=Section)


class SiteSettings(Section):
    """What a site must know of a run. It travels in every message, because Flower's run config is not always there."""

    seed: int = Field(0, ge=0, description="all randomness of the run is derived from it")
    cache: str = Field(
        "", description="folder for embeddings and decoded images of simulated sites; empty: the user's cache folder"
    )
    data: DataSettings = DataSettings()
    partition: PartitionSettings = PartitionSettings()
    encoder: EncoderSettings = EncoderSettings()
    train: TrainSettings = TrainSettings()
    methods: MethodSettings = MethodSettings()
    privacy: PrivacySettings = PrivacySettings()
    personalise: Literal["none", "finetune", "select", "blend"] = Field(
        "none",
        description="last step at a site: finetune the group's model; select: it, that, or one trained alone; blend: "
        "it with one of those",
    )
    drift: Scenario = Field((), description="drift scenario of a simulation: a TOML file (see configs/drift)")

    def of(self, section: type[S]) -> S:
        """Return the settings of a method, by the type that declares them."""
        return next(value for _, value in self.methods if isinstance(value, section))


class Config(SiteSettings):
    """All settings of a run."""

    method: str = Field("fmcl", description="how sites are grouped and trained")
    rounds: int = Field(20, ge=0, description="training rounds; 0: stop after grouping")
    sites: int = Field(20, ge=1, description="sites to simulate, or to wait for in a deployment")
    out: str = Field("", description="run directory (absolute for flwr run); empty: runs/<time>-<method>-seed<seed>")
    resume: Literal["never", "auto"] = Field(
        "never", description="auto: go on after the last complete round of the run that `out` holds, if there is one"
    )
    queue: bool = Field(
        False, description="on a server: wait until the runs that were sent there before this one have ended"
    )
    track: Names = Field((), description="also write for: tensorboard, mlflow (each needs the extra of its name)")
    checkpoint: int = Field(1, ge=0, description="rounds between checkpoints; 0: none, and no resuming")
    cluster: ClusterSettings = ClusterSettings()
    test: TestSettings = TestSettings()
    migration: MigrationSettings = MigrationSettings()
    round: RoundSettings = RoundSettings()
    simulate: SimulateSettings = SimulateSettings()
    aggregate: AggregateSettings = AggregateSettings()

    def for_site(self) -> SiteSettings:
        """The part a site is told."""
        return SiteSettings(**{name: getattr(self, name) for name in SiteSettings.model_fields})

    @model_validator(mode="after")
    def _combinations(self) -> Self:
        if self.cluster.k and self.cluster.threshold:
            raise ValueError(
                f"cluster.k = {self.cluster.k} and cluster.threshold = {self.cluster.threshold} exclude each other: "
                "set one of them to 0"
            )
        if self.cluster.k > self.sites:
            raise ValueError(
                f"cluster.k = {self.cluster.k} is more than sites = {self.sites}: "
                f"allowed are 0 (automatic) to {self.sites}"
            )
        if self.round.min_replies > self.sites:
            raise ValueError(
                f"round.min_replies = {self.round.min_replies} is more than sites = {self.sites}: nothing would train"
            )
        if self.round.late == "next" and self.round.enough == 1:
            raise ValueError("round.late = 'next' goes with round.enough below 1: nobody is late who is waited for")
        if self.partition.scheme == "disjoint" and self.partition.groups > self.sites:
            raise ValueError(
                f"partition.groups = {self.partition.groups} is more than sites = {self.sites}: some would have nobody"
            )
        if self.partition.shift != "none" and self.partition.kinds > self.sites:
            raise ValueError(
                f"partition.kinds = {self.partition.kinds} is more than sites = {self.sites}: some would have nobody"
            )
        if len(set(self.data.classes)) != len(self.data.classes):
            raise ValueError(f"data.classes = {', '.join(self.data.classes)} names a class twice")
        for number, event in enumerate(self.drift, start=1):
            if 0 < self.rounds < event.first_round(self.rounds):
                raise ValueError(
                    f"drift event {number}: at = {event.at} is after the last round (rounds = {self.rounds})"
                )
        self._check_table()
        if self.data.source == "torchvision" and not self.data.name:
            raise ValueError(f"data.name must be one of {', '.join(_allowed_names())} when data.source = 'torchvision'")
        self._check_backbone()
        if self.encoder.dimensions and self.encoder.name == "columns":
            raise ValueError("encoder.dimensions is for images: encoder.name = 'columns' reads a table as it is")
        if self.encoder.weights and self.encoder.name not in PRESETS and not self.encoder.name.startswith("timm:"):
            raise ValueError(
                f"encoder.weights = {self.encoder.weights!r} goes with encoder.name = 'timm:<model>' or a published "
                f"encoder, not with {self.encoder.name!r}"
            )
        return self

    def _check_backbone(self) -> None:
        train = self.train
        packaged = [f"timm:{architecture}" for architecture in PACKAGED.values()]
        if train.weights == "packaged" and train.model not in packaged:
            raise ValueError(
                f"train.weights = 'packaged' goes with train.model = {' or '.join(map(repr, packaged))}, not with "
                f"{train.model!r}"
            )
        for name in () if train.model.startswith("timm:") else ("weights", "tune"):
            if value := getattr(train, name):
                raise ValueError(
                    f"train.{name} = {value!r} goes with train.model = 'timm:<name>', not with {train.model!r}, all of "
                    "which is trained from the start: leave it empty"
                )

    def _check_table(self) -> None:
        data = self.data
        if (data.source == "table") != (data.table is not None):
            raise ValueError(
                "data.source = 'table' and data.table go together: `coterie schema FILE` drafts the schema"
            )
        if data.table is None:
            return
        if data.classes and data.classes != data.table.classes:
            raise ValueError("data.classes is not the class list of the table's schema: leave it empty")
        if data.input == "embedding":
            raise ValueError("data.input = 'embedding' is for images: a table has no encoder")


def _allowed_names() -> tuple[str, ...]:
    return tuple(name for name in get_args(DataSettings.model_fields["name"].annotation) if name)


def fields(model: type[BaseModel] = Config, prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Yield every setting as (flat key, field), in the order of the sections."""
    for name, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            # A method's section stands beside the others.
            yield from fields(field.annotation, prefix if name == _METHODS else f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", field


def flatten(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Turn nested tables into flat dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def flat_settings(dump: Mapping[str, Any]) -> dict[str, Any]:
    """Turn a dumped configuration into flat keys."""
    rest = {key: value for key, value in dump.items() if key != _METHODS}
    return flatten(rest) | flatten(dump.get(_METHODS, {}))


def _flatten_settings(values: Mapping[str, Any]) -> dict[str, Any]:
    """Flat keys, with a table's schema left whole: it is one setting."""
    data = values.get("data")
    if not isinstance(data, Mapping) or not isinstance(data.get("table"), Mapping):
        return flatten(values)
    rest = {**values, "data": {key: value for key, value in data.items() if key != "table"}}
    return flatten(rest) | {"data.table": data["table"]}


def flat_values(config: Config) -> dict[str, FlatValue]:
    """Return the configuration as Flower run config: flat keys, scalar values."""
    dump = config.model_dump()
    dump["data"]["table"] = write_table(config.data.table)
    flat = flat_settings(dump) | {"drift": write_scenario(config.drift)}
    return {key: ",".join(value) if isinstance(value, tuple | list) else value for key, value in flat.items()}


def with_values(config: Config, values: Mapping[str, FlatValue]) -> Config:
    """Return a configuration in which some settings, by flat key, have other values, known to be allowed."""
    for key, value in values.items():
        section, _, name = key.rpartition(".")
        if section in _SECTIONS:
            part = getattr(config.methods, section).model_copy(update={name: value})
            config = config.model_copy(update={_METHODS: config.methods.model_copy(update={section: part})})
        elif section:
            part = getattr(config, section).model_copy(update={name: value})
            config = config.model_copy(update={section: part})
        else:
            config = config.model_copy(update={name: value})
    return config


def parse(values: Mapping[str, Any]) -> Config:
    """Validate settings given as nested tables, flat keys, or both."""
    flat = _flatten_settings(values)
    known = dict(fields())
    for key, value in flat.items():
        if key not in known:
            raise SettingsError(_unknown(key, value, list(known)))
    if "drift" in flat:
        scenario = flat["drift"]
        try:
            # Only here, where a run is set up: a site is told the events and never reads a file it is told of.
            flat["drift"] = read_scenario(scenario) if isinstance(scenario, str) else check_scenario(scenario)
        except InvalidScenario as error:
            raise SettingsError(str(error)) from None
    if "data.table" in flat:
        table = flat["data.table"]
        try:
            flat["data.table"] = read_table(table) if isinstance(table, str) else table and check_table(table)
        except InvalidTable as error:
            raise SettingsError(str(error)) from None
    nested: dict[str, Any] = {}
    for key, value in flat.items():
        section, _, name = key.rpartition(".")
        place = nested.setdefault(_METHODS, {}) if section in _SECTIONS else nested
        target = place.setdefault(section, {}) if section else place
        # TOML and Flower write 1 for a float that happens to be whole.
        wants_float = known[key].annotation is float
        target[name] = float(value) if wants_float and type(value) is int and abs(value) < 2**53 else value
    try:
        return Config.model_validate(nested)
    except ValidationError as error:
        raise SettingsError("\n".join(_explain(item, known) for item in error.errors())) from None


def load(path: Path, overrides: Mapping[str, Any] | None = None) -> Config:
    """Read a TOML file; `overrides` (flat keys) win over it."""
    try:
        table = read_toml(path)
    except OSError as error:
        raise SettingsError(f"cannot read the configuration {path}: {error.strerror}") from None
    except Unusable as error:
        raise SettingsError(f"{path} is not valid TOML: {error}") from None
    return parse(_flatten_settings(table) | dict(overrides or {}))


def parse_override(text: str) -> tuple[str, FlatValue]:
    """Read `key=value` of the command line; the value is TOML, or else a plain string."""
    key, equals, raw = text.partition("=")
    key, raw = key.strip(), raw.strip()
    if not equals or not key:
        raise SettingsError(f"--set takes key=value, not {text!r}")
    try:
        value = parse_toml(f"value = {raw}")["value"]
    except Unusable:
        value = raw
    return key, value


def allowed(field: FieldInfo) -> str:
    """Say in words which values a setting takes."""
    annotation = field.annotation
    if annotation in (tuple[DriftEvent, ...], Table | None):
        return "a file, or its content as JSON"
    if NoneType in get_args(annotation):
        (annotation,) = (one for one in get_args(annotation) if one is not NoneType)
    if choices := [choice for choice in get_args(annotation) if isinstance(choice, str | int)]:
        return "one of " + ", ".join(repr(choice) if choice == "" else str(choice) for choice in choices)
    kind = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}.get(
        annotation,  # type: ignore[arg-type]
        "a list of names",
    )
    words = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
    bounds = [
        f"{sign} {limit}"
        for part in field.metadata
        for name, sign in words.items()
        if (limit := getattr(part, name, None)) is not None
    ]
    return " ".join([kind, *([", ".join(bounds)] if bounds else [])])


def _unknown(key: str, value: object, known: list[str]) -> str:
    if key.startswith("drift."):
        return f"unknown setting {key} = {value!r}; a drift event is a table with two brackets: [[drift]]"
    # Someone who forgot or mistook the section still got the last part right.
    near = [name for name in known if name.rpartition(".")[2] == key.rpartition(".")[2]]
    if not near or not key.rpartition(".")[2]:
        near = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
    hint = f"did you mean {' or '.join(near[:3])}?" if near else "`coterie config` lists them all"
    return f"unknown setting {key} = {value!r}; {hint}"


def _explain(item: Any, known: Mapping[str, FieldInfo]) -> str:
    key = ".".join(str(part) for part in item["loc"] if isinstance(part, str)).removeprefix(f"{_METHODS}.")
    if key not in known:
        return str(item["msg"]).removeprefix("Value error, ")
    return f"{key} = {item['input']!r} is not allowed: it takes {allowed(known[key])} ({known[key].description})"
