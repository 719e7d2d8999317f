import sys
from pathlib import Path

# Hosts of namespaces are shared with the drills.
sys.path.insert(0, str(Path(__file__).parents[2] / "drills"))
