"""Charts as inline SVG, without script, image or reference to anything outside the page.

Horizontal positions are percentages, so a chart fills any width while its text keeps its size. A label that would not
fit is given the class of the smallest container width at which it does (``w480`` and so on; the style sheet hides it
below). Colours come from the page's classes, so that both themes share one drawing.
"""

from collections.abc import Iterable
from html import escape

from markupsafe import Markup

WIDTHS_PX = (320, 480, 640, 800, 960, 1200)
"""Container widths that the style sheet knows."""

CHAR_PX = 6.7
SHAPES = {
    "good": '<circle r="4.5"/>',
    "final": '<circle r="6.5" class="ring"/><circle r="3"/>',
    "off-chain": '<circle r="4" class="hollow"/>',
    "suspect": '<path d="M0-6 6 0 0 6-6 0Z" class="hollow"/>',
    "bad": '<path d="M-4.5-4.5 4.5 4.5M4.5-4.5-4.5 4.5" class="cross"/>',
}

Place = dict[str, str | float]
"""Attributes that say where something is drawn."""


def tag(name: str, body: str = "", /, **attributes: str | float) -> str:
    """One element; ``class_`` is written ``class``, and ``title`` becomes its tooltip."""
    title = str(attributes.pop("title", ""))
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(str(value))}"' for key, value in attributes.items()
    )
    inside = (f"<title>{escape(title)}</title>" if title else "") + body
    return f"<{name}{written}>{inside}</{name}>" if inside else f"<{name}{written}/>"


def text(words: str, /, **attributes: str | float) -> str:
    """A text element."""
    return tag("text", escape(words), **attributes)


def width_class(words: str, share: float, *, pad_px: float = 12) -> str | None:
    """Class of the smallest container in which ``words`` fit into ``share`` of its width; None if in none."""
    if share <= 0:
        return None
    need = (len(words) * CHAR_PX + pad_px) / share
    return next((f"w{width}" for width in WIDTHS_PX if need <= width), None)


def hatched(where: Place, title: str = "") -> str:
    """A span of work that was lost, or is run again: hatched, so that it shows without colour too."""
    return tag("rect", class_="lost", **where) + tag("rect", title=title, fill="url(#hatch)", **where)


def bar(begin: float, end: float, kind: str, *, title: str = "", hatched_from: float | None = None) -> Markup:
    """A bar between two shares of a cell's width, for tables.

    Args:
        begin: 0..1.
        end: 0..1.
        kind: Class of the bar.
        title: Tooltip.
        hatched_from: From here on the bar is hatched.
    """
    span: Place = {"y": 2, "height": 14, "rx": 2}
    width = max(0.0, end - begin)
    parts = tag("rect", class_="rail", x="0%", width="100%", **span)
    parts += tag("rect", title=title, class_=kind, x=f"{100 * begin:.2f}%", width=f"{100 * width:.2f}%", **span)
    if hatched_from is not None and hatched_from < end:
        over: Place = {"x": f"{100 * hatched_from:.2f}%", "width": f"{100 * (end - hatched_from):.2f}%"}
        parts += hatched({**over, **span})
    return Markup(tag("svg", parts, class_="bar", width="100%", height=18, aria_hidden="true"))  # noqa: S704


def stack(shares: Iterable[tuple[str, float, str]]) -> Markup:
    """One bar of consecutive shares: (class, share, tooltip)."""
    parts, at = "", 0.0
    for kind, share, title in shares:
        where: Place = {"x": f"{100 * at:.3f}%", "width": f"{100 * share:.3f}%", "y": 0, "height": 22}
        parts += hatched(where, title) if kind == "lost" else tag("rect", title=title, class_=kind, **where)
        at += share
    drawn = tag("svg", parts, class_="stack-bar", width="100%", height=22, role="img", aria_label="share of time")
    return Markup(drawn)  # noqa: S704


def swatch(kind: str) -> Markup:
    """A legend's sample of a bar or mark."""
    if kind in SHAPES:
        state = "good" if kind == "final" else kind
        inside = tag("g", SHAPES[kind], class_=f"ck {state}", transform="translate(9 7)")
    elif kind == "fault":
        inside = tag("path", d="M3 3H15L9 12Z", class_="fault")
    else:
        where: Place = {"x": 0, "y": 1, "width": 18, "height": 12, "rx": 2}
        inside = hatched(where) if kind == "lost" else tag("rect", class_=kind, **where)
    return Markup(tag("svg", inside, width=18, height=14, class_="swatch", aria_hidden="true"))  # noqa: S704


HATCHES = Markup(
    '<svg width="0" height="0" aria-hidden="true" class="defs"><defs>'
    '<pattern id="hatch" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
    '<rect width="2" height="6" class="hatch-ink"/></pattern></defs></svg>'
)
"""Definitions that the charts refer to; once per page."""
