"""A recommended start: from somebody's data to a configuration that works for them."""
