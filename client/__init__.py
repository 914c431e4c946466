"""A site: keeps its data, trains, evaluates, describes itself. Never imports `server`."""
