"""A suite as a file: which methods, data sets, settings and seeds, and what a paper says came out."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

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

    `paper` is by data set, or by "data set, setting". `only` names the data sets it can be run on; empty: all. `grid`
    holds values to try of some settings: validation chooses among their combinations (`cli.suites.choosing`).
    """

    name: str
    label: str = ""
    only: list[str] = []
    set: Values = {}
    grid: Values = {}
    paper: dict[str, Published] = {}
    paper_loss: dict[str, float] = Field({}, description="Δ‰ under drift, by data set")

    @property
    def title(self) -> str:
        """What the table calls it."""
        # Imported late, here and below: it brings NumPy, which other commands need not wait for.
        from server.methods import get_method

        return self.label or get_method(self.name).title

    @property
    def candidates(self) -> list[dict[str, Any]]:
        """Every combination of the values to try; a single empty one where there is nothing to choose."""
        return [dict(zip(self.grid, values, strict=True)) for values in product(*self.grid.values())]

    @model_validator(mode="after")
    def _lists(self) -> Self:
        if one := [key for key, values in self.grid.items() if not isinstance(values, list) or len(values) < 1]:
            raise ValueError(f"grid: {', '.join(one)} needs a list of values to try")
        return self


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
    trial: Values = Field({}, description="what else is set for runs that only help to choose among a grid")
    trial_seeds: list[int] = Field([], description="the seeds that choose; empty: all")
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
    # Of a row with a grid: the candidate, and whether the run is one of those that help to choose it.
    chosen: tuple[tuple[str, Any], ...] = ()
    is_trial: bool = False

    @property
    def name(self) -> str:
        """Of its folder below the suite's."""
        setting = [self.setting] if self.setting != AS_GIVEN else []
        trial = ["trials", self.candidate] if self.is_trial else []
        return "/".join(slug(part) for part in (self.data, *setting, self.label, *trial, f"seed-{self.seed}"))

    @property
    def candidate(self) -> str:
        """The values of its grid in words; empty: there is none."""
        return ", ".join(f"{key.rpartition('.')[2]} = {value}" for key, value in self.chosen)

    def __str__(self) -> str:
        trial = f", trial of {self.candidate}" if self.is_trial else ""
        return f"{self.table}, {self.label}, seed {self.seed}{trial}"

    @property
    def table(self) -> str:
        """The table to which it belongs."""
        return _table(self.data, self.setting)


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
    if any(entry.grid for entry in suite.method) and not suite.trial.get("data.validate_share"):
        raise SettingsError(f"{path}: a grid needs trial = {{data.validate_share = 0.2}}: test samples choose nothing")
    if len(set(suite.seeds)) < len(suite.seeds):
        raise SettingsError(f"{path}: seeds = {suite.seeds} names a seed twice")
    if others := set(suite.trial_seeds) - set(suite.seeds):
        raise SettingsError(f"{path}: trial_seeds has {', '.join(map(str, sorted(others)))}, which seeds has not")
    return suite


# What validation chose, by table and row.
Choice = Mapping[tuple[str, str], Mapping[str, Any]]


def cells(
    suite: Suite, folder: Path, overrides: Mapping[str, FlatValue], out: Path, choice: Choice | None = None
) -> Iterator[Cell]:
    """Yield every run of a suite, seed by seed, so that half a suite is a table of fewer seeds.

    `folder` is where the suite's relative paths begin, `overrides` come from the command line, `out` is the suite's own
    folder. Equal seeds mean equal partitions and equal initial weights for all methods. A row with a grid is there as
    soon as something has been chosen for it.
    """
    for row in _rows(suite, folder):
        if not row.entry.grid:
            yield row.cell(overrides, out)
        elif (chosen := (choice or {}).get((row.table, row.entry.title))) is not None:
            yield row.cell({**chosen, **overrides}, out, tuple(chosen.items()))


def trials(suite: Suite, folder: Path, overrides: Mapping[str, FlatValue], out: Path) -> Iterator[Cell]:
    """Yield the runs that only help to choose: every candidate of every row with a grid."""
    for row in _rows(suite.model_copy(update={"seeds": suite.trial_seeds or suite.seeds}), folder):
        for candidate in row.entry.candidates if row.entry.grid else []:
            values = {**candidate, **overrides, **suite.trial}
            yield row.cell(values, out, tuple(candidate.items()), is_trial=True)


@dataclass(frozen=True)
class _Row:
    """One seed of one row of one table, and what the suite sets for it."""

    entry: Entry
    data: str
    setting: str
    seed: int
    values: Mapping[str, Any]

    @property
    def table(self) -> str:
        return _table(self.data, self.setting)

    def cell(
        self, more: Mapping[str, Any], out: Path, chosen: tuple[tuple[str, Any], ...] = (), *, is_trial: bool = False
    ) -> Cell:
        from server.methods import settle

        config = settle(parse({**self.values, **more, "method": self.entry.name, "seed": self.seed}))
        paper = self.entry.paper.get(f"{self.data}, {self.setting}", self.entry.paper.get(self.data))
        cell = Cell(self.data, self.setting, self.entry.title, self.seed, config, paper, chosen, is_trial)
        at = {"out": str(out / cell.name), "resume": "auto"}
        return replace(cell, config=config.model_copy(update=at))


def _rows(suite: Suite, folder: Path) -> Iterator[_Row]:
    for seed in suite.seeds:
        for data in suite.data:
            for setting in suite.setting:
                base = _file_values(folder, data) | data.set | suite.set | _file_values(folder, setting) | setting.set
                for entry in suite.method:
                    if not entry.only or data.name in entry.only:
                        yield _Row(entry, data.name, setting.name, seed, base | entry.set)


def _table(data: str, setting: str) -> str:
    return data if setting == AS_GIVEN else f"{data}, {setting}"


def _file_values(folder: Path, variation: Variation) -> dict[str, Any]:
    return flatten(_toml(folder / variation.config)) if variation.config else {}


def _toml(path: Path) -> dict[str, Any]:
    try:
        return read_toml(path)
    except OSError as error:
        raise SettingsError(f"cannot read {path}: {error.strerror}") from None
    except Unusable as error:
        raise SettingsError(f"{path} is not valid TOML: {error}") from None
