"""Where Argo has no artifact repository, a file that it could not save would fail the report's pod."""

import json

import pytest

from rerail.plugins.steps.report import has_repository


@pytest.mark.parametrize(
    ("template", "has"),
    [
        ({"archiveLocation": {"archiveLogs": False}}, False),
        ({"archiveLocation": {}}, False),
        ({"archiveLocation": {"archiveLogs": True, "s3": {"bucket": "b"}}}, True),
        ({"archiveLocation": {"gcs": {}}}, True),
        ({"name": "report"}, True),
    ],
)
def test_argo_tells_in_the_template_of_the_pod(template, has, tmp_path):
    path = tmp_path / "template"
    path.write_text(json.dumps(template))
    assert has_repository(path) is has


def test_outside_of_argo_a_report_is_written(tmp_path):
    assert has_repository(tmp_path / "none")
    (tmp_path / "template").write_text("{")
    assert has_repository(tmp_path / "template")
