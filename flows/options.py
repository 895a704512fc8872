"""How options are written on the command line."""

from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

_LARGEST = 2**31 - 1

Overrides = Annotated[tuple[str, ...], Parameter(name="--set", negative=())]
AsJson = Annotated[bool, Parameter(name="--json", negative=())]
Switch = Annotated[bool, Parameter(negative=())]
StoreUrl = Annotated[str | None, Parameter(name="--store")]
Step = Annotated[int, Parameter(validator=Number(gte=0, lte=_LARGEST))]
AnyStep = Annotated[int | None, Parameter(validator=Number(gte=0, lte=_LARGEST))]
"""A step, or the number of a group."""
AnyCount = Annotated[int | None, Parameter(validator=Number(gte=1, lte=_LARGEST))]
Port = Annotated[int, Parameter(validator=Number(gte=1, lte=65535))]
HEARTBEAT_S = 30
"""How often a flow run that is alive says so; prefect.yaml asks for it."""
SilentS = Annotated[int, Parameter(validator=Number(gte=3 * HEARTBEAT_S))]
