"""What can be found wrong with a simulation before anything heavy is loaded or started."""

from __future__ import annotations

from client.data import discover_classes, load_site
from client.data.site import OWN, own_sites
from client.identity import Identity, cache_folder
from client.networks import network_of
from common.config import Config, SettingsError, flat_values, parse
from server.listeners import require_trackers
from server.methods import settle


def prepare(config: Config) -> Config:
    """Return the configuration with all the run will have filled in, or raise `SettingsError` saying what to do."""
    # Also looks the method up, and says which ones there are.
    config = settle(config)
    require_trackers(config.track)
    if config.round.enough < 1 and not config.simulate.clock:
        raise SettingsError(
            f"round.enough = {config.round.enough:g}: who is late in a simulation is decided by a virtual clock, not "
            "by how busy this machine is: set simulate.clock, e.g. to 10"
        )
    data = config.data
    if not data.classes:
        found = discover_classes(data, by_site=config.partition.scheme == OWN)
        config = config.model_copy(update={"data": data.model_copy(update={"classes": found})})
    if config.partition.scheme == OWN and "sites" not in config.model_fields_set:
        cache = cache_folder(Identity("000", None, (0, 1), None, in_engine=True), config.cache)
        # Read anew: what goes with twenty sites need not go with these.
        sites = len(own_sites(config.data, cache))
        config = settle(parse(flat_values(config) | {"sites": sites}))
    # Whatever is wrong with the data or the drift scenario is said now, once, not by every site in turn.
    somebody = Identity("000", None, (0, config.sites), None, in_engine=True)
    load_site(somebody, config.for_site(), rounds=config.rounds)
    if ":" in config.train.model:
        # So is what is wrong with a network that is not ours.
        network_of(config.for_site(), somebody)
    return config
