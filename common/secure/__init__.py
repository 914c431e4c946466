"""Secure sums: the mathematics that sites and coordinator share.

After Bonawitz et al., Practical Secure Aggregation for Privacy-Preserving Machine Learning, CCS 2017, with the active
adversary's rounds: every pair of sites adds and takes off one mask, every site adds one of its own, and what is needed
to take masks off is shared among all, so that a sum can be opened when sites have dropped out. `terms` is what all must
be told alike, `advert` and `keys` are what they agree by, `shamir` shares secrets, `masks` hides a vector.

Flower's own primitives (`flwr.common.secure_aggregation`) do not serve: its masks come from a Mersenne twister with 32
bits of seed, which are tried out in seconds, its rounding is random, and its keys are bound to nothing.
"""
