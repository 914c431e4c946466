"""FL+HC at a site: where a short training leads it."""

from __future__ import annotations

from client.methods.method import SiteMethod, Visit
from common.methods.fl_hc import DIRECTION, START, Settings
from common.schedule import learning_rate
from common.state import Extras
from common.tensor_names import is_parameter


class Direction(SiteMethod):
    """Rounds are plain; once it is asked what some epochs change in a model."""

    def answer(self, question: str, visit: Visit) -> Extras:
        """Train the model that came, and tell what that changes in its parameters."""
        start = visit.extras[START]
        visit.load(start)
        settings, train = visit.settings.of(Settings), visit.settings.train
        # Changes are compared by their lengths: who is asked late has the rate of those who were not.
        rate = learning_rate(train, settings.rounds, visit.rounds)
        visit.fit(epochs=settings.epochs, lr=rate, schedule="constant", purpose="direction")
        after = visit.state()
        return {DIRECTION: {name: after[name] - start[name] for name in after if is_parameter(name)}}


SITE = Direction
