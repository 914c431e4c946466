"""What crosses the network between sites and server, seen from outside by tshark (Debian's package; root).

Run with `python -m benchmarks.traffic`. The same small run twice on loopback: with TLS and site keys, to see that there
is nothing to be seen, and with `--insecure`, to see what the sites really send. Exit code 1 if anything is wrong.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from contextlib import suppress
from pathlib import Path

from cli.deployment.start_file import ServerFile, read_start_file
from server.history.event_log import read_events
from server.history.events import ReplyAccepted
from tests.support.federation import PATIENCE, Federation, ended, until, write_digits

_CONFIG = """
rounds = 2
sites = 2
[data]
source = "folder"
classes = ["0", "1", "2"]
image_size = 8
channels = 1
[encoder]
name = "random:resnet10t"
image_size = 32
[train]
model = "lenet5"
[cluster]
k = 1
"""
# What may be said: it is found in the open, and not under TLS.
_SAID = {
    "the site's name": b"clinic-a",
    "a signature": b"prototypes",
    "a model": b"head.weight",
    "metrics": b"confusion",
}


def main() -> int:
    """Capture both runs, and print what was found."""
    if shutil.which("tshark") is None:
        raise SystemExit("tshark is not installed: apt-get install tshark")
    wrong: list[str] = []
    with tempfile.TemporaryDirectory(prefix="coterie-traffic-") as folder:
        root = Path(folder)
        for number, site in enumerate(("clinic-a", "clinic-b")):
            write_digits(root / "data" / site, (0, 1, 2), first=20 * number)
        secure, insecure = Run(root, "secure"), Run(root, "insecure", "--insecure")
        print("## With TLS\n")
        wrong += secure.is_dark()
        print("\n## Without, to look inside\n")
        wrong += insecure.is_honest()
    for line in wrong:
        print(f"WRONG: {line}")
    return int(bool(wrong))


class Run:
    """A run of two sites whose traffic was captured."""

    def __init__(self, root: Path, name: str, *flags: str) -> None:
        self.data = root / "data"
        self._capture, self.out = root / f"{name}.pcapng", root / f"{name}-run"
        place = root / name
        place.mkdir()
        (place / "data").symlink_to(self.data)
        (place / "run.toml").write_text(_CONFIG)
        with ended(Federation(place)) as federation:
            federation.provision(["clinic-a", "clinic-b"])
            settings = read_start_file(federation.layout.server_file, ServerFile)
            self._port = int(settings.listen.rpartition(":")[2])
            command = ["tshark", "-q", "-i", "lo", "-f", f"tcp port {self._port}", "-w", str(self._capture)]
            with subprocess.Popen(command, stderr=subprocess.DEVNULL) as tshark:
                until(self._capture.exists, PATIENCE, "tshark listens")
                time.sleep(2)
                try:
                    self._carry_out(federation, flags)
                finally:
                    tshark.terminate()
                    tshark.wait()

    def _carry_out(self, federation: Federation, flags: tuple[str, ...]) -> None:
        federation.start("server", "server", str(federation.layout.server_file), *flags)
        until(lambda: "the server is up" in federation.started["server"].text, PATIENCE, "the server starts")
        for site in ("clinic-a", "clinic-b"):
            federation.start_site(federation.layout.kit(site), site, *flags)
        run = federation.start_run(federation.root / "run.toml", self.out, *flags)
        until(lambda: run.process.poll() is not None, PATIENCE, "the run ends")
        if run.process.returncode:
            raise SystemExit(run.text[-3000:])

    def is_dark(self) -> list[str]:
        """Print what an onlooker learns under TLS; return what should not be so."""
        wrong = []
        hellos = self._fields("tls.handshake.type == 1", "tcp.stream", "tls.handshake.extensions_alpn_str")
        versions = Counter(
            row[0] for row in self._fields("tls.handshake.type == 2", "tls.handshake.extensions.supported_version")
        )
        streams = {row[0] for row in self._fields("tcp.len > 0", "tcp.stream")}
        greeted = {row[0] for row in hellos}
        protocols = ", ".join(sorted({row[1] for row in hellos}))
        print(f"* {len(streams)} connections carry data; {len(greeted & streams)} of them begin with a TLS handshake")
        print(f"* application protocol that is agreed on: {protocols} (gRPC is HTTP/2)")
        print(f"* TLS version: {', '.join({'0x0304': '1.3', '0x0303': '1.2'}.get(one, one) for one in versions)}")
        if streams - greeted:
            wrong.append(f"connections without TLS: {sorted(streams - greeted)}")
        if any("h2" not in row[1] for row in hellos):
            wrong.append("a connection is not HTTP/2")
        seen = b"".join(self._payload().values())
        found = [what for what, mark in _SAID.items() if mark in seen]
        print(f"* of {', '.join(_SAID)}: {', '.join(found) or 'nothing'} can be read in {len(seen) / 1e6:.1f} MB")
        return wrong + [f"{what} can be read" for what in found]

    def is_honest(self) -> list[str]:
        """Print what sites send; return what should not be so."""
        wrong = []
        sent = self._payload()["sent"]
        calls, sizes = self._calls()
        print("| what a site calls (gRPC) | calls | bytes sent |")
        print("|---|---:|---:|")
        for method in sorted(calls, key=lambda method: -sizes[method]):
            print(f"| {method} | {calls[method]} | {sizes[method]:,} |")
        replies = read_events(self.out).of(ReplyAccepted)
        arrays = sum(event.bytes_received for event in replies)
        print(
            f"\nSites sent {len(sent):,} bytes in all; arrays of signatures, models and metrics are {arrays:,} of them."
        )
        present = [what for what, mark in _SAID.items() if mark in sent]
        print(f"Found in what they sent: {', '.join(present)}.")
        wrong += [f"{what} is not found, so that looking proves nothing" for what in _SAID.keys() - set(present)]
        images = sorted(self.data.rglob("*.png"))
        secrets = {str(image): image.name.encode() for image in images}
        secrets |= {f"the content of {image}": image.read_bytes()[-64:] for image in images}
        secrets |= {f"the pixels of {image}": _pixels(image) for image in images} | {
            "the data folder": str(self.data).encode()
        }
        leaked = [what for what, mark in secrets.items() if mark in sent]
        print(
            f"File names, file contents and pixels of {len(images)} images, looked for one by one: {len(leaked)} found."
        )
        return wrong + [f"{what} left its site" for what in leaked]

    def _fields(self, display: str, *fields: str) -> list[list[str]]:
        command = [
            "tshark",
            "-r",
            str(self._capture),
            "-d",
            f"tcp.port=={self._port},http2",
            "-Y",
            display,
            "-T",
            "fields",
        ]
        if "tls" in display:
            command[3:5] = []
        for field in fields:
            command += ["-e", field]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        return [line.split("\t") for line in text.splitlines()]

    def _payload(self) -> dict[str, bytes]:
        """All bytes that sites sent and received, in the order of the packets, stream by stream."""
        parts: dict[str, dict[str, list[bytes]]] = {"sent": defaultdict(list), "received": defaultdict(list)}
        for stream, target, payload in self._fields(
            "tcp.len > 0 && !tcp.analysis.retransmission", "tcp.stream", "tcp.dstport", "tcp.payload"
        ):
            way = "sent" if int(target) == self._port else "received"
            parts[way][stream].append(bytes.fromhex(payload.replace(":", "")))
        return {way: b"".join(b"".join(pieces) for pieces in streams.values()) for way, streams in parts.items()}

    def _calls(self) -> tuple[Counter[str], Counter[str]]:
        """How often each method was called, and how many bytes of messages went with it."""
        methods: dict[tuple[str, str], str] = {}
        calls: Counter[str] = Counter()
        sizes: Counter[str] = Counter()
        fields = ("tcp.stream", "http2.streamid", "http2.type", "http2.length", "http2.headers.path")
        for stream, ids, kinds, lengths, paths in self._fields(f"http2 && tcp.dstport == {self._port}", *fields):
            path = iter(paths.split(","))
            for number, kind, length in zip(ids.split(","), kinds.split(","), lengths.split(","), strict=False):
                if kind == "1":
                    with suppress(StopIteration):
                        methods[stream, number] = re.sub(r"^/flwr\.proto\.", "", next(path))
                        calls[methods[stream, number]] += 1
                elif kind == "0":
                    sizes[methods.get((stream, number), "unknown")] += int(length)
        return calls, sizes


def _pixels(image: Path) -> bytes:
    from PIL import Image

    return Image.open(image).tobytes()


if __name__ == "__main__":
    sys.exit(main())
