"""The report: one page that stands alone, whatever the data hold."""

import json
import math
import re
import shutil
import struct
import subprocess
from datetime import datetime, timedelta
from html import escape, unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner

import weft
from weft.bookkeeping import read_history
from weft.cli import app
from weft.report import build_report, write_report
from weft.report.measures import (
    calibrate,
    coverage,
    excerpt,
    reference,
    reliability,
    try_out,
)
from weft.report.ticks import date_ticks, log_ticks, number_ticks

SECTIONS = ["summary", "missingness", "training", "sequences", "calibration", "errors"]
NASTY = "<script>alert('no')</script>"


def fit(data: weft.Sequences, modalities: list[weft.Modality] | None = None) -> weft.MDMM:
    declared = weft.infer_modalities(data) if modalities is None else modalities
    model = weft.MDMM(declared, latent=2, hidden=4)
    return model.fit(data, training=weft.TrainingConfig(epochs=2), progress=False)


def quick(model: weft.MDMM, data: weft.Sequences, *, samples: int = 4, seed: int = 0) -> str:
    return build_report(model, data, samples=samples, sequences=2, seed=seed)


def ward(steps: int = 14) -> pl.DataFrame:
    """Three patients, hourly, with gaps, and names that would do harm if they could."""
    rng = np.random.default_rng(0)
    rows = []
    for i in range(3):
        for t in range(steps):
            pulse, temp = 70 + 9 * math.sin(t / 3) + rng.normal(), 37 + 0.2 * rng.normal()
            rows.append(
                {
                    "patient": f"p{i} {NASTY}",
                    "time": datetime(2026, 3, 1 + i, 2) + timedelta(hours=t),
                    f"pulse & {NASTY}": None if rng.uniform() < 0.4 else pulse,
                    "temp": None if rng.uniform() < 0.6 else temp,
                    "state": [None, "low", f"high {NASTY}"][int(rng.integers(3))],
                }
            )
    return pl.DataFrame(rows)


@pytest.fixture(scope="module")
def data() -> weft.Sequences:
    return weft.Sequences.from_frame(ward(), id="patient", time="time")


@pytest.fixture(scope="module")
def model(data: weft.Sequences) -> weft.MDMM:
    return fit(data)


@pytest.fixture(scope="module")
def page(model: weft.MDMM, data: weft.Sequences) -> str:
    return quick(model, data)


class Reader(HTMLParser):
    """Tags, attributes and text of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data):
        self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def words_of(page: str, section: str) -> str:
    """The text of one section."""
    tree = ElementTree.fromstring(page)
    found = tree.find(f".//section[@id='{section}']")
    assert found is not None
    return " ".join(" ".join(found.itertext()).split())


# The page


def test_the_page_is_well_formed_and_whole(page):
    tree = ElementTree.fromstring(page)  # stricter than HTML: every tag is closed
    assert [section.get("id") for section in tree.iter("section")] == SECTIONS
    links = [link.get("href") for link in tree.iter("a")]
    assert links == [f"#{name}" for name in SECTIONS]
    for drawing in tree.iter("svg"):
        assert drawing.get("viewBox")
        assert drawing.findtext("title")
        assert drawing.findtext("desc")
    for figure in tree.iter("figure"):
        assert figure.findtext("figcaption")


def test_the_page_asks_for_nothing(page):
    read = Reader(page)
    assert not set(read.tags) & {"script", "link", "img", "iframe", "object", "embed", "base"}
    names = {name for name, _ in read.attributes}
    assert not names & {"src", "srcset", "data", "action"}
    assert not {name for name in names if name.startswith("on")}
    assert not re.search(r"https?:|//|url\(|@import", page)
    assert "default-src 'none'" in page


def test_text_of_the_user_stays_text(page):
    assert "<script" not in page
    text = Reader(page).text
    for part in (f"p0 {NASTY}", f"pulse & {NASTY}", f"high {NASTY}"):
        assert part in text


def test_what_cannot_be_printed_does_not_spoil_the_page():
    odd = "a\x00b\ud800\u202e"
    data = weft.Sequences.from_arrays({"x": [[1.0, 2.0, 3.0]]}, ids=[odd])
    page = quick(fit(data), data)
    ElementTree.fromstring(page)
    assert "a�b��" in page
    page.encode()


def test_every_section_says_what_it_should(page, data):
    assert "3 sequences" in words_of(page, "missingness")  # in a description
    assert "% observed" in words_of(page, "missingness")
    assert "2 epochs" in words_of(page, "training")
    assert "time, from 2026-03-01 02:00" in words_of(page, "sequences")
    assert "90 % band" in words_of(page, "sequences")
    assert "promised share" in words_of(page, "calibration")
    assert "probability that was given" in words_of(page, "calibration")
    for title in ("half the steps", "half the entries", "one run of a quarter", "last quarter"):
        assert title in words_of(page, "errors")
    for name in ("MAE", "RMSE", "CRPS", "In 90 %", "Accuracy", "Log loss"):
        assert name in words_of(page, "errors")
    assert f"weft {weft.__version__}, seed 0, 4 samples" in Reader(page).text


def test_same_seed_same_page(model, data, page):
    assert quick(model, data) == page
    assert quick(model, data, seed=1) != page


def test_the_model_is_left_as_it_was(model, data):
    before = {name: value.clone() for name, value in model.module.state_dict().items()}
    quick(model, data)
    assert all((before[name] == value).all() for name, value in model.module.state_dict().items())
    assert not model.module.training


# Whatever the data hold


def test_data_without_times_have_steps(tmp_path):
    data = weft.Sequences.from_arrays({"x": [[1.0, np.nan, 3.0, 2.0], [1.0, 2.0]]})
    page = quick(fit(data), data)
    assert "step" in words_of(page, "sequences")
    assert "2 sequences" in words_of(page, "missingness")


@pytest.mark.parametrize(
    ("times", "shown"),
    [
        ([0.5 * i for i in range(12)], "when"),
        ([timedelta(minutes=7 * i) for i in range(12)], "when (min)"),
        ([f"2026-03-01T02:{i:02}:00+01:00" for i in range(12)], "UTC"),
    ],
)
def test_times_of_every_kind_have_an_axis(times, shown):
    frame = pl.DataFrame({"when": times, "x": np.sin(np.arange(12)).tolist()})
    data = weft.Sequences.from_frame(frame, time="when")
    assert shown in words_of(quick(fit(data), data), "sequences")


@pytest.mark.parametrize(
    "values",
    [
        {"x": [[1.0]], "kind": [["a"]]},
        {"x": [[np.nan, np.nan, 2.0]], "kind": [[None, "a", None]]},
        {"x": [[5.0, 5.0, 5.0]], "kind": [["b", "b", "b"]]},
        {"kind": [["a", "b", None, "a"], ["b", "b", "a", None]]},
        {"x": [[1.0, 2.0, np.nan, 0.0]], "y": [[[1.0] * 5, [np.nan] * 5, [0.5] * 5, [2.0] * 5]]},
    ],
    ids=["one step", "little observed", "constant", "labels only", "numbers only"],
)
def test_odd_data_make_a_page(values):
    kinds = {"kind": ["a", "b"]} if "kind" in values else None
    data = weft.Sequences.from_arrays(values, categories=kinds)
    modalities = [
        weft.Modality(name, column.shape or 1, categories=column.categories)
        if column.categories is None
        else weft.Modality(name, categories=column.categories)
        for name, column in data.columns.items()
    ]
    page = quick(fit(data, modalities), data)
    assert [s.get("id") for s in ElementTree.fromstring(page).iter("section")] == SECTIONS
    assert "nan" not in page.lower()


def test_labels_that_were_never_observed_are_told(model, data):
    nothing = data.hide("state")
    page = quick(model, nothing)
    assert "state: 0 % observed" in words_of(page, "missingness")
    assert "reliability" not in words_of(page, "calibration")
    everything_gone = data.hide(*data.names)
    page = quick(model, everything_gone)
    assert "too little was observed" in words_of(page, "calibration")
    assert "too little was observed" in words_of(page, "errors")


def test_images_are_counted_and_not_drawn():
    rng = np.random.default_rng(0)
    data = weft.Sequences.from_arrays(
        {"video": rng.uniform(size=(2, 6, 1, 8, 8)), "x": rng.normal(size=(2, 6, 1))}
    )
    page = quick(fit(data), data)
    assert "images of 1 × 8 × 8" in words_of(page, "summary")
    assert "video: 100 % observed" in words_of(page, "missingness")
    assert "video holds images, which are neither drawn nor scored" in words_of(page, "sequences")
    assert "video" not in words_of(page, "errors")
    alone = data.keep("video")
    assert "too little was observed" in words_of(quick(fit(alone), alone), "errors")


def test_many_categories_share_a_colour_and_wide_modalities_are_cut():
    rng = np.random.default_rng(0)
    kinds = [f"kind {i}" for i in range(12)]
    data = weft.Sequences.from_arrays(
        {"kind": [rng.choice(kinds, 30).tolist()], "wide": rng.normal(size=(1, 30, 7))},
        categories={"kind": kinds},
    )
    words = words_of(quick(fit(data), data), "sequences")
    assert "5 others" in words
    assert "Of wide the first 3 entries are drawn" in words
    assert "wide_2" in words
    assert "wide_3" not in words


def test_long_sequences_are_cut_to_a_window_and_it_is_said():
    values = np.sin(np.arange(700) / 9)
    values[:400] = np.nan
    data = weft.Sequences.from_arrays({"x": [values]})
    model = fit(weft.Sequences.from_arrays({"x": [values[400:420]]}))
    words = words_of(quick(model, data, samples=2), "sequences")
    assert "the 300 steps with most observations are drawn" in words
    assert "Sequence 0[300:600]" in words or "Sequence 0[600:700]" in words


def test_what_is_scored_is_bounded():
    many = weft.Sequences.from_arrays({"x": np.zeros((1000, 30, 1))})
    assert len(excerpt(many, 1, 100)) == 200
    long = weft.Sequences.from_arrays({"x": np.zeros((3, 9000, 1))})
    assert excerpt(long, 1, 100).rows == 10_000
    assert excerpt(long, 1, 100).lengths.max() == 500
    wide = weft.Sequences.from_arrays({"x": np.zeros((2, 100, 4096), np.float32)})
    assert excerpt(wide, 4096, 100).rows * 4096 * 100 <= 20_000_000
    assert excerpt(many[:3], 1, 100).ids == (0, 1, 2)


# Its numbers


@pytest.mark.parametrize("kind", ["normal", "poisson"])
def test_intervals_of_the_right_distribution_keep_their_promise(kind):
    rng = np.random.default_rng(0)
    draw = getattr(rng, kind)
    cases = 4000
    curve = coverage(draw(2.0, size=(30, cases)), draw(2.0, size=cases), seed=0)
    error = np.sqrt(curve.expected * (1 - curve.expected) / cases)
    assert (np.abs(curve.found - curve.expected) < 4 * error).all()
    assert curve.entries == cases


def test_intervals_that_are_too_narrow_are_found_out():
    rng = np.random.default_rng(0)
    curve = coverage(0.5 * rng.normal(size=(30, 4000)), rng.normal(size=4000), seed=0)
    assert (curve.found < curve.expected - 0.03).all()


def test_labels_drawn_from_their_probabilities_are_reliable():
    rng = np.random.default_rng(0)
    chances = rng.dirichlet([1.0, 1.0, 1.0], size=4000)
    codes = (chances.cumsum(1) < rng.uniform(size=(4000, 1))).sum(1)
    curve = reliability(chances, codes)
    error = np.sqrt(curve.expected * (1 - curve.expected) / curve.count)
    assert (np.abs(curve.found - curve.expected) < 4 * error).all()
    assert curve.count.sum() == 3 * 4000
    assert curve.entries == 4000


def test_calibration_compares_what_was_deleted(model, data):
    curves = calibrate(model, data, ["temp", "state"], samples=4, seed=0)
    for name, curve in curves.items():
        assert 0 < curve.entries < data.columns[name].observed.sum()
        assert ((curve.found >= 0) & (curve.found <= 1)).all()
    np.testing.assert_allclose(curves["temp"].expected, np.arange(1, 10) / 10)
    assert (np.diff(curves["temp"].found) >= 0).all()


def test_a_modality_is_deleted_as_a_whole_where_others_are_left(model, data):
    found = {
        trial.protocol: scores
        for trial, scores in try_out(model, data, ["temp", "state"], samples=4, seed=0)
    }
    assert set(found) == {"steps", "entries", "bursts", "start", "end", "modality"}
    assert set(found["modality"]) == {"temp", "state"}
    assert found["modality"]["temp"].count == int(data.columns["temp"].observed.sum())
    alone = weft.Sequences.from_arrays({"x": [[1.0, 2.0, 3.0, 4.0]]})
    last = list(try_out(fit(alone), alone, ["x"], samples=4, seed=0))[-1]
    assert last[1] == {}


def test_references_are_what_a_guess_would_reach():
    data = weft.Sequences.from_arrays(
        {"x": [[1.0, np.nan, 3.0]], "kind": [["a", "b", "b"]], "no": [[np.nan] * 3]}
    )
    assert "RMSE of 1.00" in reference(data.columns["x"])
    assert "“b” would be right in 67 %" in reference(data.columns["kind"])
    assert reference(data.columns["no"]) == ""


# Its axes


def test_ticks_are_round_and_inside():
    assert [t.label for t in number_ticks(-0.12, 0.31)] == ["−0.1", "0.0", "0.1", "0.2", "0.3"]
    assert [t.label for t in number_ticks(99_998, 100_002, 4)] == ["99,998", "100,000", "100,002"]
    assert [t.label for t in number_ticks(0, 3e-7, 4)] == ["0", "1×10⁻⁷", "2×10⁻⁷", "3×10⁻⁷"]
    assert [t.label for t in log_ticks(0.5, 7.0)] == ["0.5", "1", "2", "5"]
    rng = np.random.default_rng(0)
    for low, width in zip(rng.normal(size=200) * 1e3, 10 ** rng.uniform(-6, 6, 200), strict=True):
        marks = number_ticks(low, low + width)
        assert 1 <= len(marks) <= 5
        assert all(low - 1e-6 * width <= t.at <= low + width * (1 + 1e-6) for t in marks)


@pytest.mark.parametrize("span", [1, 10**3, 10**7, 10**10, 10**13, 10**15, 10**17, 4 * 10**18])
def test_dates_are_marked_at_any_distance(span):
    start = 1_772_330_400_123_456_789 if span < 10**18 else 0
    marks = date_ticks(start, start + span, 5)
    assert 1 <= len(marks) <= 5
    assert all(0 <= mark.at <= span for mark in marks)
    assert len({(mark.label, mark.below) for mark in marks}) == len(marks)


# Its file


def test_the_file_is_whole_or_not_there(model, data, tmp_path, monkeypatch):
    path = tmp_path / "report.html"
    write_report(model, data, path, samples=4, sequences=1)
    before = path.read_text()
    assert before.startswith("<!DOCTYPE html>")
    for spoil in ({"samples": 0}, {"sequences": 0}, {"log": tmp_path / "nowhere"}):
        with pytest.raises((ValueError, OSError)):
            write_report(model, data, path, **spoil)

    def fail(self, target):
        raise OSError("no room")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(OSError, match="no room"):
        write_report(model, data, path, samples=2, sequences=1)
    assert path.read_text() == before
    assert [file.name for file in tmp_path.iterdir()] == ["report.html"]


def test_a_model_that_learned_nothing_has_no_report(data, tmp_path):
    model = weft.MDMM(weft.infer_modalities(data), latent=2, hidden=4)
    with pytest.raises(weft.NotFittedError):
        write_report(model, data, tmp_path / "report.html")
    assert not list(tmp_path.iterdir())


def test_a_log_is_read_and_a_spoilt_one_refused(model, data, tmp_path):
    record = {**vars(model.history[0]), "epoch": 7}
    (tmp_path / "metrics.jsonl").write_text(json.dumps(record) + "\n")
    assert [epoch.epoch for epoch in read_history(tmp_path)] == [7]
    words = words_of(build_report(model, data, log=tmp_path, samples=2, sequences=1), "training")
    assert "1 epoch." in words
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"epoch": 8')
    with pytest.raises(weft.DataError, match=r"Line 2 of .* is no record"):
        read_history(tmp_path)


def test_the_command_writes_a_page_and_speaks_in_sentences(model, tmp_path):
    table, file, out = (str(tmp_path / n) for n in ("ward.csv", "ward.weft", "report.html"))
    ward().write_csv(table)
    model.save(file)
    run = CliRunner().invoke
    given = ["report", file, table, "-o", out, "--samples", "2", "--sequences", "1"]
    found = run(app, [*given, "--json"])
    assert found.exit_code == 0, found.output
    assert json.loads(found.stdout) == {"report": out, "sequences": 3, "steps": 42}
    written = Path(out).read_text()
    assert "No record of the training" in words_of(written, "training")
    assert "<h1>ward.weft and ward.csv</h1>" in written

    folder = tmp_path / "ward_log"
    folder.mkdir()
    record = json.dumps(vars(model.history[0]))
    (folder / "metrics.jsonl").write_text(record + "\n")
    found = run(app, given)
    assert found.exit_code == 0, found.output
    assert f"Wrote {out}." in " ".join(found.stdout.split())
    assert "1 epoch." in words_of(Path(out).read_text(), "training")

    for wrong, sentence in [
        ([*given, "--log", str(tmp_path / "nowhere")], "There is no metrics.jsonl"),
        (["report", file, table, "-o", str(tmp_path)], "is a folder"),
        (["report", file, str(tmp_path / "none.csv"), "-o", out], "There is no file"),
    ]:
        found = run(app, wrong)
        assert found.exit_code == 1
        assert sentence in " ".join(found.stderr.split())
        assert "Traceback" not in found.output


# In a browser

BROWSER = next(
    filter(None, map(shutil.which, ["chromium", "chromium-browser", "google-chrome"])), None
)
LOOK = """
const found = {wide: document.documentElement.scrollWidth, room: innerWidth, cut: [], over: [],
               small: 99};
for (const svg of document.querySelectorAll("svg")) {
  const frame = svg.getBoundingClientRect();
  const boxes = [...svg.querySelectorAll("text")].map(t => [t.textContent,
                                                            t.getBoundingClientRect()]);
  const size = parseFloat(getComputedStyle(svg).fontSize);
  found.small = Math.min(found.small, size * frame.width / svg.viewBox.baseVal.width);
  boxes.forEach(([text, box], i) => {
    if (box.left < frame.left - 1 || box.right > frame.right + 1 || box.top < frame.top - 1
        || box.bottom > frame.bottom + 1) found.cut.push(text);
    for (const [other, rect] of boxes.slice(i + 1)) {
      const across = Math.min(box.right, rect.right) - Math.max(box.left, rect.left);
      const down = Math.min(box.bottom, rect.bottom) - Math.max(box.top, rect.top);
      if (across > 1 && down > 4) found.over.push(text + " / " + other);
    }
  });
}
parent.postMessage(JSON.stringify(found), "*");
"""
FRAME = """<!DOCTYPE html><iframe width="{width}" height="2400" style="border: 0" srcdoc="{page}">
</iframe><pre></pre><script>
onmessage = event => document.querySelector("pre").textContent = "FOUND" + event.data + "END";
</script>"""


def browse(page: Path, *options: str, width: int = 1400) -> str:
    """Open a page in a headless browser and return what it prints."""
    assert BROWSER is not None
    command = [
        BROWSER,
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--hide-scrollbars",
        f"--user-data-dir={page.parent / 'profile'}",
        f"--window-size={width},2400",
        *options,
        page.as_uri(),
    ]
    done = subprocess.run(command, capture_output=True, timeout=120, check=True)
    return done.stdout.decode()


def measure(page: str, width: int, folder: Path) -> dict[str, Any]:
    """What a script sees of a page of this width, in a frame, as windows have a least width."""
    policy = re.compile(r'<meta http-equiv="Content-Security-Policy".*?/>', re.S)
    spied = policy.sub("", page).replace("</body>", f"<script>{LOOK}</script></body>")
    file = folder / "measured.html"
    file.write_text(FRAME.format(width=width, page=escape(spied)))
    text = re.search(
        r"FOUND(.*?)END", browse(file, "--virtual-time-budget=9000", "--dump-dom"), re.S
    )
    assert text is not None
    found: dict[str, Any] = json.loads(unescape(text[1]))
    return found


@pytest.mark.skipif(BROWSER is None, reason="needs a headless browser: apt-get install chromium")
def test_a_browser_shows_the_page_on_a_phone_and_on_a_screen(page, tmp_path):
    file, picture = tmp_path / "report.html", tmp_path / "report.png"
    file.write_text(page)
    shown = browse(file, "--dump-dom", f"--screenshot={picture}", width=390)
    assert [name for name in SECTIONS if f'<section id="{name}">' in shown] == SECTIONS
    assert shown.count("<svg") == page.count("<svg") > 0
    assert "<script" not in shown
    content = picture.read_bytes()
    assert struct.unpack(">II", content[16:24]) == (390, 2400)
    assert len(content) > 20_000  # something is drawn
    for width in (390, 1200):
        found = measure(page, width, tmp_path)
        assert found["room"] == width
        assert found["wide"] <= width, "nothing sticks out to the side"
        assert found["cut"] == []
        assert found["over"] == []
        assert found["small"] >= 11, "letters can be read"
