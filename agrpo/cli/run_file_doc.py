"""docs/run-file.md from the model: `python -m agrpo.cli.run_file_doc > docs/run-file.md`."""

import json
from typing import Any

from agrpo.runfile import RunFile

Schema = dict[str, Any]

INTRODUCTION = """# The run file

Made from `agrpo/settings.py`, `agrpo/trainer_settings.py` and `agrpo/runfile.py` by
`python -m agrpo.cli.run_file_doc > docs/run-file.md`; a test keeps it current.

A run file is YAML with the keys below; `examples/quickstart.yaml` is a small one. An unknown key is an error that names
the nearest one. Any value can be changed on the command line: `agrpo train RUN.yaml --set trainer.learning_rate=1e-5`.
Paths are relative to the folder in which `agrpo` is started. Whoever may submit a run file may run code.
"""


_TYPES = {"string": "text", "integer": "whole number", "number": "number", "boolean": "yes or no", "null": "none"}
_LIMITS = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}


def document() -> str:
    """The whole page: the top level, then each section, as Prefect's form shows them too."""
    schema = RunFile.model_json_schema()
    sections = {name: _section(schema, field) for name, field in schema["properties"].items()}
    parts = [INTRODUCTION, _table("Top level", schema, schema)]
    parts += [_table(f"`{name}`", section, schema) for name, section in sections.items() if section]
    return "\n".join(parts)


def _section(schema: Schema, field: Schema) -> Schema:
    """The section that a key holds, empty for a plain value."""
    references = [option["$ref"] for option in [field, *field.get("anyOf", [])] if "$ref" in option]
    found: Schema = schema["$defs"][references[0].rpartition("/")[2]] if references else {}
    return found


def _table(heading: str, section: Schema, schema: Schema) -> str:
    lines = [f"## {heading}", "", _one_line(section["description"]), ""]
    lines += ["| key | type | default | what it says |", "|---|---|---|---|"]
    for name, field in section["properties"].items():
        held = _section(schema, field)
        about = _one_line(field.get("description") or held["description"])
        needed, given = name in section.get("required", []), field.get("default")
        default = "needed" if needed else "its defaults" if held and given else f"`{json.dumps(given)}`"
        lines.append(f"| `{name}` | {'section' if held else _type(field)} | {default} | {about} |")
    return "\n".join([*lines, ""])


def _type(field: Schema) -> str:
    if "anyOf" in field:
        return " or ".join(_type(option) for option in field["anyOf"])
    if "enum" in field:
        return " or ".join(f"`{value}`" for value in field["enum"])
    if "const" in field:
        return f"`{field['const']}`"
    if field["type"] == "array":
        return f"list of {_type(field['items'])}"
    if field["type"] == "object":
        return "mapping"
    limits = [f"{sign} {field[name]:g}" for name, sign in _LIMITS.items() if name in field]
    return " ".join([_TYPES[field["type"]], *limits])


def _one_line(text: str) -> str:
    return " ".join(text.split())


if __name__ == "__main__":
    print(document(), end="")
