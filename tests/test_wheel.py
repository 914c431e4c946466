"""What `pip install coterie` brings: the programs and the configurations, so that `coterie demo` needs no checkout."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_the_wheel_runs_a_simulation_by_itself(tmp_path: Path) -> None:
    source, made, installed, elsewhere = (tmp_path / name for name in ("source", "made", "installed", "elsewhere"))
    for room in ("common", "client", "server", "cli", "configs"):
        shutil.copytree(ROOT / room, source / room, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    made.mkdir()
    elsewhere.mkdir()
    build = f"from setuptools import build_meta; build_meta.build_wheel({str(made)!r})"
    subprocess.run([sys.executable, "-c", build], cwd=source, check=True, capture_output=True, timeout=120)
    [wheel] = made.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(installed)
    program = tmp_path / "program.py"
    program.write_text(
        "import sys\nsys.path.insert(0, sys.argv.pop(1))\n"
        "from cli.commands import demo\nfrom cli.main import main\n"
        "sys.exit(main(['simulate', str(demo.CONFIG), *sys.argv[1:]]))\n"
    )
    changes = ("rounds=1", "sites=3", "encoder.name=pixels", "cluster.choice=silhouette")
    arguments = [word for change in changes for word in ("--set", change)]
    ran = subprocess.run(
        [sys.executable, program, installed, *arguments, "--jobs", "1", "--out", elsewhere / "run"],
        cwd=elsewhere, check=False, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert (elsewhere / "run" / "report.html").exists()
