"""The methods, one file each: a file that has `METHODS` is found by itself."""

from __future__ import annotations

import difflib
import importlib
import pkgutil
from collections.abc import Iterator, Mapping
from typing import get_args

from common.config import Config, SettingsError, with_values
from common.encoders import COLUMNS, HEADS
from common.methods import agreement_on
from common.signature import Signature
from common.tensor_names import is_head, is_parameter
from server.methods.method import PLAIN, Family, Grouping, Method
from server.methods.partition import Alone, OneGroup
from server.methods.training import Placement, TrainingRule

_FAMILIES = get_args(Family)


def _found() -> Iterator[Method]:
    for module in pkgutil.iter_modules(__path__):
        yield from getattr(importlib.import_module(f"{__name__}.{module.name}"), "METHODS", ())


# By family, and in a family by name.
METHODS: dict[str, Method] = {
    method.name: method for method in sorted(_found(), key=lambda method: (_FAMILIES.index(method.family), method.name))
}


# Those that only say how sites train: they go into the groups of any method that only says how sites are grouped.
RULES: dict[str, Method] = {
    name: method
    for name, method in METHODS.items()
    if method.family in ("one model for all", "personal") and isinstance(method.partition, OneGroup)
}


def settle(config: Config) -> Config:
    """Return the configuration with the values that its method fixes, or say why the two do not go together."""
    method = recipe(config)
    config = with_values(config, method.settings)
    if method.needs_k and not config.cluster.k:
        raise SettingsError(f"method = {method.name!r} needs cluster.k, the number of groups")
    if config.cluster.choice == "rehearsal":
        _check_rehearsal(config, method)
    rule = migration_rule(config)
    columns = config.encoder.name == COLUMNS
    if columns and config.data.table is None:
        raise SettingsError("encoder.name = 'columns' reads a table: set data.source = 'table' and data.table")
    if config.data.table is not None and config.train.model not in (("mlp", *HEADS) if columns else ("mlp",)):
        raise SettingsError(
            f"train.model = {config.train.model!r} reads images: a table needs 'mlp', or a head with "
            "encoder.name = 'columns'"
        )
    _check_parts(config, method)
    method.check(config)
    _check_aggregation(config, method)
    _check_pace(config, method)
    _check_precision(config, method)
    if not method.one_round:
        _check_inputs(config, method)
        return config
    _check_one_round(config, method, rule)
    return config.model_copy(update={"rounds": min(config.rounds, 1)})


def recipe(config: Config) -> Method:
    """The method of a run: how its sites are grouped and, where `train.rule` says so, another way to train there."""
    method = get_method(config.method)
    if not config.train.rule:
        return method
    rule = _known("train.rule", config.train.rule, RULES)
    _check_combination(method, rule, migration_rule(config))
    return method.variant(
        title=f"{method.title} + {rule.title}",
        rule=rule.rule,
        training=rule.training,
        settings={**method.settings, **rule.settings},
        check=rule.check,
    )


def get_method(name: str) -> Method:
    """Look a method up, or tell which ones there are."""
    return _known("method", name, METHODS)


def _known(key: str, name: str, methods: Mapping[str, Method]) -> Method:
    try:
        return methods[name]
    except KeyError:
        near = difflib.get_close_matches(name, methods, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise SettingsError(f"{key} = {name!r} is not known: it takes one of {', '.join(methods)}{hint}") from None


def _check_combination(method: Method, rule: Method, migration: str) -> None:
    """Refuse a way to train that contradicts the way sites are grouped."""
    both, agreement = f"train.rule = {rule.name!r} with method = {method.name!r}", agreement_on(rule.rule)
    if method.name in RULES:
        raise SettingsError(f"{both}: that is how sites train already; write method = {rule.name!r}, and no train.rule")
    if method.one_round:
        raise SettingsError(f"{both}: with a single round sites do not train at all; leave train.rule empty")
    if method.rule != PLAIN:
        raise SettingsError(f"{both}: its sites train in their own way, and cannot have two; leave train.rule empty")
    if isinstance(method.partition, Alone):
        raise SettingsError(f"{both}: every site is alone, and there is nothing to share; leave train.rule empty")
    if agreement.shared is not None and agreement_on(method.name).questions:
        raise SettingsError(
            f"{both}: sites are grouped by what they make of whole models, and {rule.name} sends only a part of them"
        )
    moves = method.grouping is not None or migration != "off"
    if moves and getattr(rule.training, "needs_lasting_groups", False):
        raise SettingsError(
            f"{both}: what the server remembers of a group is a sum over its members, and here sites move between "
            "groups; set migration.rule = 'off', or group sites before training"
        )


def migration_rule(config: Config) -> str:
    """The rule by which sites of a run change groups: "off", "guarded" or "fedcm"."""
    method, rule = get_method(config.method), config.migration.rule
    if rule == "auto":
        return method.migration
    if rule != "off" and not method.clustered:
        raise SettingsError(
            f"migration.rule = {rule!r} does not go with method = {method.name!r}, which has no groups to move "
            "between, or moves sites by a rule of its own: set it to 'off' or 'auto'"
        )
    return rule


def _check_aggregation(config: Config, method: Method) -> None:
    guards = {"aggregate.rule": config.aggregate.rule != "mean", "aggregate.cap": bool(config.aggregate.cap)}
    for key in (key for key, is_set in guards.items() if is_set):
        if method.one_round:
            raise SettingsError(f"{key} does not go with method = {method.name!r}, in which no updates are averaged")
        if method.training.term is not TrainingRule.term:
            raise SettingsError(
                f"{key} does not go with method = {method.name!r}, which makes more of an update than the update: "
                "leave it at its default"
            )
    if config.aggregate.rule == "secure":
        # Imported late: the strategy's rooms know the methods.
        from server.secure.fits import why_not

        if reasons := "; ".join(why_not(config, method, migration_rule(config))):
            raise SettingsError(f"aggregate.rule = 'secure' hides single updates: {reasons}")


def _check_pace(config: Config, method: Method) -> None:
    if method.one_round and (config.round.enough < 1 or config.simulate.clock):
        key = "round.enough" if config.round.enough < 1 else "simulate.clock"
        raise SettingsError(f"{key} does not go with method = {method.name!r}, in which sites do not train in rounds")
    if config.round.late == "drop":
        return
    both, rule = f"round.late = 'next' does not go with method = {method.name!r}", method.training
    if rule.term is not TrainingRule.term or agreement_on(method.rule).up or rule.offers_all:
        raise SettingsError(
            f"{both}: what its sites send beside an update is of the round it was made in; set it to 'drop'"
        )
    if rule.observe is not TrainingRule.observe or method.grouping is not None:
        raise SettingsError(f"{both}, which compares updates of one round with each other; set it to 'drop'")
    if config.aggregate.rule in ("trimmed", "median", "secure"):
        raise SettingsError(
            f"round.late = 'next' does not go with aggregate.rule = {config.aggregate.rule!r}: a late update counts "
            "less, and there all count alike or are hidden; set it to 'drop'"
        )


def _check_precision(config: Config, method: Method) -> None:
    precision = config.wire.precision
    if precision == "float32":
        return
    if method.one_round:
        raise SettingsError(
            f"wire.precision does not go with method = {method.name!r}, whose sites send rows and no updates: leave it "
            "at its default"
        )
    if config.round.late == "next":
        raise SettingsError(
            f"wire.precision = {precision!r} does not go with round.late = 'next': an update is then the difference to "
            "a model that the server no longer has; set it to 'float32', or round.late = 'drop'"
        )


def _check_parts(config: Config, method: Method) -> None:
    """Refuse a network of which a method with personal layers would send nothing, or all."""
    agreement = agreement_on(method.rule)
    if agreement.shared is None:
        return
    # Imported late: torch takes seconds, and only these methods must know the network's tensors.
    from common.models import get_state
    from common.networks import build_for

    state = get_state(build_for(config, seed=None))
    # What is measured and not learnt may travel all the same.
    learnt = [name for name in state if is_parameter(name)]
    travelling = [name for name in agreement.travelling(state, config) if is_parameter(name)]
    if not travelling:
        raise SettingsError(
            f"train.model = {config.train.model!r} has nothing that {method.rule} would send: take another network, or "
            "method = 'local'"
        )
    if migration_rule(config) != "off" and not any(is_head(name) for name in travelling):
        raise SettingsError(
            f"migration.rule = {migration_rule(config)!r} looks at how heads move, and {method.rule} never sends them: "
            "set migration.rule = 'off'"
        )
    if len(travelling) == len(learnt):
        raise SettingsError(
            f"train.model = {config.train.model!r} has nothing that would stay at a site under {method.rule}: take "
            "another network, or method = 'fedavg'"
        )


def _check_inputs(config: Config, method: Method) -> None:
    if config.data.input == "embedding":
        raise SettingsError(f"data.input = 'embedding' goes with the methods dc-cfl and dc, not with {method.name!r}")
    if config.data.table is not None and method.reads_images and config.encoder.name != COLUMNS:
        raise SettingsError(
            f"method = {method.name!r} describes sites by an encoder's numbers: on a table set "
            "encoder.name = 'columns', which takes the scaled columns in their place"
        )


def _check_rehearsal(config: Config, method: Method) -> None:
    if method.fingerprint != Signature.kind:
        raise SettingsError(
            f"cluster.choice = 'rehearsal' goes with methods that group by signatures, not with {method.name!r}: "
            "set it to 'silhouette', or method = 'fmcl'"
        )
    if config.cluster.k or config.cluster.threshold:
        raise SettingsError(
            "cluster.choice = 'rehearsal' chooses the number of groups, which cluster.k or cluster.threshold fixes: "
            "set them to 0, or cluster.choice = 'silhouette'"
        )


def _check_one_round(config: Config, method: Method, rule: str) -> None:
    if config.data.table is None and config.data.input != "embedding":
        raise SettingsError(
            f"method = {method.name!r} learns from tables; for images set data.input = 'embedding', which takes the "
            "encoder's numbers in the place of pixels"
        )
    if config.train.model in HEADS:
        raise SettingsError(f"method = {method.name!r} trains an mlp of its own: train.model = 'mlp'")
    if config.cluster.k:
        raise SettingsError(f"cluster.k does not go with method = {method.name!r}: set cluster.threshold, or neither")
    if config.cluster.threshold > 1:
        raise SettingsError(f"cluster.threshold = {config.cluster.threshold:g}: total variation is never above 1")
    if rule != "off" or config.drift or config.personalise != "none":
        raise SettingsError(
            f"method = {method.name!r} has a single round: no drift scenario, no migration rule, no personalise"
        )


__all__ = ["METHODS", "RULES", "Grouping", "Method", "Placement", "get_method", "migration_rule", "recipe", "settle"]
