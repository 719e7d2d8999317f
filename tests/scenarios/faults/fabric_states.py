"""How two states of the fabric differ."""


def differences(before, after):
    """What is in one and not in the other."""
    return [
        f"{place}: {line}"
        for place in sorted(before.keys() | after.keys())
        for line in {*before.get(place, [])} ^ {*after.get(place, [])}
    ]
