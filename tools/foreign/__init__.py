"""Jobs with groups of many kinds, whose ranks run ahead: their dumps show how often `c4bench detect` is right."""
