"""A path control: how connections of a device choose their paths. Ours are tried first."""

from c4bench import PathAttributes


class Port:
    """Chooses one of four paths of devices of a vendor."""

    chooses = "acme's path"

    def obstacle(self, device):
        """Why it has no effect on this device."""
        return "" if device.vendor == 0xACE else "the device is not acme's"

    def choices(self, device):
        """The valid numbers."""
        return range(1, 5)

    def attributes(self, choice):
        """What to connect with."""
        return PathAttributes()

    def after_connect(self, endpoint, choice):
        """Set the path of a connection."""

    def move(self, endpoint, choice):
        """Move a connection."""

    def source_port(self, endpoint):
        """Not known."""
        return 0


PORT = Port()
