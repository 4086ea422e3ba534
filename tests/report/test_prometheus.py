"""Prometheus text: every metric is there, names follow the conventions, and no label can grow without bound."""

import re

import pytest

from rerail.plugins.report.prometheus import exposition
from rerail.policies.metric_table import METRICS

SAMPLE = re.compile(r'(rerail_[a-z_]+)(?:\{([a-z]+)="([^"]*)"\})? (-?[0-9.e+-]+)')


def samples(text):
    for line in text.splitlines():
        if not line.startswith("#"):
            found = SAMPLE.fullmatch(line)
            assert found, line
            yield found


def test_the_numbers_are_the_reports(gpu_report):
    values = {(one[1], one[3]): float(one[4]) for one in samples(exposition(gpu_report))}
    assert values["rerail_mttr_seconds", None] == gpu_report.mttr_s
    assert values["rerail_lost_steps", None] == gpu_report.lost_steps
    assert values["rerail_saving_overhead_ratio", None] == pytest.approx(gpu_report.saving_overhead_percent / 100)
    assert values["rerail_recovery_phase_seconds", "load"] == gpu_report.mttr_phases_s.load
    assert values["rerail_incidents", "hardware"] == 1


@pytest.mark.parametrize("which", ["gpu_report", "calm_report", "long_report", "stopped_report"])
def test_the_form_is_right_and_labels_are_bounded(which, request):
    report = request.getfixturevalue(which)
    text = exposition(report)
    names = [line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")]
    assert len(names) == len(set(names))
    assert {one[1] for one in samples(text)} == set(names)
    assert report.run not in text
    assert {one[2] for one in samples(text)} <= {None, "phase", "type", "kind", "cause", "how", "state"}
    assert "None" not in text


def test_every_defined_metric_has_a_name(gpu_report):
    text = exposition(gpu_report)
    for name in METRICS:
        if name not in ("mttr_phases_s", "nvidia_goodput"):
            stem = re.sub(r"_(s|ratio|steps|percent)$", "", name)
            assert re.search(rf"^rerail_{stem}(_|\b)", text, re.MULTILINE), name
