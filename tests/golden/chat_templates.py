#!/usr/bin/env python3
"""Writes chat_templates/golden.json: conversations and expressions as transformers renders them.

    python tests/golden/chat_templates.py

(needs transformers 5.2.0 and jinja2 3.1.6; takes a second). The templates are written for this file, with the constructs of
published ones: ChatML, headers with a date and tools, [INST], Zephyr, Gemma, Qwen3, DeepSeek, Phi. Each is rendered
for each conversation with and without a generation prompt by render_jinja_template, the function behind
apply_chat_template(messages, tokenize=False). `lines` are templates of one construct each, for the conversation LINES.

A result is {"out": text}, or {"error": kind}: "syntax" with the line, "undefined" and "raised" (raise_exception) with the
text, "failed" for all other exceptions.
"""

import copy
import json
import pathlib
import sys

sys.path.pop(0)  # files beside this one have names of packages

import jinja2
from transformers.utils.chat_template_utils import render_jinja_template

OUT = pathlib.Path(__file__).resolve().parent / "chat_templates" / "golden.json"
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}


def talk(*turns):
    roles = {"s": "system", "u": "user", "a": "assistant", "t": "tool"}
    return [{"role": roles[r], "content": c} for r, c in turns]


CONVERSATIONS = [
    talk(("u", "Hello, who are you?")),
    talk(("s", "You answer in rhymes.\n"), ("u", 'He said "it\'s 5 < 6 & 7 > 3".')),
    talk(("u", "one"), ("a", "two"), ("u", "  three \n")),
    talk(("s", "Kurz & bündig."), ("u", "Größe?\n\nzwei Zeilen\n"), ("a", "数学 😀"), ("u", "{{ x }} {% y %} \\n")),
    talk(("u", "")),
    talk(("u", "a"), ("a", "<think>\nhm, b?\n</think>\n\nb"), ("u", "c"), ("a", "<think>d</think> e")),
    talk(("a", "I begin."), ("u", "No.")),
    talk(("u", "x"), ("u", "y")),
    talk(("s", "Alone.")),
    talk(("u", "weather?"), ("t", '{"degrees": 21.5}'), ("u", "and now?")),
]

TEMPLATES = {
    "chatml": """\
{% if messages[0]['role'] != 'system' %}{{ '<|im_start|>system\\nBe useful.<|im_end|>\\n' }}{% endif %}
{%- for m in messages -%}
{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>' + '\\n' }}
{%- endfor -%}
{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}
""",
    "headers": """\
{{- bos_token }}
{%- if custom_tools is defined %}
    {%- set tools = custom_tools %}
{%- endif %}
{%- if not date_string is defined %}
    {%- set date_string = "1 Mar 2024" %}
{%- endif %}
{%- if not tools is defined %}
    {%- set tools = none %}
{%- endif %}

{#- The first message may hold the instructions. #}
{%- if messages[0].role == 'system' %}
    {%- set instructions = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set instructions = "" %}
{%- endif %}
{{- "<|header|>system<|end|>\\n\\n" }}
{%- if builtin_tools is defined or tools is not none %}
    {{- "Tools: " + builtin_tools | reject('equalto', 'code') | join(", ") + "\\n\\n" }}
{%- endif %}
{{- "Today: " + date_string + "\\n\\n" }}
{%- if tools is not none and not tools_in_user_message %}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\\n\\n" }}
    {%- endfor %}
{%- endif %}
{{- instructions }}
{{- "<|eot|>" }}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|header|>' + message['role'] + '<|end|>\\n\\n'+ message['content'] | trim + '<|eot|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}
            {{- raise_exception("One tool call at a time!") }}
        {%- endif %}
    {%- else %}
        {{- "<|header|>ipython<|end|>\\n\\n" }}
        {%- if message.content is mapping or message.content is iterable %}
            {{- message.content | tojson }}
        {%- else %}
            {{- message.content }}
        {%- endif %}
        {{- "<|eot|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|header|>assistant<|end|>\\n\\n' }}
{%- endif %}
""",
    "inst": """\
{% if messages[0]['role'] == 'system' %}{% set system = messages[0]['content'] %}{% set turns = messages[1:] %}\
{% else %}{% set system = false %}{% set turns = messages %}{% endif %}\
{{ bos_token }}{% for message in turns %}\
{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}\
{{ raise_exception('Roles must take turns: user/assistant/user/...\\nNot ' + message.role) }}{% endif %}\
{% if loop.index0 == 0 and system != false %}{% set content = '<<SYS>>\\n' + system + '\\n<</SYS>>\\n\\n' + message['content'] %}\
{% else %}{% set content = message['content'] %}{% endif %}\
{% if message['role'] == 'user' %}{{ '[INST] ' + content.strip() + ' [/INST]' }}\
{% elif message['role'] == 'assistant' %}{{ ' ' + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}""",
    "zephyr": """\
{% for message in messages %}
{% if message['role'] == 'user' %}
{{ '<|user|>\\n' + message['content'] + eos_token }}
{% elif message['role'] == 'system' %}
{{ '<|system|>\\n' + message['content'] + eos_token }}
{% elif message['role'] == 'assistant' %}
{{ '<|assistant|>\\n'  + message['content'] + eos_token }}
{% endif %}
{% if loop.last and add_generation_prompt %}
{{ '<|assistant|>' }}
{% endif %}
{% endfor %}
""",
    "gemma": """\
{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- set first_user_prefix = messages[0]['content'] + '\\n\\n' -%}
    {%- set loop_messages = messages[1:] -%}
{%- else -%}
    {%- set first_user_prefix = "" -%}
    {%- set loop_messages = messages -%}
{%- endif -%}
{%- for message in loop_messages -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{ raise_exception("Roles do not alternate") }}
    {%- endif -%}
    {%- if (message['role'] == 'assistant') -%}
        {%- set role = "model" -%}
    {%- else -%}
        {%- set role = message['role'] -%}
    {%- endif -%}
    {{ '<start_of_turn>' + role + '\\n' + (first_user_prefix if loop.first else "") }}
    {%- if message['content'] is string -%}
        {{ message['content'] | trim }}
    {%- elif message['content'] is iterable -%}
        {%- for item in message['content'] -%}
            {%- if item['type'] == 'image' -%}{{ '<image>' }}{%- elif item['type'] == 'text' -%}
                {{ item['text'] | trim }}
            {%- endif -%}
        {%- endfor -%}
    {%- else -%}
        {{ raise_exception("Invalid content type") }}
    {%- endif -%}
    {{ '<end_of_turn>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{'<start_of_turn>model\\n'}}
{%- endif -%}
""",
    "qwen3": """\
{%- macro said(content) -%}
    {%- if content is string %}{{ content }}{% else %}{% for c in content %}{{ c.text }}{% endfor %}{% endif -%}
{%- endmacro -%}
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- for tool in tools %}{{- "\\n" }}{{- tool | tojson }}{%- endfor %}
    {{- "<|im_end|>\\n" }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + said(messages[0].content) + '<|im_end|>\\n' }}
{%- endif %}
{%- set ns = namespace(multi_step=true, last_query=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step and message.role == "user" and message.content is string and not
            (message.content.startswith('<result>') and message.content.endswith('</result>')) %}
        {%- set ns.multi_step = false %}
        {%- set ns.last_query = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set content = message.content if message.content is string else '' %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {%- set reasoning = '' %}
        {%- if message.reasoning_content is defined and message.reasoning_content is not none %}
            {%- set reasoning = message.reasoning_content %}
        {%- elif '</think>' in content %}
            {%- set reasoning = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query and (loop.last or reasoning) %}
            {{- '<|im_start|>' + message.role + '\\n<think>\\n' + reasoning.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\\n' + content }}
        {%- endif %}
        {%- if message.tool_calls %}{{ raise_exception("no calls here") }}{% endif %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.first or (messages[loop.index0 - 1].role != "tool") %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\\n<result>\\n' ~ content ~ '\\n</result>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}{{- '<|im_end|>\\n' }}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}
{%- endif %}
""",
    "deepseek": """\
{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}\
{% set ns = namespace(is_first=false, is_tool=false, first=true, system='') %}\
{%- for message in messages %}{%- if message['role'] == 'system' %}{%- if ns.first %}\
{%- set ns.system = ns.system + message['content'] %}{% set ns.first = false %}\
{%- else %}{%- set ns.system = ns.system + '\\n\\n' + message['content'] %}{%- endif %}{%- endif %}{%- endfor %}\
{{ bos_token }}{{ ns.system }}\
{%- for message in messages %}\
{%- if message['role'] == 'user' %}{%- set ns.is_tool = false -%}{{ '<｜User｜>' + message['content'] }}{%- endif %}\
{%- if message['role'] == 'assistant' and 'tool_calls' not in message %}\
{%- if ns.is_tool %}{{ '<｜outputs▁end｜>' + message['content'] + eos_token }}{%- set ns.is_tool = false -%}\
{%- else %}{% set content = message['content'] %}\
{% if '</think>' in content %}{% set content = content.split('</think>', 1)[-1] %}{% endif %}\
{{ '<｜Assistant｜>' + content + eos_token }}{%- endif %}{%- endif %}\
{%- if message['role'] == 'tool' %}{%- set ns.is_tool = true -%}\
{{ '<｜outputs▁begin｜>' ~ message['content'] ~ '\\n' }}{%- endif %}\
{%- endfor -%}\
{% if ns.is_tool %}{{ '<｜outputs▁end｜>' }}{% endif %}\
{% if add_generation_prompt and not ns.is_tool %}{{ '<｜Assistant｜><think>\\n' }}{% endif %}""",
    "phi": """\
{% for message in messages %}\
{% if message['role'] == 'system' and message['content'] %}{{'<|system|>\\n' + message['content'] + '<|end|>\\n'}}\
{% elif message['role'] == 'user' %}{{'<|user|>\\n' + message['content'] + '<|end|>\\n'}}{% elif message['role'] == 'assistant' %}\
{{'<|assistant|>\\n' + message['content'] + '<|end|>\\n'}}{% endif %}{% endfor %}\
{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% else %}{{ eos_token }}{% endif %}""",
    "title": """\
{%- set system, rest = (messages[0].content, messages[1:]) if messages[0].role == "system" else ("", messages) %}
{%- set head %}
  {{ system | upper }}
  ====
{% endset %}
{{- head if system }}
{% for message in rest if message.content and message.role in ["user", "assistant"] %}
    {% if loop.index > 3 %}
        {% break %}
    {% endif %}
    {{ loop.index }}/{{ loop.length }} {{ message.role.title() }}{{ "*" if loop.nextitem is not defined }}:
    {% generation %}
{{ message.content | replace("\\n", "⏎") }}
    {% endgeneration +%}
{% else %}
nothing was said{{ eos_token -}}
{% endfor %}
""",
}

ROLES = "{% for m in messages %}"
LINES_FOR = talk(("u", "Hi abc"), ("a", " b\n"), ("u", "é😀x"))
E = "{{ %s }}"
DICT = "{'b': 2, 'a': [1, 'é'], 'C': none}"
LINES = [
    # text and tags
    "plain", "", "\n", "a\n\n", "{{ 1 }}\n", "a {{- 1 -}} b", "a\n  {%- if true -%}\n b\n {%- endif -%}\n c",
    "a\n   {% if true %}\n   b\n  {% endif %}\n c", "x {% if true %}\ny{% endif %}\n", "  {%+ if true %}\n  a\n  {%+ endif +%}\n",
    "a {# no #} b", "a {#- no -#} b", "  {# no #}\n  {#- a -#}\nb", "{#-#}x", "{# {{ 1 }} {% #}y",
    "{{ '}}' }}{{ {'a': {'b': 1}}['a']['b'] }}",
    "{% raw %}{{ x }}{% if %}{% endraw %}", "a {%- raw -%}  b  {%- endraw -%}  c", "{% raw %}\n a\n{% endraw %}\nb", "{{ '{% x %}' }}",
    "a\r\nb\rc\r\n", "{{\n1\n}}\n\n2", "{{- ' a ' -}}   b", "{%if true%}1{%endif%}", "{% if true: %}1{% endif %}",
    "\ta\n\t{% if true %}\tb\n{% endif %}",
    "{{ 1 }}{% if true -%}\n\n\n x{% endif %}", "a{{ '' }}\n  {% set x = 1 %}\n  {{ x }}\n", "a\u00a0{%- if true %}b{% endif %}",
    # literals
    *(E % e for e in ["1", "1_000", "007 if false", "1.5", "1e3", "1.5e-7", "1e16", "123456789012345.6", "0.1 + 0.2", "1/3", "2.0",
                      "-0.0", "1e22", "true",
                      "True", "false", "none", "None", "'a' 'b' \"c\"", "'it\\'s'", "'\\x41\\u00e9\\U0001F600\\n\\t\\\\'", "'\\q\\101'",
                      "'a\\\nb'",
                      "[]", "[1, 'a', none, true, 1.0]", "['it\\'s', 'say \"x\"', '\\'\"', 'é\\n\\x01\\u200b']", "(1,)", "()", "(1, 2)",
                      "1, 2", "{}",
                      DICT, "[undef]", "[[], {}, ()]"]),
    # operators
    *(E % e for e in ["1 + 2 * 3", "(1 + 2) * 3", "2 ** 3 ** 2", "-2 ** 2", "7 // 2", "-7 // 2", "7 % 3", "-7 % 3", "7 % -3", "7.5 // 2",
                      "-7.5 % 2", "1 / 2", "4 / 2",
                      "2 ** -1", "2 ** 62", "'a' + 'b'", "'ab' * 2", "3 * 'x'", "[1] + [2]", "[0] * 3", "1 ~ 'a' ~ none ~ 1.0",
                      "1 ~ 2 + 3", "true + 1", "not true", "not 0 and 1",
                      "1 and 2", "0 or 'x'", "'' and undef.x", "1 < 2 < 3", "1 < 2 > 3", "1 == 1.0", "true == 1", "'a' < 'b'",
                      "'Z' < 'a'", "[1, 2] < [1, 3]", "[1] == [1]",
                      "(1,) == [1]", "{'a': 1} == {'a': 1}", "none == false", "'b' in 'abc'", "'' in ''", "1 in [1, 2]",
                      "'a' in {'a': 1}", "'x' not in 'abc'", "undef == undef",
                      "undef in [1]", "1 in undef", "1 if true else 2", "1 if false", "1 if false else 2 if false else 3", "- 5 | string",
                      "(-5) | string", "2 * 3 ~ 'a'",
                      "not 'a' in 'b'", "1 is defined and 2", "+3", "-true", "10 - 2 - 3", "'é' > 'z'"]),
    # names, attributes, items
    *(E % e for e in ["undef", "undef is defined", "messages[0].role", "messages[0]['content']", "messages[-1].content", "messages[9]",
                      "messages[0].nope", "messages[0]['nope'] is defined",
                      "'abc'[0]", "'abc'[-1]", "'é😀x'[1]", "'abc'[5] is defined", "'abcdef'[1:3]", "'abcdef'[::-1]", "'abcdef'[::2]",
                      "'abcdef'[-2:]", "'é😀x'[1:]", "[1, 2, 3][1:]",
                      "[1, 2, 3][::-1]", "[1, 2, 3][5:]", "[1, 2, 3][:-1]", "[1, 2, 3][2:0:-1]", "(1, 2, 3)[:2]", "range(5)[1:3] | list",
                      DICT + ".a[1]", DICT + "['C']", DICT + ".keys() | list",
                      DICT + ".values() | list", DICT + ".items() | list", DICT + ".get('b')", DICT + ".get('x')", DICT + ".get('x', 7)",
                      "{'items': 1}['items']", "[1, 2].1", "none.x is defined",
                      "messages | length", "messages is defined", "tools", "documents is none", "bos_token ~ eos_token",
                      "unk_token is defined", "raise_exception is defined",
                      "messages[0].items() | list", "messages[true].role", "[]['\\0pop'] is defined", "'abc'.nope is defined",
                      "messages.append is defined"]),
    # methods
    *(E % e for e in ["' a b '.strip() ~ '|'", "'xxaxx'.strip('x')", "'abcba'.lstrip('ab')", "'abcba'.rstrip('ab')",
                      "'\\n a\\u00a0\\n'.strip() ~ '|'", "'a b  c'.split()", "' a  b '.split(' ')",
                      "'a,b,c'.split(',', 1)", "'a b c'.split(none, 1)", "''.split()", "''.split(',')", "'abc'.split('b')[1]",
                      "'abc'.startswith('ab')", "'abc'.endswith(('x', 'c'))",
                      "'aBc'.upper() ~ 'aBc'.lower()", "'éa'.upper()", "'they\\'re b2b'.title()", "'heLLo WORLD'.capitalize()",
                      "'aXbX'.replace('X', '-')", "'aXbX'.replace('X', '-', 1)",
                      "'ab'.replace('', '.')", "'abcabc'.find('c')", "'é😀x'.find('x')", "'abc'.find('z')", "'abcabc'.rfind('a')",
                      "', '.join(['a', 'b'])", "'a\\nb\\r\\nc\\n'.splitlines()"]),
    # filters
    *(E % e for e in ["' a ' | trim ~ '|'", "'xax' | trim('x')", "'abc' | length", "'é😀' | length", "[1] | count", "undef | length",
                      DICT + " | tojson", DICT + " | tojson(indent=2)",
                      "[[], {}, [1]] | tojson(indent=1)", "[1, 'é\"\\n\\u0001', none, 1.5, true] | tojson",
                      "'é😀' | tojson(ensure_ascii=true)", DICT + " | tojson(separators=(',', ':'), sort_keys=true)",
                      "(1, 2) | tojson", "undef | default('d')", "'' | default('d')", "'' | default('d', true)", "undef | d",
                      "undef | default(default_value='x')", "[1, 2] | first", "[] | first",
                      "'abc' | first", "[1, 2] | last", "'' | last is defined", "[1, 'a', none] | join(', ')", "['a', 'b'] | join",
                      "messages | join('+', attribute='role')", "'aé' | upper", "'AÉ' | lower",
                      "'hELLO wORLD' | capitalize", "'foo bar-baz (x) a\\'b' | title", "'abca' | replace('a', 'X')",
                      "'abca' | replace('a', 'X', 1)", "12 | replace(1, 'x')", "1.0 | string ~ none | string",
                      "'12' | int + 1", "' 12 ' | int", "'1_2' | int", "'x' | int", "'x' | int(5)", "'3.7' | int", "'-3.7' | int",
                      "3.9 | int", "none | int", "true | int", "'abc' | list", "{'a': 1} | list",
                      "range(3) | list", "messages | map(attribute='role') | list",
                      "messages | map(attribute='nope', default='-') | join", "['a', 'b'] | map('upper') | join",
                      "[1, 2] | map('string') | list",
                      "[{'a': {'b': 1}}, {'a': {'b': 2}}] | map(attribute='a.b') | list", "['xy', 'zw'] | map(attribute=1) | list",
                      "messages | selectattr('role', 'equalto', 'user') | map(attribute='content') | list",
                      "messages | selectattr('content') | list | length", "messages | selectattr('nope', 'defined') | list",
                      "messages | rejectattr('role', 'eq', 'user') | list", "[1, 2, 3] | reject('odd') | list",
                      "[0, 1, '', 'a'] | select | list", "[1, 'a', 2] | select('string') | list", "[1, 5, 9] | select('gt', 4) | list",
                      "[1, 2] | reject('equalto', 1) | list", "undef | map('upper') | list",
                      DICT + " | items | list", "undef | items | list", DICT + " | dictsort", DICT + " | dictsort(true)",
                      DICT + " | dictsort(reverse=true) | first", "{'x': 2, 'y': 1} | dictsort(by='value')",
                      "'a\\nb\\n\\nc' | indent", "'a\\nb' | indent(2, true)", "'a\\n\\nb' | indent('> ', blank=true)",
                      "'a\\n' | indent(1) ~ '|'", "'<a>' | safe", "('<a>' | safe) ~ '<b>'", "['<'|safe] | join",
                      "[3, 1, 2] | sort", "['b', 'A', 'c'] | sort", "['b', 'A', 'c'] | sort(case_sensitive=true, reverse=true)",
                      "messages | sort(attribute='content') | map(attribute='role') | join(',')",
                      "'abc' | reverse", "[1, 2] | reverse | list", "messages | map(attribute='role') | map('upper') | first"]),
    # tests
    *(E % e for e in ["1 is defined", "undef is undefined", "none is none", "'a' is string", "1 is string", "{} is mapping",
                      "[] is mapping", "[] is iterable", "'a' is iterable", "1 is iterable", "undef is iterable",
                      "{} is iterable", "[] is sequence", "'a' is sequence", "{} is sequence", "1 is sequence", "undef is sequence",
                      "1 is number", "true is number", "1.5 is number", "'1' is number", "true is boolean",
                      "1 is boolean", "true is true", "1 is true", "false is false", "0 is false", "1 is equalto 1", "1 is equalto(2)",
                      "3 is odd", "3 is even", "2 is in [1, 2]", "'a' is not in 'bcd'", "1 is not none",
                      "1 is integer", "true is integer", "1.0 is float", "4 is divisibleby 2", "none is sameas none", "1 is lt 2",
                      "2 is ge(3)", "'a' is ne 'b'", "raise_exception is callable",
                      "messages | selectattr('role', '==', 'user') | list | length", "not undef is defined", "undef is defined or 1",
                      "messages|map('upper') is sequence", "range(2) is sequence",
                      "{'a': 1}.items() is iterable"]),
    # statements
    ROLES + "{{ loop.index }}{{ loop.index0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }};{% endfor %}",
    ROLES + "{{ loop.revindex }}{{ loop.revindex0 }};{% endfor %}",
    ROLES + "{{ loop.previtem.role if loop.previtem is defined }}>{{ m.role }}>{{ loop.nextitem.role if loop.nextitem }};{% endfor %}",
    "{% for m in messages if m.role == 'user' %}{{ loop.index }}/{{ loop.length }}{{ m.content }}{% endfor %}",
    "{% for a in [] %}{{ a }}{% else %}none{% endfor %}",
    "{% for a in [1, 2] %}{% break %}{% else %}else{% endfor %}", "{% for a in [1, 2] %}{{ a }}{% else %}else{% endfor %}",
    "{% for a in [1, 2, 3] %}{% if a == 2 %}{% continue %}{% endif %}{{ a }}{% endfor %}",
    "{% for a in [1, 2, 3] %}{% if a == 2 %}{% break %}{% endif %}{{ a }}{% endfor %}", "{% for a in 'é😀' %}<{{ a }}>{% endfor %}",
    "{% for k in " + DICT + " %}{{ k }}{% endfor %}",
    "{% for k, v in " + DICT + ".items() %}{{ k }}={{ v }};{% endfor %}",
    "{% for k, v in " + DICT + " | dictsort %}{{ k }}={{ v }};{% endfor %}", "{% for a in undef %}x{% else %}e{% endfor %}",
    "{% for (a, b), c in [((1, 2), 3)] %}{{ a }}{{ b }}{{ c }}{% endfor %}",
    "{% for i in range(3) %}{{ i }}{% endfor %}{% for i in range(5, 1, -2) %}{{ i }}{% endfor %}",
    "{% for a in [1] %}{% for b in [2, 3] %}{{ loop.index }}{% endfor %}{{ loop.index }}{% endfor %}",
    "{% for a in [1, 2] %}{{ loop.x is defined }}{% endfor %}",
    "{% set ns = namespace(n=0) %}{% for a in [1, 2, 3] if ns.n < 2 %}{% set ns.n = a %}{{ a }}{% endfor %}",
    "{% set ns = namespace(n=0) %}{% for a in [1, 2, 3] if ns.n < 2 %}{% set ns.n = a %}{{ a }}{{ loop.last }}{% endfor %}",
    "{% if 0 %}a{% elif '' %}b{% elif 1 %}c{% else %}d{% endif %}", "{% if none %}a{% else %}b{% endif %}",
    "{% if messages %}y{% endif %}", "{% set x = 1 %}{% if true %}{% set x = 2 %}{% endif %}{{ x }}",
    "{% set x = 1 %}{% for i in [1] %}{% set x = 2 %}{{ x }}{% endfor %}{{ x }}",
    "{% for i in [1, 2] %}{{ x is defined }}{% set x = i %}{{ x }}{% endfor %}", "{% set a, b = 1, 'x' %}{{ a }}{{ b }}",
    "{% set ns = namespace(a=1, b='c') %}{% set ns.a = ns.a + 1 %}{{ ns.a }}{{ ns.b }}{{ ns.c is defined }}",
    "{% set ns = namespace() %}{% for i in [1, 2] %}{% set ns.last = i %}{% endfor %}{{ ns.last }}",
    "{% set x %}a{{ 1 }}\nb{% endset %}[{{ x }}]", "{% set x | upper | trim %} a {% endset %}[{{ x }}]",
    "{% set x %}{% set y = 1 %}{% endset %}{{ y is defined }}",
    "{% macro f(a, b='x', c=none) %}{{ a }}-{{ b }}-{{ c }};{% endmacro %}{{ f(1) }}{{ f(1, 2) }}{{ f(1, c=3) }}{{ f() }}",
    "{% macro f(a) %}{{ a|upper }}{% endmacro %}{{ f('x') ~ f('y') | lower }}",
    "{% macro f() %}{{ x }}{% endmacro %}{% set x = 1 %}{{ f() }}", "{% macro f(a, b=a * 2) %}{{ b }}{% endmacro %}{{ f(2) }}",
    "{% set x = 'o' %}{% macro f() %}{% set x = 'i' %}{{ x }}{% endmacro %}{{ f() }}{{ x }}",
    "{% macro f(n) %}{{ n }}{% if n > 0 %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(3) }}",
    "{% macro f(m) -%}\n  {{ m.role }}\n{%- endmacro %}" + ROLES + "{{ f(m) }},{% endfor %}",
    "{% generation %}a{% set g = 1 %}{% endgeneration %}{{ g is defined }}", "{{ dict(a=1, b=2) }}{{ dict({'x': 1}, y=2) }}",
    "{% set x = messages | selectattr('role', 'eq', 'user') %}{{ x | first is mapping }}{{ x | list | length }}",
    "{% if 1 is defined and not undef is defined %}y{% endif %}", "{% set messages = messages[1:] %}{{ messages | length }}",
    "{% if false %}{{ 1 | no_such_filter }}{% endif %}ok", "{{ (1 | no_such) if false else 2 }}",
    # what fails
    *(E % e for e in ["undef.x", "undef['x']", "undef + 1", "1 + undef", "undef()", "undef < 1", "messages[0].nope.more",
                      "messages[0].nope + 'x'", "messages[9].role", "none.x.y", "[1][3] + 1", "'abc'.nope()",
                      "(1 if false) + 1", "1 + 'a'", "'a' + none", "[] + ()", "1 < 'a'", "{} < {}", "1 // 0", "1.0 / 0", "1 % 0",
                      "none | length", "5 | list", "[1]['a'].x", "1()", "'a'()", "{}.nope", "{} | tojson(1, 2, 3, 4, 5)",
                      "undef | tojson", "raise_exception('no: ' ~ 5)", "raise_exception()", "'a' in 5", "1 in 'a'", "[1, 'a'] | sort",
                      "'abc' | no_such", "1 is no_such", "'a' | trim(nope=1)", "'a' | replace('b')", "range()", "range(1, 2, 0)",
                      "range(200000)", "messages.append(1)", "undef | int", "-'a'", "'x'.join([1])", "'a'.split('')", "[] | map | list",
                      "5 | map('upper') | list", "[[1], 2] | map(attribute=0) | first + 'x'", "'a' | dictsort",
                      "messages | map('no_such') | list", "5[0].x", "namespace(a=1).b.c"]),
    "{% if true %}{{ 1 | no_such }}{% endif %}", "{% for a in 5 %}{% endfor %}", "{% for a, b in [1] %}{% endfor %}",
    "{% for a, b in [(1, 2, 3)] %}{% endfor %}", "{% set x = {} %}{% set x.a = 1 %}", "{% macro f(a) %}{% endmacro %}{{ f(1, 2) }}",
    "{% macro f(a) %}{% endmacro %}{{ f(b=1) }}", "{% macro f(a) %}{{ a.b }}{% endmacro %}\n{{ f() }}",
    "{{ 1 }}\n" + ROLES + "\n{{ raise_exception('bad ' + m.role) }}{% endfor %}",
    # what has no sense
    "{{ 1 +", "{{ }}", "{% if %}{% endif %}", "{% if 1 %}", "a\n{% endif %}", "{% for a %}{% endfor %}",
    "{% for a in [1] %}\n\n{% endif %}", "{% else %}", "{% foo %}", "{{ 1 2 }}", "{{ (1 }}", "{{ 1) }}", "{{ [1 }}", "{{ {'a'} }}",
    "{{ 'a }}", "{# a", "{% raw %}a", "\n\n{{ a b }}", "{{ a | }}", "{{ a is }}", "{{ a. }}", "{% set 1 = 2 %}", "{% set true = 2 %}",
    "{% set x.y.z = 1 %}", "{% break %}", "{% for a in [] %}{% else %}{% break %}{% endfor %}",
    "{% macro f(a=1, b) %}{% endmacro %}", "{% macro %}{% endmacro %}", "{{ f(a=1, 2) }}", "{{ f(a=1, a=2) }}", "{{ ? }}", "{{ a ! b }}",
    "{{ 1 is defined is none }}", "{% set x %}", "{% if 1 %}{% else %}{% elif 2 %}{% endif %}",
    "{{ '\\x4' }}", "{% for loop in [] %}{% endfor %}", "{{ 1 if }}", "{{ a[ }}", "{% %}", "{{ 01 }}",
]


def result(template, conversation, prompt):
    try:
        out, _ = render_jinja_template(conversations=[copy.deepcopy(conversation)], chat_template=template,
                                       add_generation_prompt=prompt, **TOKENS)
    except jinja2.TemplateSyntaxError as e:
        return {"error": "syntax", "line": e.lineno}
    except SyntaxError:  # of the Python that Jinja2 has made of it
        return {"error": "syntax"}
    except jinja2.UndefinedError as e:
        return {"error": "undefined", "text": str(e)}
    except jinja2.TemplateError as e:
        return {"error": "raised" if type(e) is jinja2.TemplateError else "failed", "text": str(e)}
    except Exception:
        return {"error": "failed"}
    return {"out": out[0]}


def main():
    golden = {
        "tokens": TOKENS,
        "conversations": CONVERSATIONS,
        "templates": [{"name": name, "template": t, "renders": [[result(t, c, p) for p in (True, False)] for c in CONVERSATIONS]}
                      for name, t in TEMPLATES.items()],
        "conversation": LINES_FOR,
        "lines": [{"template": t, **result(t, LINES_FOR, True)} for t in LINES],
    }
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_text(json.dumps(golden, ensure_ascii=False, indent=0, separators=(",", ":")) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
