"""`coterie doctor`: what stands in the way of a site or of the coordinator, and what to do about it."""

from __future__ import annotations

import argparse
import tomllib
from pathlib import Path

from cli.arguments import Subparsers
from cli.deployment.start_file import ServerFile, SiteFile, read_start_file
from common.config import SettingsError, parse_override


def register(jobs: Subparsers) -> None:
    """Add the sub-command."""
    parser = jobs.add_parser(
        "doctor",
        help="find out what stands in the way of a site or of the coordinator",
        description="Looks at credentials, ports, the network, clock, proxy, disk, memory and GPU of this machine; a "
        "site's doctor also calls the server and asks whether it knows the key. Each line says what was found, and the "
        "line under it what to do. Nothing is changed. The exit code is 1 if there is a PROBLEM.",
    )
    parser.add_argument("file", type=Path, help="site.toml at a site, server.toml at the coordinator")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="change a setting of the file for this look"
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print what was found."""
    path = options.file.absolute()
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"cannot read {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path} is not valid TOML: {error}") from None
    from cli.operating.doctor import look_at_server, look_at_site

    changes = dict(parse_override(text) for text in options.set)
    if "site" in table:
        found = look_at_site(path, read_start_file(path, SiteFile, changes))
    else:
        found = look_at_server(path, read_start_file(path, ServerFile, changes))
    problems = 0
    for finding in found:
        print(finding, flush=True)
        problems += finding.state == "PROBLEM"
    print("nothing stands in the way" if not problems else f"{problems} problem{'s' * (problems > 1)}")
    return 1 if problems else 0
