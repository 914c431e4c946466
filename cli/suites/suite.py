"""A suite as a file: which methods, data sets, settings and seeds, and what a paper says came out."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from common.config import Config, FlatValue, SettingsError, flatten, parse
from common.foreign import Unusable, read_toml

AS_GIVEN = "as given"
METRICS = ("accuracy", "macro_f1", "auc")

# Flat keys to values; sections may be written as tables.
Values = Annotated[
    dict[str, Any], BeforeValidator(lambda value: flatten(value) if isinstance(value, Mapping) else value)
]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


# A paper's figures in %: accuracy, macro-F1 and AUC, or accuracy alone.
Published = Annotated[
    tuple[float, ...], BeforeValidator(lambda value: [value] if isinstance(value, int | float) else value)
]
# What a paper's accuracy is of: pooled over all test samples at the best round; the mean of the sites at the last; the
# same, of what each site holds after its own last training.
Measure = Literal["best", "last", "held"]


class Entry(_Part):
    """A row of the table: a method, what is set for it alone, and the paper's figures in %.

    `paper` is by data set, or by "data set, setting". `only` names the data sets it can be run on; empty: all.
    """

    name: str
    label: str = ""
    only: list[str] = []
    set: Values = {}
    paper: dict[str, Published] = {}
    paper_loss: dict[str, float] = Field({}, description="Δ‰ under drift, by data set")

    @property
    def title(self) -> str:
        """What the table calls it."""
        # Imported late, here and below: it brings NumPy, which other commands need not wait for.
        from server.methods import get_method

        return self.label or get_method(self.name).title


class Variation(_Part):
    """A data set, or a variation of the settings: a name and the settings that make it."""

    name: str = Field(pattern=r"^[\w.\- ]+$")
    config: str = ""
    set: Values = {}


class Suite(_Part):
    """Everything of a suite. Settings are applied in this order: data, [set], setting, method, command line, seed."""

    title: str
    seeds: list[int] = Field(min_length=1)
    reference: str = Field("", description="label or method of the row the others are tested against; empty: no test")
    measure: Measure = Field("best", description="what the paper's accuracy is of")
    stable: str = Field("", description="the setting without drift, which the others are held against; empty: none")
    reach: str = Field("", description="label of the row whose accuracy others are to reach; empty: none")
    data: list[Variation] = Field(min_length=1)
    setting: list[Variation] = [Variation(name=AS_GIVEN)]
    set: Values = {}
    method: list[Entry] = Field(min_length=1)


@dataclass(frozen=True)
class Cell:
    """One run of a suite."""

    data: str
    setting: str
    label: str
    seed: int
    config: Config
    paper: tuple[float, ...] | None

    @property
    def name(self) -> str:
        """Of its folder below the suite's."""
        setting = [self.setting] if self.setting != AS_GIVEN else []
        return "/".join(slug(part) for part in (self.data, *setting, self.label, f"seed-{self.seed}"))

    def __str__(self) -> str:
        return f"{self.table}, {self.label}, seed {self.seed}"

    @property
    def table(self) -> str:
        """The table to which it belongs."""
        return self.data if self.setting == AS_GIVEN else f"{self.data}, {self.setting}"


def slug(text: str) -> str:
    """Text as the name of a file."""
    return re.sub(r"[^\w.\-]+", "-", text).strip("-").lower()


def read_suite(path: Path) -> Suite:
    """Read a suite file, or say what is wrong with it. What another file that it includes says is overruled by it.

    Of what is set for all runs, each setting by itself.
    """
    table = _toml(path)
    if isinstance(included := table.pop("include", None), str):
        common = _toml(path.parent / included)
        ours, theirs = table.get("set", {}), common.get("set", {})
        if isinstance(ours, Mapping) and isinstance(theirs, Mapping):
            table["set"] = flatten(theirs) | flatten(ours)
        table = common | table
    try:
        suite = Suite.model_validate(table)
    except ValidationError as error:
        faults = [f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors()]
        raise SettingsError(f"{path} is not a suite: " + "; ".join(faults)) from None
    labels = [entry.title for entry in suite.method]
    if twice := {label for label in labels if labels.count(label) > 1}:
        raise SettingsError(f"{path}: two methods are called {', '.join(sorted(twice))}: give each a label of its own")
    if suite.reference and suite.reference not in labels:
        # A method's plain name will do where it says which row is meant.
        named = [entry.title for entry in suite.method if entry.name == suite.reference]
        suite = suite.model_copy(update={"reference": named[0]}) if len(named) == 1 else suite
    if suite.reference and suite.reference not in labels:
        raise SettingsError(f"{path}: reference = {suite.reference!r} is none of {', '.join(labels)}")
    if suite.reach and suite.reach not in labels:
        raise SettingsError(f"{path}: reach = {suite.reach!r} is none of {', '.join(labels)}")
    settings = [setting.name for setting in suite.setting]
    if suite.stable and suite.stable not in settings:
        raise SettingsError(f"{path}: stable = {suite.stable!r} is none of the settings {', '.join(settings)}")
    known = {data.name for data in suite.data}
    if strange := {name for entry in suite.method for name in entry.only} - known:
        raise SettingsError(f"{path}: only = {', '.join(sorted(strange))} is none of the data sets {', '.join(known)}")
    if len(set(suite.seeds)) < len(suite.seeds):
        raise SettingsError(f"{path}: seeds = {suite.seeds} names a seed twice")
    return suite


def cells(suite: Suite, folder: Path, overrides: Mapping[str, FlatValue], out: Path) -> Iterator[Cell]:
    """Yield every run of a suite, seed by seed, so that half a suite is a table of fewer seeds.

    `folder` is where the suite's relative paths begin, `overrides` come from the command line, `out` is the suite's own
    folder. Equal seeds mean equal partitions and equal initial weights for all methods.
    """
    from server.methods import settle

    for seed in suite.seeds:
        for data in suite.data:
            for setting in suite.setting:
                base = _file_values(folder, data) | data.set | suite.set | _file_values(folder, setting) | setting.set
                for entry in suite.method:
                    if entry.only and data.name not in entry.only:
                        continue
                    values = base | entry.set | dict(overrides) | {"method": entry.name, "seed": seed}
                    config = settle(parse(values))
                    paper = entry.paper.get(f"{data.name}, {setting.name}", entry.paper.get(data.name))
                    cell = Cell(data.name, setting.name, entry.title, seed, config, paper)
                    at = {"out": str(out / cell.name), "resume": "auto"}
                    yield Cell(**vars(cell) | {"config": config.model_copy(update=at)})


def _file_values(folder: Path, variation: Variation) -> dict[str, Any]:
    return flatten(_toml(folder / variation.config)) if variation.config else {}


def _toml(path: Path) -> dict[str, Any]:
    try:
        return read_toml(path)
    except OSError as error:
        raise SettingsError(f"cannot read {path}: {error.strerror}") from None
    except Unusable as error:
        raise SettingsError(f"{path} is not valid TOML: {error}") from None
