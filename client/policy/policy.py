"""The settings of a site's policy: `[policy]` in site.toml."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Literal

from pydantic import Field

from common.config import Names
from common.presets import NAMED
from common.privacy import PrivacySettings
from common.section import Section

ANY = "any"
_PUBLISHED = "timm:hf-hub:"


class Policy(Section):
    """What a site answers. Who writes nothing gets the defaults."""

    methods: Names = Field((ANY,), description="rules by which it trains, such as fedavg; any: all that it has")
    fingerprints: Names = Field(
        ("signature", "mean", "path", "head", "subspace"),
        description="what it says of its data before training; only by name: collaboration (the rows of dc-cfl and dc) "
        "and whole_path (of fedcm-whole)",
    )
    networks: Names = Field((ANY,), description="networks it trains (train.model); any: all that it has")
    encoders: Names = Field(
        (*NAMED, "timm:*", "random:*", "columns"),
        description="encoders of fingerprints, heads, rehearsals (encoder.name); pixels, the image itself: by name",
    )
    tests: bool = Field(
        True, description="send confusion matrix, loss and histograms of scores of the test split; false: never"
    )
    classes: Names = Field((), description="the exact class list; empty: that of the first run is kept to")
    agreed_schema: str = Field("", description="the agreed schema of a table; without it no table is read")
    test_fraction: float | None = Field(
        0.2, gt=0, lt=1, description="share of the samples held out for testing, whatever data.test_fraction says"
    )
    split_seed: int | None = Field(0, ge=0, description="decides which samples are held out, in all runs the same")
    watch: bool | None = Field(
        None,
        description="whether its data may change while runs go on (data.watch), which holds out other samples; empty: "
        "as in its first run",
    )
    class_samples: int = Field(
        10,
        ge=1,
        description="least training samples of a class that anything is told of; smaller classes are left out",
    )
    train_samples: int = Field(10, ge=1, description="least training samples behind an update")
    test_samples: int = Field(5, ge=0, description="least test samples behind an evaluation; with fewer none is sent")
    rounds: int = Field(500, ge=0, description="most rounds of a run")
    rehearsal_rounds: int = Field(
        50, ge=0, description="most rounds of a rehearsal before training (rehearsal.rounds), apart from the others"
    )
    epochs: int = Field(20, ge=1, description="most local epochs of a round (train.epochs)")
    fingerprints_a_day: int = Field(10, ge=0, description="most fingerprints within 24 hours, over all runs")
    runs_a_day: int = Field(10, ge=0, description="most runs that may begin within 24 hours")
    least_aggregate: int = Field(1, ge=1, description="runs with a smaller collaboration.aggregate are refused")
    least_noise: float = Field(0.0, ge=0, description="runs with a smaller collaboration.noise are refused")
    aggregation: Literal["any", "secure"] = Field(
        "any",
        description="secure: its updates leave only hidden in a secure sum (aggregate.rule); any: also as they are",
    )
    least_members: int = Field(4, ge=4, description="secure sums with fewer members are declined")
    approve: Literal["no", "ask"] = Field(
        "no", description="ask: a new run waits until somebody here says `coterie site approve`"
    )
    approve_wait: float = Field(600.0, ge=0, description="seconds that a run waits for that before it is declined")
    privacy: PrivacySettings = Field(PrivacySettings(), description="noise on all that is told, and a budget for it")


# For a site of a simulation: a run also decides how its samples are split.
OPEN = Policy(
    fingerprints=(ANY,),
    encoders=(ANY,),
    test_fraction=None,
    split_seed=None,
    class_samples=1,
    train_samples=1,
    test_samples=0,
    rounds=2**31,
    rehearsal_rounds=2**31,
    epochs=2**31,
    fingerprints_a_day=2**31,
    runs_a_day=2**31,
)


def allows(names: Names, name: str) -> bool:
    """Whether a list of the policy has a name; `timm:*` has all that begin so, and `any` all.

    Neither has what anybody may publish on the hub: who makes the weights of an encoder decides what its embeddings
    tell. That takes its name, or a pattern that begins as its name does.
    """
    fitting = [one for one in names if one.startswith(_PUBLISHED)] if name.startswith(_PUBLISHED) else names
    return any(one in (ANY, name) or ("*" in one and fnmatchcase(name, one)) for one in fitting)
