"""The secret by which a server knows its operator."""

from __future__ import annotations

import secrets
from pathlib import Path

from common.config import SettingsError

SECRET_OPTION = "--operator-secret-file"
_SHORTEST = 32


def new_operator_secret() -> bytes:
    """Draw a secret, as it lies in a file."""
    return f"{secrets.token_hex(32)}\n".encode()


def read_secret(path: Path) -> str:
    """Read the secret of a federation, or raise saying what to do."""
    try:
        text, mode = path.read_text(encoding="ascii").strip(), path.stat().st_mode
    except (OSError, UnicodeDecodeError):
        raise SettingsError(
            f"cannot read the operator's secret {path}: `coterie provision` with the federation's folder makes one"
        ) from None
    if mode & 0o077:
        raise SettingsError(f"the operator's secret {path} can be read by others: run `chmod 600 {path}`")
    if len(text) < _SHORTEST:
        raise SettingsError(f"{path} holds no secret of at least {_SHORTEST} characters: remove it and provision again")
    return text
