"""The protocol as its two sides carry it out: every pattern of drop-outs, and what a coordinator may try."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest

from client.secure.participant import Distrust
from common.secure.advert import Advert, statement_of_keys
from common.secure.keys import mask_key
from common.secure.masks import add_masks
from common.secure.shamir import SHARE_BYTES, join
from common.secure.terms import Terms
from server.secure.opening import CannotOpen, unmask
from tests.support.secure_group import CONTEXT_TASK, Group, QuickCredentials, group_of


def run(group: Group, *, keys: set[int], shares: set[int], update: set[int], sign: set[int], give: set[int]) -> None:
    """Carry out the protocol; the sets are of those who answer."""
    group.advertise(sorted(keys))
    group.share(sorted(keys & shares))
    group.mask(sorted(group.shared & update))
    group.sign(sorted(group.masked.keys() & sign))
    group.give(sorted(group.signatures.keys() & give))


def test_the_sum_of_all_is_the_plain_sum() -> None:
    group = group_of(5)
    everybody = set(range(5))
    run(group, keys=everybody, shares=everybody, update=everybody, sign=everybody, give=everybody)
    total, wrong = group.open()
    np.testing.assert_array_equal(total, sum(group.vectors.values()))
    assert not wrong


# Who drops out, and after which message: 0 never answers, 5 never drops out.
@pytest.mark.parametrize("count", [4, 5, 6])
def test_every_pattern_of_drop_outs(count: int) -> None:
    """A single one at each stage, and every pair at every two stages: the survivors' sum, or none."""
    everybody = set(range(count))
    patterns = [{one: stage} for one in everybody for stage in range(5)]
    patterns += [
        {one: first, other: second}
        for one, other in combinations(range(count), 2)
        for first in range(5)
        for second in range(5)
        if (one, other) in {(0, 1), (1, 3), (count - 2, count - 1)}
    ]
    opened = 0
    for pattern in patterns:
        there = [everybody - {one for one, stage in pattern.items() if stage <= now} for now in range(5)]
        group = group_of(count, size=5)
        least = group.terms.threshold
        if min(len(there[0]), len(there[1]), len(there[2]), len(there[3])) < least:
            # A site among too few says no, before anything of it is known.
            with pytest.raises(Distrust, match="where"):
                run(group, keys=there[0], shares=there[1], update=there[2], sign=there[3], give=there[4])
            continue
        run(group, keys=there[0], shares=there[1], update=there[2], sign=there[3], give=there[4])
        if len(there[4]) < least:
            with pytest.raises(CannotOpen, match=f"it takes {least}"):
                group.open()
            continue
        total, wrong = group.open()
        np.testing.assert_array_equal(total, sum(group.vectors[one] for one in there[2]), err_msg=str(pattern))
        assert not wrong
        opened += 1
    assert opened >= 5 * count


def masked_group(count: int = 6, update: set[int] | None = None) -> Group:
    group = group_of(count)
    group.advertise(range(count))
    group.share(range(count))
    group.mask(range(count) if update is None else sorted(update))
    return group


def test_what_the_coordinator_sees_of_one_site_is_noise() -> None:
    group = group_of(5, size=40_000)
    group.vectors = {one: np.zeros(40_000, np.int64) for one in range(5)}
    group.advertise(range(5))
    group.share(range(5))
    group.mask(range(5))
    seen = np.stack([group.masked[one] for one in range(5)]).view(np.uint8).reshape(5, -1)
    for row in seen:
        counts = np.bincount(row, minlength=256)
        assert ((counts - row.size / 256) ** 2 / (row.size / 256)).sum() < 255 + 5 * 22.6
    # The sum of fewer than all is noise, too.
    assert np.abs(sum(group.masked[one] for one in range(4))).max() > 2**60


def test_nobody_gives_both_shares_of_one_site() -> None:
    """The attack: with a site's own mask and its pairwise ones, its update would lie open."""
    group = masked_group()
    group.sign(range(6))
    group.give(range(6))
    for letters in group.given.values():
        assert {len(letter) for letter in letters.values()} == {SHARE_BYTES}
    # Asked again, as if site 5 had dropped out.
    group.masked.pop(5)
    with pytest.raises(Distrust, match="out of turn"):
        group.sign(range(5))


def test_two_halves_that_are_told_different_sums_open_neither() -> None:
    group = masked_group()
    with_5 = {one: group.site(one).sign([0, 1, 2, 3, 4, 5]) for one in (0, 1, 5)}
    without = {one: group.site(one).sign([0, 1, 2, 3, 4]) for one in (2, 3, 4)}
    for one in range(6):
        with pytest.raises(Distrust, match="signature"):
            group.site(one).open(with_5 | without)
        with pytest.raises(Distrust, match="5"):
            group.site(one).open(with_5 if one in with_5 else without)


def test_a_sum_of_too_few_is_not_signed() -> None:
    group = masked_group()
    with pytest.raises(Distrust, match="4 updates in the sum where 6 members need 5"):
        group.site(0).sign([0, 1, 2, 3])


def test_a_site_opens_no_sum_without_itself_or_with_strangers() -> None:
    group = masked_group()
    with pytest.raises(Distrust, match="without the update of this site"):
        group.site(0).sign([1, 2, 3, 4, 5])
    with pytest.raises(Distrust, match="no part in it"):
        group.site(0).sign([0, 1, 2, 3, 4, 5, 6])


@pytest.mark.parametrize("again", ["share", "mask", "sign", "open"])
def test_every_answer_is_given_once(again: str) -> None:
    group = masked_group()
    sent = dict(group.adverts)
    group.sign(range(6))
    group.give([0])
    group.sessions[0].stage = "signed"
    ask: dict[str, Callable[[], object]] = {
        "share": lambda: group.site(0).share(sent, group.rng.bytes),
        "mask": lambda: group.site(0).mask(np.zeros(3, np.int64)),
        "sign": lambda: group.site(0).sign(range(6)),
        "open": lambda: group.site(1).open({}),
    }
    with pytest.raises(Distrust, match=r"out of turn|signatures of the sum"):
        ask[again]()


def test_a_coordinator_in_the_middle_is_not_believed() -> None:
    """It puts keys of its own in the place of a site's: it has no site's signature on them."""
    group = group_of(5)
    group.advertise(range(5))
    own = Group(group.names, group.vectors, {one: QuickCredentials(99, f"site {one:02d}") for one in range(5)}, 1)
    own.advertise(range(5))
    genuine = dict(group.adverts)
    group.adverts = {0: genuine[0]} | {one: own.adverts[one] for one in range(1, 5)}
    with pytest.raises(Distrust, match=r"1 keys to believe where 5 members need 4.*'site 03'.*signature"):
        group.site(0).share(group.adverts, group.rng.bytes)
    # A signature is for one member, one sum and these very keys.
    for changed in (
        {**genuine, 3: genuine[2]},
        {**genuine, 3: own.adverts[3]},
        {**genuine, 3: genuine[3][:40] + bytes([genuine[3][40] ^ 1]) + genuine[3][41:]},
        {**genuine, 3: genuine[3][:50]},
    ):
        site = group.site(0)
        assert set(site.share(changed, group.rng.bytes)) == {1, 2, 4}
        assert list(site.disbelieved) == ["'site 03'"]
        group.sessions[0].stage, group.sessions[0].adverts = "keys", {0: genuine[0]}


def test_keys_of_another_sum_are_not_believed() -> None:
    """A replay: the round is the same, the model is another."""
    group, last = group_of(5), group_of(5)
    last.terms = Terms(last.names, 1000, 0, b"x" * 32)
    last.context = last.terms.context(CONTEXT_TASK)
    group.advertise(range(5))
    last.advertise(range(5))
    site = group.site(0)
    assert set(site.share({**group.adverts, 4: last.adverts[4]}, group.rng.bytes)) == {1, 2, 3}
    assert "signature" in site.disbelieved["'site 04'"]


def test_keys_of_the_same_sum_that_were_replaced_since_open_nothing() -> None:
    """The same terms again, as after a restart, and the keys that a site had in the first attempt."""
    group = group_of(5)
    group.advertise(range(5))
    old = group.adverts[4]
    group.advertise([4])
    fresh = dict(group.adverts)
    with pytest.raises(Distrust, match="its own keys"):
        group.site(4).share({**fresh, 4: old}, group.rng.bytes)
    sealed = {one: group.site(one).share({**fresh, 4: old}, group.rng.bytes) for one in range(4)}
    sealed[4] = group.site(4).share(fresh, group.rng.bytes)
    with pytest.raises(Distrust, match="'site 00' cannot be opened"):
        group.site(4).receive({one: sealed[one][4] for one in range(4)})
    with pytest.raises(Distrust, match="'site 04' cannot be opened"):
        group.site(0).receive({one: sealed[one][0] for one in range(1, 5)})


def test_equal_keys_are_refused_and_both_are_named() -> None:
    group = group_of(5)
    group.advertise(range(5))
    thief = Advert.from_bytes(group.adverts[1])
    session = group.sessions[2]
    session.encryption, session.masking, session.seed = (
        group.sessions[1].encryption, group.sessions[1].masking, group.sessions[1].seed,
    )  # fmt: skip

    signature = group.credentials[2].sign(statement_of_keys(group.context, 2, thief))
    copied = replace(thief, signature=signature).to_bytes()
    with pytest.raises(Distrust, match="'site 01' and 'site 02' come with the same key"):
        group.site(0).share({**group.adverts, 2: copied}, group.rng.bytes)


def test_who_is_not_believed_is_left_out_and_the_others_go_on() -> None:
    group = group_of(6)
    group.credentials[4] = QuickCredentials(99, "site 04")
    group.advertise(range(6))
    # The site itself believes nobody else.
    with pytest.raises(Distrust, match="where 6 members need 5"):
        group.site(4).share(group.adverts, group.rng.bytes)
    group.share([0, 1, 2, 3, 5])
    assert group.shared == {0, 1, 2, 3, 5} == set(group.adverts)
    group.mask(sorted(group.shared))
    group.sign(sorted(group.shared))
    group.give(sorted(group.shared))
    total, _ = group.open()
    np.testing.assert_array_equal(total, sum(group.vectors[one] for one in group.shared))


def test_letters_that_were_changed_are_named() -> None:
    group = group_of(4)
    group.advertise(range(4))
    group.share(range(4))
    letters = group.letters_to(0)
    for changed, match in (
        ({**letters, 2: letters[1]}, "share of 'site 02' cannot be opened"),
        ({**letters, 2: letters[2][:-1]}, "share of 'site 02' cannot be opened"),
        ({**letters, 0: letters[1]}, "no part in this sum"),
        ({**letters, 9: letters[1]}, "member 9"),
        ({1: letters[1]}, "2 shares where 4 members need 3"),
    ):
        with pytest.raises(Distrust, match=match):
            group.site(0).receive(changed)


def test_a_wrong_share_is_named_and_the_sum_opened_without_it() -> None:
    group = masked_group(6, update={0, 1, 2, 3, 4})
    group.sign(range(5))
    group.give(range(5))
    group.given[2] = {**group.given[2], 0: bytes(SHARE_BYTES)}
    with pytest.raises(CannotOpen, match="shares of 'site 00' do not fit"):
        group.open()
    # With one more than it takes there is enough without the wrong one.
    group = masked_group(6)
    group.sign(range(6))
    group.give(range(6))
    group.given[2] = {**group.given[2], 0: bytes(SHARE_BYTES), 5: b"\xff" * SHARE_BYTES}
    total, wrong = group.open()
    np.testing.assert_array_equal(total, sum(group.vectors.values()))
    assert list(wrong) == [2]
    assert "'site 05'" in wrong[2] or "'site 00'" in wrong[2]


@pytest.mark.parametrize("key", ["encryption", "masking"])
def test_a_key_that_is_none_costs_its_site_alone(key: str) -> None:
    """Signed all the same: a point of small order, with which every secret would be zero."""
    group = group_of(6)
    group.advertise(range(6))
    advert = replace(Advert.from_bytes(group.adverts[5]), **{key: bytes(32)})
    signature = group.credentials[5].sign(statement_of_keys(group.context, 5, advert))
    group.adverts[5] = replace(advert, signature=signature).to_bytes()
    group.share(range(5))
    assert group.shared == set(range(5))
    group.mask(range(5))
    group.sign(range(5))
    group.give(range(5))
    total, _ = group.open()
    np.testing.assert_array_equal(total, sum(group.vectors[one] for one in range(5)))


def test_a_late_update_stays_hidden() -> None:
    """Site 5 was slow: its key was opened, and then its masked update arrives after all."""
    group = masked_group()
    late = group.masked.pop(5)
    group.sign(range(5))
    group.give(range(5))
    group.open()
    # All that the coordinator has now: the pairwise masks of site 5 with the others. Its own mask remains.
    total = late.copy()
    shares = {one: letters[5] for one, letters in group.given.items()}

    private = join({one + 1: share for one, share in shares.items()})
    transcript = group.sessions[0].transcript
    keys = [mask_key(private, Advert.from_bytes(group.adverts[one]).masking, transcript) for one in range(5)]
    add_masks(total.view(np.uint64), keys)
    assert np.abs(total).max() > 2**58
    assert not np.array_equal(total, group.vectors[5])
    # And nobody has given a share of the seed of its own mask.
    seed = group.sessions[5].shares[5][SHARE_BYTES:]
    assert all(letters[5] != seed for letters in group.given.values())


def test_masks_that_do_not_fit_leave_noise() -> None:
    group = group_of(4)
    group.advertise(range(4))
    group.share(range(4))
    group.mask(range(4))
    group.masked[2] = group.masked[2] + np.int64(12345)
    group.sign(range(4))
    group.give(range(4))
    total, _ = group.open()
    assert not np.array_equal(total, sum(group.vectors.values()))


def test_too_few_shares_open_nothing() -> None:
    group = masked_group()
    group.sign(range(6))
    group.give([0, 1, 2, 3])
    with pytest.raises(CannotOpen, match="4 of 6 members helped to open it, and it takes 5"):
        unmask(
            group.total().view(np.uint64), group.terms, group.context, group.adverts, group.shared, set(range(6)),
            group.given,
        )  # fmt: skip
