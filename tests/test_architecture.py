"""The house keeps its shape: arrows between rooms point one way, mathematics stays pure, settings stay in step."""

from __future__ import annotations

import ast
import json
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.method_page import as_markdown
from common.config import Config, allowed, fields, flat_values, flatten, load
from server.methods import METHODS

ROOT = Path(__file__).parents[1]
ROOMS = {"common": set(), "client": {"common"}, "server": {"common"}, "cli": {"common", "client", "server"}}
PURE = ("server/clustering", "server/aggregation.py", "server/migration")
IMPURE_PACKAGES = {"flwr", "torch", "logging", "rich"}


def imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]


@pytest.mark.parametrize("room", ROOMS)
def test_arrows_point_one_way(room: str) -> None:
    files = list((ROOT / room).rglob("*.py"))
    assert files
    for path in files:
        foreign = {name for name in imports(path) if name in ROOMS and name != room}
        assert foreign <= ROOMS[room], f"{path.relative_to(ROOT)} imports {foreign - ROOMS[room]}"


@pytest.mark.parametrize("place", PURE)
def test_mathematics_is_pure(place: str) -> None:
    path = ROOT / place
    files = list(path.rglob("*.py")) if path.is_dir() else [path]
    assert files
    for file in files:
        assert not IMPURE_PACKAGES & set(imports(file)), file


def test_flower_app_declares_every_setting_with_its_default() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert flatten(project["tool"]["flwr"]["app"]["config"]) == flat_values(Config())


@pytest.mark.parametrize("path", sorted((ROOT / "configs").glob("*.toml")), ids=lambda path: path.stem)
def test_shipped_configurations_are_valid(path: Path) -> None:
    assert load(path).method == "fmcl"


def test_the_page_of_settings_is_complete_and_true() -> None:
    page = (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")
    values = flat_values(Config())
    for key, field in fields():
        assert f"| `{key}` | `{json.dumps(values[key])}` | {allowed(field)} | {field.description} |" in page


def test_the_page_of_methods_is_current() -> None:
    page = (ROOT / "docs" / "methods.md").read_text(encoding="utf-8")
    assert as_markdown() in page


def test_the_page_of_methods_names_only_settings_that_exist() -> None:
    known = dict(fields())
    for method in METHODS.values():
        assert set(method.settings) | set(method.settings_used) <= known.keys(), method.name


def test_what_commands_share_lives_in_no_command() -> None:
    rooms = (*ROOMS, "benchmarks", "docker", "docs")
    places = sorted(path for room in rooms for path in (ROOT / room).rglob("*.py"))
    for path in set(places) - {ROOT / "cli" / "main.py"}:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [f"{node.module}.{alias.name}" for alias in node.names] if isinstance(node, ast.ImportFrom) else []
            taken = [name for name in names if name.startswith("cli.commands")]
            assert not taken, f"{path.relative_to(ROOT)} imports {taken}"
