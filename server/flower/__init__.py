"""Flower's internals, as the coordinator uses them: the only place at this side that imports more than what is public.

What is relied on is held by `tests/server/test_flower.py`, one test each. Nothing is imported here: commands that only
watch over Flower's programs read their log lines without importing Flower.
"""
