import pytest
from transformers import PreTrainedTokenizerFast

from ortloom.errors import ConfigError, InvalidRequest
from ortloom.models.chat_template import ChatTemplate, resolve_kwargs
from ortloom.models.template_environment import content_format_of
from ortloom.models.tokenizer import Tokenizer

CHATML = (
    "{%- for message in messages %}\n"
    "    {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}\n"
    "{%- endfor %}\n"
    "{%- if add_generation_prompt %}\n"
    "    {{- '<|im_start|>assistant\\n' }}\n"
    "{%- endif %}\n"
)
TOOLS = (
    "{{ bos_token }}{% if tools is not none %}{{ tools | tojson(indent=2) }}{% endif %}"
    "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}"
    "{% if m.role == 'skip' %}{% continue %}{% endif %}"
    "{% if loop.index > 3 %}{% break %}{% endif %}"
    "{{ ns.n }}{{ m.content | trim }}{% generation %}{{ m.role | upper }}{% endgeneration %}"
    "{{ m.tool_calls | tojson if m.tool_calls }}{% endfor %}{{ documents }}"
)
PARTS = (
    "{% for message in messages %}{% if message['content'] is string %}{{ message['content'] }}"
    "{% else %}{% for part in message['content'] | list %}[{{ part.text }}]{% endfor %}"
    "{% endif %}{% endfor %}"
)
BLOCKS = """
  {% if true %}
    indented
  {% endif %}
  {#- note -#}
{{ messages[0].content }}
{% raw %}{{ kept }}{% endraw %}
"""
UNICODE = "{{ messages | tojson }}{{ {'é': '日本'} | tojson(sort_keys=true) }}"
TRIMMED = "{% for m in messages %}<{{ m.content | trim }}>{% endfor %}"

MESSAGES = [
    {"role": "system", "content": " You are é. "},
    {"role": "user", "content": "{{7*7}} {% raw %} 日本 \n"},
    {"role": "assistant", "content": "Fine  "},
]
TOOL = {"type": "function", "function": {"name": "f", "description": None, "parameters": {"é": 1}}}


@pytest.fixture(scope="module")
def reference(byte_level_folder):
    return PreTrainedTokenizerFast(
        tokenizer_file=str(byte_level_folder / "tokenizer.json"), bos_token="<|im_start|>"
    )


@pytest.mark.parametrize("source", [CHATML, TOOLS, PARTS, BLOCKS, UNICODE])
@pytest.mark.parametrize("tools", [None, [TOOL]])
@pytest.mark.parametrize("generation", [True, False])
def test_the_text_is_that_of_transformers(reference, source, tools, generation):
    want = reference.apply_chat_template(
        MESSAGES,
        chat_template=source,
        tools=tools,
        add_generation_prompt=generation,
        tokenize=False,
    )
    template = ChatTemplate({"default": source}, {"bos_token": "<|im_start|>"})
    assert template.render(MESSAGES, tools=tools, add_generation_prompt=generation) == want


@pytest.mark.parametrize("source", [CHATML, TRIMMED])
@pytest.mark.parametrize("text", ["Fine", "Fine  ", "Fine, and\n", "a}}{{b"])
def test_an_open_last_message_is_that_of_transformers(reference, source, text):
    messages = [*MESSAGES[:2], {"role": "assistant", "content": text}]
    want = reference.apply_chat_template(
        messages,
        chat_template=source,
        continue_final_message=True,
        tokenize=False,
    )
    template = ChatTemplate({"default": source}, {})
    got = template.render(messages, add_generation_prompt=False, continue_final_message=True)
    assert got == want
    assert messages[-1]["content"] == text


def test_an_open_last_message_needs_its_text():
    template = ChatTemplate({"default": "fixed"}, {})
    for messages in ([], [{"role": "user"}], [{"role": "user", "content": "x"}]):
        with pytest.raises(InvalidRequest, match="continue_final_message"):
            template.render(messages, continue_final_message=True)


def test_an_open_last_message_of_parts_ends_with_its_last_text():
    messages = [{"role": "user", "content": [{"type": "text", "text": "ab"}]}]
    template = ChatTemplate({"default": PARTS}, {})
    assert template.render(messages, continue_final_message=True) == "[ab"
    assert messages[0]["content"][0]["text"] == "ab"


@pytest.mark.parametrize(
    ("source", "form"),
    [
        (CHATML, "string"),
        (TOOLS, "string"),
        (PARTS, "openai"),
        (
            "{% for m in messages %}{% for p in m.content %}{{ p }}{% endfor %}{% endfor %}",
            "openai",
        ),
        (
            "{% for m in messages %}{% set c = m['content'] %}"
            "{% for p in c %}{{ p.text }}{% endfor %}{% endfor %}",
            "openai",
        ),
        ("{{ messages[0].content }}{% for t in tools %}{{ t }}{% endfor %}", "string"),
        ("{% if %}", "string"),
    ],
)
def test_the_content_format_is_read_off_the_template(source, form):
    assert content_format_of(source) == form


def test_a_refusing_template_says_its_own_sentence():
    template = ChatTemplate({"default": "{{ raise_exception('no system turns') }}"}, {})
    with pytest.raises(InvalidRequest, match=r"^no system turns$"):
        template.render(MESSAGES)


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages.nope.nope }}",
        "{{ messages + 1 }}",
        "{{ messages[0].content + none }}",
        "{{ 1 / 0 }}",
        "{{ [1][5].x }}",
        "{{ messages[0].update({}) }}",
        "{{ ().__class__.__base__.__subclasses__() }}",
        "{{ namespace.__init__.__globals__['os'].popen('id').read() }}",
        "{{ '{0.__class__}'.format(1) + none }}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{{ range(99999999) | list }}",
    ],
)
def test_a_failing_template_is_a_refusal_without_internals(source):
    template = ChatTemplate({"default": source}, {})
    with pytest.raises(InvalidRequest) as caught:
        template.render(MESSAGES)
    for leak in ("Traceback", "has no attribute '", "TypeError", "KeyError", "<class"):
        assert leak not in str(caught.value)


def test_templates_cannot_change_what_they_are_given():
    messages = [{"role": "user", "content": "x"}]
    template = ChatTemplate({"default": "{{ messages.append(1) }}"}, {})
    with pytest.raises(InvalidRequest):
        template.render(messages)
    assert messages == [{"role": "user", "content": "x"}]


def test_user_text_is_data():
    text = "{{7*7}} {% raw %} {# c #}"
    template = ChatTemplate({"default": CHATML}, {})
    assert text in template.render([{"role": "user", "content": text}])


def test_strftime_now_gives_a_date():
    template = ChatTemplate({"default": "{{ strftime_now('%Y') }}"}, {})
    assert template.render([]).isdigit()


def test_kwargs_the_template_does_not_read_or_that_are_builtin_are_dropped():
    source = "{{ mood }}{{ range(2) | list }}{{ x is defined }}"
    template = ChatTemplate({"default": source}, {})
    kwargs = {"mood": "calm", "range": 5, "unread": object(), "list": 1}
    assert template.render([], kwargs=kwargs) == "calm[0, 1]False"


def test_raise_exception_can_be_bound():
    template = ChatTemplate({"default": "{{ raise_exception }}"}, {})
    assert template.render([], kwargs={"raise_exception": "x"}) == "x"


def test_unset_variables_stay_undefined():
    template = ChatTemplate({"default": "{{ enable_thinking is undefined }}"}, {})
    assert template.render([], kwargs={}) == "True"
    assert template.render([], kwargs={"enable_thinking": False}) == "False"


def test_kwargs_precedence():
    got = resolve_kwargs({"a": 1, "b": 1, "c": 1}, {"b": 2, "c": 2}, {"c": 3})
    assert got == {"a": 1, "b": 2, "c": 3}


@pytest.mark.parametrize("unset", [None, "auto"])
def test_null_and_auto_do_not_clear_a_default(unset):
    assert resolve_kwargs({"a": 1}, {"a": unset}, {"a": unset}) == {"a": 1}


@pytest.mark.parametrize("name", ["messages", "tools", "chat_template", "tokenize"])
def test_reserved_names_are_refused(name):
    with pytest.raises(InvalidRequest, match=name):
        resolve_kwargs({}, {name: []}, {})


def test_reasoning_effort_sets_enable_thinking_unless_the_request_does():
    assert resolve_kwargs({}, {}, {"reasoning_effort": "none"})["enable_thinking"] is False
    assert resolve_kwargs({}, {}, {"reasoning_effort": "low"})["enable_thinking"] is True
    kwargs = resolve_kwargs({}, {"enable_thinking": False}, {"reasoning_effort": "low"})
    assert kwargs["enable_thinking"] is False
    assert "enable_thinking" not in resolve_kwargs({}, {}, {})


def test_sources_in_order_of_precedence(byte_level_folder, tmp_path):
    tokenizer = Tokenizer.load(byte_level_folder)
    assert ChatTemplate.load(tmp_path, tokenizer) is None
    tokenizer.config["chat_template"] = [
        {"name": "default", "template": "plain"},
        {"name": "tool_use", "template": "with tools"},
    ]
    try:
        named = ChatTemplate.load(tmp_path, tokenizer)
        assert named.render([]) == "plain"
        assert named.render([], tools=[TOOL]) == "with tools"
        (tmp_path / "chat_template.jinja").write_text("from the file")
        assert ChatTemplate.load(tmp_path, tokenizer).render([]) == "from the file"
        assert ChatTemplate.load(tmp_path, tokenizer, "given").render([]) == "given"
        with pytest.raises(ConfigError, match="cannot be parsed"):
            ChatTemplate.load(tmp_path, tokenizer, "{% if %}")
    finally:
        del tokenizer.config["chat_template"]


def test_a_template_that_python_cannot_nest_is_refused():
    deep = "{% for a in [1] %}" * 25 + "x" + "{% endfor %}" * 25
    with pytest.raises(InvalidRequest, match="cannot be parsed: too many statically nested blocks"):
        ChatTemplate({"default": deep}, {})
