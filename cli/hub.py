"""A model as a folder in the layout of the Hugging Face Hub: weights, card, and the card as people read it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from common.config import SettingsError
from common.kept_model import ModelCard, TestResult, save_model
from common.state import State

WEIGHTS, CARD, READ_ME = "model.safetensors", "config.json", "README.md"
_TASKS = {"image": "image-classification", "embedding": "image-classification", "table": "tabular-classification"}
_METRICS = {"accuracy": "Accuracy", "macro_f1": "Macro F1", "auc": "AUC (one versus rest)"}


def public(card: ModelCard) -> ModelCard:
    """The card without what is its site's own business: counts of its samples, and where its files lie.

    Counts and tests on the card are exact, whatever the site's budget has them told with.
    """
    changes: dict[str, Any] = {"trained_on": (), "shares": (), "weights": Path(card.weights).name}
    if card.encoder is not None:
        changes["encoder"] = card.encoder.model_copy(update={"weights": Path(card.encoder.weights).name})
    if card.epsilon is not None:
        changes["test"] = None
    return card.model_copy(update=changes)


def write_folder(state: State, card: ModelCard, folder: Path) -> Path:
    """Write the folder, which must not be there yet; who publishes it adds a licence to the card."""
    try:
        folder.mkdir(parents=True)
        save_model(folder / WEIGHTS, state, card)
        (folder / CARD).write_text(card.model_dump_json(indent=1) + "\n", encoding="utf-8")
        (folder / READ_ME).write_text(read_me(card), encoding="utf-8")
    except FileExistsError:
        raise SettingsError(f"{folder} is there already: remove it, or choose another name with --out") from None
    except OSError as error:
        raise SettingsError(f"{folder} cannot be written: {error.strerror}") from None
    return folder


def read_me(card: ModelCard) -> str:
    """The card in the Hub's format: metadata for its search, then sections for people."""
    # JSON is YAML, and quotes what needs quoting.
    front = "\n".join(f"{key}: {json.dumps(value)}" for key, value in _metadata(card).items())
    parts = (_what(card), _training(card), _results(card), _limits(card), _use(card))
    return f"---\n{front}\n---\n\n# {_title(card)}\n\n" + "\n\n".join("\n".join(part) for part in parts) + "\n"


def _title(card: ModelCard) -> str:
    return f"{card.network} of group {card.group}: {', '.join(card.classes[:8])}{' …' * (len(card.classes) > 8)}"


def _metadata(card: ModelCard) -> dict[str, Any]:
    task = _TASKS.get(card.input)
    about: dict[str, Any] = {"library_name": "coterie", "tags": ["federated-learning", "coterie"]}
    about["tags"] += [card.method] if card.method else []
    about |= {"pipeline_tag": task} if task else {}
    test = card.test
    figures = {} if test is None else {key: getattr(test, key) for key in _METRICS if getattr(test, key) is not None}
    if not (task and figures):
        return about
    result = {
        "task": {"type": task, "name": task.replace("-", " ").capitalize()},
        "dataset": {"name": _tested_on(card), "type": "private", "split": "test"},
        "metrics": [{"type": key, "name": _METRICS[key], "value": round(value, 4)} for key, value in figures.items()],
    }
    return about | {"metrics": list(figures), "model-index": [{"name": _title(card), "results": [result]}]}


def _tested_on(card: ModelCard) -> str:
    return f"test part of site {card.site}" if card.site else "test parts of the group's sites"


def _what(card: ModelCard) -> Iterator[str]:
    yield "## What it is"
    yield ""
    whose = f"the copy that site {card.site} keeps ({card.kept})" if card.site else "the coordinator's copy"
    yield f"A classifier, trained by federated learning with [Coterie](https://pypi.org/project/coterie/); {whose}."
    yield ""
    yield f"- network: {card.network}{f', tuned: {card.tune}' if card.tune else ''}"
    yield f"- reads: {card.preprocessing or card.input}"
    yield f"- tells apart: {', '.join(card.classes)}"


def _training(card: ModelCard) -> Iterator[str]:
    yield "## Training"
    yield ""
    yield f"{card.round} rounds of `{card.method or 'unknown'}`, group {card.group}, seed {card.seed}."
    yield "Sites kept their samples and sent what the method asks for."
    if card.epsilon is not None:
        yield f"The site's privacy budget had come to ε = {card.epsilon:.3g} at δ = {card.delta:g}."


def _results(card: ModelCard) -> Iterator[str]:
    yield "## Results"
    yield ""
    if card.test is None:
        yield "Not tested." if card.epsilon is None else "Not told: the site has a privacy budget."
        return
    yield f"On {card.test.samples} samples ({_tested_on(card)}):"
    yield ""
    yield "| | |"
    yield "|---|---:|"
    for key, name in _METRICS.items():
        value = getattr(card.test, key)
        yield f"| {name} | {'–' if value is None else f'{value:.3f}'} |"
    if card.test.naming is not None:
        yield f"| Always naming the most frequent class | {card.test.naming:.3f} |"


def _limits(card: ModelCard) -> Iterator[str]:
    yield "## Limits"
    yield ""
    if card.test is not None and (words := _warning(card.test)):
        yield f"- **Do not rely on this model**: {words}."
    yield "- Tested at the sites that trained it, and nowhere else. It is no medical device."
    if card.prior == "site":
        yield (
            "- It expects the class shares of the place where it is used (`--shares`); those it carries are equal ones."
        )
    yield "- Weights may tell something of the samples that they were trained on. Ask the sites before publishing them."
    if card.note:
        yield f"- {card.note[0].upper()}{card.note[1:]}."


def _warning(test: TestResult) -> str:
    beside = test.beside_naming
    return "" if beside is None or beside.verdict == "better" else beside.words


def _use(card: ModelCard) -> Iterator[str]:
    yield "## Use"
    yield ""
    yield "```"
    yield "pip install coterie"
    yield f"coterie predict {WEIGHTS} {'new.csv' if card.input == 'table' else 'scans/'} --csv"
    yield "```"
    yield ""
    yield f"`{WEIGHTS}` holds weights and card; `{CARD}` is the card by itself."
