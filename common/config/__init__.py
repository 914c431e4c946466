"""Every setting once: type, default, bounds and one line of help.

A configuration is a TOML file with sections, or the same keys written flat (`train.lr`), which is what Flower's run
config holds. Both become one frozen `Config`, or a `SettingsError` that names the key, the value and what is allowed.
"""

from __future__ import annotations

from common.config.flat import fields, flat_settings, flat_values, flatten, with_values
from common.config.reading import load, parse, parse_override
from common.config.run import Config
from common.config.sections import (
    NETWORK,
    AggregateSettings,
    ClusterSettings,
    DataSettings,
    EncoderSettings,
    FlatValue,
    MigrationSettings,
    Names,
    PartitionSettings,
    Precision,
    RoundSettings,
    SettingsError,
    SimulateSettings,
    SiteSettings,
    TestSettings,
    TrainSettings,
)
from common.config.words import allowed

__all__ = [
    "NETWORK",
    "AggregateSettings",
    "ClusterSettings",
    "Config",
    "DataSettings",
    "EncoderSettings",
    "FlatValue",
    "MigrationSettings",
    "Names",
    "PartitionSettings",
    "Precision",
    "RoundSettings",
    "SettingsError",
    "SimulateSettings",
    "SiteSettings",
    "TestSettings",
    "TrainSettings",
    "allowed",
    "fields",
    "flat_settings",
    "flat_values",
    "flatten",
    "load",
    "parse",
    "parse_override",
    "with_values",
]
