"""Drift scenarios: which simulated sites' data change, when and how. One file, replayed by every method alike."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    TypeAdapter,
    ValidationError,
    field_validator,
    model_serializer,
    model_validator,
)

from common.foreign import Unusable, parse_json, read_toml


def _tuple(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value


class DriftEvent(BaseModel):
    """One thing that happens to the data of some sites.

    How far it has gone in a round is the share of the samples that have changed, from 0 to 1; see `severity`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    kind: Literal["swap", "vanish", "blur", "contrast", "invert"] = Field(
        description="swap: pairs of sites exchange their data; vanish: classes disappear; the others change the images"
    )
    at: int | float = Field(
        description="first round with changed data, 0: from the beginning; a share such as 0.4: the first round after "
        "that part of the run"
    )
    sites: tuple[str, ...] | float = Field(
        description="names of simulated sites (000, 001, …), or the share of all sites, drawn by the seed"
    )
    over: int = Field(1, ge=1, description="rounds until everything has changed; 1: sudden")
    extent: float = Field(1.0, gt=0, le=1, description="share of a site's samples that change in the end")
    period: int = Field(0, ge=0, description="recurring: changed for so many rounds, back for as many; 0: for good")
    classes: Annotated[tuple[str, ...], BeforeValidator(_tuple)] = Field(
        (), description="vanish: which classes; empty: the one a site has most of"
    )
    strength: float = Field(0.5, gt=0, le=1, description="blur and contrast: how strong, from 0 to 1")

    # One sentence each, where pydantic would explain every branch of the union.

    @field_validator("at", mode="before")
    @classmethod
    def _round_or_share(cls, value: object) -> object:
        if (type(value) is int and value >= 0) or (isinstance(value, float) and 0 < value < 1):
            return value
        raise ValueError(f"at = {value!r} is neither a round (0, 1, …) nor a share of the run between 0 and 1")

    @field_validator("sites", mode="before")
    @classmethod
    def _names_or_share(cls, value: object) -> object:
        if isinstance(value, list | tuple) and value and all(isinstance(name, str) for name in value):
            return tuple(value)
        # A whole 1 is refused: it could mean one site as well as all of them.
        if isinstance(value, float) and 0 < value <= 1:
            return value
        raise ValueError(
            f'sites = {value!r} is neither a list of names such as ["000", "007"] '
            "nor a share of all sites such as 0.2 (1.0: all)"
        )

    @model_validator(mode="after")
    def _combinations(self) -> Self:
        if self.period and self.over > self.period:
            raise ValueError(f"over = {self.over} rounds do not fit into period = {self.period}")
        if isinstance(self.sites, tuple) and len(set(self.sites)) != len(self.sites):
            raise ValueError(f"sites = {', '.join(self.sites)} names one twice")
        if self.kind == "swap" and isinstance(self.sites, tuple) and len(self.sites) % 2:
            raise ValueError("swap exchanges the data of pairs: name an even number of sites")
        if self.classes and self.kind != "vanish":
            raise ValueError(f"classes goes with kind = 'vanish', not with {self.kind!r}")
        if "strength" in self.model_fields_set and self.kind not in ("blur", "contrast"):
            raise ValueError(f"strength goes with kind = 'blur' or 'contrast', not with {self.kind!r}")
        return self

    @model_serializer(mode="wrap")
    def _what_was_set(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        # A default that was written out would read back as a setting, and be refused where it has no meaning.
        return {key: value for key, value in dump(self).items() if key in self.model_fields_set}

    def first_round(self, rounds: int) -> int:
        """The first round in which anything has changed, in a run of `rounds` rounds."""
        if isinstance(self.at, int):
            return self.at
        # 0.29 of 100 rounds are 29 rounds, though the product of the two is a hair less.
        return math.floor(round(self.at * rounds, 9)) + 1

    def severity(self, round_number: int, rounds: int) -> float:
        """The share of samples that have changed in a round: 0 before, then rising in `over` steps to `extent`."""
        elapsed = round_number - self.first_round(rounds)
        if elapsed < 0:
            return 0.0
        if self.period:
            phase, elapsed = divmod(elapsed, self.period)
            if phase % 2:
                return 0.0
        return self.extent * min(1.0, (elapsed + 1) / self.over)


Scenario = Annotated[tuple[DriftEvent, ...], BeforeValidator(_tuple)]

_SCENARIO: TypeAdapter[tuple[DriftEvent, ...]] = TypeAdapter(Scenario)


class InvalidScenario(ValueError):
    """A scenario that cannot be used; the message says what to change."""


def read_scenario(text: str) -> tuple[DriftEvent, ...]:
    """Read a scenario: the path of a TOML file with [[drift]] tables, or the same list as JSON; empty: none."""
    if not text:
        return ()
    if text.lstrip().startswith("["):
        try:
            return check_scenario(parse_json(text))
        except Unusable as error:
            raise InvalidScenario(f"the drift scenario is not valid JSON: {error}") from None
    try:
        table = read_toml(Path(text).expanduser())
    except OSError as error:
        raise InvalidScenario(f"cannot read the drift scenario {text}: {error.strerror}") from None
    except Unusable as error:
        raise InvalidScenario(f"{text} is not valid TOML: {error}") from None
    if set(table) != {"drift"}:
        raise InvalidScenario(f"{text} must hold [[drift]] tables and nothing else")
    try:
        return check_scenario(table["drift"])
    except InvalidScenario as error:
        raise InvalidScenario(f"{text}: {error}") from None


def check_scenario(tables: object) -> tuple[DriftEvent, ...]:
    """Turn a list of [[drift]] tables (or events) into events, or say what is wrong with which."""
    if not isinstance(tables, list | tuple):
        raise InvalidScenario(f"a drift scenario is a list of [[drift]] tables, not {tables!r}")
    try:
        return _SCENARIO.validate_python(tables)
    except ValidationError as error:
        raise InvalidScenario("; ".join(_sentence(item) for item in error.errors())) from None


def write_scenario(events: tuple[DriftEvent, ...]) -> str:
    """The JSON that `read_scenario` reads; empty for none."""
    return _SCENARIO.dump_json(events).decode() if events else ""


def _sentence(item: Any) -> str:
    number, *keys = item["loc"]
    where = f"drift event {number + 1}"
    message = str(item["msg"]).removeprefix("Value error, ")
    if item["type"] == "value_error":
        return f"{where}: {message}"
    if not keys:
        return f"{where}: {item['input']!r} is not a table"
    if item["type"] == "missing":
        return f"{where}: {keys[0]} is missing ({DriftEvent.model_fields[keys[0]].description})"
    if item["type"] == "extra_forbidden":
        return f"{where}: there is no {keys[0]}; known are {', '.join(DriftEvent.model_fields)}"
    return f"{where}: {keys[0]} = {item['input']!r} is not allowed: {message[:1].lower()}{message[1:]}"
