"""The coordinator: groups the sites, averages their models. Never imports `client`."""
