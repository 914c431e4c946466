"""Sharing, masks, keys and what is signed, each against a slow or obvious version."""

from __future__ import annotations

from fractions import Fraction
from itertools import combinations

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given, settings
from hypothesis import strategies as st

from common.fixed_point import OutOfBounds, as_sums, as_vector, limits_of
from common.secure.advert import Advert, InvalidAdvert, statement_of_sum, transcript_of
from common.secure.keys import Unreadable, mask_key, own_mask_key, public_of, seal, unseal
from common.secure.masks import add_masks
from common.secure.shamir import PRIME, SHARE_BYTES, InvalidShares, at, join, split
from common.secure.terms import Terms, digest_of, threshold

secrets_ = st.binary(min_size=32, max_size=32)


def is_prime(number: int) -> bool:
    """Miller and Rabin, with the first forty primes as witnesses."""
    odd, twos = number - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    small = [n for n in range(2, 180) if all(n % d for d in range(2, n))]
    return all(
        (x := pow(witness, odd, number)) in (1, number - 1)
        or any((x := x * x % number) == number - 1 for _ in range(twos - 1))
        for witness in small
    )


def test_the_field_is_one_and_takes_every_secret() -> None:
    assert PRIME > 2**256
    assert is_prime(PRIME)
    assert join(split(b"\xff" * 32, 2, [1, 2], np.random.default_rng(0).bytes)) == b"\xff" * 32


@settings(max_examples=40, deadline=None)
@given(secrets_, st.integers(1, 7), st.integers(0, 3), st.integers(0, 2**32), st.randoms())
def test_any_threshold_of_shares_gives_the_secret(secret, least, more, seed, random) -> None:  # type: ignore[no-untyped-def]
    points = random.sample(range(1, 30), least + more)
    shares = split(secret, least, points, np.random.default_rng(seed).bytes)
    for chosen in combinations(points, least):
        assert join({point: shares[point] for point in chosen}) == secret
    assert {len(share) for share in shares.values()} == {SHARE_BYTES}
    # One further share lies on the same polynomial.
    assert all(
        at(point, {one: shares[one] for one in points[:least]}) == int.from_bytes(shares[point], "big")
        for point in points
    )


def test_joining_is_interpolation() -> None:
    """Over the rationals, where the shares of a small polynomial are small numbers, Lagrange says the same."""
    polynomial = lambda x: 5 + 3 * x + 2 * x**2  # noqa: E731
    values = {x: polynomial(x) for x in (1, 4, 6)}
    slow = sum(
        Fraction(value)
        * np.prod([Fraction(-other, x - other) for other in values if other != x])
        for x, value in values.items()
    )  # fmt: skip
    assert slow == 5
    assert at(0, {x: value.to_bytes(SHARE_BYTES, "big") for x, value in values.items()}) == 5


def test_fewer_shares_say_nothing() -> None:
    """For every secret there is one polynomial through the shares that are too few."""
    shares = split(b"s" * 32, 3, [1, 2, 3, 4], np.random.default_rng(1).bytes)
    two = {point: shares[point] for point in (1, 2)}
    for other in (0, 1, PRIME // 2):
        through = {**two, 3: at(3, {**two, PRIME: other.to_bytes(SHARE_BYTES, "big")}).to_bytes(SHARE_BYTES, "big")}
        assert at(0, {**two, 3: through[3]}) == at(PRIME, {**two, 3: through[3]}) == other


@pytest.mark.parametrize("wrong", [b"", b"\x00" * 32, b"\x00" * 34, b"\xff" * 33])
def test_what_is_no_share_is_refused(wrong: bytes) -> None:
    with pytest.raises(InvalidShares):
        join({1: wrong, 2: bytes(SHARE_BYTES)})


def test_shares_of_no_secret_are_refused() -> None:
    too_large = (PRIME - 1).to_bytes(SHARE_BYTES, "big")
    with pytest.raises(InvalidShares):
        join({1: too_large})


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 70_000), st.lists(secrets_, max_size=3), st.lists(secrets_, max_size=3), st.integers(0, 9))
def test_masks_are_streams_of_aes(size: int, plus: list[bytes], minus: list[bytes], seed: int) -> None:
    vector = np.random.default_rng(seed).integers(0, 2**64, size, np.uint64)
    slow = [int(value) for value in vector[:64]]
    for keys, sign in ((plus, 1), (minus, -1)):
        for key in keys:
            stream = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor().update(bytes(8 * len(slow)))
            words = [int.from_bytes(stream[8 * n : 8 * n + 8], "little") for n in range(len(slow))]
            slow = [(value + sign * word) % 2**64 for value, word in zip(slow, words, strict=True)]
    hidden = vector.copy()
    add_masks(hidden, plus, minus)
    assert hidden[:64].tolist() == slow
    add_masks(hidden, minus, plus)
    np.testing.assert_array_equal(hidden, vector)


def test_a_mask_looks_like_noise() -> None:
    mask = np.zeros(200_000, np.uint64)
    add_masks(mask, [b"k" * 32])
    counts = np.bincount(mask.view(np.uint8), minlength=256)
    expected = 8 * mask.size / 256
    # Chi-squared with 255 degrees of freedom: mean 255, standard deviation 22.6.
    assert ((counts - expected) ** 2 / expected).sum() < 255 + 5 * 22.6
    assert abs(np.corrcoef(mask[:-1].astype(float), mask[1:].astype(float))[0, 1]) < 0.01


def test_both_ends_have_one_key_and_every_purpose_another() -> None:
    one, other = b"\x11" * 32, b"\x22" * 32
    assert mask_key(one, public_of(other), b"t") == mask_key(other, public_of(one), b"t")
    assert (
        len({mask_key(one, public_of(other), b"t"), mask_key(one, public_of(other), b"u"), own_mask_key(one, b"t")})
        == 3
    )


def test_a_letter_is_for_one_reader_way_and_sum() -> None:
    one, other, third = b"\x11" * 32, b"\x22" * 32, b"\x33" * 32
    sealed = seal(one, public_of(other), b"t", (0, 1), b"share")
    assert unseal(other, public_of(one), b"t", (0, 1), sealed) == b"share"
    for private, transcript, way, content in (
        (third, b"t", (0, 1), sealed), (other, b"u", (0, 1), sealed), (other, b"t", (1, 0), sealed),
        (other, b"t", (0, 1), sealed[:-1] + bytes([sealed[-1] ^ 1])), (other, b"t", (0, 1), b""),
    ):  # fmt: skip
        with pytest.raises(Unreadable):
            unseal(private, public_of(one), transcript, way, content)


@pytest.mark.parametrize("public", [bytes(32), b"\x01" + bytes(31)])
def test_a_key_that_gives_everybody_the_same_secret_is_none(public: bytes) -> None:
    with pytest.raises(Unreadable, match="public key"):
        mask_key(b"\x11" * 32, public, b"t")


@given(st.binary(min_size=96, max_size=96), st.binary(max_size=200), st.binary(max_size=300))
def test_an_advert_comes_back_as_it_was(keys: bytes, signature: bytes, certificate: bytes) -> None:
    advert = Advert(keys[:32], keys[32:64], keys[64:], signature, certificate)
    assert Advert.from_bytes(advert.to_bytes()) == advert


@pytest.mark.parametrize("content", [b"", bytes(96), bytes(96) + b"\x05abc", bytes(96) + b"\xff" + bytes(300)])
def test_what_is_cut_off_is_no_advert(content: bytes) -> None:
    with pytest.raises(InvalidAdvert):
        Advert.from_bytes(content)


def test_two_sums_have_nothing_in_common() -> None:
    terms = Terms(("a", "b"), 10, 0, b"m" * 32)
    task = {"run": "1", "round": 2, "settings": "{}"}
    contexts = {
        terms.context(task), terms.context({**task, "round": 3}), terms.context({**task, "settings": "{ }"}),
        Terms(("a", "c"), 10, 0, b"m" * 32).context(task), Terms(("a", "b"), 11, 0, b"m" * 32).context(task),
        Terms(("a", "b"), 10, 1, b"m" * 32).context(task), Terms(("a", "b"), 10, 0, b"n" * 32).context(task),
    }  # fmt: skip
    assert len(contexts) == 7
    assert terms.context(dict(reversed(task.items()))) == terms.context(task)
    assert len({transcript_of(b"c", {0: b"x"}), transcript_of(b"c", {1: b"x"}), transcript_of(b"d", {0: b"x"})}) == 3
    assert len({statement_of_sum(b"t", [0, 1], [0]), statement_of_sum(b"t", [0], [0, 1])}) == 2


def test_the_digest_of_a_model_is_of_everything_in_it() -> None:
    model = {"a": np.arange(6, dtype=np.float32), "b": np.zeros((0, 3), np.float32), "n": np.array(3)}
    same = {"n": np.array(3), "b": np.zeros((0, 3), np.float32), "a": np.arange(12, dtype=np.float32)[::2] / 2}
    assert digest_of(model, {}) == digest_of(same, {})
    others = [
        {**model, "a": model["a"].reshape(2, 3)}, {**model, "a": -model["a"]}, {**model, "n": np.array(4)},
        {"c" if name == "a" else name: array for name, array in model.items()},
        {**model, "a": model["a"].view(np.int32)},
    ]  # fmt: skip
    found = {digest_of(one, {}) for one in others} | {digest_of(model, {}), digest_of(model, {"x": {"a": model["a"]}})}
    assert len(found) == 7


@pytest.mark.parametrize(("members", "least"), [(4, 3), (5, 4), (6, 5), (7, 5), (9, 7), (20, 14), (100, 67)])
def test_more_than_two_thirds_open_a_sum(members: int, least: int) -> None:
    assert threshold(members) == least
    # Two halves of a group never open two sums, even with almost a third on the coordinator's side.
    liars = members // 3 - (members % 3 == 0)
    assert 2 * least > members + liars


def test_a_vector_holds_the_terms_of_the_plain_average() -> None:
    model = {"w": np.full((2, 3), 0.5, np.float32), "count": np.array(7), "e": np.zeros((0,), np.float32)}
    update = {"w": np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3), "count": np.array(9), "e": model["e"]}
    limits = limits_of(model)
    sums = as_sums(as_vector(update, limits, 30, 100), limits)
    unit = 2.0 ** (62 - 7 - 16)
    assert sums["w"].tolist() == [[round(float(x) * 30 * unit) for x in row] for row in update["w"]]
    assert sums["count"] == 9 * 30
    assert sums["e"].shape == (0,)


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e30])
def test_what_would_overflow_is_no_term(value: float) -> None:
    limits = limits_of({"w": np.ones(2, np.float32)})
    with pytest.raises(OutOfBounds):
        as_vector({"w": np.array([1.0, value], np.float32)}, limits, 1, 10)


def test_a_counter_that_would_overflow_is_no_term() -> None:
    limits = limits_of({"n": np.array(1)})
    with pytest.raises(OutOfBounds, match="too much"):
        as_vector({"n": np.array(2**60)}, limits, 1, 10)
