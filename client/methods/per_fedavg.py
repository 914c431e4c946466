"""Per-FedAvg at a site: train the start from which one step leads to a model of the site's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from client.methods.method import SiteMethod, Trained, Visit
from client.training import TrainingDiverged, TrainingResult, gradients
from common.methods.per_fedavg import Settings
from common.state import State
from common.tensor_names import is_parameter

Loss = Callable[[], Tensor]


class PerFedAvg(SiteMethod):
    """w̃ = w − α ∇f(w; D); w ← w − β g, with g = ∇f(w̃; D′) (FO), or corrected by the Hessian (HF) (algorithm 1).

    Of each epoch's batches consecutive pairs (FO) or triples (HF) are taken, and what is left over is not used; a site
    with fewer takes them from the start again. There is no momentum and no weight decay: the discarded inner gradient
    must not leak into the outer step. Only the pass over D′ moves batch norm's statistics.
    """

    def served(self, visit: Visit) -> State:
        """The common model after one step on a batch of the site's own training samples."""
        network = visit.load(visit.received)
        with visit.epochs("adaptation") as epochs:
            batch = next(epochs)[0]
            with _still_buffers(network):
                _step(network, _gradient(network, batch), visit.settings.of(Settings).alpha)
        adapted = visit.state()
        # Training prepares batch norm's statistics anew; what is tested has those that came.
        return {name: adapted[name] if is_parameter(name) else array for name, array in visit.received.items()}

    def common(self, visit: Visit) -> State:
        """The start itself."""
        return visit.received

    def train(self, visit: Visit) -> Trained:
        """Train the start."""
        network, settings = visit.load(visit.received), visit.settings.of(Settings)
        beta = settings.beta * visit.rate / visit.settings.train.lr
        needed = 2 if settings.gradient == "fo" else 3
        steps, mean = 0, float("nan")
        with visit.epochs() as epochs:
            for losses in epochs:
                parts = [losses[place : place + needed] for place in range(0, len(losses) - needed + 1, needed)]
                parts = parts or [[losses[place % len(losses)] for place in range(needed)]]
                mean = sum(meta_step(network, part, settings, beta) for part in parts) / len(parts)
                steps += len(parts)
                if not torch.isfinite(torch.tensor(mean)):
                    raise TrainingDiverged(
                        f"the loss became {mean}: a lower per_fedavg.beta or per_fedavg.alpha may help"
                    )
        return self.trained(visit, TrainingResult(visit.samples, mean, steps))


def meta_step(network: nn.Module, losses: Sequence[Loss], settings: Settings, beta: float) -> float:
    """One step of w on the batches D, D′ and, for HF, D″; return the loss of w̃ on D′."""
    start = [parameter.detach().clone() for parameter in network.parameters()]
    with _still_buffers(network):
        _step(network, _gradient(network, losses[0]), settings.alpha)
    loss = losses[1]()
    direction = gradients(loss, list(network.parameters()))
    if settings.gradient == "hf":
        with _still_buffers(network):
            ahead, behind = (
                _gradient_at(network, start, direction, sign * settings.delta, losses[2]) for sign in (1, -1)
            )
        bend = torch._foreach_div(torch._foreach_sub(ahead, behind), 2 * settings.delta)
        direction = list(torch._foreach_sub(direction, bend, alpha=settings.alpha))
    _put(network, start)
    _step(network, direction, beta)
    return float(loss.detach())


def _gradient(network: nn.Module, loss: Loss) -> list[Tensor]:
    return gradients(loss(), list(network.parameters()))


def _gradient_at(
    network: nn.Module, start: Sequence[Tensor], direction: Sequence[Tensor], distance: float, loss: Loss
) -> list[Tensor]:
    _put(network, start)
    _step(network, direction, -distance)
    return _gradient(network, loss)


def _step(network: nn.Module, direction: Sequence[Tensor], rate: float) -> None:
    with torch.no_grad():
        torch._foreach_sub_(list(network.parameters()), list(direction), alpha=rate)


def _put(network: nn.Module, parameters: Sequence[Tensor]) -> None:
    with torch.no_grad():
        torch._foreach_copy_(list(network.parameters()), list(parameters))


@contextmanager
def _still_buffers(network: nn.Module) -> Iterator[None]:
    """Batch norm's statistics are, in the end, what they were."""
    # Not those outside of the state: the weights of a frozen backbone, which nobody changes.
    parameters = {name for name, _ in network.named_parameters(remove_duplicate=False)}
    buffers = [tensor for name, tensor in network.state_dict().items() if name not in parameters]
    kept = [buffer.clone() for buffer in buffers]
    yield
    with torch.no_grad():
        for buffer, value in zip(buffers, kept, strict=True):
            buffer.copy_(value)


SITE = PerFedAvg
