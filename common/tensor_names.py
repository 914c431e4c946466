"""What the name of a tensor says of its part in a network."""

from __future__ import annotations

# How the names of buffers end: batch norm's, and the centre of embeddings.
_BUFFERS = (".running_mean", ".running_var", ".num_batches_tracked")
_HEAD = "head."


def is_parameter(name: str) -> bool:
    """Whether a tensor is trained; batch norm's statistics and counters are measured."""
    return not name.endswith(_BUFFERS)


def is_head(name: str) -> bool:
    """Whether a tensor belongs to the classification head."""
    return name.startswith(_HEAD)
