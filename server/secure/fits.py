"""What does not go together with secure sums, because it looks at single updates."""

from __future__ import annotations

from collections.abc import Iterator

from common import wire
from common.config import Config
from common.methods import agreement_on, rehearsal
from common.secure.terms import FEWEST
from server.methods.method import Method
from server.methods.partition import Alone
from server.methods.training import TrainingRule


def why_not(config: Config, method: Method, migration: str) -> Iterator[str]:
    """Say, each in a sentence, what of a run needs what secure sums hide."""
    agreement, rule = agreement_on(method.rule), method.training
    if config.sites < FEWEST:
        yield f"sites = {config.sites}, and a sum of fewer than {FEWEST} would say too much of each"
    if isinstance(method.partition, Alone):
        yield f"under {method.name!r} every site is alone, and there is nothing to sum"
    if rule.observe is not TrainingRule.observe or method.grouping is not None:
        yield f"{method.name!r} groups sites by what their single updates are like: take one that groups by signatures"
    elif rule.term is not TrainingRule.term or agreement.up or rule.offers_all:
        yield f"sites of {method.name!r} send more than an update, which would be seen: take another rule"
    elif rule.for_site is not TrainingRule.for_site or agreement_on(method.name).questions:
        yield f"{method.name!r} asks and tells single sites what depends on their models: take another method"
    if method.fingerprint_needs_model:
        yield (
            f"sites of {method.name!r} describe themselves by how a layer of theirs moves in training, which is an "
            "update: take a method that groups by signatures, such as 'fmcl'"
        )
    if migration == "fedcm" or (migration == "guarded" and not method.can_confirm):
        yield (
            "here migration judges sites by the direction of single updates: set migration.rule = 'off', or take a "
            "method whose sites can be asked for a fresh signature"
        )
    if config.wire.precision != wire.FULL:
        yield (
            f"with wire.precision = {config.wire.precision!r} each update has steps of its own, and masks hide "
            "numbers of one and the same unit: set it to 'float32'"
        )
    if config.cluster.choice == rehearsal.RULE:
        yield "in a rehearsal every site sends heads that it alone has trained: set cluster.choice = 'silhouette'"
