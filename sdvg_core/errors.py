"""The one exception of our own."""


class BadInput(ValueError):
    """Something the user gave cannot be used.

    The message is one sentence in three parts: what was expected, what came, what to do. The command line
    prints it and exits with code 2; ComfyUI shows it on the node.
    """
