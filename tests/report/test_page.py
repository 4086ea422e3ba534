"""The page: self-contained, escaped, and complete for calm, long and stopped runs."""

import re
from html.parser import HTMLParser

import pytest

from rerail.plugins.report import render
from rerail.plugins.report.words import headline, seconds, size

VOID = {"meta", "br", "img", "link", "input", "hr"}


class _Elements(HTMLParser):
    def __init__(self):
        super().__init__()
        self.found, self.open = [], []

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.fixture(params=["gpu_report", "calm_report", "long_report", "stopped_report"])
def page(request):
    return render(request.getfixturevalue(request.param))


def test_the_page_needs_nothing_but_itself(page):
    elements = _Elements()
    elements.feed(page)
    assert elements.open == []
    names = {tag for tag, _ in elements.found}
    assert not names & {
        "script",
        "img",
        "image",
        "link",
        "iframe",
        "object",
        "embed",
        "form",
        "a",
        "base",
        "font",
        "use",
    }
    assert {"svg", "style", "details", "title"} <= names
    for _, attributes in elements.found:
        assert not [
            name for name in attributes if name.startswith("on") or name in ("src", "href", "xlink:href", "srcset")
        ]
    assert "data:" not in page
    assert "@import" not in page
    assert "http" not in page
    assert set(re.findall(r"url\(([^)]*)\)", page)) <= {"#hatch"}
    assert "prefers-color-scheme: dark" in page
    assert len(page) < 400_000


def test_words_from_outside_are_escaped_everywhere(stopped_report):
    page = render(stopped_report)
    for hostile in ("<script", "<img", "<i>", '<b>"n"', "<b>&#34;n"):
        assert hostile not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt; &amp; more" in page
    assert "&lt;i&gt;damaged&lt;/i&gt;" in page
    assert "&lt;b&gt;&#34;n&#34;&lt;/b&gt;" in page


def test_the_key_facts_stand_before_the_timeline(gpu_report):
    head = render(gpu_report).split("<h2>Timeline</h2>")[0]
    for fact in ("pass", "bit for bit", "4.50 s", ">25<", "step 40", "XID 79 on node-0"):
        assert fact in head


def test_everything_that_was_asked_for_is_there(gpu_report):
    page = render(gpu_report)
    for words in ('class="timeline"', 'class="waterfall"', "NVRM: Xid", "gpu_lost", "Slowest phase: first new step",
                  "loaded step 40 of attempt 1, 24.4 MiB compared", "Saving cost 5.", "WASTED_PROGRESS_FROM_DISRUPTION",
                  "lostWorkTimeSec", "suspect_margin_s", "Skipped step 60 of attempt 1", "rpo_steps"):  # fmt: skip
        assert words in page, words
    for row in gpu_report.definitions:
        assert row.name in page


def test_a_calm_run_has_no_section_about_incidents(calm_report):
    page = render(calm_report)
    assert "<h2>Incident" not in page
    assert headline(calm_report) == "No incident: the run needed 1 attempt and reached step 100."
    assert "nothing to recover from" in page


def test_the_headline_tells_what_happened_and_what_came_of_it(gpu_report, stopped_report):
    assert headline(gpu_report) == (
        "XID 79 on node-0 was detected after 0.30 s. No save was asked for: the device is not trusted. Training went "
        "on from step 40 on node-1 and node-2: first new step 4.50 s after the fault, 25 steps run again."
    )
    assert "The run stopped: the same ValueError at step 33" in headline(stopped_report)


def test_many_incidents_fold_and_the_slowest_is_open(long_report):
    page = render(long_report)
    assert page.count('<details class="incident"') == 19
    assert page.count('<details class="incident" open>') == 1
    assert "18 more incidents below." in page


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "\N{EN DASH}"),
        (0.0, "0.00 s"),
        (3.419, "3.42 s"),
        (34.19, "34.2 s"),
        (245, "4 min 05 s"),
        (7800, "2 h 10 min"),
    ],
)
def test_durations_in_words(value, words):
    assert seconds(value) == words


def test_sizes_in_words():
    assert [size(0), size(1023), size(6_400_000), size(3 * 2**40)] == ["0 B", "1023 B", "6.1 MiB", "3.0 TiB"]
