"""Every setting that a section holds: type, default, bounds and one line of help."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from pydantic import BeforeValidator, Field, create_model

from common.drift import Scenario
from common.methods import AGREEMENTS
from common.presets import NAMED
from common.privacy import PrivacySettings
from common.section import Section
from common.table import Table

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


# Of the numbers of an update.
Precision = Literal["float32", "float16", "int8"]


class WireSettings(Section):
    """How what sites send is written."""

    precision: Precision = Field(
        "float32",
        description="numbers of an update; float16, int8: its difference to the model that was sent, a half or a "
        "quarter of the bytes; what rounding loses is made up for in the next round",
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
METHOD_SECTIONS: dict[str, Any] = {
    agreement.section: (agreement.settings, agreement.settings())
    for agreement in AGREEMENTS.values()
    if agreement.settings is not None
}
if TYPE_CHECKING:

    class MethodSettings(Section):
        """One section for each method that has settings."""

else:
    MethodSettings = create_model("MethodSettings", __base__=Section, **METHOD_SECTIONS)
METHODS = "methods"

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
    wire: WireSettings = WireSettings()
    personalise: Literal["none", "finetune", "select", "blend"] = Field(
        "none",
        description="last step at a site: finetune the group's model; select: it, that, or one trained alone; blend: "
        "it with one of those",
    )
    drift: Scenario = Field((), description="drift scenario of a simulation: a TOML file (see configs/drift)")

    def of(self, section: type[S]) -> S:
        """Return the settings of a method, by the type that declares them."""
        return next(value for _, value in self.methods if isinstance(value, section))
