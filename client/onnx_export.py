"""A model as an ONNX file that needs neither Coterie nor torch; that of images has its preprocessing inside."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import warnings
from pathlib import Path

import torch
from torch import Tensor, nn

from client.encoder import load_encoder
from client.training import normalise
from common.config import SettingsError
from common.kept_model import ModelCard


class _Deployed(nn.Module):
    """Pixels or scaled rows in, probabilities out; a model that reads an encoder's numbers has the encoder inside."""

    def __init__(self, network: nn.Module, encoder: nn.Module | None) -> None:
        super().__init__()
        self.network = network
        self.encoder = encoder

    def forward(self, inputs: Tensor) -> Tensor:
        read = normalise(inputs) if self.encoder is None else self.encoder(inputs)
        logits: Tensor = self.network(read)
        return logits.softmax(dim=1)


def onnx_input(card: ModelCard) -> tuple[str, Tensor]:
    """Name and example of the input: `pixels` uint8[n, size, size, channels], or `rows` float32[n, m]."""
    if card.projection:
        raise SettingsError(
            f"this model reads projected numbers of the encoder {card.encoder and card.encoder.name}, which are not "
            "part of the file and cannot be exported with it: use `coterie predict`"
        )
    if card.encoder is not None:
        side = load_encoder(card.encoder, card.seed).size
        return "pixels", torch.zeros((2, side, side, 3), dtype=torch.uint8)
    if card.table is not None:
        return "rows", torch.zeros((2, card.table.width))
    return "pixels", torch.zeros((2, card.image_size, card.image_size, card.channels), dtype=torch.uint8)


def export_onnx(model: nn.Module, card: ModelCard, path: Path) -> None:
    """Write `path`: the input of `onnx_input`, output `probabilities` float32[n, classes].

    Rows are scaled as the card says. The card and the class names are in the metadata. Raises `SettingsError` for a
    model that cannot be exported, and if the extra is not installed.
    """
    name, example = onnx_input(card)
    encoder = None if card.encoder is None else load_encoder(card.encoder, card.seed).as_module()
    try:
        import onnx
    except ModuleNotFoundError:
        raise SettingsError("this needs the extra: pip install 'coterie[onnx]'") from None
    temporary = path.with_name(f".{path.name}.tmp")
    # The exporter reports each of its steps; what matters is raised.
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            _Deployed(model, encoder).eval(),
            (example,),
            input_names=[name],
            output_names=["probabilities"],
            dynamic_shapes={"inputs": {0: torch.export.Dim("n")}},
            dynamo=True,
        )
    assert program is not None
    graph = program.model_proto
    for key, value in (("classes", "\n".join(card.classes)), ("coterie", card.model_dump_json())):
        entry = graph.metadata_props.add()
        entry.key, entry.value = key, value
    onnx.checker.check_model(graph)
    try:
        temporary.write_bytes(graph.SerializeToString())
        os.replace(temporary, path)
    except OSError as error:
        raise SettingsError(f"cannot write {path}: {error.strerror}; name another file with --out") from None
