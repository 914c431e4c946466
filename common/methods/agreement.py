"""The form of what the two halves of a method agree on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from common.extras import Rule
from common.section import Section

if TYPE_CHECKING:
    from common.config import SiteSettings
    from common.state import State


@dataclass(frozen=True)
class Question:
    """Something that a method asks sites outside of training: records that go down beside the model, and come up."""

    down: Mapping[str, Rule] = field(default_factory=dict)
    up: Mapping[str, Rule] = field(default_factory=dict)


@dataclass(frozen=True)
class Agreement:
    """What both sides know of a rule by which sites train.

    Attributes
    ----------
    rule
        Its name, which the server tells with every task.
    settings
        The section of its own settings; None: it has none. They are called `<section>.<name>`.
    section
        What that section is called; empty: as the rule.
    down, up
        Records that travel with a model to be trained, and back with what became of it.
    questions
        What else the method may ask a site.
    shared
        Which tensors, of a network in this state under these settings, travel and are averaged; the others stay at the
        site. None: all travel.
    remembers
        Whether a site remembers something from one of its rounds to the next.
    embeds
        Whether sites answer its questions from what the run's encoder makes of their samples.
    rounds_before
        Rounds of its own, before training, under these settings: each is a question, and one more ends them. None: it
        has none.
    tells
        What its sites tell beside their updates, in words for people; empty: nothing of their data.
    private
        Whether sites with a privacy budget can follow it: all that leaves them of their samples goes through plain
        training of the network, which such a site replaces by steps with noise.
    """

    rule: str
    settings: type[Section] | None = None
    section: str = ""
    down: Mapping[str, Rule] = field(default_factory=dict)
    up: Mapping[str, Rule] = field(default_factory=dict)
    questions: Mapping[str, Question] = field(default_factory=dict)
    shared: Callable[[State, SiteSettings], set[str]] | None = None
    remembers: bool = False
    embeds: bool = False
    rounds_before: Callable[[SiteSettings], int] | None = None
    tells: str = ""
    private: bool = False

    def __post_init__(self) -> None:
        if not self.section:
            object.__setattr__(self, "section", self.rule.replace("-", "_"))

    def travelling(self, state: State, settings: SiteSettings) -> State:
        """Return those tensors of a network that travel, in order."""
        if self.shared is None:
            return dict(state)
        shared = self.shared(state, settings)
        return {name: array for name, array in state.items() if name in shared}
