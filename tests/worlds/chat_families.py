"""Small tokenizers whose chat templates are written in the style of a family of models."""

import string

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

_TOOLS = (
    "{%- if tools %}{{ '<|im_start|>system\\nTools:\\n' }}{%- for tool in tools %}"
    "{{ tool | tojson + '\\n' }}{%- endfor %}{{ 'Call one as <tool_call>JSON</tool_call><|im_end|>\\n' }}{%- endif %}"
)
_CALLS = (
    '{%- for call in message.tool_calls or [] %}{{ \'\\n<tool_call>\\n{"name": "\' + call.function.name'
    " + '\", \"arguments\": ' + call.function.arguments | tojson + '}\\n</tool_call>' }}{%- endfor %}"
)
_ANSWERS = (
    "{%- if message.role == 'tool' %}"
    "{{ '<|im_start|>user\\n<tool_response>\\n' + message.content + '\\n</tool_response><|im_end|>\\n' }}"
)

_LAST_QUERY = (
    "{%- set ns = namespace(last_query_index=0) %}{%- for message in messages %}"
    "{%- if message.role == 'user' %}{%- set ns.last_query_index = loop.index0 %}{%- endif %}{%- endfor %}"
)

QWEN25 = (
    _TOOLS + "{%- for message in messages %}" + _ANSWERS + "{%- else %}"
    "{{ '<|im_start|>' + message.role + '\\n' + message.content }}" + _CALLS + "{{ '<|im_end|>\\n' }}"
    "{%- endif %}{%- endfor %}{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{%- endif %}"
)
QWEN3 = (
    _TOOLS + _LAST_QUERY + "{%- for message in messages %}" + _ANSWERS + "{%- elif message.role == 'assistant' %}"
    "{%- set content = message.content %}{%- set reasoning_content = '' %}{%- if '</think>' in content %}"
    "{%- set reasoning_content = content.split('</think>')[0].split('<think>')[-1].strip('\\n') %}"
    "{%- set content = content.split('</think>')[-1].lstrip('\\n') %}{%- endif %}"
    "{{ '<|im_start|>assistant\\n' }}"
    "{%- if loop.index0 > ns.last_query_index %}{%- if loop.last or (not loop.last and reasoning_content) %}"
    "{{ '<think>\\n' + reasoning_content + '\\n</think>\\n\\n' }}{%- endif %}{%- endif %}"
    "{{ content }}" + _CALLS + "{{ '<|im_end|>\\n' }}"
    "{%- else %}{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
    "{%- endif %}{%- endfor %}"
    "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}"
    "{%- if enable_thinking is defined and not enable_thinking %}{{ '<think>\\n\\n</think>\\n\\n' }}{%- endif %}"
    "{%- endif %}"
)
QWEN_XML = (
    _TOOLS.replace("JSON", "<function=name>")
    + _LAST_QUERY
    + "{%- for message in messages %}"
    + _ANSWERS
    + "{%- elif message.role == 'assistant' %}"
    "{%- set content = message.content %}{%- set reasoning_content = '' %}{%- if '</think>' in content %}"
    "{%- set reasoning_content = content.split('</think>')[0].split('<think>')[-1].strip('\\n') %}"
    "{%- set content = content.split('</think>')[-1].lstrip('\\n') %}{%- endif %}"
    "{{ '<|im_start|>assistant\\n' }}{%- if loop.index0 > ns.last_query_index %}"
    "{{ '<think>\\n' + reasoning_content + '\\n</think>\\n\\n' }}{%- endif %}{{ content }}"
    "{%- for call in message.tool_calls or [] %}"
    "{{ ('\\n\\n' if content else '') + '<tool_call>\\n<function=' + call.function.name + '>\\n' }}"
    "{%- for name, value in call.function.arguments | items %}"
    "{{ '<parameter=' + name + '>\\n' + value | string + '\\n</parameter>\\n' }}{%- endfor %}"
    "{{ '</function>\\n</tool_call>' }}{%- endfor %}{{ '<|im_end|>\\n' }}"
    "{%- else %}{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
    "{%- endif %}{%- endfor %}{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n<think>\\n' }}{%- endif %}"
)
LLAMA3 = (
    "{%- if tools %}{{ '<|start_header_id|>system<|end_header_id|>\\n\\n' }}"
    "{%- for tool in tools %}{{ tool | tojson + '\\n' }}{%- endfor %}{{ '<|eot_id|>' }}{%- endif %}"
    "{%- for message in messages %}"
    "{{ '<|start_header_id|>' + ('ipython' if message.role == 'tool' else message.role) + '<|end_header_id|>\\n\\n' }}"
    "{%- if message.tool_calls %}{%- if message.tool_calls | length != 1 %}"
    "{{ raise_exception('This model only supports single tool-calls at once!') }}{%- endif %}"
    "{%- set call = message.tool_calls[0].function %}"
    "{{ '{\"name\": \"' + call.name + '\", \"parameters\": ' + call.arguments | tojson + '}' }}"
    "{%- else %}{{ message.content }}{%- endif %}{{ '<|eot_id|>' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}"
)
# Two of these families have templates that know no tools, too: Llama 3, and distillations of DeepSeek-R1.
LLAMA3_UNTOLD = LLAMA3[LLAMA3.index("{%- for message") :]
SMOLLM = (
    "{% for message in messages %}{% if loop.first and message.role != 'system' %}"
    "{{ '<|im_start|>system\\nYou are helpful.<|im_end|>\\n' }}{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)

GEMMA = (
    "{%- for message in messages %}{%- if message.role == 'system' %}{{ raise_exception('System role not supported') }}"
    "{%- elif (message.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Roles must alternate') }}"
    "{%- endif %}{%- set role = 'model' if message.role == 'assistant' else message.role %}"
    "{{ '<start_of_turn>' + role + '\n' + message.content | trim + '<end_of_turn>\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{%- endif %}"
)


def deepseek(*words: str) -> str:
    """One of DeepSeek's tokens, which are written with a wide bar and a low block."""
    return "<\uff5c" + "\u2581".join(words) + "\uff5c>"


DEEPSEEK_MARKS = {
    "END": deepseek("end", "of", "sentence"),
    "USER": deepseek("User"),
    "ASSISTANT": deepseek("Assistant"),
    "CALLS": deepseek("tool", "calls", "begin"),
    "/CALLS": deepseek("tool", "calls", "end"),
    "CALL": deepseek("tool", "call", "begin"),
    "/CALL": deepseek("tool", "call", "end"),
    "SEP": deepseek("tool", "sep"),
    "OUTPUT": deepseek("tool", "output", "begin"),
    "/OUTPUT": deepseek("tool", "output", "end"),
}
DEEPSEEK = (
    "{%- for tool in tools or [] %}{{ tool | tojson + '\\n' }}{%- endfor %}{%- for message in messages %}"
    "{%- if message['role'] == 'user' %}{{ '[USER]' + message['content'] + '[ASSISTANT]' }}"
    "{%- elif message['role'] == 'tool' %}{{ '[OUTPUT]' + message['content'] + '[/OUTPUT]' }}"
    "{%- else %}{%- set content = message['content'] %}"
    "{%- if '</think>' in content %}{%- set content = content.split('</think>')[-1] %}{%- endif %}{{ content }}"
    "{%- if message['tool_calls'] %}{{ '[CALLS]' }}{%- for tool in message['tool_calls'] %}"
    "{{ '[CALL]' + tool['type'] + '[SEP]' + tool['function']['name'] + '\\n```json\\n'"
    " + tool['function']['arguments'] + '\\n```[/CALL]' }}{%- endfor %}{{ '[/CALLS]' }}{%- endif %}"
    "{{ '[END]' }}{%- endif %}{%- endfor %}"
)
for _name, _mark in DEEPSEEK_MARKS.items():
    DEEPSEEK = DEEPSEEK.replace(f"[{_name}]", _mark)
DEEPSEEK_UNTOLD = DEEPSEEK[DEEPSEEK.index("{%- for message") :]
_MARKS = {
    DEEPSEEK: list(DEEPSEEK_MARKS.values()),
    DEEPSEEK_UNTOLD: list(DEEPSEEK_MARKS.values()),
    QWEN25: ["<|im_end|>", "<|im_start|>"],
    QWEN3: ["<|im_end|>", "<|im_start|>"],
    QWEN_XML: ["<|im_end|>", "<|im_start|>"],
    SMOLLM: ["<|im_end|>", "<|im_start|>"],
    GEMMA: ["<end_of_turn>", "<start_of_turn>"],
    LLAMA3: ["<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>", "<|python_tag|>"],
    LLAMA3_UNTOLD: ["<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>"],
}


def family_tokenizer(template: str, merges: list[tuple[str, str]] | None = None) -> PreTrainedTokenizerFast:
    """One token per printable character; 0 ends a turn, and `merges` joins pairs of them as a BPE does."""
    end, *others = _MARKS[template]
    letters = string.digits + string.ascii_letters + string.punctuation + " \n"
    merged = ["".join(pair) for pair in merges or []]
    vocab = {token: i for i, token in enumerate([end, *others, "<unk>", *letters, *merged])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges or [], unk_token="<unk>"))
    if not merges:
        tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=end,
        eos_token=end,
        unk_token="<unk>",
        additional_special_tokens=others,
        chat_template=template,
        clean_up_tokenization_spaces=False,
        padding_side="left",
    )
