"""The two ways a command can end badly; the command line prints their text as one paragraph."""


class Failed(Exception):
    """Something outside the configuration went wrong (exit code 1): data, disk, network, a stage."""


class Misconfigured(Exception):
    """The request itself cannot be honoured (exit code 2): unknown key, wrong type, missing file."""
