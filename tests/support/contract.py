"""Ways to look at Flower's own code, and to say what changed in it and who of ours relies on that."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any


def changed(what: str, ours: str) -> str:
    """The sentence of a contract that is broken: what Flower did until now, and which of our files relies on it."""
    return f"Flower changed: until now {what}. {ours} relies on this: read Flower's code again, then correct both."


def parameters(function: Callable[..., Any]) -> list[str]:
    """Names of a function's parameters, in order."""
    return list(inspect.signature(function).parameters)


def names_used(function: Callable[..., Any]) -> set[str]:
    """Names that a function looks up outside itself, where a replacement would be found."""
    return set(function.__code__.co_names)


def fields(message: Any) -> set[str]:
    """Fields of a protobuf message."""
    return {field.name for field in message.DESCRIPTOR.fields}


def strings(thing: ModuleType | Callable[..., Any]) -> Iterable[str]:
    """All texts in the code of something; a value that is filled in shows as 1."""
    for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(thing)))):
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "1" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value.replace("%s", "1").replace("%d", "1")
