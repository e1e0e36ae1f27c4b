"""The one exception of our own, and its sentence for a damaged file."""

LONGEST = 2000


class BadInput(ValueError):
    """Something the user gave cannot be used.

    The message is one sentence in three parts: what was expected, what came, what to do. The command line
    prints it and exits with code 2; ComfyUI shows it on the node. It may quote a stranger's file, so what is no
    text in it is escaped, and the middle of an endless one left out.
    """

    def __init__(self, message: str) -> None:
        super().__init__(printable(message))


def printable(text: str) -> str:
    """Return text that a terminal shows as it is: no control characters, no change of direction, no end of it."""
    if len(text) > LONGEST:
        text = f"{text[: LONGEST // 2]} ... {text[-LONGEST // 2 :]}"
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in text)


def unreadable(container: str, name: str, error: Exception) -> BadInput:
    """Return the refusal of the file `name`, which is damaged; `container`: what kind of file it should be."""
    # A private mapping counts as memory where the system does not promise more of it than there is.
    short = "unable to mmap" in str(error)
    cure = "use a smaller version of the file, or add swap" if short else "fetch it again"
    return BadInput(f"expected a whole {container} file, but {name} cannot be read ({first_line(error)}); {cure}")


def first_line(error: object) -> str:
    """Return the beginning of an error's message, or its kind if it has none."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:160]
