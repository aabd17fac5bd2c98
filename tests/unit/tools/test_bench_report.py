"""The page and the README's table are functions of the JSON: golden files, and the committed ones.

PYTHONPATH=tools/bench:tests/unit/tools python -c "import test_bench_report as t; t.write_golden()"
writes the golden page anew; read the difference.
"""

import importlib.util
import json
import re
from fnmatch import fnmatch
from pathlib import Path

import aims
import pytest
import report

ROOT = Path(__file__).parents[3]
BENCH = ROOT / "tools" / "bench"
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


def test_the_committed_page_and_readme_are_of_the_committed_results():
    """Red: somebody typed a figure, or forgot `python tools/bench/report.py`."""
    document = json.loads((ROOT / "docs" / "benchmarks.json").read_text())
    page = report.render(document, aims.read(), scale=report.scale_document())
    assert (ROOT / "docs" / "BENCHMARKS.md").read_text() == page
    readme = (ROOT / "README.md").read_text()
    assert report.with_table(readme, report.readme_table(document)) == readme


def _rows() -> dict[str, set[str]]:
    """The metrics of every row that `make bench` has, by the name of the row."""
    spec = importlib.util.spec_from_file_location("bench_main", BENCH / "__main__.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return {row.name: {metric.name for metric in row.metrics} for row in module.all_rows()}


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


def test_no_absolute_path_of_a_machine_is_in_the_results():
    text = (ROOT / "docs" / "benchmarks.json").read_text()
    assert re.findall(r"/(?:root|work|home|tmp)/\S+", text) == []


def write_golden() -> None:
    """Called by hand: see the docstring."""
    (GOLDEN / "BENCHMARKS.md").write_text(_page())
