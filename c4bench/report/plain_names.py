"""What measurements are, in plain words: `reports/templates/measurements.yml`."""

from collections.abc import Mapping
from functools import cache

import msgspec
import yaml

from c4bench.resources import resource


@cache
def plain_names() -> Mapping[str, str]:
    """The plain words by measurement name."""
    text = resource("reports", "templates", "measurements.yml").read_text()
    return msgspec.convert(yaml.safe_load(text), dict[str, str])


def plain(name: str) -> str:
    """A measurement in plain words; "" for one that is not in the list, such as a user's own."""
    return plain_names().get(name, "")
