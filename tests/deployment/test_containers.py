"""The image and the compose file: what they promise, and 20 client containers that train over gRPC."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.container_engine import IMAGE, Engine, NoEngine, engine, import_thin_image, thin_override

ROOT = Path(__file__).parents[2]
SITES = 20
GIGABYTES = 15  # free memory that 20 sites and a server need: each site holds torch

# Seconds for anything to happen at all; 20 imports of torch share the cores with other tests.
PATIENCE = 600


def site_names(count: int) -> list[str]:
    return [f"site-{number:02d}" for number in range(1, count + 1)]


def compose(count: int) -> str:
    line = [sys.executable, str(ROOT / "docker" / "compose.py"), "--sites", str(count)]
    return subprocess.run(line, check=True, capture_output=True, text=True).stdout


# --- what the files promise ------------------------------------------------------------------------------------


def test_the_compose_file_is_what_its_generator_writes() -> None:
    told = "python3 docker/compose.py --sites 20 > compose.yaml"
    assert (ROOT / "compose.yaml").read_text(encoding="utf-8") == compose(SITES), told


@pytest.mark.parametrize("count", [1, 20, 30])
def test_every_site_gets_its_own_share_and_its_own_kit(count: int) -> None:
    file = yaml.safe_load(compose(count))
    services = file["services"]
    names = site_names(count)
    assert [name for name in services if name.startswith("site-")] == names
    for index, name in enumerate(names):
        assert services[name]["volumes"] == [f"{name}:/kit"]
        assert f"partition={index}" in services[name]["command"]
        assert f"partitions={count}" in services[name]["command"]
        assert services[name]["networks"] == ["fleet"]
    assert file["networks"] == {"fleet": {"internal": True}}
    assert set(file["volumes"]) == {"authority", "server", "operator", *names}
    # Nobody but the one that makes them sees the authority's key, and only the server has the server's.
    holders = {
        volume: {
            name for name, service in services.items() if any(v.startswith(f"{volume}:") for v in service["volumes"])
        }
        for volume in file["volumes"]
    }
    assert holders["authority"] == {"provision"}
    assert holders["server"] == {"provision", "server"}
    assert holders["operator"] == {"provision", "submit"}
    assert all(holders[name] == {"provision", name} for name in names)
    assert f"sites={count}" in services["submit"]["entrypoint"]


def test_no_container_has_more_rights_than_it_needs() -> None:
    services: dict[str, dict[str, Any]] = yaml.safe_load(compose(3))["services"]
    for name, service in services.items():
        assert service["cap_drop"] == ["ALL"], name
        assert service["read_only"] is True, name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert "ports" not in service, name
        assert "privileged" not in service, name
        if name == "provision":
            # Root, to give the volumes away; therefore it hears and reaches nobody.
            assert service["network_mode"] == "none"
        else:
            assert service["user"] == "${COTERIE_USER:-1000:1000}", name
            assert "cap_add" not in service, name
    assert services["submit"]["profiles"] == ["submit"]
    assert services["submit"]["network_mode"] == "service:server"
    for name in ("server", "site-01"):
        assert services[name]["restart"] == "unless-stopped"
        assert services[name]["healthcheck"]["test"] == ["CMD", "python", "-m", "cli.deployment.health"]
        assert "--insecure" not in services[name]["command"]


def test_a_site_of_its_own_asks_for_a_gpu_in_one_profile_alone() -> None:
    services = yaml.safe_load((ROOT / "docker" / "site.yaml").read_text(encoding="utf-8"))["services"]
    assert {name: service["profiles"] for name, service in services.items()} == {"site": ["cpu"], "site-gpu": ["gpu"]}
    (device,) = services["site-gpu"]["deploy"]["resources"]["reservations"]["devices"]
    assert device["capabilities"] == ["gpu"]
    assert "deploy" not in services["site"]
    for service in services.values():
        assert service["cap_drop"] == ["ALL"]
        assert service["read_only"] is True
        assert service["user"] == "${COTERIE_USER:-1000:1000}"
        assert any(volume.endswith(":/data:ro") for volume in service["volumes"])
        name, file, *options = service["command"]
        assert (name, file) == ("site", "/kit/site.toml")
        assert options[::2] == ["--set"] * 3


def instructions() -> list[list[str]]:
    text = (ROOT / "docker" / "Dockerfile").read_text(encoding="utf-8")
    assert not re.search(r"^#\s*syntax\s*=", text, re.MULTILINE | re.IGNORECASE), "it would pull a frontend"
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    return [line.split() for line in "\n".join(lines).replace("\\\n", " ").splitlines() if line.strip()]


def test_the_image_starts_from_a_base_of_choice_and_ends_without_root() -> None:
    lines = instructions()
    assert lines[0] == ["ARG", "BASE_IMAGE=python:3.11-slim"]
    assert {line[1] for line in lines if line[0] == "FROM"} == {"${BASE_IMAGE}"}
    users = [line[1] for line in lines if line[0] == "USER"]
    assert users
    assert users[-1].partition(":")[0] not in ("0", "root")
    assert any(line[0] == "HEALTHCHECK" for line in lines)


def test_the_image_takes_only_pinned_libraries() -> None:
    install = next(" ".join(line) for line in instructions() if "install" in line)
    assert "--requirement /opt/names.txt --constraint /opt/constraints.txt" in install
    assert not re.search(r"https?://|--index-url|--trusted-host", install)
    pinned = re.findall(r"^([\w.-]+)==", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE)
    known = {normal(name) for name in pinned}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for requirement in project["dependencies"]:
        assert normal(re.split(r"[\[=<>]", requirement)[0]) in known, requirement


def test_image_and_checkout_take_the_newer_cryptography_last() -> None:
    """Flower asks for < 47, so it cannot come with the other libraries."""
    (version,) = re.findall(r"^cryptography==(\d+)\.(\d+)", (ROOT / "overrides.txt").read_text(encoding="utf-8"), re.M)
    assert tuple(map(int, version)) > (48, 0)
    install = next(" ".join(line) for line in instructions() if "install" in line)
    setup = (ROOT / "Makefile").read_text(encoding="utf-8")
    for text, step in ((install, "--no-deps --requirement /opt/overrides.txt"), (setup, "--no-deps -r overrides.txt")):
        assert text.index("onstraint") < text.index(step), "it would be undone"


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_all_that_is_copied_is_there_and_let_through() -> None:
    ignore = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert ignore[1] == "*"
    let_through = {line[1:] for line in ignore if line.startswith("!")}
    copied = {path for line in instructions() if line[0] == "COPY" and "--from" not in line[1] for path in line[1:-1]}
    assert copied == let_through
    assert all((ROOT / path).exists() for path in copied)
    # The whole project that runs in a container, and no more than the bundle and the commands need.
    assert {"common", "client", "server", "cli", "pyproject.toml"} <= copied


def test_a_library_of_the_gpus_fills_no_memory_where_there_is_none(tmp_path: Path) -> None:
    found = next(iter(Path(sysconfig.get_path("purelib")).glob("nvidia/*/lib/libcublasLt.so.*")), None)
    if found is None:
        pytest.skip("this torch has no library of NVIDIA's")
    shutil.copy(found, tmp_path)
    before = anonymous(tmp_path / found.name)
    line = [sys.executable, str(ROOT / "docker" / "without_gpu.py"), str(tmp_path)]
    said = subprocess.run(line, check=True, capture_output=True, text=True).stdout
    assert said.startswith("libraries silenced: 1;")
    assert anonymous(tmp_path / found.name) < before / 4


def anonymous(library: Path) -> int:
    """Kilobytes of its own that a process has which loads a library."""
    script = f"import ctypes; ctypes.CDLL({str(library)!r}); print(open('/proc/self/status').read())"
    said = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout
    (kilobytes,) = re.findall(r"^RssAnon:\s+(\d+) kB", said, re.MULTILINE)
    return int(kilobytes)


# --- the real thing --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Federation:
    """The containers of compose.yaml, on the thin image."""

    engine: Engine
    project: str
    files: tuple[Path, ...]
    runs: Path

    @property
    def command(self) -> list[str]:
        files = [word for file in self.files for word in ("-f", str(file))]
        return [*self.engine.compose_command(), "-p", self.project, *files]

    def compose(self, *arguments: str) -> str:
        done = subprocess.run(
            [*self.command, *arguments],
            env=self.engine.environment,
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{arguments}:\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        return done.stdout

    def container(self, service: str) -> str:
        labels = [f"com.docker.compose.project={self.project}", f"com.docker.compose.service={service}"]
        filters = [word for label in labels for word in ("--filter", f"label={label}")]
        return self.engine.docker("ps", "--all", "--quiet", *filters).strip()

    def inspect(self, service: str) -> Any:
        return json.loads(self.engine.docker("inspect", self.container(service)))[0]

    def log(self, service: str) -> str:
        done = subprocess.run(
            ["docker", "logs", self.container(service)], env=self.engine.environment, capture_output=True, check=True
        )
        return (done.stdout + done.stderr).decode(errors="replace")

    def events(self) -> list[dict[str, Any]]:
        found = list(self.runs.glob("*/events.jsonl"))
        lines = found[0].read_text(encoding="utf-8").splitlines() if found else []
        return [json.loads(line) for line in lines if line.endswith("}")]


def until(condition: Callable[[], bool], what: str, seconds: float = PATIENCE) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"not within {seconds:.0f} s: {what}"
        time.sleep(0.5)


def free_gigabytes() -> float:
    found = re.search(r"MemAvailable:\s+(\d+)", Path("/proc/meminfo").read_text(encoding="utf-8"))
    return int(found[1]) / 2**20 if found else 0.0


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """20 sites in containers, running. Skips where no engine can be started, and says why."""
    if (free := free_gigabytes()) < GIGABYTES:
        pytest.skip(f"{SITES} containers need {GIGABYTES} GiB of free memory; {free:.1f} GiB are free")
    folder = tmp_path_factory.mktemp("containers")
    # As root, the engine makes the folder and the provisioning hands it on; others own what they make.
    runs = folder / "runs"
    user = "1000:1000"
    if os.geteuid() != 0:
        runs.mkdir()
        user = f"{os.getuid()}:{os.getgid()}"
    override = folder / "thin.json"
    override.write_text(thin_override(["provision", "server", "submit", *site_names(SITES)]), encoding="utf-8")
    try:
        with engine() as started:
            started.environment.update(COTERIE_IMAGE=IMAGE, COTERIE_USER=user, COTERIE_RUNS=str(runs))
            # The old docker-compose gives up after a minute, which an engine on a busy machine may need.
            started.environment["COMPOSE_HTTP_TIMEOUT"] = str(PATIENCE)
            made = Federation(started, f"coterie-test-{os.getpid()}", (ROOT / "compose.yaml", override), runs)
            import_thin_image(started)
            try:
                made.compose("up", "-d", "--no-build")
                yield made
            finally:
                made.compose("down", "-v", "-t", "5")
                started.docker("rmi", IMAGE)
    except NoEngine as reason:
        pytest.skip(str(reason))


@pytest.mark.containers
def test_twenty_containers_train_and_one_that_is_killed_comes_back(federation: Federation) -> None:
    """All sites are in the first two rounds; one is killed in the third, is named, and takes part again."""
    settings = ("rounds=3", "round.deadline=400", "round.start_timeout=400")
    changes = [word for setting in settings for word in ("--set", setting)]
    run = subprocess.Popen(
        [*federation.command, "run", "--rm", "-T", "submit", "configs/digits.toml", *changes],
        env=federation.engine.environment,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )

    def happened(**wanted: object) -> list[dict[str, Any]]:
        return [event for event in federation.events() if wanted.items() <= event.items()]

    def wait_for(what: str, **wanted: object) -> dict[str, Any]:
        until(lambda: run.poll() is not None or bool(happened(**wanted)), what)
        assert run.poll() is None, run.communicate()[0] + federation.log("server")[-5000:]
        return happened(**wanted)[0]

    # Not all are asked at once, but always in the same order: who answers first is also asked among the first.
    victim = wait_for("round 2", event="ReplyAccepted", stage="train", round_number=2)["site"]
    process = federation.inspect(victim)["State"]["Pid"]
    wait_for("round 3", event="StageStarted", stage="train", round_number=3)
    # As a crash does it: the kernel kills all that is in the container. `docker kill` would forbid the restart.
    os.kill(process, signal.SIGKILL)
    output, _ = run.communicate(timeout=PATIENCE)
    assert run.returncode == 0, output + federation.log("server")[-5000:]

    (directory,) = federation.runs.iterdir()
    summary = json.loads((directory / "summary.json").read_text(encoding="utf-8"))
    assert summary["outcome"] == "finished"
    assert summary["rounds"] == 3
    assert set(summary["labels"]) == set(site_names(SITES))
    # The same shares as in `coterie demo`: other labels alone are no reason to group, as the README says.
    assert summary["k"] == 1
    with (directory / "metrics.csv").open(newline="") as file:
        heard = {(int(row["round"]), row["name"]) for row in csv.DictReader(file) if row["scope"] == "site"}
    assert {(1, name) for name in site_names(SITES)} <= heard
    others = set(site_names(SITES)) - {victim}
    # The models of round 2 are tested in the exchange of round 3, in which the victim died.
    assert {(number, name) for number in (2, 3) for name in others} <= heard
    trained = {
        (event["round_number"], event["site"])
        for event in federation.events()
        if event["event"] == "ReplyAccepted" and event["stage"] == "train"
    }
    assert {(number, name) for number in (1, 2) for name in site_names(SITES)} <= trained
    left_out = [event for event in federation.events() if event["event"] == "SiteLeftOut"]
    assert {event["site"] for event in left_out} == {victim}
    assert victim in output
    # Left on the host, and not root's.
    owner = int(federation.engine.environment["COTERIE_USER"].partition(":")[0])
    assert {path.stat().st_uid for path in [directory, *directory.rglob("*")]} == {owner}

    assert federation.inspect(victim)["RestartCount"] >= 1
    until(lambda: federation.log(victim).count("SuperNode ID:") == 2, "the killed site is in again")
    assert all(federation.inspect(name)["RestartCount"] == 0 for name in ("server", *others))


@pytest.mark.containers
def test_the_link_is_tls_and_every_site_proves_who_it_is(federation: Federation) -> None:
    link = federation.engine.docker("top", federation.container("server"), "-ww", "-o", "pid,args")
    superlink = next(line for line in link.splitlines() if "cli.deployment.superlink" in line)
    assert "--enable-supernode-auth" in superlink
    assert "--ssl-certfile" in superlink
    assert "--insecure" not in link
    assert f"registered: {', '.join(site_names(SITES))}" in federation.log("server")
    for name in ("site-01", "site-20"):
        node = federation.engine.docker("top", federation.container(name), "-ww", "-o", "pid,args")
        supernode = next(line for line in node.splitlines() if "cli.deployment.supernode" in line)
        assert "--root-certificates /kit/ca.crt --auth-supernode-private-key /kit/site.key" in supernode
        assert "--insecure" not in supernode
    keys = {
        federation.engine.docker("exec", federation.container(name), "sha256sum", "/kit/site.key").split()[0]
        for name in site_names(SITES)
    }
    assert len(keys) == SITES


_PROBE = """
import socket, sys
for host, port in (("server", 9092), ("server", 8000), ("server", 9095), ("192.0.2.1", 443)):
    try:
        socket.create_connection((host, port), 5).close()
        print(host, port)
    except OSError:
        pass
"""


@pytest.mark.containers
def test_a_site_reaches_the_server_and_nobody_else(federation: Federation) -> None:
    said = federation.engine.docker("exec", federation.container("site-01"), "python", "-c", _PROBE)
    assert said.split("\n") == ["server 9092", ""]


@pytest.mark.containers
def test_containers_run_without_root_and_are_healthy(federation: Federation) -> None:
    for name in ("server", *site_names(SITES)):
        identity = federation.engine.docker("exec", federation.container(name), "id", "-u")
        assert identity.strip() == federation.engine.environment["COTERIE_USER"].partition(":")[0]
    for name in ("server", "site-01"):
        until(
            lambda name=name: federation.inspect(name)["State"]["Health"]["Status"] == "healthy",  # type: ignore[misc]
            f"{name} is healthy",
        )
    assert federation.inspect("provision")["State"]["ExitCode"] == 0
