"""What a site is asked, as its policy and its ledger see it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from common.classes import agreed_classes
from common.collaboration import Collaboration
from common.config import SettingsError
from common.encoders import HEADS
from common.fingerprint import KINDS
from common.methods import Agreement, agreement_on
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
    def agreement(self) -> Agreement:
        """What both sides know of the rule that is asked by."""
        return agreement_on(self.task.rule)

    @property
    def embeds(self) -> bool:
        """Whether the answer is made from what the run's encoder makes of the site's samples."""
        settings = self.task.settings
        # Who watches itself compares embeddings when it trains, and notes them with its fingerprint.
        watches = self.kind == TRAIN and self.task.described is not None
        reads = settings.train.model in HEADS or settings.data.input == "embedding"
        return bool(self.fingerprint) or reads or watches or (self.kind == METHOD and self.agreement.embeds)

    @property
    def rounds_before(self) -> int | None:
        """If it is one of a rule's rounds before training: how many of them the run has; None: it is not."""
        rounds = self.agreement.rounds_before
        return rounds(self.task.settings) if rounds is not None and self.kind == METHOD else None

    @property
    def noted(self) -> str:
        """Its kind as the ledger has it: rounds before training are told from a method's other questions."""
        return self.kind if self.rounds_before is None else f"{self.kind} {self.task.rule}"

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
    def watched(self) -> bool:
        """Whether the run takes it that the site's data may change."""
        return self.task.settings.data.watch

    @property
    def schema(self) -> str:
        """The table schema of the run, as JSON; empty: it reads no table."""
        return write_table(self.task.settings.data.table)
