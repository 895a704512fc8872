"""`python -m agrpo.models NAME`: make a prepared model ahead of a run."""

import os
import sys

from agrpo.errors import BadInput
from agrpo.models import prepare, prepared_path

if __name__ == "__main__":
    name = sys.argv[1]
    os.environ.update(TQDM_DISABLE="1", HF_HUB_DISABLE_PROGRESS_BARS="1")
    if not prepared_path(name).exists():
        print(f"preparing {name} in {prepared_path(name)} (once, about half a minute)", flush=True)
    try:
        prepare(name)
    except BadInput as error:
        sys.exit(f"agrpo: {error}")
