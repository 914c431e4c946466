"""Tables: the agreed schema, reading and scaling by it, and its draft."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from cli.main import main
from cli.toml_text import schema_toml
from client.data import load_site
from client.data.draft import draft_schema
from client.data.samples import Fault, in_one_line
from client.data.tables import read_columns, read_table_samples
from client.identity import Identity
from common.config import Config, SettingsError, SiteSettings, flat_values, parse
from common.table import Table, check_table, read_table, write_table
from tests.support.tables import wine_settings, write_csv, write_wine

SCHEMA = {
    "label": "kind",
    "classes": ["ill", "well"],
    "columns": [
        {"name": "age", "minimum": 0, "maximum": 100, "mean": 50, "spread": 20},
        {"name": "height", "minimum": 100, "maximum": 200},
        {"name": "sex", "categories": ["f", "m"], "shares": [0.25, 0.75]},
        {"name": "nothing", "minimum": 3, "maximum": 3},
    ],
}
HEADER = ["age", "note", "sex", "height", "kind", "nothing"]
KNOWN = {"ill": 0, "well": 1}


def schema(**changes: object) -> Table:
    return check_table(SCHEMA | changes)


def write_rows(folder: Path, *rows: list[object]) -> Path:
    return write_csv(folder / "t.csv", HEADER, list(rows))


def test_values_are_scaled_by_what_was_agreed(tmp_path: Path) -> None:
    path = write_rows(tmp_path, [70, "x", "f", 150, "ill", 3], [10, "", "m", 200, "well", 3])
    samples = read_table_samples(path, schema(), KNOWN)
    assert samples.labels.tolist() == [0, 1]
    assert not samples.faults
    spread = 100 / np.sqrt(12)
    indicator = np.sqrt(0.25 * 0.75)
    expected = [
        [1.0, 0.0, 0.75 / indicator, -0.75 / indicator, 0.0],
        [-2.0, 50 / spread, -0.25 / indicator, 0.25 / indicator, 0.0],
    ]
    np.testing.assert_allclose(samples.rows, expected, rtol=1e-6)
    assert samples.name(1) == "line 3"


def test_what_is_missing_is_counted_and_stood_in_for(tmp_path: Path) -> None:
    path = write_rows(
        tmp_path,
        ["", "", "f", 150, "ill", 3],
        ["NA", "", "?", "inf", "well", 3],
        [500, "", "x", "tall", "well", 3],
        [20, "", "f", 150, "", 3],
    )
    samples = read_table_samples(path, schema(), KNOWN)
    assert len(samples) == 3
    np.testing.assert_allclose(samples.rows[:, 0], [0, 0, 2.5])  # the mean, the mean, the end of the range
    assert (samples.rows[1, 1:] == 0).all()
    assert (samples.rows[2, 2:4] == 0).all()
    told = {
        fault.name: [other.reason for other in samples.faults if other.name == fault.name] for fault in samples.faults
    }
    assert told["line 5"] == ["has no label"]
    assert len(told["column age"]) == 2
    assert told["column age"][0].startswith("2 of 4 values are missing")
    assert told["column age"][1].startswith("1 of 4 values are outside the agreed range 0 to 100")
    assert told["column height"][0].startswith("2 of 4")
    assert told["column sex"] == [
        "1 of 4 values are missing: no category stands in",
        "1 of 4 values are not among the agreed categories: none stands in",
    ]


@pytest.mark.parametrize(
    ("header", "row", "words"),
    [
        (["age", "sex", "kind"], [1, "f", "ill"], ["no column 'height', 'nothing'", "age, sex, kind"]),
        (HEADER, [1, "", "f", 150, "sick", 3], ["line 2", "'sick'", "ill, well"]),
    ],
)
def test_what_does_not_fit_the_schema_is_refused(
    tmp_path: Path, header: list[str], row: list[object], words: list[str]
) -> None:
    path = write_csv(tmp_path / "t.csv", header, [row])
    with pytest.raises(SettingsError) as caught:
        read_table_samples(path, schema(), KNOWN)
    for word in words:
        assert word in str(caught.value)


def test_groups_and_splits_come_from_their_columns(tmp_path: Path) -> None:
    header = [*HEADER, "patient", "part"]
    rows = [[1, "", "f", 150, "ill", 3, "p1", "train"], [1, "", "f", 150, "well", 3, "", "test"]]
    path = write_csv(tmp_path / "t.csv", header, rows)
    samples = read_table_samples(path, schema(group="patient", split="part"), KNOWN)
    assert samples.groups is not None
    assert samples.groups.tolist() == ["p1", "line 3"]
    assert samples.splits.tolist() == [0, 1]


def test_parquet_and_csv_hold_the_same_rows(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    columns = {"age": [70.5, None], "sex": ["f", "m"], "height": [150, 180], "kind": ["ill", "well"], "nothing": [3, 3]}
    parquet.write_table(pyarrow.table(columns), tmp_path / "t.parquet")
    write_rows(tmp_path, [70.5, "", "f", 150, "ill", 3], ["", "", "m", 180, "well", 3])
    one = read_table_samples(tmp_path / "t.parquet", schema(), KNOWN)
    other = read_table_samples(tmp_path / "t.csv", schema(), KNOWN)
    assert np.array_equal(one.rows, other.rows)
    assert [fault.reason for fault in one.faults] == [fault.reason for fault in other.faults]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"columns": [{"name": "a"}]}, "'a' needs minimum and maximum, or categories"),
        ({"columns": [{"name": "a", "minimum": 2, "maximum": 1}]}, "minimum 2 is above maximum 1"),
        ({"columns": [{"name": "a", "minimum": 0, "maximum": 1, "categories": ["x"]}]}, "one or the other"),
        ({"columns": [{"name": "a", "categories": ["x", "x"]}]}, "twice"),
        ({"columns": [{"name": "a", "categories": ["x", "y"], "shares": [0.5, 0.1]}]}, "sum to 1"),
        ({"columns": [{"name": "kind", "minimum": 0, "maximum": 1}]}, "'kind' is named twice"),
        ({"columns": [{"name": "a", "minimum": 0, "maximum": float("inf")}]}, "finite"),
        ({"correlations": [[1.0]]}, "5 rows of 5 numbers"),
        ({"classes": ["a"]}, "classes"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_schemas_that_cannot_be_are_refused(change: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        schema(**change)


def test_a_schema_travels_as_one_setting(tmp_path: Path) -> None:
    config = parse(wine_settings(tmp_path))
    assert config.data.table is not None
    assert parse(flat_values(config)) == config
    site = config.for_site()
    assert SiteSettings.model_validate_json(site.model_dump_json(), strict=False) == site
    assert read_table(write_table(config.data.table)) == config.data.table
    nested = {"data": {"source": "table", "path": "x.csv", "table": json.loads(write_table(config.data.table))}}
    assert parse({**nested, "train.model": "mlp"}).data.table == config.data.table


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"data.table": ""}, "go together"),
        ({"data.source": "folder"}, "go together"),
        ({"data.classes": "a,b"}, "leave it empty"),
        ({"data.input": "embedding"}, "is for images"),
        ({"data.table": "missing.toml"}, "coterie schema"),
    ],
)
def test_settings_that_do_not_go_with_tables_are_refused(
    tmp_path: Path, changes: dict[str, object], words: str
) -> None:
    with pytest.raises(SettingsError, match=words):
        parse(wine_settings(tmp_path) | changes)


def test_a_draft_describes_a_file_without_telling_its_extremes(tmp_path: Path) -> None:
    path = write_wine(tmp_path)
    cells = read_columns(path)
    table = draft_schema(cells, "class")
    assert table.classes == ("barbera", "barolo", "grignolino")
    assert len(table.columns) == 13
    alcohol = table.columns[0]
    values = np.array(cells["alcohol"], float)
    assert alcohol.minimum is not None
    assert alcohol.maximum is not None
    assert alcohol.minimum <= values.min()
    assert alcohol.maximum >= values.max()
    assert alcohol.mean == pytest.approx(values.mean(), rel=0.01)
    assert read_table(str(tmp_path / "wine.toml")) == table  # written and read again
    samples = read_table_samples(path, table, {name: i for i, name in enumerate(table.classes)})
    np.testing.assert_allclose(samples.rows.std(axis=0), 1, rtol=0.01)
    np.testing.assert_allclose(np.corrcoef(samples.rows.T), table.correlations, atol=0.002)


def test_a_draft_knows_categories_and_refuses_notes(tmp_path: Path) -> None:
    rows = [[i % 7, f"note {i}", "fm"[i % 2], 100 + i, ["ill", "well"][i % 2], 3] for i in range(60)]
    cells = read_columns(write_rows(tmp_path, *rows))
    with pytest.raises(SettingsError, match=r"'note' holds 60 different texts.*--group note.*--drop note"):
        draft_schema(cells, "kind")
    table = draft_schema(cells, "kind", drop=["note"])
    assert {column.name: column.categories for column in table.columns}["sex"] == ("f", "m")
    assert check_table(json.loads(write_table(table))) == table
    # Constant columns and indicators that always sum to one leave no NaN.
    assert np.isfinite(table.correlations).all()
    assert "shares" in schema_toml(table)


def test_the_command_drafts_and_never_overwrites(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_wine(tmp_path)
    out = tmp_path / "mine.toml"
    assert main(["schema", str(path), "--out", str(out)]) == 0
    drafted = read_table(str(out))
    assert drafted is not None
    assert not drafted.correlations, "they help whoever wants to read the rows, and dc-cfl does as well without"
    assert main(["schema", str(path), "--out", str(tmp_path / "full.toml"), "--correlations"]) == 0
    full = read_table(str(tmp_path / "full.toml"))
    assert full is not None
    assert full.correlations
    assert main(["schema", str(path), "--out", str(out)]) == 2
    assert main(["schema", str(path), "--label", "colour"]) == 2
    assert "no column 'colour'" in capsys.readouterr().err


def test_simulated_sites_share_a_table_and_a_site_may_have_its_own(tmp_path: Path) -> None:
    config: Config = parse(wine_settings(tmp_path, sites=3))
    shares = [load_site(Identity(f"{i:03d}", None, (i, 3), None), config.for_site()) for i in range(3)]
    lines = np.concatenate([np.concatenate([site.train, site.test]) for site in shares])
    assert sorted(lines.tolist()) == list(range(178))
    assert shares[0].train_inputs().dtype == np.float32
    assert shares[0].train_inputs().shape == (len(shares[0].train), 13)
    own = load_site(Identity("own", tmp_path / "wine.csv", None, tmp_path), config.for_site())
    assert len(own.train) + len(own.test) == 178
    with pytest.raises(SettingsError, match="not a table"):
        load_site(Identity("own", tmp_path, None, tmp_path), config.for_site())
    with pytest.raises(SettingsError, match="needs images"):
        _ = own.images


def test_rows_that_come_later_change_nobodys_side(tmp_path: Path) -> None:
    path = write_wine(tmp_path)
    settings = parse(wine_settings(tmp_path, data__watch=True)).for_site()
    identity = Identity("own", path, None, tmp_path)
    before = load_site(identity, settings)
    header, *rows = path.read_text(encoding="utf-8").splitlines()
    path.write_text("\n".join([header, rows[5].replace(rows[5][:2], "12"), *rows]) + "\n", encoding="utf-8")
    after = load_site(identity, settings)
    assert len(after.samples) == len(before.samples) + 1
    test_before = {row.tobytes() for row in before.test_inputs()}
    assert test_before <= {row.tobytes() for row in after.test_inputs()}


def test_many_columns_are_told_of_in_one_line() -> None:
    """A site prints this once for every run; it was a line for each column."""
    faults = [Fault(f"column {name}", "3 of 9 values are outside") for name in "abcde"]
    told = in_one_line(faults)
    assert "\n" not in told
    assert told.startswith("column a: 3 of 9 values are outside; column b: ")
    assert told.endswith("; and 2 more (`coterie site check` names them)")
    assert in_one_line(faults[:1]) == "column a: 3 of 9 values are outside"
