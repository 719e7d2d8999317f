"""The scenarios of an installed package: `pytest --pyargs c4bench.scenarios --hosts softroce`.

In a checkout they are in `tests/scenarios`, and the wheel is built with them here.
"""
