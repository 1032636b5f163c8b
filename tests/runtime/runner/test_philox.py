import numpy as np
import pytest

from ortloom.runtime.philox import philox4x32, uniform

ONES = 0xFFFFFFFF


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [  # the generator authors' published vectors for philox4x32, 10 rounds
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((ONES,) * 4, (ONES,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_known_answers(counter, key, expected):
    assert philox4x32(counter, key) == expected


def test_uniform_is_made_of_the_first_two_words():
    words = philox4x32((7, 2, 0, 0), (1, 3))
    assert uniform((2 << 32) | 1, 3, 7) == ((words[0] >> 5) * 2**26 + (words[1] >> 6)) / 2**53


def test_every_part_of_the_address_matters():
    base = uniform(5, 0, 0)
    others = [uniform(6, 0, 0), uniform(5, 1, 0), uniform(5, 0, 1), uniform(5 + 2**32, 0, 0)]
    assert len({base, *others}) == 5
    assert uniform(-1, 0, 0) == uniform(2**64 - 1, 0, 0)


def test_values_spread_evenly():
    values = np.array([uniform(seed, 0, n) for seed in range(20) for n in range(500)])
    assert values.min() >= 0
    assert values.max() < 1
    counts, _ = np.histogram(values, bins=20, range=(0, 1))
    chi_square = ((counts - 500) ** 2 / 500).sum()
    assert chi_square < 43.8  # 19 degrees of freedom, p = 0.001; the seeds are fixed
