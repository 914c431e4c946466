"""The texts that `coterie provision` writes for the server, the operator and each site."""

from __future__ import annotations

from pathlib import Path

from cli.deployment.address import Address
from cli.deployment.start_file import ServerFile
from cli.toml_text import toml_list, toml_value
from common.release import VERSION

_READ_ME = """\
# Site {site}

This folder lets one site take part in the federation at {address}. `site.key` proves that it is you: keep it
to yourself.

1. Install Coterie {version} on the machine that has the data (Linux, Python 3.11 or newer, 6 GB of disk):
   in its checkout `make setup`, then `export PATH="$PWD/.venv/bin:$PATH"`; or, where somebody brought you a wheel,
   `pip install coterie-{version}-py3-none-any.whl`. All sites and the server need the same version.
2. Set `data` in `site.toml` to your data.
3. `coterie site check site.toml` tells, without any network, what it found and how long a round would take.
4. Start:

```
coterie site site.toml
```
"""


def server_file(settings: ServerFile) -> str:
    """Write the server's start file, each setting under its meaning."""
    lines = ["# Start file of the server: coterie server server.toml. Paths start at this folder.", ""]
    for key, field in ServerFile.model_fields.items():
        value = getattr(settings, key)
        text = toml_list(value) if isinstance(value, tuple) else toml_value(value)
        lines += [f"# {field.description}", f"{key} = {text}"]
    return "\n".join(lines) + "\n"


def operator_file(control: Address, ca: Path) -> str:
    """Write the operator's connection, as Flower reads it from FLWR_HOME."""
    return (
        "# The operator's connection: coterie run CONFIG.toml --on FOLDER, or flwr … with FLWR_HOME=this folder.\n"
        '[superlink]\ndefault = "coterie"\n\n'
        f"[superlink.coterie]\naddress = {toml_value(str(control))}\nroot-certificates = {toml_value(str(ca))}\n\n"
        "# For a server that was started with --insecure.\n"
        f"[superlink.coterie-insecure]\naddress = {toml_value(str(control))}\ninsecure = true\n"
    )


def site_file(address: str, site: str) -> str:
    """Write a site's start file, for its owner to fill in."""
    return f"""\
# Start file of this site: coterie site site.toml. Paths start at this folder.
site = {toml_value(site)}
server = {toml_value(address)}

# Your data: a folder with one sub-folder per class, a CSV manifest, an .npz file or a table.
# It never leaves this machine.
data = ""

# Folder for embeddings and decoded images; empty: the user's cache folder.
cache = ""

# Folder for the final model of every run this site took part in.
models = "models"

# Folder for what this site remembers of a run, which cannot be computed again.
memory = "memory"

# Local port of the SuperNode; each on one machine needs its own.
port = 9094

# What this site answers, whatever a run asks for. Without these lines it is careful; `coterie site check` says in words
# what that means, and `coterie site ledger` what it was asked and what left.
# [policy]
# classes = ["benign", "malignant"]     # the exact class list; else that of the first run is kept to
# aggregation = "secure"                # updates leave only in sums that show no single one
# approve = "ask"                       # a new run waits until somebody here says `coterie site approve site.toml RUN`
"""


def read_me(address: str, site: str) -> str:
    """Write what the people at a site do with its kit."""
    return _READ_ME.format(site=site, address=address, version=VERSION)
