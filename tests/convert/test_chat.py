"""Chat templates against transformers, and what is refused."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import AddedToken, models, pre_tokenizers, processors

from paxkv.text.tokenizer import Tokenizer

SMOLLM2 = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful AI assistant.<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LLAMA2 = """
{%- if messages[0]['role'] == 'system' -%}
    {%- set loop_messages = messages[1:] -%}
    {%- set system = '<<SYS>>\n' + messages[0]['content'] + '\n<</SYS>>\n\n' -%}
{%- else -%}
    {%- set loop_messages = messages -%}
    {%- set system = '' -%}
{%- endif -%}
{%- for message in loop_messages -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{- raise_exception('Conversation roles must alternate user/assistant/user/...') -}}
    {%- endif -%}
    {%- if message['role'] == 'user' -%}
        {{- bos_token + '[INST] ' + (system if loop.first else '') -}}
        {{- message['content'].strip() + ' [/INST]' -}}
    {%- else -%}
        {{- ' ' + message['content'].strip() + ' ' + eos_token -}}
    {%- endif -%}
{%- endfor -%}
"""
FEATURES = """
{% set ns = namespace(count=0) %}
{% for message in messages %}
    {% if message.role == 'system' %}{% continue %}{% endif %}
    {% set ns.count = ns.count + 1 %}
    {{ ns.count }}: {{ message.content }}
    {% if message.tool_calls is defined %}{{ message.tool_calls | tojson }}{% endif %}
    {% if message.content is defined and message.role == 'assistant' %}
    {% generation %}{{ message.content | upper }}{% endgeneration %}
    {% endif %}
    {% if loop.last %}{% break %}{% endif %}
{% endfor %}
{% if tools %}{{ tools | tojson(indent=2) }}{% endif %}
{{ dict(a=1)['a'] }}{{ strftime_now('%Y') | length }}
"""
CONVERSATIONS: dict[str, list[dict[str, Any]]] = {
    "one turn": [{"role": "user", "content": "Hi"}],
    "three turns": [
        {"role": "user", "content": "Hi <b>\u010d</b>"},
        {"role": "assistant", "content": "Hello!", "tool_calls": None},
        {"role": "user", "content": "  Bye\n\n"},
    ],
    "system": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "<|im_end|> 1 2 3"},
    ],
    "ends with assistant": [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello,"},
    ],
}
TOOLS = [{"type": "function", "function": {"name": "now", "description": "Time & <date> ü"}}]


@functools.cache
def backend() -> tokenizers.Tokenizer:
    """Bytes as tokens, with special tokens and a BOS in front of plain text."""
    special = ["<s>", "</s>", "<|im_start|>", "<|im_end|>"]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: index for index, token in enumerate([*special, *alphabet])}
    tokenizer = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in special])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A $B:1", special_tokens=[("<s>", 0)]
    )
    return tokenizer


def own(template: str | None) -> Tokenizer:
    templates = {} if template is None else {"default": template}
    return Tokenizer(backend(), {"bos_token": "<s>", "eos_token": "</s>"}, templates)


@functools.cache
def theirs() -> Any:
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(tokenizer_object=backend(), bos_token="<s>", eos_token="</s>")


@pytest.mark.parametrize("template", [SMOLLM2, LLAMA2, FEATURES], ids=["smollm2", "llama2", "all"])
@pytest.mark.parametrize("name", CONVERSATIONS)
@pytest.mark.parametrize("prompt", [True, False])
def test_ids_equal_transformers(template: str, name: str, prompt: bool) -> None:
    messages = CONVERSATIONS[name]
    ids = theirs().apply_chat_template(
        messages,
        tools=TOOLS,
        chat_template=template,
        add_generation_prompt=prompt,
        tokenize=True,
        return_dict=False,
    )
    assert own(template).apply_chat_template(messages, prompt, TOOLS) == ids


def test_only_plain_text_gets_a_bos() -> None:
    assert own(SMOLLM2).apply_chat_template(CONVERSATIONS["one turn"]).count(0) == 0
    assert own(LLAMA2).apply_chat_template(CONVERSATIONS["one turn"]).count(0) == 1
    assert own(LLAMA2).encode("Hi").count(0) == 1


def test_no_template_says_how_to_give_one(tmp_path: Path) -> None:
    tokenizer = own(None)
    with pytest.raises(ValueError, match="no chat template: give one as chat_template"):
        tokenizer.apply_chat_template(CONVERSATIONS["one turn"])
    assert (
        tokenizer.render_chat(CONVERSATIONS["one turn"], template="{{ messages | length }}") == "1"
    )
    file = tmp_path / "chat.jinja"
    file.write_text("from a file{# #}")
    tokenizer.set_chat_template(str(file))
    assert tokenizer.render_chat(CONVERSATIONS["one turn"]) == "from a file"
    tokenizer.set_chat_template(SMOLLM2)
    assert tokenizer.chat_template == SMOLLM2


@pytest.mark.parametrize("template", ["{% bad", "{% if %}", "{{ x | nofilter }}"])
def test_bad_templates_are_refused_when_set(template: str) -> None:
    with pytest.raises(ValueError, match="not a valid Jinja template"):
        own(SMOLLM2).set_chat_template(template)
    with pytest.raises(ValueError, match="not a valid Jinja template"):
        own(template).apply_chat_template(CONVERSATIONS["one turn"])


def test_a_path_that_is_no_file_is_refused(tmp_path: Path) -> None:
    for template in (tmp_path / "{none}.jinja", str(tmp_path / "none.jinja")):
        with pytest.raises(ValueError, match=r"none.*nor a file"):
            own(None).set_chat_template(template)


def test_content_parts_are_joined() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    messages = [{"role": "user", "content": parts}]
    assert own("{{ messages[0].content }}").render_chat(messages) == "a\nb"
    image = [{"role": "user", "content": [*parts, {"type": "image_url", "image_url": {}}]}]
    with pytest.raises(ValueError, match=r"messages\[0\]: content part 'image_url'"):
        own(SMOLLM2).render_chat(image)


@pytest.mark.parametrize(
    "part", [{"type": "file", "text": "a"}, {"text": "a"}, {"type": ["text"]}, 3]
)
def test_unknown_content_parts_are_refused(part: Any) -> None:
    """Kind: what a client sent for the model to see was dropped, or taken for something else."""
    with pytest.raises(ValueError, match=r"messages\[0\]: content part .* only text"):
        own(SMOLLM2).render_chat([{"role": "user", "content": [part]}])


CALL = {"id": "1", "type": "function", "function": {"name": "now", "arguments": '{"a": {"b": 1}}'}}
# What templates do with the content of a message that has none.
NO_CONTENT = {
    SMOLLM2: "<|im_start|>assistant\n<|im_end|>",
    "{% for m in messages %}[{{ m.content.strip() }}]{% endfor %}": "[]",
    "{% for m in messages %}{{ 'x' + m['content'] }}{% endfor %}": "x",
    "{% for m in messages %}[{% if m.content != none %}{{ m.content }}{% endif %}]{% endfor %}": (
        "[]"
    ),
    "{% for m in messages %}{{ m.content is none }}{{ m.content | length }}{% endfor %}": "False0",
    "{% for m in messages %}{{ 'content' in m }}{{ m.content is string }}{% endfor %}": "TrueTrue",
    "{% for m in messages %}{{ m.tool_calls[0].function.arguments.a.b }}{% endfor %}": "1",
}


@pytest.mark.parametrize("template", NO_CONTENT)
@pytest.mark.parametrize("missing", [{}, {"content": None}, {"content": ""}, {"content": []}])
def test_templates_see_no_content_as_empty_text(template: str, missing: dict[str, Any]) -> None:
    """Kind: templates for text met null, or nothing at all."""
    others = {"refusal": None, "audio": None, "function_call": None}
    message = {"role": "assistant", **missing, "tool_calls": [CALL], **others}
    assert NO_CONTENT[template] in own(template).render_chat([message])


# How families' templates write the arguments of a call: as an object, or as a text.
ARGUMENTS = {
    "{{ a | tojson }}": '{"a": {"b": 1}}',
    "{{ 'x' + a + 'y' }}": 'x{"a": {"b": 1}}y',
    "{{ a + 'y' }}{{ a ~ 'z' }}": '{"a": {"b": 1}}y{"a": {"b": 1}}z',
    "{{ a }}": '{"a": {"b": 1}}',
    "{% for k, v in a | items %}{{ k }}={{ v | tojson }}{% endfor %}": 'a={"b": 1}',
    "{{ a if a is string else a | tojson }}{{ a is mapping }}": '{"a": {"b": 1}}True',
}


@pytest.mark.parametrize("way", ARGUMENTS)
@pytest.mark.parametrize("given", ['{"a": {"b": 1}}', {"a": {"b": 1}}])
def test_templates_may_take_arguments_either_way(way: str, given: Any) -> None:
    """Kind: some families' templates go through arguments, others put them into a text."""
    call = {"type": "function", "function": {"name": "now", "arguments": given}}
    template = "{% set a = messages[0].tool_calls[0].function.arguments %}" + way
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    assert own(template).render_chat([message]) == ARGUMENTS[way]


@pytest.mark.parametrize("calls", ["x", 3, [1], [{}], [{"function": {"arguments": "{"}}], {"a": 1}])
def test_wrong_tool_calls_are_refused(calls: Any) -> None:
    with pytest.raises(ValueError, match=r"messages\[0\].tool_calls must be a list"):
        own(SMOLLM2).render_chat([{"role": "assistant", "content": "", "tool_calls": calls}])


def test_what_ends_in_tool_calls_cannot_be_continued() -> None:
    message = {"role": "assistant", "content": "Hi", "tool_calls": [CALL]}
    with pytest.raises(ValueError, match="cannot be continued: its tool_calls"):
        own(SMOLLM2).render_chat([message], False, continue_final_message=True)


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([], "messages is empty"),
        ("Hi", "messages must be a list"),
        ({"role": "user"}, "messages must be a list"),
        (["Hi"], r"messages\[0\] must be an object with a 'role'"),
        ([{"role": "user", "content": "a"}, {"content": "b"}], r"messages\[1\] must be"),
    ],
)
def test_malformed_messages_are_refused(messages: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        own(SMOLLM2).apply_chat_template(messages)


def test_tools_are_objects() -> None:
    with pytest.raises(ValueError, match=r"tools\[0\] must be an object, got str"):
        own(SMOLLM2).apply_chat_template(CONVERSATIONS["one turn"], tools=["now"])


def test_what_the_template_refuses_is_said() -> None:
    messages = [{"role": "assistant", "content": "Hi"}]
    with pytest.raises(ValueError, match="Conversation roles must alternate"):
        own(LLAMA2).apply_chat_template(messages)
    with pytest.raises(ValueError, match="failed on these messages"):
        own(SMOLLM2).apply_chat_template([{"role": "user", "content": 1}])


@pytest.mark.parametrize(
    "template",
    [
        "{{ messages.__class__.__mro__ }}",
        "{{ ''.__class__.__base__.__subclasses__() }}",
        "{{ raise_exception.__globals__['json'] }}",
        "{{ strftime_now.__globals__['json'] }}",
        "{{ dict.__init__.__globals__['json'] }}",
        "{{ messages.append(1) }}",
        "{% set ns = namespace(__class__=1) %}{{ ns }}",
        "{% set ns = namespace() %}{% set ns.__class__ = 1 %}",
    ],
)
def test_templates_cannot_leave_the_sandbox(template: str) -> None:
    with pytest.raises(ValueError, match="chat template refused"):
        own(template).render_chat(CONVERSATIONS["one turn"])


def test_templates_see_no_objects() -> None:
    class Secret:
        value = "secret"

    messages = [{"role": "user", "content": "Hi", "extra": Secret()}]
    assert own("{{ messages[0].extra }}").render_chat(messages) == "<Secret>"
