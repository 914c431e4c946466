"""What a site's log says while the server does not let it in."""

from __future__ import annotations

import pytest

from cli.commands.site import _Refusal

# As Flower's SuperNode ends when the server refuses it, with the colours of a terminal.
REFUSED = (
    "\x1b[91mERROR \x1b[0m:     Exit Code: 305\n",
    "Failed to initialize the connection to the SuperLink.\n",
    "[code: 2004] Failed to activate SuperNode.\n",
    "For more information, visit: <https://flower.ai/docs/305.html>\n",
)


def test_a_refusal_is_told_once_and_in_our_words(capsys: pytest.CaptureFixture[str]) -> None:
    refusal = _Refusal("site a", "host:1")
    for _ in range(6):
        assert not any(refusal.hear(line) for line in REFUSED)
        assert refusal.verdict() == ""
        assert refusal.explained()
    told = capsys.readouterr().err
    assert told.count("does not let in site a") == told.count("\n") == 1
    assert "Exit Code" not in told


def test_another_end_is_told_in_flowers_words(capsys: pytest.CaptureFixture[str]) -> None:
    refusal = _Refusal("site a", "host:1")
    for line in REFUSED:
        refusal.hear(line)
    refusal.verdict()
    capsys.readouterr()
    other = [line for line in REFUSED if "2004" not in line]
    assert not any(refusal.hear(line) for line in other)
    assert refusal.verdict() == ""
    assert not refusal.explained()
    told = capsys.readouterr().err
    assert told.startswith("ERROR :     Exit Code: 305\n")
    assert told.count("\n") == 3
    assert _Refusal("site a", "host:1", verbose=True).hear(REFUSED[0])
