"""The page and the README's table are functions of the JSON: golden files, and what is committed.

PYTHONPATH=tools/bench:tests/unit/tools python -c "import test_bench_report as t; t.write_golden()"
writes the golden page again; read the difference.
"""

import json
import re
from fnmatch import fnmatch
from pathlib import Path

import aims
import pytest
import report
import shown
from rows import all_rows

ROOT = Path(__file__).parents[3]
GOLDEN = Path(__file__).parent / "golden"


def _golden() -> tuple[dict, dict, dict]:
    document = json.loads((GOLDEN / "bench.json").read_text())
    return document, aims.read(GOLDEN / "remarks.toml"), json.loads(
        (GOLDEN / "scale.json").read_text()
    )  # fmt: skip


def _page() -> str:
    document, remarks, scale = _golden()
    return report.render(document, remarks, scale=scale)


def test_the_page_is_the_golden_one():
    assert _page() == (GOLDEN / "BENCHMARKS.md").read_text()


def test_missed_aims_without_a_reason_are_told():
    document, remarks, _ = _golden()
    assert [verdict.row for verdict in report.unexplained(document, remarks)] == ["start-up"]


def test_the_readme_keeps_all_but_what_is_between_its_marks():
    document, _, _ = _golden()
    readme = f"before\n{report.BEGIN}\nold\n{report.END}\nafter\n"
    text = report.with_table(readme, report.readme_table(document))
    assert text.startswith(f"before\n{report.BEGIN}\n|  |")
    assert text.endswith(f"{report.END}\nafter\n")
    assert "old" not in text
    assert "| send, async pair, 128 B, 16 x 16: msg/s | 60,000 | 40,000 (apache) | 1.50x" in text
    assert "2026-01-02" in text
    assert report.with_table(text, report.readme_table(document)) == text


def test_a_readme_without_marks_is_an_error():
    with pytest.raises(ValueError, match="README"):
        report.with_table("no marks", "table")


def _section(page: str, title: str) -> str:
    return page.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def test_the_figures_of_the_readme_are_on_the_page():
    """Red: somebody typed a figure into one of the two."""
    page = (ROOT / "docs" / "BENCHMARKS.md").read_text()
    table = (ROOT / "README.md").read_text().partition(report.BEGIN)[2].partition(report.END)[0]
    lines = re.findall(r"(?m)^\| (.+?): ([^|]+) \| ([^|]+) \| (\S+) \(([^|]+)\) \|", table)
    assert len(lines) == len(table.splitlines()) - 6  # Without head, text and blank lines.
    for title, unit, ours, theirs, rival in lines:
        section = _section(page, title)
        assert unit in section, title
        assert rival in section, title
        for figure in (ours, theirs):
            assert re.search(rf"\| {re.escape(figure)}[ (|]", section), f"{title}: {figure}"


def _place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, page: str) -> Path:
    """A repository in small, and a directory with the golden results."""
    docs, out = tmp_path / "docs", tmp_path / "out"
    docs.mkdir()
    out.mkdir()
    (docs / "BENCHMARKS.md").write_text(page)
    (tmp_path / "README.md").write_text(f"{report.BEGIN}\n{report.END}\n")
    for name in ("bench.json", "scale.json"):
        (out / name).write_text((GOLDEN / name).read_text())
    monkeypatch.setenv("OUT", str(out))
    monkeypatch.setattr(report, "DOCS", docs)
    monkeypatch.setattr(report, "README", tmp_path / "README.md")
    remarks = aims.read(GOLDEN / "remarks.toml")
    monkeypatch.setattr(aims, "read", lambda: remarks)
    return out


def test_page_pictures_and_readme_come_from_the_directory_of_results(tmp_path, monkeypatch):
    _place(tmp_path, monkeypatch, "")
    assert report.main() == 0
    page = (tmp_path / "docs" / "BENCHMARKS.md").read_text()
    for picture in re.findall(r"\]\(([^)]+\.svg)\)", page):
        assert (tmp_path / "docs" / picture).exists()
    assert "| send, async pair" in (tmp_path / "README.md").read_text()
    assert report.main() == 0  # The same results again are no loss.


def test_rows_and_curves_that_were_not_measured_stay_as_the_page_shows_them(tmp_path, monkeypatch):
    page = _page()
    out = _place(tmp_path, monkeypatch, page)
    (out / "scale.json").unlink()
    document = json.loads((out / "bench.json").read_text())
    kept = document["rows"].pop(0)["name"]
    (out / "bench.json").write_text(json.dumps(document))
    assert report.main() == 0
    assert f"Row `{kept}`" in page
    assert (tmp_path / "docs" / "BENCHMARKS.md").read_text() == page


def test_figures_of_another_machine_are_not_mixed_in(tmp_path, monkeypatch, capsys):
    page = _page()
    out = _place(tmp_path, monkeypatch, page)
    document = json.loads((out / "bench.json").read_text())
    lost = document["rows"].pop(0)["name"]
    document["facts"]["cpu"] = "another"
    (out / "bench.json").write_text(json.dumps(document))
    assert report.main() == 1
    assert (tmp_path / "docs" / "BENCHMARKS.md").read_text() == page
    assert lost in capsys.readouterr().err


def test_without_results_the_page_stays(tmp_path, monkeypatch, capsys):
    out = _place(tmp_path, monkeypatch, _page())
    (out / "bench.json").unlink()
    assert report.main() == 1
    assert "no rows" in capsys.readouterr().err


def test_what_the_page_shows_can_be_read_back():
    """Every row and curve of the committed page, figure by figure."""
    page = (ROOT / "docs" / "BENCHMARKS.md").read_text()
    found = shown.rows(page, all_rows())
    assert {row["name"] for row in found} == set(re.findall(r"(?m)^Row `([^`]+)`", page))
    for row in found:
        assert report._row(row, {}).rstrip() in page, row["name"]
    curves = shown.curves(page)
    assert {curve["name"] for curve in curves} == set(re.findall(r"\]\(scale-(.+)\.svg\)", page))
    for line in report._scale({"curves": curves}, {}).splitlines():
        assert line in page


def _rows() -> dict[str, set[str]]:
    """The metrics of every row that `make bench` has, by the name of the row."""
    return {row.name: {metric.name for metric in row.metrics} for row in all_rows()}


def test_aims_remarks_and_the_readme_name_rows_and_metrics_that_exist():
    rows, remarks = _rows(), aims.read()
    for pattern, lines in remarks["aims"].items():
        named = [name for name in rows if fnmatch(name, pattern)]
        assert named, f"no row is like {pattern}"
        for name in named:
            assert {line.split()[0] for line in lines} <= rows[name], name
    curves = {f"scale-{name}" for name in ("log", "topics", "connections", "consumers")}
    assert set(remarks.get("remarks", {})) <= {*rows, *curves}
    for name, metric in report.README_ROWS:
        assert metric in rows[name], name


def test_no_absolute_path_of_a_machine_is_on_the_page():
    text = (ROOT / "docs" / "BENCHMARKS.md").read_text()
    assert re.findall(r"/(?:root|work|home|tmp)/\S+", text) == []


def write_golden() -> None:
    """Called by hand: see the docstring."""
    (GOLDEN / "BENCHMARKS.md").write_text(_page())
