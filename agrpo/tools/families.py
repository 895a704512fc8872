"""Which family of models a chat template belongs to: one line a family."""

from collections.abc import Callable
from dataclasses import dataclass

from agrpo.tools.calls import Parsed, Schema
from agrpo.tools.formats import deepseek, hermes, llama3, qwen_xml

Replacements = tuple[tuple[str, str], ...]

# Qwen3 shows reasoning only after the last question, and an empty block only in the last message; what was sampled
# has the block where the model wrote it, or where thinking is off and the generation prompt holds it.
_KEEP_REASONING: Replacements = (
    ("loop.index0 > ns.last_query_index", "true"),
    (
        "loop.last or (not loop.last and reasoning_content)",
        "reasoning_content or '<think>' in message.content or (enable_thinking is defined and not enable_thinking)",
    ),
)
# DeepSeek's templates cut the reasoning off every earlier answer, and take arguments for text already.
_ARGUMENTS = "tool['function']['arguments']"
_KEEP_THOUGHTS: Replacements = (
    ("content.split('</think>')[-1]", "content"),
    (f"{_ARGUMENTS} + ", f"({_ARGUMENTS} if {_ARGUMENTS} is string else {_ARGUMENTS} | tojson) + "),
)


@dataclass(frozen=True, slots=True)
class Family:
    """How a family writes tool calls, and what its template must not do while training."""

    name: str
    mark: str
    """Part of the chat template that gives the family away."""
    parse: Callable[[str, list[Schema]], Parsed]
    replacements: Replacements = ()
    """Conditions in the template under which it would render an earlier message differently."""


FAMILIES = (
    Family("deepseek", deepseek.MARK, deepseek.parse, _KEEP_THOUGHTS),
    Family("qwen-xml", "<function=", qwen_xml.parse, _KEEP_REASONING),
    Family("llama3", "<|start_header_id|>", llama3.parse),
    Family("hermes", "", hermes.parse, _KEEP_REASONING),
)
"""The first whose mark is in the template; the last one takes every other template, SmolLM's and Qwen's among them."""


def family_of(template: str) -> Family:
    """The family of a chat template."""
    return next(family for family in FAMILIES if family.mark in template)


def knows_tools(template: str) -> bool:
    """Whether the template itself tells the model of tools; else we do, in our own words."""
    return "tools" in template


def parser_of(template: str) -> Callable[[str, list[Schema]], Parsed]:
    """What reads the calls of a model that this template prompts: our own words ask for hermes' form."""
    return family_of(template).parse if knows_tools(template) else hermes.parse


def training_template(template: str) -> str:
    """The template with what would break prefixes taken out; the same one for most families."""
    for condition, replacement in family_of(template).replacements:
        template = template.replace(condition, replacement)
    return template
