"""Write SVG: elements, and figures with titles for screen readers."""

from markupsafe import Markup, escape

Attribute = str | float


def element(tag: str, *children: str, **attributes: Attribute) -> Markup:
    """The element `<tag a="1">children</tag>`, escaped; `stroke_width` becomes `stroke-width`, `class_` `class`."""
    written = "".join(f' {_name(name)}="{escape(_value(value))}"' for name, value in attributes.items())
    inner = Markup("").join(children)
    return Markup(f"<{tag}{written}>{inner}</{tag}>" if inner else f"<{tag}{written}/>")  # noqa: S704  (escaped above)


def drawing(title: str, description: str, width: float, height: float, *children: str) -> Markup:
    """A drawing that scales with its column, `width` by `height` units."""
    return _image(title, description, children, viewBox=f"0 0 {_value(width)} {_value(height)}")


def strip(title: str, description: str, height: float, *children: str) -> Markup:
    """A drawing as wide as its column and `height` pixels high: x in percent, y in pixels, text unscaled."""
    return _image(title, description, children, width="100%", height=height)


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
