"""The coordinator's half of a secure sum: `opening` takes masks off, `summing` asks the sites."""
