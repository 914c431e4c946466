"""Coterie from Python, in a program or a notebook: what the commands of the same names do, with results to work on.

    from cli.api import compare, predict, preview, read_run, simulate

    run = simulate("run.toml", {"rounds": 10, "train.lr": 0.05})
    run.sites                      # a data frame
    run                            # in a notebook: the page of the run
    compare(run, simulate("run.toml", {"method": "local"}))

Data frames need pandas: `pip install 'coterie[notebook]'`.
"""

from __future__ import annotations

import html
import importlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common.config import Config, FlatValue, SettingsError, flat_values, load, parse

if TYPE_CHECKING:
    import pandas as pd

    from server.report.record import RunRecord

__all__ = ["Comparison", "Run", "RunFailed", "compare", "predict", "preview", "read_run", "simulate"]

_HEIGHT = 720  # pixels of a page inside a notebook


class RunFailed(RuntimeError):
    """A run that did not come to its end; what there is of it is in `directory`."""

    def __init__(self, outcome: str, directory: Path) -> None:
        super().__init__(f"the run was {outcome}; {directory / 'run.json'} says why")
        self.directory = directory


@dataclass(frozen=True)
class Run:
    """A run directory. In a notebook it shows the run's page."""

    directory: Path

    @cached_property
    def record(self) -> RunRecord:
        """Everything that the page shows, typed."""
        from server.report.record import read_run as read

        return read(self.directory)

    @cached_property
    def metrics(self) -> pd.DataFrame:
        """`metrics.csv`: a row for each round, and in it for all sites, for each group and for each site."""
        from server.history.run_directory import METRICS

        frame: pd.DataFrame = _pandas().read_csv(self.directory / METRICS, dtype={"name": "string", "group": "Int64"})
        return frame

    @cached_property
    def sites(self) -> pd.DataFrame:
        """A row for each site: its group, its samples, and the figures of the last round that was tested."""
        record, last = self.record, self.record.last
        tested = {} if last is None else last.sites
        rows = [
            {
                "site": name,
                "group": record.labels.get(name),
                "train_samples": card.train_samples,
                "test_samples": card.test_samples,
                **({} if name not in tested else {key: getattr(tested[name], key) for key in _FIGURES}),
            }
            for name, card in sorted(record.cards.items())
        ]
        return _frame(rows, ["site", "group", "train_samples", "test_samples", *_FIGURES])

    @cached_property
    def moves(self) -> pd.DataFrame:
        """A row for each site that was examined: round, where it was, where it went, and the evidence."""
        rows = [asdict(ruling) for ruling in self.record.rulings]
        if not rows:
            return _frame([])
        frame: pd.DataFrame = _pandas().json_normalize(rows)
        return frame

    @property
    def models(self) -> list[Path]:
        """The groups' models, for `predict`."""
        from server.history.run_directory import MODELS

        return sorted((self.directory / MODELS).glob("group-*.safetensors"))

    @property
    def page(self) -> Path:
        """The page of the run."""
        from server.history.run_directory import REPORT

        return self.directory / REPORT

    def _repr_html_(self) -> str:
        return _framed(self.page.read_text(encoding="utf-8"))


@dataclass(frozen=True)
class Comparison:
    """Runs side by side. In a notebook it shows the page about the first of them, with the others beside it."""

    runs: tuple[Run, ...]

    @cached_property
    def table(self) -> pd.DataFrame:
        """A row for each run: the figures of the last round that was tested."""
        from server.report.record import figures_of

        names = ("accuracy", "macro_f1", "auc", "mean_site_accuracy", "worst_tenth_accuracy")
        rows = [
            {"run": run.directory.name, "method": run.record.method, "groups": len(run.record.groups)}
            | (dict(zip(names, figures_of(run.record.last), strict=True)) if run.record.last else {})
            for run in self.runs
        ]
        return _frame(rows)

    @cached_property
    def page(self) -> str:
        """The page, as HTML."""
        from server.report import page

        return page([run.record for run in self.runs])

    def write(self, path: str | Path) -> Path:
        """Write the page to a file."""
        from server.history.run_directory import write_text

        write_text(Path(path), self.page)
        return Path(path)

    def _repr_html_(self) -> str:
        return _framed(self.page)


def simulate(
    config: str | Path | Config,
    changes: Mapping[str, FlatValue] | None = None,
    *,
    out: str | Path | None = None,
    jobs: int = 0,
) -> Run:
    """Run a federation on this machine, as `coterie simulate`; `changes` are settings by name, such as `train.lr`.

    `out` is the run directory (default: a new one below `runs`), `jobs` how many sites work at the same time.
    """
    from cli.simulation.engine import simulate as run_simulation
    from cli.simulation.preflight import prepare
    from server.history.run_directory import default_directory

    settings = _settings(config, changes)
    settings = prepare(settings if out is None else settings.model_copy(update={"out": str(Path(out).absolute())}))
    directory = Path(settings.out).expanduser() if settings.out else default_directory(settings)
    settings = settings.model_copy(update={"out": str(directory.absolute())})
    if (outcome := run_simulation(settings, jobs=jobs)) != "finished":
        raise RunFailed(outcome, directory.absolute())
    return Run(directory.absolute())


def preview(
    config: str | Path | Config,
    changes: Mapping[str, FlatValue] | None = None,
    *,
    out: str | Path | None = None,
    jobs: int = 0,
) -> Run:
    """Group the sites without training anything, as `coterie preview`."""
    return simulate(config, {**(changes or {}), "rounds": 0}, out=out, jobs=jobs)


def read_run(directory: str | Path) -> Run:
    """Open the directory of a run, finished or still growing, from this machine or from a federation."""
    run = Run(Path(directory).absolute())
    _ = run.record  # what is no run directory is said now
    return run


def compare(first: Run, *others: Run) -> Comparison:
    """Put runs side by side: the page is about the first."""
    return Comparison((first, *others))


def predict(model: str | Path, samples: str | Path | Sequence[str | Path], *, shares: str = "own") -> pd.DataFrame:
    """Classify images or rows of a table, as `coterie predict`: a row for each, with the probability of every class.

    Samples that cannot be read have no class, and a reason.
    """
    from cli.to_classify import opened
    from client.data.samples import Fault
    from client.prediction import open_model
    from client.prediction import predict as outcomes

    paths = [samples] if isinstance(samples, str | Path) else samples
    network, card = open_model(Path(model), shares, None, trusted=False)
    rows: list[dict[str, Any]] = []
    for prefix, found in opened(card, [Path(path) for path in paths]):
        for outcome in outcomes(network, card, found):
            if isinstance(outcome, Fault):
                rows.append({"sample": prefix + outcome.name, "reason": outcome.reason})
                continue
            chances = dict(zip(card.classes, outcome.probabilities.tolist(), strict=True))
            named = card.classes[outcome.label]
            rows.append({"sample": prefix + outcome.name, "class": named, "probability": chances[named], **chances})
    return _frame(rows)


_FIGURES = ("accuracy", "macro_f1", "auc", "loss")


def _settings(config: str | Path | Config, changes: Mapping[str, FlatValue] | None) -> Config:
    if isinstance(config, Config):
        return parse({**flat_values(config), **(changes or {})})
    return load(Path(config), changes)


def _framed(page: str) -> str:
    """A page inside another, which its scripts and styles do not touch."""
    return f'<iframe srcdoc="{html.escape(page)}" style="width:100%;height:{_HEIGHT}px;border:0"></iframe>'


def _frame(rows: Sequence[Mapping[str, Any]], columns: Sequence[str] | None = None) -> pd.DataFrame:
    frame: pd.DataFrame = _pandas().DataFrame(rows, columns=columns)
    return frame


def _pandas() -> Any:
    try:
        return importlib.import_module("pandas")
    except ImportError:
        raise SettingsError("data frames need pandas: pip install 'coterie[notebook]'") from None
