"""The smallest site there is: one parameter, F(w) = ½ (w − t)², full batches. For the vectors of methods."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from client.methods import site_method
from client.methods.fedprox import Prox
from client.methods.method import Trained, Visit
from client.training import Objective, TrainingResult, plain
from common.config import parse
from common.models import set_state
from common.state import Extras, State

NAME = "head.weight"


class _Point(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Module()
        self.head.weight = nn.Parameter(torch.zeros(1, dtype=torch.float64))


@dataclass(frozen=True)
class QuadraticVisit(Visit):
    """A visit whose training is `steps` steps of SGD towards `target`."""

    target: float = 0.0
    steps: int = 1
    # Another loss than ½ (w − t)².
    curve: Callable[[Tensor], Tensor] | None = None

    @property
    def samples(self) -> int:
        return 1

    def load(self, state: State) -> nn.Module:
        set_state(self.network, state)
        return self.network

    def fit(  # type: ignore[override]
        self, *, objective: Objective = plain, correct: Callable[[], None] | None = None
    ) -> TrainingResult:
        train = self.settings.train
        parameters = list(self.network.parameters())
        optimizer = torch.optim.SGD(parameters, lr=train.lr, momentum=train.momentum)
        loss = torch.zeros(())
        for _ in range(self.steps):
            optimizer.zero_grad()
            loss = self._loss(objective)
            loss.backward()  # type: ignore[no-untyped-call]
            if correct is not None:
                correct()
            optimizer.step()
        return TrainingResult(1, float(loss.detach()), self.steps)

    @contextmanager
    def epochs(self, purpose: str = "training") -> Iterator[Iterator[list[Callable[[], Tensor]]]]:
        yield iter([[lambda: self._loss(plain)] * self.steps])

    def _loss(self, objective: Objective) -> Tensor:
        (weight,) = self.network.parameters()
        loss: Tensor = self.curve(weight) if self.curve else 0.5 * ((weight - self.target) ** 2)
        return loss.sum() + (objective.pull(self.network) if isinstance(objective, Prox) else 0.0)


def train_site(rule: str, x: float, target: float, **options: Any) -> Trained:
    """One round of a site's half of a method, from x."""
    return site_method(rule).train(visit_of(x, target, **options))


def visit_of(
    x: float,
    target: float = 0.0,
    *,
    steps: int = 1,
    extras: Extras | None = None,
    memory: State | None = None,
    curve: Callable[[Tensor], Tensor] | None = None,
    **settings: Any,
) -> QuadraticVisit:
    """A visit to such a site, which is sent x."""
    values = {key.replace("__", "."): value for key, value in settings.items()}
    return QuadraticVisit(
        network=_Point(),
        received=point(x),
        extras=extras or {},
        memory=memory or {},
        site=None,  # type: ignore[arg-type]
        settings=parse({"train.lr": 0.1, **values}).for_site(),
        round_number=1,
        rounds=10,
        group=0,
        device=torch.device("cpu"),
        target=target,
        steps=steps,
        curve=curve,
    )


def point(value: float) -> State:
    """The state of the one-parameter network."""
    return {NAME: np.array([value])}
