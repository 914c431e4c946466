"""A model as a folder of the Hugging Face Hub: read back by the Hub's own library."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from huggingface_hub import ModelCard as HubCard

from cli.main import main
from cli.simulation.engine import simulate
from common.config import Config
from common.kept_model import load_model, save_model


def test_the_hub_reads_the_card_of_each_group(
    small_config: Callable[..., Config], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = small_config(method="fmcl", out=str(tmp_path / "run"), **{"train.model": "head", "cluster.k": 2})
    assert simulate(config, jobs=1) == "finished"
    models = sorted((tmp_path / "run" / "models").glob("group-*.safetensors"))
    assert len(models) == 2
    for model in models:
        assert main(["export", str(model), "--hub"]) == 0
        folder = model.with_name(f"{model.stem}-hub")
        _, card = load_model(folder / "model.safetensors")
        read = HubCard.load(folder / "README.md")
        assert read.data.pipeline_tag == "image-classification"
        assert "fmcl" in read.data.tags
        assert card.test is not None
        figures = {one.metric_type: one.metric_value for one in read.data.eval_results}
        assert figures["accuracy"] == pytest.approx(card.test.accuracy, abs=1e-4)
        assert f"group {card.group}" in read.text
        beside = card.test.beside_naming
        assert beside is not None
        assert ("Do not rely on this model" in read.text) == (beside.verdict != "better")
    state, card = load_model(models[0])
    assert card.encoder is not None
    encoder = card.encoder.model_copy(update={"weights": "/home/clinic/secret/weights.pth"})
    own: dict[str, object] = {
        "site": "clinic", "trained_on": (1234, *[0] * 9), "shares": (0.777, *[0.02477] * 9), "encoder": encoder,
    }  # fmt: skip
    for name, more in (("plain", {}), ("private", {"epsilon": 3.0, "delta": 1e-5})):
        save_model(tmp_path / f"{name}.safetensors", state, card.model_copy(update=own | more))
        assert main(["export", str(tmp_path / f"{name}.safetensors"), "--hub"]) == 0
        told = "".join(path.read_bytes().decode("latin-1") for path in (tmp_path / f"{name}-hub").iterdir())
        # Exact numbers of a site's samples, and its folders, are not for everybody.
        assert not any(text in told for text in ("1234", "0.777", "/home", "secret"))
        figure = f"{card.test.accuracy:.3f}"  # type: ignore[union-attr]
        assert (figure in (tmp_path / f"{name}-hub" / "README.md").read_text()) == (name == "plain")
    capsys.readouterr()
    assert main(["export", str(models[0]), "--hub"]) == 2
    assert "is there already" in capsys.readouterr().err
