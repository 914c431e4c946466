"""Coterie from Python: typed results, errors that tell, and the notebook of the documentation, executed."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.api import RunFailed, compare, preview, read_run, simulate
from common.config import SettingsError, load

ROOT = Path(__file__).parents[2]
SMALL = {"sites": 3, "rounds": 2, "encoder.name": "pixels", "encoder.image_size": 8, "cluster.choice": "silhouette"}


def test_results_are_frames(tmp_path: Path) -> None:
    config = ROOT / "configs" / "demo.toml"
    run = simulate(config, SMALL, out=tmp_path / "fmcl", jobs=1)
    assert run.record.outcome == "finished"
    assert list(run.sites["site"]) == ["000", "001", "002"]
    assert run.sites["train_samples"].sum() + run.sites["test_samples"].sum() == 1797
    overall = run.metrics[run.metrics["scope"] == "overall"]
    assert list(overall["round"]) == [1, 2]
    assert run.moves.empty
    # The same by a configuration that was read before: same seed, same bits.
    again = simulate(load(config), SMALL, out=tmp_path / "again", jobs=1)
    assert again.metrics.equals(run.metrics)
    both = compare(run, read_run(tmp_path / "again"))
    assert list(both.table["accuracy"]) == [overall["accuracy"].iloc[-1]] * 2
    assert "<iframe srcdoc=" in both._repr_html_()
    assert both.write(tmp_path / "page.html").read_text(encoding="utf-8").startswith("<!")
    assert preview(config, SMALL, out=tmp_path / "preview", jobs=1).models == []


def test_what_is_no_run_is_said(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="RUN is the directory of a run"):
        read_run(tmp_path / "nothing")
    with pytest.raises(SettingsError, match="trian"):
        simulate(ROOT / "configs" / "demo.toml", {"trian.lr": 0.1}, out=tmp_path / "run")


def test_a_run_that_is_cut_off_names_its_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cli.simulation.engine.simulate", lambda config, jobs: "interrupted")
    with pytest.raises(RunFailed, match=r"run\.json says why") as caught:
        simulate(ROOT / "configs" / "digits.toml", SMALL, out=tmp_path / "run", jobs=1)
    assert caught.value.directory == tmp_path / "run"


def test_the_notebook_runs_from_top_to_bottom(tmp_path: Path) -> None:
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(ROOT / "docs" / "first-steps.ipynb", as_version=4)
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    *_, page, _, predicted = (cell for cell in notebook.cells)
    assert "text/html" in page.outputs[-1]["data"]
    assert "probability" in predicted.outputs[-1]["data"]["text/plain"]
    # The file in the repository holds no results: they would be of another version sooner or later.
    stored = nbformat.read(ROOT / "docs" / "first-steps.ipynb", as_version=4)
    assert not any(cell.get("outputs") for cell in stored.cells)
