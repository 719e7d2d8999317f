"""The half of the lab that runs on the user's machine."""
