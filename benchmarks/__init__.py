"""One benchmark per claim; `python -m benchmarks` runs them all. Times are compared within one run, as ratios."""
