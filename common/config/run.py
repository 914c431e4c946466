"""All settings of a run, and what excludes what."""

from __future__ import annotations

from typing import Literal, Self, get_args

from pydantic import Field, model_validator

from common.config.sections import (
    AggregateSettings,
    ClusterSettings,
    DataSettings,
    MigrationSettings,
    Names,
    RoundSettings,
    SimulateSettings,
    SiteSettings,
    TestSettings,
)
from common.presets import PACKAGED, PRESETS


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
