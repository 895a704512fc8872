"""Models and tokenizers by name: one that leads nowhere is a setting to mend, not a bug."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from textwrap import shorten

from agrpo.errors import BadInput

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


@contextmanager
def loading(what: str, name: str) -> Iterator[None]:
    """Load a part of the model inside it. Raises BadInput where `from_pretrained` finds or reads nothing."""
    try:
        yield
    except OSError as error:
        if error.errno in _NO_ROOM:  # an outage, which passes
            raise
        raise BadInput(
            f"model.path: {what} of {name!r} cannot be loaded ({shorten(str(error), 300)}); "
            "give a saved model's folder, or a name that the Hub has and this machine may read"
        ) from error
