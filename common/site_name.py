"""What a site may be called: the same at its own start, on the wire and in a file that is carried by hand."""

from __future__ import annotations

import re

# A site's name is a file name too, so it is neither hidden nor an option of a command, nor "..".
RULE = "1 to 64 letters, digits, '_', '-' or '.', and begin with a letter, a digit or '_'"
_SITE_NAME = re.compile(r"\w[\w.\-]{0,63}")


def is_site_name(name: str) -> bool:
    """Whether a site may be called so."""
    return _SITE_NAME.fullmatch(name) is not None
