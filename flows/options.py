"""How options are written on the command line."""

from typing import Annotated

from cyclopts import Parameter

Overrides = Annotated[tuple[str, ...], Parameter(name="--set", negative=())]
AsJson = Annotated[bool, Parameter(name="--json", negative=())]
Switch = Annotated[bool, Parameter(negative=())]
StoreUrl = Annotated[str | None, Parameter(name="--store")]
