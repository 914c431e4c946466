"""The command line: help, settings, errors in words."""

from __future__ import annotations

import subprocess
import sys
import tomllib

import pytest

from cli.main import main
from common.config import Config, fields, parse
from server.methods import METHODS


@pytest.mark.parametrize("arguments", [["--help"], ["simulate", "--help"], ["demo", "--help"], ["config", "--help"]])
def test_help_suffices(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 0
    assert "usage: coterie" in capsys.readouterr().out


def test_config_lists_every_setting(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    assert main(["config"]) == 0
    text = capsys.readouterr().out
    for key, field in fields():
        assert key in text
        assert (field.description or "")[:40] in text
    assert all(name in text for name in METHODS)


def test_config_as_toml_is_the_run_config(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "--toml"]) == 0
    assert parse(tomllib.loads(capsys.readouterr().out)) == Config()


def test_config_checks_a_file(tmp_path, capsys: pytest.CaptureFixture[str]) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "c.toml"
    path.write_text("[train]\nmodle = 'mlp'\n")
    assert main(["config", str(path)]) == 2
    assert "did you mean train.model?" in capsys.readouterr().err


def test_an_unknown_method_is_refused(tmp_path, capsys: pytest.CaptureFixture[str]) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "c.toml"
    path.write_text("method = 'fmcll'\n")
    assert main(["simulate", str(path), "--out", str(tmp_path / "run")]) == 2
    assert "did you mean fmcl?" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_no_command_waits_for_libraries_it_does_not_use() -> None:
    """`coterie server` and `coterie site` only watch over others: with torch each would hold half a gigabyte."""
    heavy = "{'torch', 'flwr', 'numpy', 'grpc'} & set(sys.modules)"
    line = [sys.executable, "-c", f"import sys, cli.main; sys.exit(str({heavy} or ''))"]
    assert subprocess.run(line, capture_output=True, text=True, check=False).stderr.strip() == ""


def test_a_reader_that_has_seen_enough_is_no_error() -> None:
    """As in `coterie config | head -1`."""
    line = [sys.executable, "-m", "cli.main", "config", "--toml"]
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        assert program.stderr is not None
        program.stdout.close()
        assert program.stderr.read() == ""
    assert program.returncode == 128 + 13
