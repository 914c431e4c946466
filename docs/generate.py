"""Writes the parts of the project that follow from the code: `python -m docs.generate` (`make generated`).

These are the tables of methods, encoders and settings, and the settings that Flower's run config declares. A test holds
each against the code.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

from cli.method_page import as_markdown, as_paragraphs
from cli.toml_text import settings_toml
from common.config import Config, allowed, fields, flat_values
from common.presets import IMAGENET_MEAN, IMAGENET_STD, PRESETS, Preset

ROOT = Path(__file__).parents[1]
_TABLE = r"^\| {first} \|.*?\n(?=\n|\Z)"


def settings_table() -> str:
    """Every setting with its default, what it takes and what it means."""
    values = flat_values(Config())
    rows = [
        f"| `{key}` | `{json.dumps(values[key])}` | {allowed(field)} | {field.description} |" for key, field in fields()
    ]
    return "\n".join(["| setting | default | allowed | meaning |", "|---|---|---|---|", *rows])


def encoders_table() -> str:
    """Every published encoder with what it is made of."""
    rows = [
        f"| `{name}` | {one.images} | {one.architecture} ({one.library}) | {one.size} | {_scale(one)} | "
        f"{_POOLED[one.pooling]} | {one.dimension} | {f'`{one.hub}`' if one.hub else 'your file'} | {one.licence} |"
        for name, one in PRESETS.items()
    ]
    head = (
        "encoder",
        "trained on",
        "network",
        "px",
        "mean / spread",
        "a vector is",
        "length",
        "from",
        "licence",
    )
    return "\n".join([f"| {' | '.join(head)} |", "|---|---|---|---:|---|---|---:|---|---|", *rows])


_POOLED = {"own": "what the network gives", "class": "class token", "class and mean": "class token, mean of patches"}


def _scale(preset: Preset) -> str:
    if (preset.mean, preset.std) == (IMAGENET_MEAN, IMAGENET_STD):
        return "ImageNet"
    return " / ".join(
        ", ".join(f"{value:.3f}" for value in dict.fromkeys(scale)) for scale in (preset.mean, preset.std)
    )


def main() -> None:
    """Rewrite what is generated."""
    for name, pattern, make in PARTS:
        path = ROOT / name
        text = path.read_text(encoding="utf-8")
        new, count = re.subn(pattern, lambda _, make=make: make() + "\n", text, flags=re.M | re.S)  # type: ignore[misc]
        if count != 1:
            raise SystemExit(f"{name} has {count} places for its generated part")
        if new != text:
            path.write_text(new, encoding="utf-8")
            print(f"wrote {name}")


PARTS: tuple[tuple[str, str, Callable[[], str]], ...] = (
    ("docs/methods.md", _TABLE.format(first="name"), as_markdown),
    ("docs/methods.md", r"(?<=^## One by one\n\n).*?(?=^## )", as_paragraphs),
    ("docs/encoders.md", _TABLE.format(first="encoder"), encoders_table),
    ("docs/settings.md", _TABLE.format(first="setting"), settings_table),
    (
        "pyproject.toml",
        r"(?<=^\[tool\.flwr\.app\.config\]\n).*?\n(?=\n)",
        lambda: settings_toml(Config()),
    ),
)

if __name__ == "__main__":
    main()
