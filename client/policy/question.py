"""What a site is asked, as its policy and its ledger see it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from common.classes import agreed_classes
from common.collaboration import Collaboration
from common.config import SettingsError
from common.fingerprint import KINDS
from common.table import write_table
from common.wire import Task

TRAIN, EVALUATE, METHOD = "train", "evaluate", "query.method"


@dataclass(frozen=True)
class Question:
    """One message: its kind, as Flower calls it (`train`, `query.signature`), the task in it, and Flower's run."""

    kind: str
    task: Task
    run: str

    @property
    def fingerprint(self) -> str:
        """The kind of fingerprint that is asked for; empty: none is."""
        name = self.kind.removeprefix("query.")
        return name if self.kind != name and name in KINDS else ""

    @property
    def beyond(self) -> str:
        """What is asked for beside training and testing: a fingerprint, or a question of a method."""
        if self.kind == f"{EVALUATE}.{Collaboration.kind}":
            return Collaboration.kind
        return self.fingerprint or (f"method: {self.task.question}" if self.kind == METHOD else "")

    @property
    def settings(self) -> str:
        """The digest of the run's settings."""
        return hashlib.sha256(self.task.settings.model_dump_json().encode()).hexdigest()

    @property
    def classes(self) -> tuple[str, ...]:
        """The class list of the run."""
        try:
            return agreed_classes(self.task.settings.data)
        except SettingsError:
            return ()

    @property
    def schema(self) -> str:
        """The table schema of the run, as JSON; empty: it reads no table."""
        return write_table(self.task.settings.data.table)
