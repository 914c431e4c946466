"""`coterie status`: a federation at a glance."""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from cli.arguments import Subparsers

if TYPE_CHECKING:
    from cli.deployment.layout import Layout
    from server.flower.control import KnownRun, KnownSite
    from server.flower.sightings import Sighting


def register(jobs: Subparsers) -> None:
    """Add the sub-command."""
    parser = jobs.add_parser(
        "status",
        help="show who is connected to a federation, and what is running there",
        description="Asks the server which sites are connected and since when, when the others were last seen, "
        "which version of Coterie they run, whether their clocks agree with the server's, and "
        "which runs are under way and how far they are; where the server is on this machine also the disk.",
    )
    parser.add_argument("--on", type=Path, required=True, metavar="FOLDER", help="folder of `coterie provision`")
    parser.add_argument("--insecure", action="store_true", help="the server was started with --insecure")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print it."""
    from cli.deployment.federation import connection_to, speaking_to, under_way
    from cli.deployment.layout import Layout
    from common.release import VERSION
    from server.flower.sightings import name_of

    connection = connection_to(options.on, insecure=options.insecure)
    with speaking_to(connection) as superlink:
        sites, runs = superlink.sites(), under_way(superlink)
    layout = Layout(options.on.absolute())
    seen = {node.node: sighting for key, node in sites.items() if (sighting := _sightings(layout).get(name_of(key)))}
    print(f"server: {connection.control} answers; Coterie {VERSION} here, and sites of another version decline runs")
    known = list(sites.values())
    print(_sites([site for site in known if not site.is_out], [site for site in known if site.is_out], seen))
    print("\n".join(map(_run, runs)) or "no run is under way")
    print(_disk(layout))
    return 0


def _sightings(layout: Layout) -> dict[str, Sighting]:
    """What the server has seen of its sites; nothing, if it is on another machine."""
    from cli.deployment.start_file import ServerFile, located, read_start_file
    from server.flower.sightings import SEEN, read_sightings

    if not layout.server_file.exists():
        return {}
    settings = read_start_file(layout.server_file, ServerFile)
    return read_sightings(located(layout.server_file, settings.database).with_name(SEEN))


def _sites(sites: list[KnownSite], out: list[KnownSite], seen: Mapping[int, Sighting]) -> str:
    from cli.operating.columns import ago, columns

    rows = []
    for site in sorted(sites, key=lambda one: one.name):
        name = site.name or f"node {site.node}"
        if site.is_online:
            state = ["connected", f"for {ago(site.since)}"]
        else:
            state = ["not connected", f"last seen {ago(site.until)} ago" if site.since else "never seen"]
        sighting = seen.get(site.node)
        rows.append([name, *state, sighting.version if sighting else "–", _clock(sighting)])
    online = sum(site.is_online for site in sites)
    text = f"sites: {online} of {len(sites)} connected"
    text += f"; shut out: {', '.join(sorted(site.name for site in out))}" if out else ""
    return f"{text}\n{columns(('site', 'state', '', 'Coterie', 'clock'), rows)}" if rows else text


def _clock(sighting: Sighting | None) -> str:
    from common.clock import in_words, is_off

    if sighting is None:
        return "–"
    return f"{in_words(sighting.ahead)} the server's" if is_off(sighting.ahead) else "agrees"


def _run(run: KnownRun) -> str:
    from cli.operating.columns import ago
    from cli.operating.local_runs import trained

    out = Path(run.text("out"))
    rounds = f", round {trained(out)} of {run.text('rounds')} is trained" if out.is_dir() else ""
    return f"run {run.number}: {run.text('method')}, {run.state} since {ago(run.started)}{rounds}, {out}"


def _disk(layout: Layout) -> str:
    from common.readable import megabytes

    if not layout.server.is_dir():
        return "disk: the server is on another machine"
    database = layout.server / "state.db"
    size = f"; state.db has {megabytes(database.stat().st_size)}" if database.exists() else ""
    return f"disk: {megabytes(shutil.disk_usage(layout.root).free)} are free at {layout.root}{size}"
