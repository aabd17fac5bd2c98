"""`twinlog generate alert-rules`: the ten ways in which a pair becomes unsafe, as alerts, and three
of groups with a controller.

A counter that appears with its first event is 1 from the start, which `increase` does not see; so
a change of master is seen by the epoch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import click

from twinlog.cli.generate.documents import dump
from twinlog.cli.generate.values import DURATION, TIME

CRITICAL, WARNING = "critical", "warning"
_PLACE = "{{ $labels.node_id }} ({{ $labels.instance }})"


@dataclass(frozen=True, slots=True)
class Alert:
    """One rule. `expression` may hold WINDOW, a time that spans several scrapes."""

    name: str
    expression: str
    severity: str
    summary: str
    next_step: str


ALERTS = (
    Alert(
        "TwinlogServerDown", 'up{job="twinlog"} == 0', CRITICAL,
        "{{ $labels.instance }} cannot be scraped: the process or the machine is down.",
        "Look at the process and its log. twinlog ha status says what is left of its group.",
    ),
    Alert(
        "TwinlogNoMaster", "twinlog_groups_without_master > 0", CRITICAL,
        "{{ $value }} group(s) have slaves and no master: nothing can be sent to them.",
        "Start the master; if it is lost for good: twinlog ha promote GROUP --dry-run.",
    ),
    Alert(
        "TwinlogNoSlave", 'twinlog_health_finding{code=~"no_slave|slave_missing"} == 1', CRITICAL,
        f"{_PLACE} lacks a slave: what is sent now is on fewer machines.",
        "Start the slave; its log says why it does not replicate.",
    ),
    Alert(
        "TwinlogSlaveNotInSync", "twinlog_replica_in_sync == 0", CRITICAL,
        f"Slave {{{{ $labels.replica }}}} of {_PLACE} is connected and not in sync.",
        "Look at the slave's process, its disk and the network between the two.",
    ),
    Alert(
        "TwinlogSlaveNotLinked", "twinlog_slave_linked == 0", WARNING,
        f"Slave {_PLACE} has no connection to its master.",
        "Look at the master, and at the slave's log.",
    ),
    Alert(
        "TwinlogSlaveStopped", "twinlog_slave_stopped == 1", CRITICAL,
        f"Slave {_PLACE} does not go on although its master is there: its log is damaged or not"
        " the master's.",
        "Its log and twinlog ha status name the reason; docs/PAIR.md has what to do.",
    ),
    Alert(
        "TwinlogTwoMasters", "twinlog_rivals > 0 or twinlog_route_rivals > 0", CRITICAL,
        f"Two brokers claim one name and id at {_PLACE}: both take what they are sent.",
        "Stop the one whose messages you do not want to keep; see docs/PAIR.md.",
    ),
    Alert(
        "TwinlogSendsRefused", "twinlog_sends_refused == 1", CRITICAL,
        f"{_PLACE} takes no messages.",
        "twinlog doctor says why; often a disk is full: free space, or lower fileReservedTime.",
    ),
    Alert(
        "TwinlogDiskNearlyFull",
        "twinlog_disk_used_ratio > twinlog_disk_refuse_ratio - 0.05", WARNING,
        f"{{{{ $labels.directory }}}} of {_PLACE} is {{{{ $value | humanizePercentage }}}} full.",
        "Free space, or lower fileReservedTime, before sends are refused.",
    ),
    Alert(
        "TwinlogUnsafeSends", "increase(twinlog_puts_not_ok_total[WINDOW]) > 0", WARNING,
        f"Sends to {_PLACE} were answered with {{{{ $labels.status }}}}: stored, and not as safe"
        " as the mode promises.",
        "twinlog ha status names the slave or the disk that is slow.",
    ),
    Alert(
        "TwinlogGroupWithoutMaster", "twinlog_group_has_master == 0", CRITICAL,
        "The controller hears no master of group {{ $labels.broker_name }}, and has elected none.",
        "twinlog ha status says what the election waits for; see docs/GROUPS.md.",
    ),
    Alert(
        "TwinlogGroupDegraded", 'twinlog_health_finding{code="controller"} == 1', WARNING,
        f"The controller at {_PLACE} finds a group without all its replicas.",
        "twinlog ha status names the replica and the reason; see docs/GROUPS.md.",
    ),
    Alert(
        "TwinlogMasterChanged", "changes(twinlog_group_epoch[WINDOW]) > 0", WARNING,
        "Group {{ $labels.broker_name }} has another master now.",
        "twinlog ha events says why; bring the replica back that left, so that the group can do it"
        " again.",
    ),
)  # fmt: skip


def rules(hold: str, window: str) -> dict[str, Any]:
    """The rule file."""
    found = [
        {
            "alert": alert.name,
            "expr": alert.expression.replace("WINDOW", window),
            "for": hold,
            "labels": {"severity": alert.severity},
            "annotations": {"summary": alert.summary, "description": alert.next_step},
        }
        for alert in ALERTS
    ]
    return {"groups": [{"name": "twinlog", "rules": found}]}


@click.command("alert-rules", epilog="Example: twinlog generate alert-rules > twinlog.rules.yml")
@click.option("--for", "hold", type=TIME, default="15s", show_default=True,
              help="How long a condition must last before it is an alert.")  # fmt: skip
@click.option("--window", type=DURATION, default="2m", show_default=True,
              help="Time range for counters; it should span several scrapes.")  # fmt: skip
def alert_rules(hold: str, window: str) -> None:
    """Print alert rules for Prometheus: the ways in which a pair becomes unsafe, and failovers."""
    click.echo(dump([rules(hold, window)]), nl=False)
