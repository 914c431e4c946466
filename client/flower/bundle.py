"""What Flower's `flwr-clientapp` does in a process of its own, done in this one; and app bundles installed whole."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

from flwr.app import Context, Message
from flwr.cli.install import install_from_fab
from flwr.common.constant import APP_DIR, FAB_HASH_TRUNCATION
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import pull_and_inflate_object_from_tree
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supercore.utils import get_flwr_home
from flwr.supernode.runtime import run_clientapp as flower

from client.flower.runtime import Link, Task, header_of
from common.riding import Carriage, gather

_FIRST_RETRY, _LONGEST_RETRY = 0.1, 1.0  # seconds until a part of a message is asked for again; Flower waits up to 10

App = Callable[[Message, Context], Message]


@dataclass(frozen=True)
class Shipped:
    """The app that a run was submitted with, as the SuperLink calls it; `digest` is the SHA-256 of its bundle."""

    app: str
    version: str
    digest: str


# Given what was shipped and the site's node config: the app that answers; None: the one in the bundle.
Choose = Callable[[Shipped, Mapping[str, object]], App | None]


def run_task(task: Task, link: Link, wait: Callable[[bytes], None], choose: Choose) -> None:
    """Run a task; ends with SystemExit.

    Once its message is there, `choose` says whose code answers it, and `wait` is called with the message's header; it
    returns when the task may compute. A bundle that does not answer is never unpacked.
    """
    pull, push = flower.pull_task_input, flower.push_message

    def push_with_parts(client: RuntimeHttpClient, message: Message, context: Context) -> None:
        parts = gather(get_all_nested_objects(message))
        push(cast(RuntimeHttpClient, Carriage(client, parts)), message, context)

    def pull_and_wait(client: RuntimeHttpClient) -> Any:
        message, context, run, fab = pull(cast(RuntimeHttpClient, Carriage(client)))
        shipped = Shipped(run.fab_id, run.fab_version, hashlib.sha256(fab.content).hexdigest())
        own = choose(shipped, context.node_config)
        if own is not None:
            _put_in_place_of_the_bundle(own)
        wait(header_of(message))
        return message, context, run, fab

    patient = partial(
        pull_and_inflate_object_from_tree,
        initial_backoff=_FIRST_RETRY,
        backoff_cap=_LONGEST_RETRY,
        max_tries_per_object=None,
    )
    flower.__dict__.update(
        pull_task_input=pull_and_wait,
        push_message=push_with_parts,
        pull_and_inflate_object_from_tree=patient,
        install_from_fab=install_whole,
    )
    flower.run_clientapp(
        runtime_api_address=task.address,
        token=task.token,
        insecure=link.certificates is None,
        certificates=link.certificates,
        runtime_dependency_install=False,
    )


def _put_in_place_of_the_bundle(own: App) -> None:
    """Have Flower's code call `own`, whatever it was given to install and to load."""
    flower.__dict__.update(
        install_from_fab=lambda *_, **__: None,
        get_project_dir=lambda *_: None,
        get_load_client_app_fn=lambda **_: lambda *__: own,
    )


def bundles() -> Path:
    """The folder into which Flower unpacks the code that runs are submitted with."""
    return get_flwr_home() / APP_DIR


def install_whole(fab: bytes, skip_prompt: bool = True) -> Path:
    """Unpack an app bundle under FLWR_HOME, all of it or nothing.

    Flower copies file by file and takes a folder that exists for complete: tasks that start together would import
    half a bundle, and a task killed meanwhile would leave one for ever.
    """
    home, apps = get_flwr_home(), bundles()
    apps.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256(fab).hexdigest()[:FAB_HASH_TRUNCATION]
    if (installed := next(apps.glob(f"*.{digest}"), None)) is not None:
        return installed
    with tempfile.TemporaryDirectory(dir=home) as staging:
        with open(os.devnull, "w", encoding="utf-8") as nowhere, contextlib.redirect_stdout(nowhere):
            unpacked = install_from_fab(fab, Path(staging), skip_prompt)
        target = apps / unpacked.name
        try:
            unpacked.rename(target)
        except OSError:
            # Another task was faster; anything else is an error.
            if not target.is_dir():
                raise
    return target
