import pytest

from ortloom.commands.serve import parse
from ortloom.errors import ConfigError
from ortloom.flags import flag_table

TABLE = flag_table()


def values(*tokens):
    args = parse(list(tokens), TABLE)
    return {name: entry.value for name, entry in args.passed.items()}


@pytest.mark.parametrize(
    "tokens",
    [
        ["--max-num-seqs", "8"],
        ["--max_num_seqs", "8"],
        ["--max_num-seqs=8"],
        ["--max-num-seqs=8"],
        ["--max-num-se", "8"],
        ["--max_num_se=8"],
    ],
)
def test_spellings_of_one_option(tokens):
    assert values("m", *tokens) == {"--max-num-seqs": 8}


def test_underscores_in_values_and_dotted_keys_stay():
    got = values("m", "--override_generation_config.top_k", "5", "--served-model-name", "a_b")
    assert got == {"--override-generation-config": {"top_k": 5}, "--served-model-name": ["a_b"]}


def test_model_is_the_first_positional_wherever_it_stands():
    assert parse(["m", "--port", "1"], TABLE).positionals == ["m"]
    assert parse(["--port", "1", "m"], TABLE).positionals == ["m"]
    assert parse(["--port", "1", "--", "-m"], TABLE).positionals == ["-m"]


def test_switch_pairs():
    assert values("m", "--enable-prefix-caching") == {"--enable-prefix-caching": True}
    assert values("m", "--no-enable-prefix-caching") == {"--enable-prefix-caching": False}
    assert values("m", "--disable-radix-attention") == {"--enable-radix-attention": False}
    with pytest.raises(ConfigError, match="takes no value"):
        parse(["m", "--enable-prefix-caching=1"], TABLE)


def test_lists_take_what_follows():
    assert values("m", "--api-key", "a", "b", "--port", "1")["--api-key"] == ["a", "b"]
    assert values("m", "--api-key=a")["--api-key"] == ["a"]
    with pytest.raises(ConfigError, match="at least one"):
        parse(["m", "--api-key", "--port", "1"], TABLE)


def test_negative_numbers_are_values():
    assert values("m", "--max-model-len", "-1") == {"--max-model-len": -1}
    assert values("m", "--max-model-len", "AUTO") == {"--max-model-len": -1}
    assert values("m", "--max-logprobs", "-1") == {"--max-logprobs": -1}


def test_none_is_null_where_null_is_the_default():
    assert values("m", "--max-num-queued-reqs", "None") == {"--max-num-queued-reqs": None}
    with pytest.raises(ConfigError, match="invalid integer"):
        parse(["m", "--port", "None"], TABLE)


def test_dotted_keys_merge_append_and_override_the_document():
    got = values(
        "m",
        "--default-chat-template-kwargs.a.b=1",
        "--default-chat-template-kwargs.a.c",
        "25k",
        "--default-chat-template-kwargs.l+",
        "x",
        "--default-chat-template-kwargs.l+=y,z",
        "--default-chat-template-kwargs",
        '{"a": 0}',
    )
    assert got["--default-chat-template-kwargs"] == {
        "a": {"b": 1, "c": 25000},
        "l": ["x", "y", "z"],
    }


def test_dotted_keys_only_on_structured_options():
    with pytest.raises(ConfigError, match="takes no dotted keys"):
        parse(["m", "--port.x", "1"], TABLE)


def test_short_options():
    assert values("m", "-tp", "1") == {"--tensor-parallel-size": 1}
    assert values("m", "-tp=1") == {"--tensor-parallel-size": 1}
    for tokens in (["-O2"], ["-O", "2"], ["-O=2"]):
        assert values("m", *tokens) == {"--optimization-level": 2}
    assert values("m", "-cc.mode=3") == {"--compilation-config": {"mode": 3}}
    assert values("m", "-v") == {"--verbose": True}


def test_repeated_options_warn_and_the_last_wins():
    args = parse(["m", "--port", "1", "--port", "2", "--no-enable-lora", "--enable-lora"], TABLE)
    assert args.get("--port") == 2
    assert args.get("--enable-lora") is True
    assert args.warnings == [
        "options given more than once, the last value counts: --port, --enable-lora"
    ]


def test_jump_forward_twice_is_refused():
    with pytest.raises(ConfigError, match="only once"):
        parse(["m", "--enable-jump-forward", "--enable-jump-forward"], TABLE)


def test_unknown_options_get_a_suggestion():
    with pytest.raises(ConfigError, match=r"unrecognized arguments: --max-seqs.*--max-num-seqs\?"):
        parse(["m", "--max-seqs", "3"], TABLE)
    with pytest.raises(ConfigError, match=r"^unrecognized arguments: --zzzzzzz$"):
        parse(["m", "--zzzzzzz"], TABLE)
    with pytest.raises(ConfigError, match=r"unrecognized arguments: -Z"):
        parse(["m", "-Z", "3"], TABLE)


def test_ambiguous_beginnings_name_the_candidates():
    with pytest.raises(ConfigError, match=r"ambiguous option: --max-num-s could match"):
        parse(["m", "--max-num-s", "3"], TABLE)


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        (["--port", "x"], "argument --port: invalid integer: 'x'"),
        (["--port"], "argument --port: expected one argument"),
        (["--port", "--host", "h"], "argument --port: expected one argument"),
        (["--gpu-memory-utilization", "x"], "invalid number"),
        (["--logprobs-mode", "x"], "invalid choice: 'x' (choose from raw_logits"),
        (["--allowed-origins", "x"], "not valid JSON"),
        (["--allowed-origins", "{}"], "expected a JSON list of strings"),
        (["--override-generation-config", "{"], "not valid JSON"),
    ],
)
def test_bad_values_name_the_option(tokens, message):
    with pytest.raises(ConfigError) as caught:
        parse(["m", *tokens], TABLE)
    assert message in str(caught.value)
