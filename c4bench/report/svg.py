"""Writing SVG by hand: elements, and figures that a screen reader can name."""

from markupsafe import Markup, escape

Attribute = str | float


def element(tag: str, *children: str, **attributes: Attribute) -> Markup:
    """`<tag a="1">children</tag>`, all escaped. Attribute `stroke_width` is `stroke-width`, `class_` is `class`."""
    written = "".join(f' {_name(name)}="{escape(_value(value))}"' for name, value in attributes.items())
    inner = Markup("").join(children)
    return Markup(f"<{tag}{written}>{inner}</{tag}>" if inner else f"<{tag}{written}/>")  # noqa: S704  (escaped above)


def drawing(title: str, description: str, width: float, height: float, *children: str) -> Markup:
    """A drawing that scales with its column, `width` by `height` units."""
    return _image(title, description, children, viewBox=f"0 0 {_value(width)} {_value(height)}")


def strip(title: str, description: str, height: float, *children: str) -> Markup:
    """A drawing as wide as its column and `height` pixels high: across in percent, down in pixels, text unscaled."""
    return _image(title, description, children, width="100%", height=height)


def percent(share: float) -> str:
    """0.25 -> `"25%"`, a place across a strip."""
    return f"{_value(100 * share)}%"


def _image(title: str, description: str, children: tuple[str, ...], **attributes: Attribute) -> Markup:
    named = element("title", title), element("desc", description)
    return element("svg", *named, *children, role="img", **attributes)


def _name(name: str) -> str:
    return name if name == "viewBox" else name.rstrip("_").replace("_", "-")


def _value(value: Attribute) -> str:
    """Numbers to a hundredth: finer does not show and fills the page."""
    return value if isinstance(value, str) else f"{value:.2f}".rstrip("0").rstrip(".")
