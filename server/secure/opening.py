"""Taking the masks off a sum, from the shares that its members have given away. Arrays and bytes in, arrays out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import combinations, islice

import numpy as np
from numpy.typing import NDArray

from common.secure.advert import Advert, transcript_of
from common.secure.keys import commitment_to, mask_key, own_mask_key, public_of
from common.secure.masks import add_masks
from common.secure.shamir import InvalidShares, at, join
from common.secure.terms import Terms

Letters = Mapping[int, bytes]

# Sets of shares that are tried before a secret is given up: enough to find one or two wrong ones.
_MOST_TRIES = 2000


class CannotOpen(ValueError):
    """A sum that stays closed; the message says why."""


def common_ground(sealed: Mapping[int, Letters]) -> tuple[set[int], set[int]]:
    """Given the shares that members have sealed, by member: who goes on, and whose keys are believed.

    Believed is whom most believe. Those go on who believe all of these and nobody else: only they have the same keys in
    common.
    """
    votes = Counter(member for letters in sealed.values() for member in letters)
    believed = set()
    for one in votes.keys() | sealed.keys():
        # Nobody is asked what it thinks of itself; and who is alone is not disbelieved.
        voters = len(sealed.keys() - {one})
        if 2 * votes[one] > voters or not voters:
            believed.add(one)
    return {member for member, letters in sealed.items() if letters.keys() | {member} == believed}, believed


def unmask(
    total: NDArray[np.uint64],
    terms: Terms,
    context: bytes,
    adverts: Letters,
    shared: Collection[int],
    summed: Collection[int],
    given: Mapping[int, Letters],
) -> dict[int, str]:
    """Take the masks off a sum in place; return whose shares did not fit, by member, in words.

    Parameters
    ----------
    total
        The sum of the masked updates.
    terms, context, adverts
        What all of them agreed on.
    shared, summed
        Who masked, and whose updates are in the sum; a member of the one and not the other has dropped out.
    given
        By member: its share of each one's secret.

    Raises
    ------
    CannotOpen
        If too few have given shares, or they do not fit what was agreed.
    """
    if len(given) < terms.threshold:
        raise CannotOpen(
            f"{len(given)} of {len(terms.members)} members helped to open it, and it takes {terms.threshold}"
        )
    read = {member: Advert.from_bytes(content) for member, content in adverts.items()}
    transcript = transcript_of(context, adverts)
    wrong: dict[int, str] = {}

    def secret_of(owner: int, fits: Callable[[bytes], bool]) -> bytes:
        shares = {member + 1: letters[owner] for member, letters in given.items() if owner in letters}
        secret, misfits = _joined(shares, terms.threshold, fits)
        if secret is None:
            raise CannotOpen(f"the shares of {terms.members[owner]!r} do not fit what it agreed to")
        for point in misfits:
            wrong[point - 1] = f"its share of {terms.members[owner]!r} is not the right one"
        return secret

    plus: list[bytes] = []
    minus: list[bytes] = []
    for member in sorted(summed):
        seed = secret_of(member, lambda seed, member=member: commitment_to(seed) == read[member].commitment)  # type: ignore[misc]
        minus.append(own_mask_key(seed, transcript))
    for gone in sorted(set(shared) - set(summed)):
        private = secret_of(gone, lambda key, gone=gone: public_of(key) == read[gone].masking)  # type: ignore[misc]
        for member in sorted(summed):
            key = mask_key(private, read[member].masking, transcript)
            # What the member has added or taken off for it.
            (minus if member < gone else plus).append(key)
    add_masks(total, plus, minus)
    return wrong


def _joined(
    shares: Mapping[int, bytes], threshold: int, fits: Callable[[bytes], bool]
) -> tuple[bytes | None, list[int]]:
    """The secret that fits, and the points whose shares do not lie with the others."""
    for points in islice(_choices(sorted(shares), threshold), _MOST_TRIES):
        chosen = {point: shares[point] for point in points}
        try:
            secret = join(chosen)
        except InvalidShares:
            continue
        if fits(secret):
            others = [point for point in shares if point not in chosen]
            return secret, [point for point in others if at(point, chosen) != int.from_bytes(shares[point], "big")]
    return None, []


def _choices(points: Sequence[int], count: int) -> Iterator[Sequence[int]]:
    """So many of the points: at first the first ones, then those without any one of them, without any two, …"""
    for left_out in range(len(points) - count + 1):
        for without in combinations(points, left_out):
            yield [point for point in points if point not in without][:count]
