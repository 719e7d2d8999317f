"""The lab's outer half: what runs on the user's machine."""
