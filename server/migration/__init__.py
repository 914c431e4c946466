"""Who should change groups, judged by the direction of the updates (FedCM) and, where there are any, by signatures.

Pure rules: head updates and memberships in, suspects and verdicts with their evidence out. Two rules:

* `PublishedRule`: FedCM's equations 6 to 9 as printed, for reproduction. A drifted site's update dwarfs those of its
  converged peers, so in the magnitude-weighted mean it *is* the group's direction, and the innocent ones are moved.
* `GuardedRule`: the direction of a site's group is made of the other members' unit vectors, an outlier must also show
  an unusual norm, and it must do so for some rounds in a row; or the site itself says that its data have changed. Who
  is under suspicion does not testify about others. Rests grow, and a move that no signature speaks for is on trial.
"""

from __future__ import annotations

from server.migration.guarded import GuardedRule
from server.migration.published import PublishedRule
from server.migration.signature import by_signature
from server.migration.verdict import Evidence, Suspect, Verdict

__all__ = ["Evidence", "GuardedRule", "PublishedRule", "Suspect", "Verdict", "by_signature"]
