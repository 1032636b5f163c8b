import pytest

from ortloom.commands.values import merge, parse_loose, parse_size


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("512", 512),
        ("-1", -1),
        ("1k", 1000),
        ("1K", 1024),
        ("25.6k", 25600),
        ("2m", 2_000_000),
        ("2M", 2 * 1024**2),
        ("80g", 80 * 1000**3),
        ("80G", 80 * 1024**3),
        ("1t", 1000**4),
        ("1T", 1024**4),
    ],
)
def test_human_readable_integers(text, value):
    assert parse_size(text) == value


@pytest.mark.parametrize("text", ["", "k", "1.5K", "1.00001k", "1kk", "1 k b", "0x10", "1.5"])
def test_bad_integers_are_refused(text):
    with pytest.raises(ValueError):
        parse_size(text)


def test_binary_decimals_point_to_the_lower_case_suffix():
    with pytest.raises(ValueError, match=r"use '1\.5k'"):
        parse_size("1.5K")


@pytest.mark.parametrize(
    ("text", "value"),
    [("1", 1), ("0.5", 0.5), ("true", True), ("null", None), ("80g", 80 * 1000**3), ("abc", "abc")],
)
def test_loose_values(text, value):
    assert parse_loose(text) == value


def test_merge_is_recursive_and_appends_lists():
    old = {"a": {"b": 1, "l": [1]}, "c": 1}
    assert merge(old, {"a": {"d": 2, "l": [2]}, "c": 3}) == {
        "a": {"b": 1, "d": 2, "l": [1, 2]},
        "c": 3,
    }
