"""Types of the arrays that planning computes with."""

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
# Indices, such as of links, or of the slots of flows.
IndexArray = npt.NDArray[np.intp]
