"""The harness of `make bench`: rows picked, subjects in turn, medians, ratios."""

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def harness():
    path = ROOT / "tools" / "bench" / "harness.py"
    spec = importlib.util.spec_from_file_location("bench_harness", path)
    module = importlib.util.module_from_spec(spec)
    import sys

    sys.modules["bench_harness"] = module  # Dataclasses look their module up.
    spec.loader.exec_module(module)
    return module


def _row(harness, subjects, **options):
    metrics = [harness.Metric("rate", "1/s", "higher"), harness.Metric("cpu", "us", "lower")]
    return harness.Row("store-append", "append", metrics, subjects, **options)


def test_subjects_alternate_and_medians_are_taken(harness, tmp_path):
    order = []

    def subject(name, rates):
        def run(context):
            order.append(name)
            assert context.scale == 0.5
            return {"rate": rates.pop(0), "cpu": 2.0}

        return run

    cleaned = []
    row = _row(
        harness,
        {"twinlog": subject("t", [10.0, 30.0, 20.0]), "apache": subject("a", [5.0, 5.0, 5.0])},
        cleanup=cleaned.append,
    )
    result = harness.run_row(row, lambda name: tmp_path / name, rounds=3, scale=0.5)
    assert order == ["t", "a", "t", "a", "t", "a"]
    assert result["subjects"]["twinlog"]["rate"] == {"median": 20.0, "low": 10.0, "high": 30.0}
    assert len(cleaned) == 2
    head, rate, cpu = harness.table([result])
    assert head == ["row", "metric", "twinlog", "apache", "ratio"]
    assert rate == ["append", "rate [1/s]", "20 (10 .. 30)", "5", "4.00x"]
    assert cpu[-1] == "1.00x"


def test_rows_are_picked_by_parts_of_their_names(harness):
    rows = [_row(harness, {})]
    assert harness.wanted(rows, "") == rows
    assert harness.wanted(rows, "nothing, append") == rows
    assert harness.wanted(rows, "flush") == []


def test_without_a_rival_there_is_no_ratio(harness, tmp_path):
    row = _row(harness, {"twinlog": lambda _: {"rate": 12345.6}})
    result = harness.run_row(row, lambda name: tmp_path, rounds=1, scale=1)
    head, rate, cpu = harness.table([result])
    assert head == ["row", "metric", "twinlog"]
    assert rate[-1] == "12,346"
    assert cpu[-1] == ""
