"""A network of the user's own: a factory in an installed package, `python:package.module:factory`.

The factory is called with (channels, image_size, classes) and returns a module that maps images float32[n, channels,
size, size], with values between -1 and 1, to logits [n, classes]; its last layer is its attribute `head`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Collection, Mapping

import numpy as np
import torch
from torch import Tensor, nn

from common.config import SettingsError
from common.randomness import derive_seed
from common.tensor_names import is_head, is_parameter

_TYPES = (torch.float32, torch.int64)


class NetworkError(SettingsError):
    """A network that cannot be had or used here; the message says what to change, and nothing of a site's data."""


def build_own(reference: str, *, channels: int, image_size: int, classes: int, seed: int | None) -> nn.Module:
    """Call the factory `package.module:factory`, with torch's generator seeded, and check what it returns."""
    factory = _factory(reference)
    # Initial weights come from the server, so it matters little that torch draws other bits on other processors.
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(derive_seed(seed or 0, "initial weights"))
        try:
            network = factory(channels, image_size, classes)
        except Exception as error:  # of somebody else's code: any kind
            raise NetworkError(
                f"the factory {reference} failed with {type(error).__name__}: it is called as "
                f"factory({channels}, {image_size}, {classes}), channels, image size and classes"
            ) from error
    _check(reference, network, (2, channels, image_size, image_size), classes)
    assert isinstance(network, nn.Module)
    # As in our own networks: each site's own, and no part of the state.
    network.register_buffer("log_prior", None, persistent=False)
    network.register_forward_hook(_add_prior)
    return network


def _add_prior(network: nn.Module, inputs: object, logits: Tensor) -> Tensor:
    prior = network.log_prior
    return logits + prior if isinstance(prior, Tensor) else logits


def _factory(reference: str) -> Callable[[int, int, int], object]:
    module, _, name = reference.partition(":")
    try:
        found = getattr(importlib.import_module(module), name, None)
    except ModuleNotFoundError as error:
        raise NetworkError(
            f"train.model = 'python:{reference}': there is no module {error.name} here; install the package that has "
            "it, at the server and at every site"
        ) from None
    except Exception as error:  # of somebody else's code: any kind
        raise NetworkError(f"importing {module} (train.model) failed with {type(error).__name__}") from error
    if not callable(found):
        raise NetworkError(f"train.model = 'python:{reference}': {module} has no function {name}")
    factory: Callable[[int, int, int], object] = found
    return factory


def _check(reference: str, network: object, shape: tuple[int, ...], classes: int) -> None:
    """Raise unless methods can do with the network what they do with ours."""
    if not isinstance(network, nn.Module):
        raise NetworkError(f"{reference} must return a torch.nn.Module, not a {type(network).__name__}")
    state = network.state_dict()
    head = getattr(network, "head", None)
    if not isinstance(head, nn.Module) or not any(is_head(name) for name in state):
        raise NetworkError(
            f"the network of {reference} has no layer `head`: call its last layer so, which methods such as fedper and "
            "fedcm must know"
        )
    if hasattr(network, "log_prior"):
        raise NetworkError(f"the network of {reference} has an attribute `log_prior`, a name that is taken: rename it")
    _check_state(reference, state, {name for name, _ in network.named_parameters(remove_duplicate=False)})
    last: list[object] = []
    hook = head.register_forward_hook(lambda module, inputs, output: last.append(output))
    try:
        with torch.no_grad():
            logits = network.eval()(torch.zeros(shape))
    except Exception as error:  # of somebody else's code: any kind
        raise NetworkError(
            f"the network of {reference} failed with {type(error).__name__} on images of shape {list(shape)}"
        ) from error
    finally:
        hook.remove()
    if not isinstance(logits, Tensor) or logits.shape != (shape[0], classes):
        found = list(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise NetworkError(f"the network of {reference} gives {found} for {shape[0]} images, not {[shape[0], classes]}")
    if not np.isfinite(logits.numpy()).all():
        raise NetworkError(f"the network of {reference} gives scores that are not finite")
    if len(last) != 1 or not isinstance(last[0], Tensor) or not torch.equal(last[0], logits):
        raise NetworkError(f"`head` of {reference} is not its last layer: what it gives is not what the network gives")


def _check_state(reference: str, state: Mapping[str, Tensor], parameters: Collection[str]) -> None:
    """Raise unless the names of tensors say what they are, and each has its own memory."""
    places: dict[int, str] = {}
    for name, tensor in state.items():
        if tensor.dtype not in _TYPES or (name in parameters and tensor.dtype != torch.float32):
            raise NetworkError(f"{name} of {reference} is {tensor.dtype}: parameters must be float32, counters int64")
        if name in parameters and not is_parameter(name):
            raise NetworkError(
                f"the parameter {name} of {reference} has the name of a statistic of batch norm: rename it"
            )
        if name not in parameters and is_parameter(name):
            raise NetworkError(
                f"{name} of {reference} is a buffer that is no statistic of batch norm, and methods would take it for "
                "a parameter: register it with persistent=False if it is a constant, or make it a parameter"
            )
        # Empty tensors have no memory.
        place = tensor.untyped_storage().data_ptr()
        if place and (other := places.setdefault(place, name)) != name:
            raise NetworkError(
                f"{other} and {name} of {reference} share their memory, and methods would step or average it twice: "
                "give each its own"
            )
