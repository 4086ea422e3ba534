"""The page in a real Chromium, under the very rules by which Argo serves artifacts."""

import contextlib
import functools
import http.server
import json
import os
import queue
import re
import shutil
import signal
import subprocess
import threading
import time

import pytest

from rerail.plugins.report import render

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
ARGO_CSP = (
    "sandbox allow-same-origin; base-uri 'none'; default-src 'none'; img-src 'self'; style-src 'self' 'unsafe-inline'"
)

DEADLINE_S = 120
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--enable-logging=stderr",
    "--window-size=1500,900",
    "--remote-debugging-port=0",  # so that it stays until it is ended
)

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on PATH (Debian: apt-get install chromium)")

# The looker is same-origin and without rules, so it may look into the frames, which themselves can run no script.
LOOKER = """<!doctype html><body style="margin:0"><script>
const look = (frame) => {
  const page = frame.contentDocument, root = page.documentElement;
  const style = frame.contentWindow.getComputedStyle(page.body);
  const box = (query) => { const at = page.querySelector(query); return at && at.getBoundingClientRect().toJSON(); };
  const texts = [...page.querySelectorAll(".timeline text")].filter((at) => getComputedStyle(at).display !== "none");
  return {
    overflow: root.scrollWidth - root.clientWidth, timeline: box(".timeline"), tiles: box(".tiles"), lead: box(".lead"),
    labels: texts.map((at) => at.getBoundingClientRect().toJSON()), background: style.backgroundColor, ink: style.color,
  };
};
const load = (path, width) => new Promise((done) => {
  const frame = document.createElement("iframe");
  frame.style.cssText = `border:0;width:${width}px;height:500px`;
  frame.onload = () => done(look(frame));
  frame.src = path;
  document.body.append(frame);
});
Promise.all(%s.map(([path, width]) => load(path, width))).then(
  (found) => { console.log("LOOKED"); return fetch("/found", {method: "POST", body: JSON.stringify(found)}); });
</script>"""


class _Served(http.server.BaseHTTPRequestHandler):
    def __init__(self, pages, told, *args):
        self.pages, self.told = pages, told
        super().__init__(*args)

    def do_POST(self):
        self.told.put(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(204)
        self.end_headers()

    def do_GET(self):
        found = self.pages.get(self.path)
        self.send_response(200 if found else 404)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        if found and found[1]:
            self.send_header("Content-Security-Policy", found[1])
        self.end_headers()
        self.wfile.write((found[0] if found else "").encode())

    def log_message(self, *_):
        pass


@pytest.fixture
def look(tmp_path):
    """Serve pages under Argo's rules and look at them: (what the looker found of each, what the console said)."""
    pages, told = {}, queue.Queue()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Served, pages, told))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()

    def run(shown, *, dark=False):
        for index, (page, _) in enumerate(shown):
            pages[f"/{index}.html"] = (page, ARGO_CSP)
        frames = json.dumps([[f"/{index}.html", width] for index, (_, width) in enumerate(shown)])
        pages["/look.html"] = (LOOKER % frames, None)
        command = [
            CHROMIUM,
            *FLAGS,
            f"--user-data-dir={tmp_path / 'profile'}",
            f"--blink-settings=preferredColorScheme={0 if dark else 1}",
            f"http://127.0.0.1:{server.server_port}/look.html",
        ]
        with (tmp_path / "browser.log").open("wb") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        try:
            found = told.get(timeout=DEADLINE_S)
            end = time.monotonic() + DEADLINE_S
            # What the pages said comes before the looker's own word, in another pipe than what it found.
            while b"LOOKED" not in (tmp_path / "browser.log").read_bytes():
                assert time.monotonic() < end, "the browser's log does not come"
                time.sleep(0.02)
        except queue.Empty:
            raise AssertionError((tmp_path / "browser.log").read_text(errors="replace")) from None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        logged = (tmp_path / "browser.log").read_text(errors="replace").splitlines()
        return json.loads(found), [line for line in logged if "CONSOLE" in line and "LOOKED" not in line]

    yield run
    server.shutdown()
    server.server_close()
    thread.join()


def test_the_rules_are_in_force_and_violations_would_be_seen(look):
    image = '<img src="data:image/gif;base64,R0lGODlhAQABAAAAACw=">'
    _, console = look([(f"<body><script>document.title = 1</script>{image}", 600)])
    assert any("Content Security Policy" in line for line in console), console


def test_the_report_shows_under_argos_rules_at_every_width(look, gpu_report, calm_report, long_report, stopped_report):
    reports = [gpu_report, calm_report, long_report, stopped_report]
    shown = [(report, width) for report in reports for width in (360, 640, 1000, 1400)]
    found, console = look([(render(report), width) for report, width in shown])
    assert console == []
    for (report, width), seen in zip(shown, found, strict=True):
        where = f"{report.run} at {width} px"
        assert seen["overflow"] == 0, where
        assert seen["timeline"]["width"] > width * 0.6, where
        assert seen["timeline"]["height"] > 80, where
        assert seen["tiles"]["bottom"] <= 480, where
        assert seen["lead"]["bottom"] <= 480, where
        for label in seen["labels"]:
            assert label["left"] >= -1, f"{where}: a label is cut off on the left"
            assert label["right"] <= width + 1, f"{where}: a label is cut off on the right"


def test_both_themes_are_real_and_readable(look, gpu_report):
    page = render(gpu_report)
    for dark, brighter in ((False, "background"), (True, "ink")):
        (seen,), _ = look([(page, 800)], dark=dark)
        shades = {part: _luminance(seen[part]) for part in ("background", "ink")}
        high, low = max(shades.values()), min(shades.values())
        assert shades[brighter] == high
        assert (high + 0.05) / (low + 0.05) > 7


def _luminance(colour: str) -> float:
    parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
