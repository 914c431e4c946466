"""CFL-GP at a site: its gradient at the model it is asked about."""

from __future__ import annotations

from client.methods.ifca import LeastLoss
from client.methods.method import SiteMethod, Visit
from client.training import gradient
from common.methods.cfl_gp import CRITERION, GRADIENT
from common.methods.ifca import LOSSES
from common.state import Extras


class Gradient(SiteMethod):
    """Rounds are plain; while groups form it is asked for gradients, and on arrival for losses."""

    def answer(self, question: str, visit: Visit) -> Extras:
        """Tell the gradient at the model that came, whatever model the site trains itself."""
        if question == LOSSES:
            return LeastLoss(self.agreement).answer(question, visit)
        network = visit.load(visit.extras[CRITERION])
        return {GRADIENT: gradient(network, visit.site.train_inputs(), visit.site.train_labels, device=visit.device)}


SITE = Gradient
