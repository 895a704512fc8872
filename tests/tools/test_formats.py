"""Calls as families write them, and everything that can be wrong with one."""

import pytest

from agrpo.tools.calls import Parsed, ToolCall, with_arguments
from agrpo.tools.formats import deepseek, hermes, llama3, qwen_xml

ADD = ToolCall("add", {"a": 1, "b": 2})
SCHEMA = {
    "type": "function",
    "function": {
        "name": "add",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}},
    },
}


def errors(parsed: Parsed) -> list[str | None]:
    return [call.error and call.error.split(":")[0] for call in parsed.calls]


def test_hermes_blocks_in_order_around_text() -> None:
    text = 'Let me see.\n<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>\n'
    text += '<tool_call>{"name": "now"}</tool_call>'
    assert hermes.parse(text, []) == Parsed("Let me see.", [ADD, ToolCall("now")])
    assert hermes.parse("no call", []) == Parsed("no call", [])


def test_smollm_writes_a_list_in_one_block() -> None:
    text = '<tool_call>[{"name": "add", "arguments": {"a": 1, "b": 2}}, {"name": "now", "arguments": {}}]</tool_call>'
    assert hermes.parse(text, []).calls == [ADD, ToolCall("now")]


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ('{"name": "add", "arguments": {"a": 1', "the call is not valid JSON"),
        ("null", 'a call is a JSON object with "name" and "arguments"'),
        ("[]", 'a call is a JSON object with "name" and "arguments"'),
        ('{"arguments": {}}', 'a call is a JSON object with "name" and "arguments"'),
        ('{"name": "add", "arguments": [1, 2]}', "the arguments are a JSON object, not list"),
        ('{"name": "add", "arguments": null}', "the arguments are a JSON object, not null"),
        ('{"name": "add", "arguments": "a"}', "the arguments are not valid JSON"),
        ("[" * 100_000, "the call is not valid JSON"),
        ("x" * 2_000_000, "the call has 2000000 characters; at most 1000000 are read"),
    ],
)
def test_a_malformed_call_says_what_is_wrong(body: str, error: str) -> None:
    """Fault 24."""
    assert errors(hermes.parse(f"<tool_call>{body}</tool_call>", [])) == [error]


def test_a_call_that_was_cut_is_malformed_and_arguments_may_be_json_in_a_text() -> None:
    assert errors(hermes.parse('<tool_call>{"name": "add", "argu', [])) == ["the call is not valid JSON"]
    assert with_arguments("add", '{"a": 1, "b": 2}', "") == ADD
    assert with_arguments("add", '"' * 2_000_000, "").error == "the arguments have more than 1000000 characters"


def test_llama_writes_the_call_as_the_whole_message() -> None:
    call = '{"name": "add", "parameters": {"a": 1, "b": 2}}'
    assert llama3.parse(call, []) == Parsed("", [ADD])
    assert llama3.parse(f"<|python_tag|>{call}; {call}", []).calls == [ADD, ADD]
    for answer in ("It is 3.", '{"answer": 3}', 'Use {"name": "add"} for that.'):
        assert llama3.parse(answer, []) == Parsed(answer, [])
    assert errors(llama3.parse('{"name": "add", "parameters": {"a', [])) == ["the call is not valid JSON"]
    assert errors(llama3.parse('<|python_tag|>search.call(query="x")', [])) == ["the call is not valid JSON"]


@pytest.mark.parametrize("fenced", [True, False])
def test_deepseek_special_tokens(fenced: bool) -> None:
    def mark(*words: str) -> str:
        return "<\uff5c" + "\u2581".join(words) + "\uff5c>"

    begin, end, sep = mark("tool", "call", "begin"), mark("tool", "call", "end"), mark("tool", "sep")
    arguments = '{"a": 1, "b": 2}'
    body = f"function{sep}add\n```json\n{arguments}\n```" if fenced else f"add{sep}{arguments}"
    text = "Adding. " + mark("tool", "calls", "begin") + begin + body + end + mark("tool", "calls", "end")
    assert deepseek.parse(text, []) == Parsed("Adding.", [ADD])
    assert deepseek.parse("no call", []) == Parsed("no call", [])


def test_qwen_xml_values_take_the_types_of_the_schema() -> None:
    text = "<tool_call>\n<function=add>\n<parameter=a>\n1\n</parameter>\n<parameter=b>\n2\n</parameter>\n</function>\n"
    assert qwen_xml.parse(text + "</tool_call>", [SCHEMA]).calls == [ToolCall("add", {"a": 1, "b": "2"})]
    assert qwen_xml.parse(text + "</tool_call>", []).calls == [ToolCall("add", {"a": 1, "b": 2})]
    assert qwen_xml.parse("<tool_call><function=add></tool_call>", [SCHEMA]).calls[0].error is not None
