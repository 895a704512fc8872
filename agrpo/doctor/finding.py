"""What a check found."""

from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "warning", "problem"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One answer."""

    about: str
    level: Level
    says: str
    """What is there."""
    do: str = ""
    """What to do about it; empty when all is well."""
