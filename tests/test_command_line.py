"""The verbs on tables: what goes in comes out, and what is wrong is one sentence."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner

from weft.cli import app

ROWS = 12


def ward(seed=0, patients=3):
    """A table of half-missing streams."""
    rng = np.random.default_rng(seed)
    rows = []
    for patient in range(patients):
        for hour in range(ROWS):
            wave = np.sin(hour / 2 + patient)
            rows.append(
                {
                    "patient": f"p{patient}",
                    "hour": hour,
                    "pulse": None if rng.random() < 0.5 else 70 + 5 * wave,
                    "state": None if rng.random() < 0.5 else ("up" if wave > 0 else "down"),
                }
            )
    return pl.DataFrame(rows)


def weft(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a table and a model fitted to it."""
    folder = tmp_path_factory.mktemp("ward")
    ward().write_csv(folder / "ward.csv")
    words = ["fit", folder / "ward.csv", "-o", folder / "ward.weft", "--id", "patient"]
    words += ["--time", "hour", "--epochs", "2", "--latent", "2", "--hidden", "4", "--json"]
    found = weft(*words)
    assert found.exit_code == 0, found.stderr
    assert json.loads(found.stdout)["epochs"] == 2
    return folder


# What comes out


def test_fit_leaves_model_metrics_and_curves(place):
    names = {file.name for file in (place / "ward_log").iterdir()}
    assert names == {"checkpoint.safetensors", "metrics.jsonl", "curves.png"}


def test_fit_says_what_the_columns_became(tmp_path):
    ward().write_csv(tmp_path / "ward.csv")
    words = ["fit", tmp_path / "ward.csv", "-o", tmp_path / "m.weft", "--id", "patient"]
    found = weft(*words, "--time", "hour", "--epochs", "1", "--latent", "2", "--hidden", "4")
    assert "Modality('pulse', shape=(1,), likelihood=Normal())" in found.stdout
    assert "Modality('state', categories=('down', 'up')" in found.stdout
    assert "Next: weft impute" in found.stdout


def test_impute_fills_gaps_and_keeps_the_rest(place, tmp_path):
    out = tmp_path / "filled.parquet"
    words = ["impute", place / "ward.weft", place / "ward.csv", "-o", out, "--std", "-q", "0.05"]
    assert weft(*words).exit_code == 0
    before, after = pl.read_csv(place / "ward.csv"), pl.read_parquet(out)
    assert after.columns == [*before.columns, "pulse_std", "pulse_q05"]
    assert after["pulse"].null_count() == after["state"].null_count() == 0
    seen = before["pulse"].is_not_null()
    assert after.filter(seen)["pulse"].equals(before.filter(seen)["pulse"])
    assert after["pulse_std"].is_null().equals(seen.alias("pulse_std"))


@pytest.mark.parametrize("verb", ["smooth", "filter"])
def test_every_entry_is_predicted(place, verb):
    found = weft(verb, place / "ward.weft", place / "ward.csv", "--probabilities")
    table = pl.read_csv(found.stdout.encode())
    assert table.columns[-2:] == ["state_p_down", "state_p_up"]
    assert table["pulse"].null_count() == 0
    assert len(table) == 3 * ROWS


def test_forecast_and_backcast_go_on_in_time(place):
    ahead = weft("forecast", place / "ward.weft", place / "ward.csv", "--steps", "2")
    assert pl.read_csv(ahead.stdout.encode())["hour"].to_list() == [ROWS, ROWS + 1] * 3
    before = weft("backcast", place / "ward.weft", place / "ward.csv", "--steps", "2")
    assert pl.read_csv(before.stdout.encode())["hour"].to_list() == [-2, -1] * 3


def test_a_modality_is_generated_from_another(place):
    found = weft("generate", place / "ward.weft", place / "ward.csv", "--target", "state")
    table = pl.read_csv(found.stdout.encode())
    assert table["state"].null_count() == 0
    assert table["pulse"].null_count() > 0


def test_a_label_column_may_be_absent_when_it_is_predicted(place, tmp_path):
    ward().drop("state").write_csv(tmp_path / "new.csv")
    found = weft("classify", place / "ward.weft", tmp_path / "new.csv", "--label", "state")
    table = pl.read_csv(found.stdout.encode())
    chances = table["state_p_down"] + table["state_p_up"]
    assert chances.to_list() == pytest.approx([1.0] * len(table))


def test_samples_scores_and_errors(place):
    drawn = weft("sample", place / "ward.weft", "--steps", "3", "-n", "2")
    assert len(pl.read_csv(drawn.stdout.encode())) == 6
    score = weft("score", place / "ward.weft", place / "ward.csv", "--json")
    assert np.isfinite(json.loads(score.stdout)["score"])
    words = ["evaluate", place / "ward.weft", place / "ward.csv"]
    found = json.loads(weft(*words, "--json").stdout)
    assert set(found["pulse"]) == {"count", "mae", "rmse", "crps", "coverage"}
    assert set(found["state"]) == {"count", "accuracy", "log_loss"}
    hidden = json.loads(
        weft(*words, "--delete", "modality", "--modality", "state", "--json").stdout
    )
    assert set(hidden) == {"state"}
    assert "pulse: count" in weft(*words).stdout


def test_info_describes_a_model(place):
    found = weft("info", place / "ward.weft")
    assert "2 latent" in found.stdout
    assert "id='patient'" in found.stdout
    facts = json.loads(weft("info", place / "ward.weft", "--json").stdout)
    assert facts["latent"] == 2
    assert facts["table"]["time"] == "hour"
    assert json.loads(weft("info", "--json").stdout)["threads"] >= 1


def test_a_spec_says_it_all_and_flags_win(tmp_path):
    ward().write_csv(tmp_path / "ward.csv")
    (tmp_path / "spec.toml").write_text(
        "[table]\nid = 'patient'\ntime = 'hour'\nstep = 2\n"
        "[modalities]\nheart = 'pulse'\n"
        "state = {columns = 'state', categories = ['up', 'down', 'flat'], weight = 2.0}\n"
        "[model]\nlatent = 2\nhidden = 4\nseed = 3\n"
        "[training]\nepochs = 9\nburst = 0.0\n"
    )
    words = ["fit", tmp_path / "ward.csv", "-o", tmp_path / "m.weft", "--epochs", "1", "--json"]
    found = weft(*words, "--spec", tmp_path / "spec.toml")
    assert json.loads(found.stdout)["epochs"] == 1
    assert "'flat'" in found.stdout
    filled = weft("impute", tmp_path / "m.weft", tmp_path / "ward.csv", "--grid")
    table = pl.read_csv(filled.stdout.encode())
    assert table["hour"].to_list() == list(range(0, ROWS, 2)) * 3


def test_tables_at_two_rates_are_merged(tmp_path):
    ward().drop("state").write_csv(tmp_path / "pulse.csv")
    ward().drop("pulse").filter(pl.col("hour") % 3 == 0).write_csv(
        tmp_path / "state.tsv", separator="\t"
    )
    words = ["fit", tmp_path / "pulse.csv", tmp_path / "state.tsv", "-o", tmp_path / "m.weft"]
    words += [
        "--id",
        "patient",
        "--time",
        "hour",
        "--epochs",
        "1",
        "--latent",
        "2",
        "--hidden",
        "4",
    ]
    assert weft(*words).exit_code == 0
    found = weft("impute", tmp_path / "m.weft", tmp_path / "pulse.csv", tmp_path / "state.tsv")
    assert len(pl.read_csv(found.stdout.encode())) == 3 * ROWS


def test_help_comes_without_pytorch():
    code = "import sys; from weft.cli import app; import weft; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


# What is wrong


def write(folder: Path, text: str, name: str = "bad.csv") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def csv(*lines: str) -> str:
    return "\n".join(lines) + "\n"


GOOD = csv("id,t,x", *(f"a,{i},{i / 10}" for i in range(6)))
TABLES = {
    "empty": ("", [], "is empty"),
    "header only": (csv("t,x"), [], "no rows"),
    "ragged": (csv("t,x", "1,2", "1,2,3,4"), [], "cannot be read as a table"),
    "unknown id": (GOOD, ["--id", "who"], "no column 'who'"),
    "unknown time": (GOOD, ["--id", "id", "--time", "when"], "no column 'when'"),
    "unknown column": (GOOD, ["--modality", "m=y"], "wants the column 'y'"),
    "no modality": (GOOD, ["--modality", "m"], "not of the form"),
    "no columns": (GOOD, ["--modality", "m="], "not of the form"),
    "duplicate times": (csv("t,x", "1,2", "1,3"), ["--time", "t"], "two values"),
    "mixed zones": (
        csv("t,x", "2026-03-01T12:00:00,1", "2026-03-01T12:00:00+01:00,2"),
        ["--time", "t"],
        "with and without a time zone",
    ),
    "no time": (csv("t,x", "noon,1", "one,2"), ["--time", "t"], "which is no time"),
    "missing time": (csv("t,x", "1,2", ",3"), ["--time", "t"], "no time in row 1"),
    "missing id": (csv("id,x", "a,2", ",3"), ["--id", "id"], "no sequence in row 1"),
    "all missing": (csv("t,x,y", "1,2,", "2,3,"), ["--time", "t"], "'y' is missing everywhere"),
    "one label": (csv("x,y", "1,a", "2,a"), [], "only the label 'a'"),
    "spoilt numbers": (csv("x", "1", "2", "3", "oops"), [], "'oops' in row 3, but mostly numbers"),
    "too many labels": (csv("x,y", *(f"{i},w{i}" for i in range(300))), [], "300 different texts"),
    "infinite": (csv("x", "1", "inf"), [], "infinite value"),
    "huge": (csv("x", "1", "1e300", "2", "3"), [], "as large as 1e+300"),
    "times as values": (csv("x,y", "1,2026-03-01", "2,2026-03-02"), [], "'y' holds times"),
    "no unit": (csv("t,x", "2026-03-01,1", "2026-03-02,2"), ["--time", "t", "--step", "1"], "unit"),
    "bad unit": (csv("t,x", "2026-03-01,1"), ["--time", "t", "--step", "1m"], "not a duration"),
    "unit for numbers": (GOOD, ["--id", "id", "--time", "t", "--step", "1h"], "plain numbers"),
    "step without time": (GOOD, ["--id", "id", "--step", "1"], "no column was named as time"),
    "step of nothing": (GOOD, ["--id", "id", "--time", "t", "--step", "0"], "longer than nothing"),
    "too fine": (csv("t,x", "0,1", "9e9,2"), ["--time", "t", "--step", "1"], "longer step"),
    "no such rule": (GOOD, ["--id", "id", "--combine", "best"], "no rule 'best'"),
    "half a long table": (GOOD, ["--variable", "x"], "Name both"),
    "no such method": (GOOD, ["--id", "id", "--inference", "magic"], "no inference method 'magic'"),
    "nothing left": (csv("id,t", "a,1", "a,2"), ["--id", "id", "--time", "t"], "No column is left"),
}


def assert_one_sentence(found, message):
    assert found.exit_code not in (0, 70), found.output
    assert not found.stdout
    assert found.stderr.startswith("weft: ")
    assert found.stderr.count("\n") == 1
    assert "Traceback" not in found.output
    assert message in found.stderr


@pytest.mark.parametrize("case", TABLES)
def test_a_bad_table_is_one_sentence(case, tmp_path):
    text, flags, message = TABLES[case]
    out = write(tmp_path, "what was there", "model.weft")
    words = ["fit", write(tmp_path, text), "-o", out, "--epochs", "1", "--latent", "2"]
    assert_one_sentence(weft(*words, "--hidden", "4", "--json", *flags), message)
    assert out.read_text() == "what was there"


SPECS = {
    "broken": ("[table\n", "not valid TOML"),
    "unknown section": ("[tables]\n", "unknown section 'tables'"),
    "not a section": ("table = 3\n", "[table] is a section"),
    "unknown key": ("[table]\nwho = 'a'\n", "unknown key in [table] 'who'"),
    "unknown setting": ("[training]\nepoch = 3\n", "unknown key in [training] 'epoch'"),
    "unknown part": ("[modalities]\nx = {column = 'x'}\n", "unknown key of modality 'x'"),
    "no likelihood": ("[modalities]\nx = {likelihood = 'gauss'}\n", "the likelihood 'gauss'"),
    "no label": ("[modalities]\nid = {categories = ['b', 'c']}\n", "the label 'a'"),
}


@pytest.mark.parametrize("case", SPECS)
def test_a_bad_spec_is_one_sentence(case, tmp_path):
    text, message = SPECS[case]
    spec = write(tmp_path, text, "spec.toml")
    words = ["fit", write(tmp_path, GOOD), "-o", tmp_path / "m.weft", "--spec", spec, "--json"]
    assert_one_sentence(weft(*words), message)
    assert not (tmp_path / "m.weft").exists()


def test_bad_files_are_one_sentence(tmp_path):
    table = write(tmp_path, GOOD)
    fit = ["fit", "-o", tmp_path / "m.weft", "--json"]
    assert_one_sentence(weft(*fit, tmp_path / "none.csv"), "There is no file")
    assert_one_sentence(weft(*fit, write(tmp_path, GOOD, "table.xls")), "no ending that says")
    (tmp_path / "latin.csv").write_bytes("x\nä\nö\n".encode("latin-1"))
    assert_one_sentence(weft(*fit, tmp_path / "latin.csv"), "not UTF-8")
    assert_one_sentence(weft(*fit, write(tmp_path, "no", "t.parquet")), "cannot be read as a table")
    assert_one_sentence(weft(*fit, write(tmp_path, "no", "t.arrow")), "cannot be read as a table")
    assert_one_sentence(weft(*fit, table, "--spec", tmp_path / "none.toml"), "There is no file")
    assert_one_sentence(weft("fit", table, "-o", tmp_path), "is a folder")
    assert_one_sentence(weft("fit", table, "-o", tmp_path / "a" / "m.weft"), "There is no folder")


VERBS = {
    "unseen label": (csv("patient,hour,pulse,state", "p,0,1,sideways"), [], "label 'sideways'"),
    "no id": (csv("hour,pulse", "0,1"), [], "no column 'patient'"),
    "nothing known": (csv("patient,hour,size", "p,0,1"), [], "No column is left"),
    "labels as numbers": (csv("patient,hour,pulse", "p,0,high", "p,1,low"), [], "holds labels"),
    "quantile": (csv("patient,hour,pulse", "p,0,1"), ["-q", "1.5"], "between 0 and 1"),
}


@pytest.mark.parametrize("case", VERBS)
def test_bad_data_for_a_model_are_one_sentence(case, place, tmp_path):
    text, flags, message = VERBS[case]
    out = write(tmp_path, "what was there", "filled.csv")
    found = weft("impute", place / "ward.weft", write(tmp_path, text), "-o", out, *flags)
    assert_one_sentence(found, message)
    assert out.read_text() == "what was there"


def test_bad_models_are_one_sentence(place, tmp_path):
    table, whole = place / "ward.csv", (place / "ward.weft").read_bytes()
    (tmp_path / "cut.weft").write_bytes(whole[:-10])
    (tmp_path / "text.weft").write_text("no model")
    assert_one_sentence(weft("score", tmp_path / "none.weft", table), "There is no file")
    assert_one_sentence(weft("score", tmp_path / "cut.weft", table), "cannot be read")
    assert_one_sentence(weft("score", tmp_path / "text.weft", table), "cannot be read")
    checkpoint = place / "ward_log" / "checkpoint.safetensors"
    assert_one_sentence(weft("score", checkpoint, table), "holds a")


def test_bad_requests_are_one_sentence(place, tmp_path):
    model, table = place / "ward.weft", place / "ward.csv"
    assert_one_sentence(weft("generate", model, table, "--target", "size"), "'size'")
    assert_one_sentence(weft("classify", model, table, "--label", "pulse"), "no categories")
    assert_one_sentence(weft("evaluate", model, table, "--delete", "all"), "no protocol 'all'")
    assert_one_sentence(weft("evaluate", model, table, "--share", "0"), "Nothing observed was")
    assert_one_sentence(weft("impute", model, table, "-o", tmp_path / "f.txt"), "no ending")
    for words in (
        ["forecast", model, table, "--steps", "0"],
        ["forecast", model, table],
        ["paint"],
    ):
        found = weft(*words)
        assert found.exit_code == 2
        assert "Traceback" not in found.output


def test_a_full_disk_leaves_what_was_there(place, tmp_path, monkeypatch):
    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    out = write(tmp_path, "what was there", "filled.csv")
    monkeypatch.setattr(pl.DataFrame, "write_csv", full)
    found = weft("impute", place / "ward.weft", place / "ward.csv", "-o", out)
    assert_one_sentence(found, "No space left on device")
    assert out.read_text() == "what was there"
    assert [file.name for file in tmp_path.iterdir()] == ["filled.csv"]


def test_a_folder_that_may_not_be_written_to_is_named(place, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK)
    table = place / "ward.csv"
    for words in (["impute", place / "ward.weft", table, "-o", tmp_path / "f.csv"], ["fit", table]):
        assert_one_sentence(weft(*words), "Nothing may be written to the folder")
    assert not list(tmp_path.iterdir())


def test_an_interruption_is_no_traceback(place, monkeypatch):
    def stop(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr("weft.cli.verbs.read_frames", stop)
    found = weft("score", place / "ward.weft", place / "ward.csv")
    assert found.exit_code == 130
    assert found.stderr.startswith("weft: Stopped.")


def test_a_bug_is_said_to_be_one(place, monkeypatch):
    def break_down(*args, **kwargs):
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr("weft.cli.verbs.read_frames", break_down)
    found = weft("score", place / "ward.weft", place / "ward.csv")
    assert found.exit_code == 70
    assert "This should not have happened: ZeroDivisionError" in found.stderr
