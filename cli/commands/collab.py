"""`coterie collab`: DC-CFL without any network. Files are carried from the sites to the analyst and back."""

from __future__ import annotations

import argparse
import secrets
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from cli.arguments import Subparsers, add_config, read_config
from cli.deployment.start_file import SiteFile, located, read_start_file
from common.config import Config, SettingsError
from common.readable import megabytes

if TYPE_CHECKING:
    from common.bundle import Verify
    from common.wire import Introduction


def register(jobs: Subparsers) -> None:
    """Add the sub-command and its four steps."""
    parser = jobs.add_parser("collab", help="DC-CFL by files, without any network", description=__doc__)
    steps = parser.add_subparsers(dest="step", required=True, metavar="STEP")

    secret = steps.add_parser("secret", help="make the secret that all sites share and the analyst must not have")
    secret.add_argument("file", type=Path, help="file to write; pass it on to the other sites, and only to them")
    secret.set_defaults(run=make_secret)

    export = steps.add_parser("export", help="at a site: write what it sends, as one file")
    export.add_argument("site", type=Path, metavar="SITE.toml", help="start file of the site")
    add_config(export)
    export.add_argument("--out", type=Path, help="bundle to write; default NAME.bundle")
    export.add_argument("--sign", action="store_true", help="sign it with the site's key (key in SITE.toml)")
    export.add_argument("--dry-run", action="store_true", help="only show what would leave the site")
    export.set_defaults(run=export_site)

    solve = steps.add_parser("solve", help="at the analyst: learn from all bundles and write an answer for each site")
    add_config(solve)
    solve.add_argument("bundles", type=Path, nargs="+", metavar="BUNDLE")
    solve.add_argument("--out", type=Path, required=True, help="run directory; the answers are in its folder answers/")
    solve.add_argument(
        "--keys", type=Path, help="folder with NAME.pub of every site: take only bundles that their sites have signed"
    )
    solve.set_defaults(run=solve_all)

    apply = steps.add_parser("apply", help="at a site: test the answer on the site's own data, and keep the model")
    apply.add_argument("site", type=Path, metavar="SITE.toml", help="start file of the site")
    apply.add_argument("answer", type=Path, help="NAME.answer from the analyst")
    apply.add_argument("--out", type=Path, help="file to keep the model in (.safetensors)")
    apply.set_defaults(run=apply_at_site)


def make_secret(options: argparse.Namespace) -> int:
    """Draw a secret."""
    from cli.deployment.authority import create_file

    try:
        create_file(options.file, f"{secrets.token_hex(32)}\n".encode(), 0o600)
    except FileExistsError:
        raise SettingsError(f"{options.file} is there already: with another secret sites do not fit together") from None
    print(f"made {options.file}: bring it to the other sites by a way that the analyst does not see")
    return 0


def export_site(options: argparse.Namespace) -> int:
    """Write a bundle, or show what it would hold."""
    path = options.site.absolute()
    settings = read_start_file(path, SiteFile)
    config = _checked(read_config(options))
    from flwr.app import ConfigRecord, RecordDict

    from client.answers.introduction import introduction as introduce
    from client.data import NoUsableData, load_site
    from client.identity import identify
    from client.policy.gate import as_split_here, gate_of, ledger_of
    from client.policy.ledger import LedgerBroken
    from client.policy.question import Question
    from client.policy.rules import check_settings
    from client.request import Request, large_enough
    from common import wire
    from common.bundle import write_bundle
    from server.collaboration.by_post import settings_digest

    identity = identify(_node_config(path, settings), 0)
    run = config.for_site()
    try:
        task = as_split_here(identity.policy, wire.Task(run, 0, 1))
        question = Question("query.collaboration", task, "by post")
        check_settings(identity.policy, question)
        # Read through: what leaves is noted behind lines that follow on each other, or does not leave.
        ledger_of(identity).entries()
        site = large_enough(load_site(identity, task.settings), identity.policy)
        introduction = introduce(Request(RecordDict(), task, identity, site), "collaboration")
    except NoUsableData as error:
        raise SettingsError(str(error)) from None
    except LedgerBroken as error:
        raise SettingsError(f"nothing leaves, because somebody changed the site's ledger: {error}") from None
    content = wire.pack_introduction(introduction)
    content["export"] = ConfigRecord({"settings": settings_digest(run)})
    print(_what_leaves(introduction, site.classes))
    if options.dry_run:
        print("dry run: nothing was written")
        return 0
    try:
        gate_of(identity).let_out(question, content)
    except OSError as error:
        raise SettingsError(f"nothing leaves, because the site's ledger cannot be written: {error}") from None
    out = options.out or Path(f"{identity.name}.bundle")
    size = write_bundle(out, "collaboration", identity.name, content, _signer(path, settings) if options.sign else None)
    print(f"wrote {out}, {megabytes(size)}{', signed' if options.sign else ''}")
    return 0


def solve_all(options: argparse.Namespace) -> int:
    """Learn and write the answers."""
    config = _checked(read_config(options))
    config = config.model_copy(update={"out": str(options.out.absolute()), "rounds": 1, "sites": len(options.bundles)})
    from server.collaboration.by_post import solve_bundles
    from server.history.events import Audience
    from server.history.run_directory import own_run
    from server.listeners import run_listeners
    from server.methods import get_method

    verify = _verifier(options.keys) if options.keys else None
    with own_run(config) as directory:
        audience = Audience(run_listeners(directory))
        written = solve_bundles(config, get_method(config.method), options.bundles, directory, audience, verify)
    print(f"{len(written)} answers in {written[0].parent}: bring each to its site")
    return 0


def apply_at_site(options: argparse.Namespace) -> int:
    """Test the answer and keep the model."""
    path = options.site.absolute()
    settings = read_start_file(path, SiteFile)
    from client.answers.final import apply_answer, own_model, read_answer
    from client.collaboration import MapIsGone
    from client.data import NoUsableData, load_site
    from client.identity import identify
    from client.policy.gate import as_split_here
    from client.request import Request
    from common import wire
    from common.bundle import InvalidBundle, read_bundle
    from common.config import RoundSettings
    from common.metrics import summarise

    identity = identify(_node_config(path, settings), 0)
    try:
        name, content = read_bundle(options.answer, "answer", limit_mb=RoundSettings().max_message_mb)
        if name != identity.name:
            raise SettingsError(f"{options.answer} is the answer for site {name!r}, not for {identity.name!r}")
        task = as_split_here(identity.policy, wire.unpack_task(content))
        request = Request(content, task, identity, load_site(identity, task.settings))
        answer = read_answer(request)
        statistics = apply_answer(answer, request)
        model = own_model(answer, request, statistics) if options.out else None
    except (InvalidBundle, wire.WireError, MapIsGone, NoUsableData) as error:
        raise SettingsError(f"{options.answer}: {error}") from None
    found = summarise(statistics)
    print(
        f"site {identity.name}: accuracy {found.accuracy:.4f}, macro-F1 {found.macro_f1:.4f}, AUC {found.auc:.4f}, "
        f"loss {found.loss:.4f} on {found.count} test samples"
    )
    if model is not None:
        from common.kept_model import save_model

        try:
            save_model(options.out, *model)
        except OSError as error:
            raise SettingsError(f"cannot write {options.out}: {error.strerror or error}") from None
        print(f"kept the model in {options.out} for `coterie predict` and `coterie export`: {model[1].note}")
    return 0


def _checked(config: Config) -> Config:
    from server.methods import get_method, settle

    config = settle(config)
    if not get_method(config.method).one_round:
        raise SettingsError(f"method = {config.method!r} needs many rounds: set method = 'dc-cfl' or 'dc'")
    return config


def _node_config(path: Path, settings: SiteFile) -> dict[str, object]:
    from cli.deployment.site_start import as_node_config, require_data

    require_data(path, settings)
    return tomllib.loads(as_node_config(path, settings))


def _what_leaves(introduction: Introduction, classes: tuple[str, ...]) -> str:
    from common.collaboration import Collaboration

    offer, card = introduction.fingerprint, introduction.card
    assert isinstance(offer, Collaboration)
    counts = ", ".join(f"{name} {count}" for name, count in zip(classes, card.class_counts, strict=True) if count)
    lines = [f"leaves site {card.name}:"]
    for name, what in (
        ("rows", "training rows through the private map"),
        ("labels", "their classes"),
        ("validates", "which of them only validate; no patient has rows of both kinds"),
        ("anchors", "the shared anchors through the private map"),
        ("mark", "digest of the anchors"),
        ("ticket", "digest of the private map"),
    ):
        array = getattr(offer, name)
        shape = " × ".join(map(str, array.shape))
        lines.append(f"  {name:9} {array.dtype!s:8} {shape:>12}  {array.nbytes:>10,} bytes  {what}")
    lines += [
        f"  card      {card.train_samples} training and {card.test_samples} test samples, {card.fault_count} faults; "
        f"by class: {counts}",
        "stays: the rows themselves, the private map, the anchors, and every test sample",
    ]
    return "\n".join(lines)


def _signer(path: Path, settings: SiteFile) -> Callable[[bytes], bytes]:
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec

    from cli.deployment.authority import read_private_key

    key = read_private_key(located(path, settings.key))
    return lambda manifest: key.sign(manifest, ec.ECDSA(hashes.SHA384()))


def _verifier(folder: Path) -> Verify:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec

    from cli.deployment.authority import read_public_key
    from common.bundle import InvalidBundle

    def verify(site: str, manifest: bytes, signature: bytes | None) -> None:
        if signature is None:
            raise InvalidBundle("it is not signed")
        path = folder / f"{site}.pub"
        if not path.exists():
            raise InvalidBundle(f"there is no key of site {site!r} in {folder}")
        try:
            read_public_key(path).verify(signature, manifest, ec.ECDSA(hashes.SHA384()))
        except InvalidSignature:
            raise InvalidBundle(f"its signature is not that of site {site!r}") from None

    return verify
