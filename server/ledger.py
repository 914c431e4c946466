"""Who changed groups or was examined for it, as the log tells it: one entry per site."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def rulings(event: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the moves and acquittals in a line of the log, in order; most lines have none.

    Sites that the method's own rule regrouped become one entry each, with the reason as evidence.
    """
    match event.get("event"):
        case "SiteMoved" | "SiteCleared":
            return [dict(event)]
        case "SitesRegrouped":
            rest = {key: value for key, value in event.items() if key not in ("sites", "reason")}
            return [{**rest, "site": site, "evidence": {"reason": event["reason"]}} for site in event["sites"]]
    return []
