"""Every command of README and docs is executed, or a comment above it says why not, and its arguments are checked.

`python -m tests.support.docs_commands` lists them all. Simulations are made small: by `SMALL`, and by few sites.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cli.main import command_line, main
from cli.suites.suite import cells, read_suite, trials
from common.config import parse_override
from tests.support.docs_commands import PAGES, ROOT, Command, commands
from tests.support.federation import write_digits
from tests.support.tables import write_csv

pytestmark = pytest.mark.federation

COMMANDS = commands()
HERE = [command for command in COMMANDS if command.exempt is None]
SMALL = (
    "rounds=3", "sites=4", "train.model=head", "encoder.name=pixels", "encoder.image_size=8", "rehearsal.rounds=1"
)  # fmt: skip
EXAMPLES = {
    "/data/scans": "scans",
    "scans/": "scans",
    "CONFIG": "CONFIG.toml",
    "runs/mine/models/group-0.safetensors": "model.safetensors",
}
EXAMPLES |= {"models/run-1/model.safetensors": "model.safetensors"}


def small(command: Command, cache: Path) -> list[str]:
    """The words of a command, with the example's files, and small."""
    words = [EXAMPLES.get(word, word) for word in command.words[1:]]
    if ">" in words:
        words = words[: words.index(">")]
    if words[0] in ("simulate", "preview"):
        words += [word for change in (*SMALL, f"cache={cache}") for word in ("--set", change)]
        words += ["--jobs", "1"]
    return words


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What somebody who reads the docs has: images, a table, a configuration, runs, a model, and a site's kit."""
    folder = tmp_path_factory.mktemp("docs") / "example"
    write_digits(folder / "scans", [0, 1, 2], count=30)
    rows: list[list[object]] = [[i % 7, i * 0.5, ("a", "b")[i % 2]] for i in range(60)]
    write_csv(folder / "public.csv", ["age", "size", "class"], rows)
    shutil.copytree(ROOT / "configs", folder / "configs")
    shutil.copy(ROOT / "configs" / "suites" / "digits.toml", folder / "configs" / "suites" / "SUITE.toml")
    shutil.copy(ROOT / "configs" / "digits.toml", folder / "CONFIG.toml")
    arguments = [word for change in SMALL for word in ("--set", change)]
    for method in ("fmcl", "fedavg", "local"):
        out = folder / "runs" / "mine" / method
        run = ["simulate", str(folder / "CONFIG.toml"), "--jobs", "1", "--out", str(out), "--set", f"method={method}"]
        assert main([*run, *arguments, "--set", "cluster.choice=silhouette", "--set", f"cache={folder / 'cache'}"]) == 0
    shutil.copy(folder / "runs" / "mine" / "fedavg" / "models" / "group-0.safetensors", folder / "model.safetensors")
    assert (
        main(["provision", str(folder / "made"), "--server", "127.0.0.1:9", "--control", "127.0.0.1:9", "--sites", "a"])
        == 0
    )
    for file in (folder / "made" / "sites" / "a").iterdir():
        shutil.copy(file, folder)
    start = folder / "site.toml"
    start.write_text(start.read_text().replace('data = ""', f'data = "{folder / "scans"}"'))
    return folder


def bench(words: list[str]) -> None:
    """Read a suite, and check the settings of all its runs; its data are not here."""
    options = command_line().parse_args(words)
    path = next(path for path in (options.suite, Path("configs/suites") / options.suite) if path.exists())
    changes = dict(parse_override(text) for text in options.set)
    suite = read_suite(path)
    assert [*trials(suite, path.parent, changes, options.out), *cells(suite, path.parent, changes, options.out)]


@pytest.mark.parametrize("page", sorted({command.page for command in HERE}))
def test_commands_do_what_the_page_says(
    page: str, example: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "place"
    shutil.copytree(example, place, copy_function=shutil.copy2)
    monkeypatch.chdir(place)
    for command in HERE:
        if command.page != page:
            continue
        if command.program == "make":
            made = ["make", "--dry-run", *command.words[1:]]
            subprocess.run(made, cwd=ROOT, check=True, capture_output=True)
        elif command.program == "python":
            assert command.words[1] == "-m", command
            asked = [sys.executable, "-m", command.words[2], "--help"]
            said = subprocess.run(asked, cwd=ROOT, check=True, capture_output=True, text=True).stdout
            known = set(re.findall(r"--[\w-]+", said))
            assert {word for word in command.words if word.startswith("--")} <= known, command
        elif command.words[1] == "bench":
            bench(list(command.words[1:]))
        else:
            assert command.program == "coterie", f"{command}: say above the block why it is not run"
            assert main(small(command, example / "cache")) == 0, command


@pytest.mark.parametrize("command", [one for one in COMMANDS if one.exempt], ids=str)
def test_what_is_not_executed_here_is_explained_and_its_arguments_are_known(command: Command) -> None:
    assert command.exempt is not None
    kind, why = command.exempt
    if command.program == "coterie":
        words = command.words[1 : command.words.index(">")] if ">" in command.words else command.words[1:]
        command_line().parse_args(words)
    if kind == "elsewhere":
        text = (ROOT / why).read_text(encoding="utf-8")
        word = command.words[1] if command.program in ("coterie", "docker", "python3") else command.program
        assert re.search(rf"\b{re.escape(word)}\b", text), f"{command}: {why} has nothing of {word}"


def test_no_block_of_commands_is_overlooked() -> None:
    """All pages are looked at, and each job of the program is shown somewhere."""
    assert {command.page for command in COMMANDS} <= {str(page.relative_to(ROOT)) for page in PAGES}
    jobs = {command.words[1] for command in COMMANDS if command.program == "coterie"}
    everything = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    (known,) = (action.choices for action in command_line()._actions if action.dest == "job")
    assert known is not None
    assert jobs <= set(known)
    assert not [job for job in known if f"coterie {job}" not in everything]


def test_commands_in_the_text_exist_with_their_options() -> None:
    """Also what is named in a sentence: `coterie JOB … --option`."""
    (known,) = (action.choices for action in command_line()._actions if action.dest == "job")
    assert isinstance(known, dict)
    for page in PAGES:
        for text in re.findall(r"`(coterie [a-z][^`\n]*)`", page.read_text(encoding="utf-8")):
            words = text.split()
            assert words[1] in known, f"{page.name}: {text}"
            deep = "\n".join(_helps(known[words[1]]))
            for option in re.findall(r"(?<!\S)--[a-z][\w-]*", text):
                assert option in deep, f"{page.name}: {text}"


def _helps(parser: object) -> list[str]:
    """What a command says of itself, and what its own sub-commands say."""
    import argparse

    assert isinstance(parser, argparse.ArgumentParser)
    inner = [action.choices for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    return [parser.format_help(), *(text for found in inner for one in found.values() for text in _helps(one))]
