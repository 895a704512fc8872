"""Mathematical answers, compared as expressions by math-verify."""

from collections.abc import Sequence
from typing import Any

from agrpo.marks import isolated
from agrpo.records import Message

REASONING_DELIMITERS = ("</think>",)


@isolated
def accuracy_reward(completions: list[list[Message]], solution: list[str], **columns: Any) -> list[float | None]:
    """1.0 where the answer equals the solution, else 0.0; None where the solution itself cannot be read as mathematics.

    Expressions of a solution stand between dollar signs or in a box; plain numbers need neither.
    """
    return compare_answers([answer_text(completion) for completion in completions], solution)


@isolated
def reasoning_accuracy_reward(
    completions: list[list[Message]],
    solution: list[str],
    reasoning_delimiters: Sequence[str] | None = None,
    **columns: Any,
) -> list[float | None]:
    """Like `accuracy_reward` on what follows the reasoning; 0.0 where the reasoning never ends."""
    delimiters = reasoning_delimiters or REASONING_DELIMITERS
    answers = [_after_reasoning(answer_text(completion), delimiters) for completion in completions]
    return compare_answers(answers, solution)


def compare_answers(answers: Sequence[str | None], solutions: Sequence[str]) -> list[float | None]:
    """1.0 for each answer that equals its solution, 0.0 for others and for None; None for an unreadable solution."""
    from math_verify import parse  # sympy takes a second that other rewards need not spend

    golds = {solution: parse(solution) for solution in set(solutions)}
    return [_compare(answer, golds[solution]) for answer, solution in zip(answers, solutions, strict=True)]


def answer_text(completion: list[Message]) -> str:
    """What the model said last; nothing where a tool has the last word."""
    content = completion[-1]["content"] if completion and completion[-1].get("role") == "assistant" else ""
    return content if isinstance(content, str) else ""


def _compare(answer: str | None, gold: list[Any]) -> float | None:
    from math_verify import parse, verify

    if not gold:
        return None
    return float(answer is not None and verify(gold, parse(answer)))


def _after_reasoning(text: str, delimiters: Sequence[str]) -> str | None:
    ends = [text.rfind(delimiter) + len(delimiter) for delimiter in delimiters if delimiter in text]
    return text[max(ends) :] if ends else None
