"""What a site has: where its samples come from, how they are dealt out in a simulation, and what is held out."""

from client.data.partition import partition
from client.data.samples import Fault, Samples, Undecodable
from client.data.site import NoUsableData, SiteData, load_site
from client.data.sources import DataAway, discover_classes, open_source
from client.data.split import split

__all__ = [
    "DataAway",
    "Fault",
    "NoUsableData",
    "Samples",
    "SiteData",
    "Undecodable",
    "discover_classes",
    "load_site",
    "open_source",
    "partition",
    "split",
]
