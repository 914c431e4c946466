"""Flower's internals, as a site uses them: the only place at this side that imports more than Flower's public packages.

What is relied on is held by `tests/client/test_flower.py`, one test each. Log lines are apart from the rest, because
commands that only watch over Flower's programs read them without importing Flower.
"""
