import pytest

from ortloom.commands.config_file import split_config
from ortloom.commands.serve import make_plan
from ortloom.environment import read_environment
from ortloom.errors import ConfigError
from ortloom.flags import flag_table


@pytest.fixture
def plan(tmp_path):
    def build(text, *tokens, name="c.yaml"):
        file = tmp_path / name
        file.write_text(text, encoding="utf-8")
        args = [*tokens, "--config", str(file)]
        return make_plan(args, read_environment({}), flag_table())[1]

    return build


TEXT = """
model: from-file
port: 1234
max_num_seqs: 8
served-model-name: [a, b]
enable-prefix-caching: false
enable-force-include-usage: true
disable-log-stats: false
api-key: []
default-chat-template-kwargs:
  x: {y: 1}
allowed-origins: ["http://a"]
max-model-len: 4k
"""


def test_every_kind_of_value(plan):
    got = plan(TEXT).config
    assert got.model.bundle == "from-file"
    assert got.model.served_model_names == ("a", "b")
    assert got.model.max_model_len == 4000
    assert got.front.port == 1234
    assert got.scheduler.max_num_seqs == 8
    assert got.cache.enable_prefix_caching is False
    assert got.front.enable_force_include_usage is True
    assert got.front.default_chat_template_kwargs == {"x": {"y": 1}}
    assert got.front.allowed_origins == ("http://a",)
    assert got.log.log_stats is True


def test_the_command_line_wins_without_a_warning(plan):
    got = plan(TEXT, "typed", "--port", "99", "--enable-prefix-caching")
    assert got.config.model.bundle == "typed"
    assert got.config.front.port == 99
    assert got.config.cache.enable_prefix_caching is True
    assert got.notices == ()


def test_null_is_the_word_none(plan):
    assert (
        plan("model: m\nmax-num-queued-reqs: null\n").config.scheduler.max_num_queued_reqs is None
    )


def test_a_single_name_is_a_list_of_one(plan):
    assert plan("model: m\nserved-model-name: a\n").config.model.served_model_names == ("a",)


@pytest.mark.parametrize(
    ("text", "name", "message"),
    [
        ("model: m", "c.json", "must end in .yaml or .yml"),
        ("model: [", "c.yml", "is not YAML"),
        ("- a\n- b\n", "c.yaml", "must hold a mapping"),
        ("model: m\nprot: 1\n", "c.yaml", "unrecognized arguments: --prot (did you mean --port?)"),
        ("port: 1\n", "c.yaml", "no model is named"),
        ("model: m\nport: x\n", "c.yaml", "argument --port: invalid integer"),
    ],
)
def test_bad_files(plan, text, name, message):
    with pytest.raises(ConfigError) as caught:
        plan(text, name=name)
    assert message in str(caught.value)


def test_missing_file_and_misuse(tmp_path):
    for tokens, message in (
        (["--config"], "expected one argument"),
        (["--config", "--port"], "expected one argument"),
        (["--config=a.yaml", "--config", "b.yaml"], "only once"),
    ):
        with pytest.raises(ConfigError, match=message):
            split_config(tokens)
    with pytest.raises(ConfigError, match="cannot read"):
        make_plan(["m", "--config", str(tmp_path / "no.yaml")], read_environment({}), flag_table())
