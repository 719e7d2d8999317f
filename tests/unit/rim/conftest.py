"""A pytest within this process forgets the modules that it imports, so those that it needs are imported before."""

import c4bench.pytest_plugin.fixtures
import c4bench.report.html  # noqa: F401
