"""The settings of a privacy budget: of a real site in its own policy, of simulated sites in the run's configuration."""

from __future__ import annotations

from pydantic import Field

from common.section import Section


class PrivacySettings(Section):
    """Everything a site tells of its data gets noise, until the budget is used up."""

    epsilon: float = Field(
        0.0, ge=0, le=1000, description="budget for everything that a site ever tells of its data; 0: no such budget"
    )
    delta: float = Field(1e-5, gt=0, le=0.01, description="chance that epsilon does not hold: far below 1 / samples")
    descriptions: int = Field(1, ge=1, description="runs in which the site describes itself, that the budget lasts for")
    steps: int = Field(20, ge=0, description="steps of training that the budget lasts for: an epoch has 1 / rate")
    tests: int = Field(1, ge=0, description="tests of a model that the budget lasts for")
    share: float = Field(0.5, gt=0, lt=1, description="part of the budget for descriptions; training has the rest")
    rate: float = Field(1.0, gt=0, le=1, description="chance of a sample to take part in a step of training")
    clip: float = Field(12.0, gt=0, description="most that one sample counts in a step: the length of its gradient")
    length: float = Field(
        40.0, gt=0, description="most that one sample counts in a description: the length of its embedding"
    )

    @property
    def is_on(self) -> bool:
        """Whether there is a budget."""
        return self.epsilon > 0
