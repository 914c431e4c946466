"""The house keeps its shape: arrows between rooms point one way, mathematics stays pure, settings stay in step."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.method_page import as_markdown, as_paragraphs
from common.config import Config, allowed, fields, flat_values, flatten, load
from server.methods import METHODS

ROOT = Path(__file__).parents[1]
ROOMS = {"common": set(), "client": {"common"}, "server": {"common"}, "cli": {"common", "client", "server"}}
PURE = ("server/clustering", "server/aggregation", "server/migration")
IMPURE_PACKAGES = {"flwr", "torch", "logging", "rich"}

# What Flower promises to keep; all else may change with any release, and is used in the two homes alone.
FLOWER_PUBLIC = {"flwr.app", "flwr.clientapp", "flwr.serverapp", "flwr.serverapp.strategy", "flwr.simulation"}
FLOWER_HOMES = ("client/flower", "server/flower")
# Words by which a line of Flower's log is known.
FLOWER_WORDS = re.compile(
    r"flwr|Flower|Super(Link|Node|Exec)|ActivateNode|(Client|Server)App|started run|[Cc]ode: ?|Heartbeat interval|/v\d/"
)


def tree(path: Path) -> Iterator[ast.AST]:
    return ast.walk(ast.parse(path.read_text(encoding="utf-8")))


def imported(path: Path) -> Iterator[tuple[str, str]]:
    """Modules that a file imports anywhere, also inside functions, each with what is taken from it."""
    for node in tree(path):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield from ((node.module, alias.name) for alias in node.names)


def imports(path: Path) -> set[str]:
    return {module.partition(".")[0] for module, _ in imported(path)}


def is_internal(module: str) -> bool:
    return module.partition(".")[0] == "flwr" and module not in FLOWER_PUBLIC


def outside_the_homes() -> list[Path]:
    homes = [ROOT / home for home in FLOWER_HOMES]
    files = [path for room in ROOMS for path in (ROOT / room).rglob("*.py")]
    return [path for path in files if not any(path.is_relative_to(home) for home in homes)]


def texts_looked_for(path: Path) -> Iterator[str]:
    """Regular expressions, and texts whose presence in another text is asked for, by a name given to them too."""
    nodes = list(tree(path))
    named_texts = {
        target.id: node.value
        for node in nodes
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for node in nodes:
        sought: list[ast.expr] = []
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
            named = isinstance(node.func.value, ast.Name) and node.func.value.id == "re"
            sought = node.args[:1] if named or node.func.attr in {"startswith", "endswith", "find"} else []
        elif isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In | ast.NotIn):
            sought = [node.left]
        yield from (
            part.value
            for one in sought
            for part in ast.walk(named_texts.get(one.id, one) if isinstance(one, ast.Name) else one)
            if isinstance(part, ast.Constant) and isinstance(part.value, str)
        )


@pytest.mark.parametrize("room", ROOMS)
def test_arrows_point_one_way(room: str) -> None:
    files = list((ROOT / room).rglob("*.py"))
    assert files
    for path in files:
        foreign = {name for name in imports(path) if name in ROOMS and name != room}
        assert foreign <= ROOMS[room], f"{path.relative_to(ROOT)} imports {foreign - ROOMS[room]}"


@pytest.mark.parametrize("place", PURE)
def test_mathematics_is_pure(place: str) -> None:
    files = list((ROOT / place).rglob("*.py"))
    assert files
    for file in files:
        assert not IMPURE_PACKAGES & set(imports(file)), file


def test_flowers_internals_are_used_in_their_homes_alone() -> None:
    for path in outside_the_homes():
        internals = sorted({module for module, _ in imported(path) if is_internal(module)})
        # Also by name, as for `importlib.import_module`.
        internals += [
            node.value
            for node in tree(path)
            if isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and re.fullmatch(r"flwr(\.\w+)+", node.value)
        ]
        told = (
            f"{path.relative_to(ROOT)} uses {internals}: put it behind a named function in {' or '.join(FLOWER_HOMES)}"
        )
        assert not internals, told


def test_flowers_log_lines_are_read_in_their_homes_alone() -> None:
    for path in outside_the_homes():
        sought = [text for text in texts_looked_for(path) if FLOWER_WORDS.search(text)]
        told = f"{path.relative_to(ROOT)} looks for {sought}: if Flower writes it, read it in log_lines.py of a home"
        assert not sought, told


@pytest.mark.parametrize("home", FLOWER_HOMES)
def test_the_words_of_flowers_log_lines_are_known_above(home: str) -> None:
    """Otherwise the test before this one would miss them elsewhere."""
    constants = [
        part.value
        for node in tree(ROOT / home / "log_lines.py")
        if isinstance(node, ast.Assign)
        for part in ast.walk(node.value)
        if isinstance(part, ast.Constant) and isinstance(part.value, str)
    ]
    assert constants
    assert [text for text in constants if not FLOWER_WORDS.search(text)] in ([], [" 200"])


def internals_of_the_homes() -> set[tuple[str, str, str]]:
    return {
        (str(path.relative_to(ROOT)), module, name)
        for home in FLOWER_HOMES
        for path in (ROOT / home).rglob("*.py")
        for module, name in imported(path)
        if is_internal(module)
    }


@pytest.mark.parametrize(("ours", "module", "name"), sorted(internals_of_the_homes()), ids=str)
def test_flower_has_what_a_home_imports(ours: str, module: str, name: str) -> None:
    """Here, and not only in the contracts beside it: those import the homes, and would say no more than ImportError."""
    told = f"Flower changed: until now {module} had {name}. {ours} relies on this: look where it went."
    try:
        there = hasattr(importlib.import_module(module), name) or importlib.util.find_spec(f"{module}.{name}")
    except ModuleNotFoundError:
        there = False
    assert there, told


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
    assert as_paragraphs() in page


def test_every_method_says_when_to_use_it() -> None:
    # Ablations of a method above them in the table may be short.
    assert all(len(method.about) > 40 for method in METHODS.values())
    assert len({method.about for method in METHODS.values()}) == len(METHODS)


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
