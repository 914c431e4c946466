"""A Docker engine for the tests, and an image that needs no registry: the host's own programs, mounted read-only.

An engine that is running already is used; else one is started, with all its files in a folder of its own, and ended.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
IMAGE = "coterie-thin"
_START = 60.0  # seconds an engine may take to answer


class NoEngine(Exception):
    """Why there is no engine."""


@dataclass(frozen=True)
class Engine:
    """How to reach an engine: the environment of `docker` and compose."""

    environment: dict[str, str]

    def docker(self, *arguments: str, content: bytes | None = None) -> str:
        """Run docker; return what it says."""
        done = subprocess.run(
            ["docker", *arguments], env=self.environment, input=content, capture_output=True, check=False
        )
        assert done.returncode == 0, f"docker {' '.join(arguments)}: {done.stderr.decode(errors='replace')}"
        return done.stdout.decode(errors="replace")

    def answers(self) -> bool:
        line = ["docker", "version", "--format", "{{.Server.Version}}"]
        try:
            asked = subprocess.run(line, env=self.environment, capture_output=True, timeout=20, check=False)
        except subprocess.TimeoutExpired:
            return False
        return asked.returncode == 0

    def compose_command(self) -> list[str]:
        """Return the new `docker compose` or the old `docker-compose`, whichever is here."""
        for line in (["docker", "compose"], ["docker-compose"]):
            with suppress(OSError):
                if (
                    subprocess.run(
                        [*line, "version"], env=self.environment, capture_output=True, check=False
                    ).returncode
                    == 0
                ):
                    return line
        raise NoEngine("neither `docker compose` nor docker-compose is installed")


@contextmanager
def engine() -> Iterator[Engine]:
    """Yield an engine on this machine, or raise `NoEngine` with the reason."""
    if shutil.which("docker") is None:
        raise NoEngine("docker is not installed")
    running = Engine(dict(os.environ))
    if os.environ.get("DOCKER_HOST", "unix://").startswith("unix://") and running.answers():
        yield running
        return
    if shutil.which("dockerd") is None:
        raise NoEngine("no Docker engine is running, and dockerd is not installed")
    if os.geteuid() != 0:
        raise NoEngine("no Docker engine is running, and only root can start one")
    # A short path, because that of a socket has at most 107 characters.
    folder = Path(tempfile.mkdtemp(prefix="coterie-engine-"))
    own = Engine({**os.environ, "DOCKER_HOST": f"unix://{folder}/socket"})
    line = ["dockerd", "--data-root", str(folder / "data"), "--exec-root", str(folder / "exec")]
    line += ["--pidfile", str(folder / "pid"), "--host", own.environment["DOCKER_HOST"], "--bridge", "none"]
    log = folder / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(line, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        end = time.monotonic() + _START
        while not own.answers():
            if process.poll() is not None or time.monotonic() > end:
                last = log.read_text(errors="replace").strip().rpartition("\n")[2]
                raise NoEngine(f"dockerd does not start here: {last}")
            time.sleep(0.5)
        yield own
    finally:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(60)
        process.kill()
        process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def host_folders() -> list[str]:
    """Return what a container needs of this machine: the system's programs, Python, the libraries, this project."""
    wanted = {Path("/usr"), *(Path(path).resolve() for path in (sys.prefix, sys.base_prefix, ROOT))}
    wanted |= {path for path in map(Path, ("/bin", "/lib", "/lib64")) if path.is_dir() and not path.is_symlink()}
    return sorted(str(path) for path in wanted if not any(parent in wanted for parent in path.parents))


def import_thin_image(engine: Engine) -> None:
    """Make an image of empty folders, with the settings of docker/Dockerfile for the places of this machine."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        # sbin is a real folder: the engine puts its init program there.
        for name in ("dev", "etc", "proc", "run", "sbin", "sys", "tmp", "usr"):
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755
            archive.addfile(entry)
        for name in ("bin", "lib", "lib64"):
            if (path := Path("/") / name).is_symlink():
                entry = tarfile.TarInfo(name)
                entry.type, entry.linkname = tarfile.SYMTYPE, os.readlink(path)
                archive.addfile(entry)
    programs = f"{Path(sys.prefix).resolve()}/bin:/usr/local/bin:/usr/bin:/bin"
    changes = (
        f"ENV PATH={programs} PYTHONPATH={ROOT} PYTHONUNBUFFERED=1 HOME=/tmp USER=coterie",
        f"WORKDIR {ROOT}",
        "USER 1000:1000",
        'ENTRYPOINT ["python", "-m", "cli.main"]',
    )
    options = [word for change in changes for word in ("--change", change)]
    engine.docker("import", *options, "-", IMAGE, content=buffer.getvalue())


def thin_override(services: Sequence[str]) -> str:
    """Return a compose file, to be merged over the real one, that mounts the host's programs into every service."""
    mounts = [f"{folder}:{folder}:ro" for folder in host_folders()]
    # Should memory run out, these go first.
    return json.dumps({"services": {name: {"volumes": mounts, "oom_score_adj": 800} for name in services}})
