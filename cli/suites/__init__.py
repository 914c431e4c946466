"""A suite of runs: methods × data sets × settings × seeds, and the tables and curves made of them."""
