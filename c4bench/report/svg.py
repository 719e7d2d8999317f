"""Write SVG: elements, and figures with titles for screen readers."""

from markupsafe import Markup, escape

from c4bench.foreign_text import one_line

Attribute = str | float

_BORDER = 12


def element(tag: str, *children: str, **attributes: Attribute) -> Markup:
    """The element `<tag a="1">children</tag>`; `stroke_width` becomes `stroke-width`, `class_` `class`.

    Attributes and children that are text, not Markup, are escaped, and of one printable line.
    """
    written = "".join(f' {_name(name)}="{escape(_value(value))}"' for name, value in attributes.items())
    inner = Markup("").join(child if isinstance(child, Markup) else one_line(child) for child in children)
    return Markup(f"<{tag}{written}>{inner}</{tag}>" if inner else f"<{tag}{written}/>")  # noqa: S704  (escaped above)


def drawing(title: str, description: str, width: float, height: float, *children: str) -> Markup:
    """A drawing that scales with its column, `width` by `height` units."""
    return _image(title, description, children, viewBox=f"0 0 {_value(width)} {_value(height)}")


def strip(title: str, description: str, height: float, *children: str) -> Markup:
    """A drawing as wide as its column and `height` pixels high: x in percent, y in pixels, text unscaled."""
    return _image(title, description, children, width="100%", height=height)


def standalone(title: str, description: str, width: float, height: float, css: str, *children: str) -> Markup:
    """A file of its own, `width` by `height` units on a card; `css` styles it, as the page would style a drawing."""
    style = element("style", Markup(f"{css}svg {{ font: 11.5px system-ui, sans-serif; }}"))  # noqa: S704  (our own file)
    card = element("rect", x=-_BORDER, y=-_BORDER, width="100%", height="100%", rx=6, fill="var(--card)")
    box = f"{-_BORDER} {-_BORDER} {_value(width + 2 * _BORDER)} {_value(height + 2 * _BORDER)}"
    return _image(title, description, (style, card, *children), viewBox=box, xmlns="http://www.w3.org/2000/svg")


def percent(share: float) -> str:
    """A position across a strip: 0.25 gives `"25%"`."""
    return f"{_value(100 * share)}%"


def _image(title: str, description: str, children: tuple[str, ...], **attributes: Attribute) -> Markup:
    named = element("title", title), element("desc", description)
    return element("svg", *named, *children, role="img", **attributes)


def _name(name: str) -> str:
    return name if name == "viewBox" else name.rstrip("_").replace("_", "-")


def _value(value: Attribute) -> str:
    """Numbers to a hundredth: more digits do not show and make the page larger."""
    return value if isinstance(value, str) else f"{value:.2f}".rstrip("0").rstrip(".")
