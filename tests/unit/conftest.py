"""Property tests draw the same examples in every run, and are not timed: the machine's clock judges nothing here."""

from hypothesis import settings

settings.register_profile("c4bench", derandomize=True, deadline=None)
settings.load_profile("c4bench")
