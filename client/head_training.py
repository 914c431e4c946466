"""SGD on a head: linear layers with ReLU between them, on embeddings that stay as they are.

In NumPy, because a head is so small that a step of torch is nine tenths bookkeeping. A head has few rows and columns
beside the length of an embedding, for which NumPy's products are the quicker ones, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
_SHORTEST = np.float32(1e-12)
# How much longer than the bound a gradient may be by rounding; whoever sets the bound has a greater margin.
_ROUNDED = 1 + 5e-4


@dataclass
class Layer:
    """Weights float32[outputs, inputs] and biases float32[outputs]; they are changed in place."""

    weight: Floats
    bias: Floats


@dataclass(frozen=True)
class Descent:
    """How steps are taken, as torch's SGD takes them: v ← m v + g + λ w, w ← w − η v."""

    rate: float
    momentum: float = 0.0
    weight_decay: float = 0.0


def centred(embeddings: Floats, centre: Floats, length: float) -> Floats:
    """Return L (x - c) / |x - c| for each row; what lies in the centre becomes 0."""
    rows = embeddings - centre
    norms = np.sqrt(np.einsum("ij,ij->i", rows, rows))
    rows *= (np.float32(length) / np.maximum(norms, _SHORTEST))[:, None]
    return rows


def scores(layers: Sequence[Layer], inputs: Floats) -> Floats:
    """Return the logits, float32[n, C]."""
    return _forward(layers, inputs)[-1]


def descend(
    layers: Sequence[Layer],
    inputs: Floats,
    labels: NDArray[np.int64],
    log_prior: Floats | None,
    descent: Descent,
    epoch: Sequence[NDArray[np.int64]],
    velocity: list[Floats],
) -> float:
    """Take one step for each batch of positions, and return the sum of the losses.

    `velocity` belongs to the training and is carried from epoch to epoch; it is empty before the first step.
    """
    total, parameters = 0.0, parameters_of(layers)
    for batch in epoch:
        rows = np.arange(len(batch))
        targets = labels[batch]
        activations = _forward(layers, inputs[batch])
        logits = activations[-1] if log_prior is None else activations[-1] + log_prior
        logits = logits - logits.max(axis=1, keepdims=True)
        exponentials = np.exp(logits)
        sums = exponentials.sum(axis=1, keepdims=True)
        total += float((np.log(sums[:, 0]) - logits[rows, targets]).sum(dtype=np.float64))
        # The gradient of the mean cross-entropy by the logits: softmax minus truth.
        error = exponentials
        error /= sums
        error[rows, targets] -= 1
        error /= np.float32(len(batch))
        take_step(parameters, _gradients(layers, activations, error), descent, velocity)
    return total


def clipped_gradients(
    layers: Sequence[Layer], inputs: Floats, labels: NDArray[np.int64], log_prior: Floats | None, clip: float
) -> list[Floats]:
    """The sum over the samples of min(1, clip / |g|) g, g being a sample's own gradient by all weights and biases.

    Nobody's gradient is ever formed: that of a layer is the outer product of the error behind it and what it reads, so
    that its length is the product of their lengths (Goodfellow 2015), and a sample whose error is scaled is scaled.
    """
    rows = np.arange(len(inputs))
    # What overflows is left out below.
    with np.errstate(over="ignore", invalid="ignore"):
        activations = _forward(layers, inputs)
        logits = activations[-1] if log_prior is None else activations[-1] + log_prior
        error = np.exp(logits - logits.max(axis=1, keepdims=True))
        error /= error.sum(axis=1, keepdims=True)
        error[rows, labels] -= 1
        lengths = _lengths(activations, _errors(layers, activations, error))
        factor = np.minimum(1.0, clip / np.maximum(lengths, 1e-300))
        errors = _errors(layers, activations, error * factor[:, None].astype(np.float32))
        # Weights of a hostile server's may overflow for some samples alone, or turn rounding into more than the bound:
        # such a sample takes no part, or it would be seen however loud the noise.
        out = ~(_lengths(activations, errors) <= clip * _ROUNDED)
    for array in (*errors, *activations[1:]):
        array[out] = 0
    return _products(errors, activations)


def _lengths(activations: Sequence[Floats], errors: Sequence[Floats]) -> NDArray[np.float64]:
    """Length of each sample's own gradient."""
    squares = np.zeros(len(errors[0]))
    for read, behind in zip(activations, errors, strict=False):
        inputs = np.einsum("ni,ni->n", read, read, dtype=np.float64) + 1
        squares += np.einsum("no,no->n", behind, behind, dtype=np.float64) * inputs
    return np.sqrt(squares)


def _forward(layers: Sequence[Layer], inputs: Floats) -> list[Floats]:
    """Return the inputs, what each hidden layer makes of them, and the logits."""
    values = [inputs]
    for layer in layers[:-1]:
        values.append(np.maximum(values[-1] @ layer.weight.T + layer.bias, np.float32(0)))
    values.append(values[-1] @ layers[-1].weight.T + layers[-1].bias)
    return values


def _gradients(layers: Sequence[Layer], activations: Sequence[Floats], error: Floats) -> list[Floats]:
    """Return the gradients of all layers, weight and bias in turn."""
    return _products(_errors(layers, activations, error), activations)


def _errors(layers: Sequence[Layer], activations: Sequence[Floats], error: Floats) -> list[Floats]:
    """Return the error behind each layer, given that behind the last."""
    errors = [error]
    for place in range(len(layers) - 1, 0, -1):
        errors.insert(0, (errors[0] @ layers[place].weight) * (activations[place] > 0))
    return errors


def _products(errors: Sequence[Floats], activations: Sequence[Floats]) -> list[Floats]:
    """A layer's gradient is the product of the error behind it and what it reads."""
    pairs = zip(errors, activations, strict=False)
    return [array for error, read in pairs for array in (error.T @ read, error.sum(axis=0))]


def parameters_of(layers: Sequence[Layer]) -> list[Floats]:
    """Weight and bias of each layer in turn, as gradients come."""
    return [array for layer in layers for array in (layer.weight, layer.bias)]


def take_step(parameters: Sequence[Floats], gradients: list[Floats], descent: Descent, velocity: list[Floats]) -> None:
    """Change the parameters in place by one step; the gradients are used up."""
    rate, momentum, decay = map(np.float32, (descent.rate, descent.momentum, descent.weight_decay))
    if not velocity and momentum:
        velocity += [np.zeros_like(parameter) for parameter in parameters]
    for place, parameter in enumerate(parameters):
        change = gradients[place]
        if decay:
            np.add(change, decay * parameter, out=change)
        if momentum:
            np.multiply(velocity[place], momentum, out=velocity[place])
            np.add(velocity[place], change, out=velocity[place])
            np.multiply(velocity[place], rate, out=change)
        else:
            np.multiply(change, rate, out=change)
        np.subtract(parameter, change, out=parameter)
