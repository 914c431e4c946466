"""Ditto: FedAvg, and beside it a model of each site's own."""

from __future__ import annotations

from server.methods.method import Method
from server.methods.partition import OneGroup
from server.methods.training import TrainingRule


class TwoModels(TrainingRule):
    """FedAvg: what else is trained stays at the site."""

    def passes(self) -> float:
        """One for each of the two models."""
        return 2.0


METHOD = Method(
    name="ditto",
    title="Ditto",
    about=(
        "When sites need models of their own and the common one shall stay as it is: that is FedAvg's, bit for "
        "bit. Trains twice, and nothing more travels; each site remembers a model. The anchor is the model as "
        "received: with the trained one, as after a swap of two lines in a public version, the site's model is "
        "another. Another one puts figures of both models into one list and reports the best."
    ),
    paper="Li et al., Ditto: Fair and Robust Federated Learning Through Personalization, ICML 2021",
    summary="FedAvg, and at each site a model of its own that is held near it; trains twice",
    family="personal",
    partition=OneGroup(),
    clustered=False,
    rule="ditto",
    training=TwoModels,
    settings_used=("ditto.pull",),
)

METHODS = (METHOD,)
