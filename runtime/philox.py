"""Philox4x32-10, the counter-based random generator behind every draw.

Algorithm: J. Salmon, M. Moraes, R. Dror, D. Shaw, "Parallel random numbers: as easy as 1, 2, 3",
SC'11. A draw is a pure function of (seed, sample index, output position): nothing is carried from
step to step, so preemption, batching and speculation cannot change it.

Mapping: key = (low half of the seed, sample index); counter = (output position, high half of the
seed, 0, 0). Negative seeds are taken in two's complement.
"""

_MASK = 0xFFFFFFFF
_MULTIPLIER_0 = 0xD2511F53
_MULTIPLIER_1 = 0xCD9E8D57
_WEYL_0 = 0x9E3779B9
_WEYL_1 = 0xBB67AE85
_ROUNDS = 10


def philox4x32(
    counter: tuple[int, int, int, int], key: tuple[int, int]
) -> tuple[int, int, int, int]:
    """Ten rounds over one counter; all words are u32."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        product_0 = _MULTIPLIER_0 * c0
        product_1 = _MULTIPLIER_1 * c2
        c0, c1, c2, c3 = (
            (product_1 >> 32) ^ c1 ^ k0,
            product_1 & _MASK,
            (product_0 >> 32) ^ c3 ^ k1,
            product_0 & _MASK,
        )
        k0 = (k0 + _WEYL_0) & _MASK
        k1 = (k1 + _WEYL_1) & _MASK
    return c0, c1, c2, c3


def uniform(seed: int, sample_index: int, position: int) -> float:
    """The random number of one output position.

    Args:
        seed: any 64-bit integer, signed or not.
        sample_index: which of n samples, u32.
        position: number of tokens generated before this one, u32.

    Returns:
        A float64 in [0, 1) with 53 random bits (27 of word 0 above 26 of word 1).
    """
    counter = (position & _MASK, (seed >> 32) & _MASK, 0, 0)
    word_0, word_1, _, _ = philox4x32(counter, (seed & _MASK, sample_index & _MASK))
    return ((word_0 >> 5) * 67108864 + (word_1 >> 6)) / 9007199254740992.0
