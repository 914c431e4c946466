"""Local training and evaluation at a site."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from client.head_training import Descent, Layer, centred, descend, scores
from client.held import OfArrays
from common.config import TrainSettings
from common.metrics import EvaluationStatistics, from_logits
from common.models import Head, Network
from common.schedule import learning_rate
from common.state import State

# (model, inputs, labels int64[n]) -> scalar loss, a mean over the batch.
Objective = Callable[[nn.Module, Tensor, Tensor], Tensor]

Inputs = NDArray[np.uint8] | NDArray[np.float32]

# Fetches the inputs and labels of a batch, on the device.
Batch = Callable[[], tuple[Tensor, Tensor]]

# Testing keeps no activations for a backward pass, so it takes larger steps than training.
TEST_BATCH = 128

_TORCH_MOMENTUM = 0.1

# Of a site's embeddings: as they pass a head's centre, which is the same in every round that has the same sites; and
# the centre that is their own.
_centred: OfArrays[NDArray[np.float32]] = OfArrays()
_own_centre: OfArrays[NDArray[np.float64]] = OfArrays()


class TrainingDiverged(RuntimeError):
    """The loss or the scores stopped being finite numbers."""


@dataclass(frozen=True)
class TrainingResult:
    """What a training leaves behind besides the model.

    Attributes
    ----------
    samples : int
        Training samples of the site.
    loss : float
        Mean of the objective per sample over the last epoch.
    steps : int
        Steps of SGD over all epochs.
    """

    samples: int
    loss: float
    steps: int


@cache
def default_device() -> torch.device:
    """Return the GPU if there is one, else the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def plain(model: nn.Module, inputs: Tensor, labels: Tensor) -> Tensor:
    """Return the mean cross-entropy of a batch: what FedAvg minimises."""
    return functional.cross_entropy(model(inputs), labels)


def train(
    model: nn.Module,
    inputs: NDArray[np.uint8] | NDArray[np.float32],
    labels: NDArray[np.int64],
    settings: TrainSettings,
    *,
    round_number: int,
    rounds: int,
    seed: int,
    device: torch.device,
    objective: Objective = plain,
    correct: Callable[[], None] | None = None,
    frozen: Collection[str] = (),
    most_steps: int | None = None,
) -> TrainingResult:
    """Train the model in place with SGD on images uint8[n, h, w, c] or rows float32[n, m], and labels int64[n].

    `seed` belongs to this site and round alone; it fixes the order of the samples, and what a network drops at random.
    A loss that is not finite ends the training after its epoch with `TrainingDiverged`. `correct` is called when the
    gradients of a batch are there, and may change them before the step is taken. Parameters in `frozen`, by name, stay
    as they are. After `most_steps` steps training ends, in the middle of an epoch if it must.
    """
    rate = learning_rate(settings, round_number, rounds)
    if isinstance(model, Head) and objective is plain and correct is None and not frozen and most_steps is None:
        return _train_head(model, inputs, labels, settings, rate, round_number, seed)
    prepare(model, settings, device)
    trained = [parameter for name, parameter in model.named_parameters() if name not in frozen]
    optimizer = torch.optim.SGD(
        trained, lr=rate, momentum=settings.momentum, weight_decay=settings.weight_decay, foreach=True
    )
    steps, mean = 0, math.nan
    # Our own networks draw nothing from torch; one of the user's may.
    with seeded(seed, device):
        for epoch, dealt in enumerate(deal(inputs, labels, settings, seed=seed, device=device)):
            # Summed on the device: asking for each loss would make a GPU wait at every step.
            loss_sum = torch.zeros((), dtype=torch.float64, device=device)
            seen = 0
            for batch in dealt[: None if most_steps is None else most_steps - steps]:
                values, targets = batch()
                optimizer.zero_grad(set_to_none=True)
                loss = objective(model, values, targets)
                loss.backward()  # type: ignore[no-untyped-call]
                if correct is not None:
                    correct()
                optimizer.step()
                loss_sum += loss.detach() * len(targets)
                seen += len(targets)
                steps += 1
            mean = loss_sum.item() / seen
            _check_loss(mean, epoch, round_number, rate)
            if steps == most_steps:
                break
    return TrainingResult(len(labels), mean, steps)


def prepare(model: nn.Module, settings: TrainSettings, device: torch.device) -> None:
    """Bring a model to the device, ready to be trained."""
    _to_device(model, device)
    model.train()
    _prepare_batch_norm(model, settings.batch_norm)


def deal(
    inputs: NDArray[np.uint8] | NDArray[np.float32],
    labels: NDArray[np.int64],
    settings: TrainSettings,
    *,
    seed: int,
    device: torch.device,
) -> Iterator[list[Batch]]:
    """Deal samples, as `train` takes them, into the batches of one epoch after the other."""
    if len(labels) == 0 or len(inputs) != len(labels):
        raise ValueError(f"{len(inputs)} inputs and {len(labels)} labels cannot be trained on")
    # As uint8 a site's images fit the device where floats would not, and a batch is converted in next to no time.
    values, targets = tensor(inputs).to(device), tensor(labels).to(device)

    def fetch(batch: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        chosen = torch.from_numpy(batch).to(device)
        return normalise(values[chosen]), targets[chosen]

    for epoch in range(settings.epochs):
        order = np.random.default_rng((seed, epoch))
        yield [partial(fetch, batch) for batch in batches(len(labels), settings.batch_size, order)]


def _train_head(
    model: Head,
    embeddings: NDArray[Any],
    labels: NDArray[np.int64],
    settings: TrainSettings,
    rate: float,
    round_number: int,
    seed: int,
) -> TrainingResult:
    layers, rows, prior = in_numpy(model, embeddings)
    descent = Descent(rate, settings.momentum, settings.weight_decay)
    velocity: list[NDArray[np.float32]] = []
    steps, mean = 0, math.nan
    for epoch in range(settings.epochs):
        dealt = batches(len(labels), settings.batch_size, np.random.default_rng((seed, epoch)))
        # Not finite is told by the loss of the epoch.
        with np.errstate(over="ignore", invalid="ignore"):
            total = descend(layers, rows, labels, prior, descent, dealt, velocity)
        mean = total / sum(len(batch) for batch in dealt)
        _check_loss(mean, epoch, round_number, rate)
        steps += len(dealt)
    return TrainingResult(len(labels), mean, steps)


def in_numpy(model: Head, embeddings: NDArray[Any]) -> tuple[list[Layer], NDArray[Any], NDArray[Any] | None]:
    """The head's layers, which share its memory, its inputs as they pass its centre, and the log of the shares."""
    if model.head.weight.device.type != "cpu":
        model.cpu()
    layers = [Layer(layer.weight.detach().numpy(), layer.bias.detach().numpy()) for layer in model.layers]
    first = model.centred
    centre = first.running_mean.numpy()
    key = first.length, centre.tobytes()
    rows = _centred.get(embeddings, key, lambda: centred(embeddings, centre, first.length))
    return layers, rows, None if model.log_prior is None else model.log_prior.numpy()


def measure(model: nn.Module, inputs: NDArray[np.uint8] | NDArray[np.float32]) -> None:
    """Let a network that centres what it reads take the centre of these inputs; others have nothing to measure."""
    if isinstance(model, Head):
        centre = _own_centre.get(inputs, None, lambda: inputs.mean(axis=0, dtype=np.float64))
        model.centred.running_mean.copy_(torch.from_numpy(centre))


@dataclass(frozen=True)
class Training:
    """How a network learns from a site's samples, `train`, and what it measures of them, `measure`.

    A site with a privacy budget has others in their place, which take the same.
    """

    train: Callable[..., TrainingResult] = train
    measure: Callable[[nn.Module, Inputs], None] = measure


def _check_loss(mean: float, epoch: int, round_number: int, rate: float) -> None:
    if not math.isfinite(mean):
        raise TrainingDiverged(
            f"the loss became {mean} in local epoch {epoch + 1} of round {round_number} "
            f"at learning rate {rate:g}: a lower train.lr may help"
        )


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Let torch's generators give what the seed says, and leave them as they were."""
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.default_generator.manual_seed(seed)
        if devices:
            torch.cuda.manual_seed(seed)
        yield


def evaluate(
    model: nn.Module,
    inputs: NDArray[np.uint8] | NDArray[np.float32],
    labels: NDArray[np.int64],
    *,
    classes: int,
    batch_size: int,
    device: torch.device,
    forgiving: bool = False,
) -> EvaluationStatistics:
    """Return the statistics of the model on images or rows, as `train` takes them, and labels int64[n]; n may be 0.

    `forgiving` is as `log_probabilities` has it.
    """
    scores = log_probabilities(
        model, inputs, classes=classes, batch_size=batch_size, device=device, forgiving=forgiving
    ).numpy()
    return from_logits(scores, labels, -scores[np.arange(len(labels)), labels])


def log_probabilities(
    model: nn.Module,
    inputs: NDArray[np.uint8] | NDArray[np.float32],
    *,
    classes: int,
    batch_size: int,
    device: torch.device,
    forgiving: bool = False,
) -> Tensor:
    """Return the model's scores of images or rows as float64[n, classes] on the CPU; n may be 0.

    Scores that are not finite raise `TrainingDiverged`; `forgiving`: they count as 0.
    """
    if isinstance(model, Head):
        layers, rows, prior = in_numpy(model, inputs)
        found = scores(layers, rows)
        return _log_softmax(torch.from_numpy(found if prior is None else found + prior).double(), forgiving)
    logits = torch.empty((len(inputs), classes), dtype=torch.float64)
    _to_device(model, device)
    model.eval()
    values = tensor(inputs)
    # Entered only now: parameters moved to a device in inference mode could not be trained any more.
    with torch.inference_mode():
        for start in range(0, len(inputs), batch_size):
            part = slice(start, start + batch_size)
            logits[part] = model(normalise(values[part].to(device)))
    return _log_softmax(logits, forgiving)


def _log_softmax(logits: Tensor, forgiving: bool) -> Tensor:
    if forgiving:
        logits = logits.nan_to_num(0.0, 0.0, 0.0)
    if not logits.isfinite().all():
        raise TrainingDiverged("the model's scores on the test split are not finite: a lower train.lr may help")
    # Softmax in float64: in float32 confident scores would round to 1 and lose their ranks.
    return functional.log_softmax(logits, dim=1)


def features(
    model: nn.Module, inputs: NDArray[np.uint8] | NDArray[np.float32], *, device: torch.device
) -> NDArray[np.float32]:
    """Return what the body makes of images or rows, as `train` takes them: float32[n, d]; batch norm as in testing."""
    assert isinstance(model, Network)
    _to_device(model, device)
    model.eval()
    values = tensor(inputs)
    # No inference mode: what it gives could not be trained on.
    with torch.no_grad():
        parts = [
            model.body(normalise(values[start : start + TEST_BATCH].to(device))).cpu()
            for start in range(0, len(inputs), TEST_BATCH)
        ]
    found: NDArray[np.float32] = torch.cat(parts).numpy()
    return found


def gradient(
    model: nn.Module,
    inputs: NDArray[np.uint8] | NDArray[np.float32],
    labels: NDArray[np.int64],
    *,
    device: torch.device,
) -> State:
    """Return the gradient of the mean cross-entropy over all samples, by parameter; batch norm is as when testing."""
    _to_device(model, device)
    model.eval()
    named = dict(model.named_parameters())
    parameters = list(named.values())
    total = [torch.zeros_like(parameter) for parameter in parameters]
    values, targets = tensor(inputs), tensor(labels)
    for start in range(0, len(labels), TEST_BATCH):
        part = slice(start, start + TEST_BATCH)
        scores = model(normalise(values[part].to(device)))
        loss = functional.cross_entropy(scores, targets[part].to(device), reduction="sum") / len(labels)
        torch._foreach_add_(total, gradients(loss, parameters))
    return {name: tensor.cpu().numpy() for name, tensor in zip(named, total, strict=True)}


def gradients(loss: Tensor, parameters: Sequence[Tensor]) -> list[Tensor]:
    """Return the gradient for each parameter; zeros for one that takes no part, as a network of others may have."""
    found = iter(torch.autograd.grad(loss, [one for one in parameters if one.requires_grad], materialize_grads=True))
    return [next(found) if one.requires_grad else torch.zeros_like(one) for one in parameters]


def _prepare_batch_norm(model: nn.Module, statistics: str) -> None:
    """Choose how batch norm keeps the statistics it is tested with.

    A site takes a handful of steps a round, after which torch's moving average still stands nine tenths on the weights
    of rounds ago, and the averaged model is tested with statistics that are not its own. The plain mean over this
    round's batches costs nothing more and belongs to the weights that are sent.
    """
    for module in model.modules():
        # One that is frozen stays out of training mode, and keeps the statistics it came with.
        if isinstance(module, nn.BatchNorm2d) and module.training:
            if statistics == "round":
                module.reset_running_stats()
                module.momentum = None
            else:
                module.momentum = _TORCH_MOMENTUM


def normalise(inputs: Tensor) -> Tensor:
    """Turn uint8[n, h, w, c] into float32[n, c, h, w] between -1 and 1, in channels-last memory.

    Rows of a table, float32[n, m], are scaled by their schema already and stay as they are.
    """
    if inputs.dtype != torch.uint8:
        return inputs
    # A permuted view of n, h, w, c is what torch calls channels-last: the conversion needs no transposition.
    return inputs.permute(0, 3, 1, 2).float().div_(127.5).sub_(1)


def batches(count: int, batch_size: int, rng: np.random.Generator) -> list[NDArray[np.int64]]:
    """Deal 0..count-1 in random order into batches of at least two: batch norm cannot train on one sample.

    A single one left over joins the batch before it; a site's only sample is taken twice.
    """
    order = rng.permutation(count)
    if count == 1:
        return [np.repeat(order, 2)]
    ends = list(range(batch_size, count, batch_size))
    if ends and count - ends[-1] == 1:
        ends.pop()
    return [order[start:end] for start, end in zip([0, *ends], [*ends, count], strict=True)]


def tensor(array: NDArray[np.generic]) -> Tensor:
    """The same numbers for torch."""
    # torch has no read-only tensors and warns about arrays that are, such as memory-mapped files.
    return torch.from_numpy(np.require(array, requirements=["C", "W"]))


def _to_device(model: nn.Module, device: torch.device) -> None:
    model.to(device=device, memory_format=torch.channels_last)  # type: ignore[call-overload]
