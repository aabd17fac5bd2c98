"""The harness of `make bench`: rows picked, subjects in turn, medians, ratios, results merged."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import aims
import harness
import pytest
import results
import scale


def _row(subjects, **options):
    metrics = [harness.Metric("rate", "1/s", "higher"), harness.Metric("cpu", "us", "lower")]
    return harness.Row("store-append", "append", metrics, subjects, **options)


def _answers(**values):
    """A subject that answers with the n-th of each list in its n-th round."""
    rounds = [
        dict(zip(values, numbers, strict=True)) for numbers in zip(*values.values(), strict=True)
    ]
    return lambda context: rounds.pop(0)


def test_subjects_alternate_and_medians_are_taken(tmp_path):
    order = []

    def subject(name, rates):
        def run(context):
            order.append(name)
            assert context.scale == 0.5
            return {"rate": rates.pop(0), "cpu": 2.0}

        return run

    cleaned = []
    row = _row(
        {"twinlog": subject("t", [10.0, 30.0, 20.0]), "apache": subject("a", [5.0, 5.0, 5.0])},
        cleanup=cleaned.append,
    )
    result = harness.run_row(row, lambda name: tmp_path / name, rounds=3, scale=0.5)
    assert order == ["t", "a", "t", "a", "t", "a"]
    assert result["subjects"]["twinlog"]["rate"] == {"median": 20.0, "low": 10.0, "high": 30.0}
    assert len(cleaned) == 2
    assert result["taken"]["rounds"] == 3
    head, rate, cpu = harness.table([result])
    assert head == ["row", "metric", "twinlog", "apache", "ratio"]
    assert rate == ["append", "rate [1/s]", "20 (10 .. 30)", "5", "4.00x (2.00 .. 6.00)"]
    assert cpu[-1] == "1.00x"


def test_a_named_rival_is_what_the_first_subject_is_held_against(tmp_path):
    subjects = {name: _answers(rate=[rate]) for name, rate in (("a", 6.0), ("b", 1.0), ("c", 3.0))}
    row = _row(subjects, rival="c")
    result = harness.run_row(row, lambda name: tmp_path, rounds=1, scale=1)
    assert harness.ratio(result, result["metrics"][0]) == harness.Ratio(2.0, 2.0, 2.0)


def test_lower_is_better_turns_the_ratio_around(tmp_path):
    row = _row({"a": _answers(cpu=[2.0, 4.0]), "b": _answers(cpu=[8.0, 8.0])})
    result = harness.run_row(row, lambda name: tmp_path, rounds=2, scale=1)
    ratio = harness.ratio(result, result["metrics"][1])
    assert ratio == harness.Ratio(8 / 3, 2.0, 4.0)


def test_rows_are_picked_by_parts_of_their_names():
    rows = [_row({})]
    assert harness.wanted(rows, "") == rows
    assert harness.wanted(rows, "nothing, append") == rows
    assert harness.wanted(rows, "flush") == []


def test_without_a_rival_there_is_no_ratio(tmp_path):
    row = _row({"twinlog": lambda _: {"rate": 12345.6}})
    result = harness.run_row(row, lambda name: tmp_path, rounds=1, scale=1)
    head, rate, cpu = harness.table([result])
    assert head == ["row", "metric", "twinlog"]
    assert rate[-1] == "12,346"
    assert cpu[-1] == ""


def test_rows_with_the_same_subjects_share_a_table():
    both, alone = {"subjects": {"t": {}, "a": {}}}, {"subjects": {"t": {}}}
    assert harness.groups([both, alone, both]) == [[both, both], [alone]]


def test_a_row_that_hangs_is_interrupted():
    with pytest.raises(harness.RowTimeout, match="slow: not done"), harness.deadline(0.05, "slow"):
        time.sleep(30)


_ORDER = ["a", "b", "c"]
_FACTS = {"machine": "x", "cpu": "y", "cpus": 2}


def _measured(name, value=1):
    return {"name": name, "value": value}


def test_a_row_replaces_its_older_result_and_its_failure(tmp_path):
    path = tmp_path / "out" / "bench.json"
    document = results.load(path, _FACTS)
    for name in ("c", "a", "gone"):
        document = results.with_row(document, _measured(name), _ORDER)
    document = results.with_failure(document, {"name": "a", "error": "first"})
    document = results.with_failure(document, {"name": "a", "error": "in '/tmp/x y'"})
    results.save(document, path)
    document = results.load(path, {**_FACTS, "kernel": "new"})
    assert [row["name"] for row in document["rows"]] == ["a", "c"]
    assert document["failures"] == [{"name": "a", "error": "in '... y'"}]
    assert document["facts"]["kernel"] == "new"
    document = results.with_row(document, _measured("a", 2), _ORDER)
    assert document["rows"] == [_measured("a", 2), _measured("c")]
    assert document["failures"] == []


def test_results_of_another_machine_are_not_mixed_in(tmp_path):
    path = tmp_path / "bench.json"
    path.write_text(json.dumps({"facts": {**_FACTS, "cpus": 64}, "rows": [1], "failures": []}))
    assert results.load(path, _FACTS)["rows"] == []


def _result(ours, theirs):
    row = _row({"t": _answers(rate=[ours], cpu=[1.0]), "a": _answers(rate=[theirs], cpu=[3.0])})
    return harness.run_row(row, lambda name: Path(), rounds=1, scale=1)


def test_aims_are_held_against_ratios_and_medians():
    remarks = {"aims": {"store-*": ["rate >= 1.5x", "cpu <= 0.5"], "other": ["rate >= 9x"]}}
    found = aims.verdicts(_result(20.0, 10.0), remarks)
    assert [(verdict.aim, verdict.seen, verdict.is_met) for verdict in found] == [
        ("rate >= 1.5x", "2.00x", True),
        ("cpu <= 0.5", "1 us", False),
    ]


@pytest.mark.parametrize("aim", ["rate > 1", "speed >= 1x", "rate"])
def test_an_aim_that_cannot_be_checked_is_an_error(aim):
    with pytest.raises(ValueError, match=r"remarks\.toml"):
        aims.verdicts(_result(1.0, 1.0), {"aims": {"*": [aim]}})


def test_the_routes_of_a_small_cluster_are_measured(tmp_path):
    program = harness.ROOT / "tools" / "bench" / "routes.py"
    small = {"BROKER_GROUPS": "3", "TOPICS": "10", "CONNECTIONS": "4", "REQUESTS": "50"}
    out = tmp_path / "routes.json"
    environment = {**os.environ, **small, "OUT": str(out)}
    subprocess.run([sys.executable, str(program)], env=environment, check=True, timeout=300)
    found = json.loads(out.read_text())
    assert (found["groups"], found["topics"], found["connections"]) == (3, 10, 4)
    shares = ("routes", "registrations", "heartbeats")
    assert found["cores"] == pytest.approx(sum(found[f"cores_for_{name}"] for name in shares))


@pytest.mark.parametrize("program", ["", "scale.py"], ids=["bench", "bench-scale"])
def test_an_argument_is_answered_and_measures_nothing(program):
    argv = [sys.executable, str(harness.ROOT / "tools" / "bench" / program)]
    asked = subprocess.run([*argv, "--help"], capture_output=True, text=True, timeout=60)
    assert asked.returncode == 0
    assert "ONLY=" in asked.stdout
    wrong = subprocess.run([*argv, "--quick"], capture_output=True, text=True, timeout=60)
    assert wrong.returncode == 1
    assert "no arguments are taken: --quick" in wrong.stderr


def test_a_curve_that_fails_loses_none_of_the_others(tmp_path, monkeypatch, capsys):
    def breaks(directory, factor):
        yield {"x": 1, "cpu": 2.0}
        raise RuntimeError("the broker is gone")

    def works(directory, factor):
        yield from ({"x": x, "cpu": 2.0 + x} for x in (1, 10))

    metrics = [harness.Metric("cpu", "us", "lower")]
    curves = [
        scale.Curve("first", "first", "x", metrics, breaks),
        scale.Curve("second", "second", "x", metrics, works),
    ]
    older = {"curves": [{"name": "first", "points": [{"x": 5}]}]}
    (tmp_path / "scale.json").write_text(json.dumps(older))
    monkeypatch.setattr(scale, "CURVES", curves)
    monkeypatch.setattr(sys, "argv", ["scale.py"])
    monkeypatch.setenv("OUT", str(tmp_path))
    monkeypatch.delenv("ONLY", raising=False)
    assert scale.main() == 1
    kept = json.loads((tmp_path / "scale.json").read_text())["curves"]
    assert {entry["name"]: len(entry["points"]) for entry in kept} == {"first": 1, "second": 2}
    assert "first failed: RuntimeError: the broker is gone" in capsys.readouterr().err


def test_a_directory_for_stores_that_is_not_there_is_said_in_one_line(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    done = subprocess.run(
        [sys.executable, harness.ROOT / "tools" / "bench" / "failover.py"],
        env={**os.environ, "BENCH_DIR": str(missing), "OUT": str(tmp_path / "out.jsonl")},
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 1
    assert (done.stdout, done.stderr.splitlines()) == (
        "", [f"BENCH_DIR={missing} is not a directory: make it first"],
    )  # fmt: skip
