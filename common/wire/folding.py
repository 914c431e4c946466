"""Small messages in one piece. Flower sends, stores and books every record by itself, and an array as three objects.

That is a request and one or two transactions of the SuperLink's database for each, in both directions: ten objects for
an update with its test. A small message is folded into one record of bytes, whose names say what each of them is. A
large one stays as it is: equal models are then stored once for all sites, and cut into pieces.
"""

from __future__ import annotations

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from common.wire.records import BESIDE_ARRAYS, MEGABYTE, WireError, as_record, bytes_in, plain_text

_FOLDED = "folded"
_MOST = 2 * MEGABYTE  # bytes that are folded
# What begins an entry's name, by the kind of record.
_ARRAYS, _CONFIG, _METRICS = "arrays ", "config ", "metrics "


def is_folded(content: RecordDict) -> bool:
    """Whether a message came in one piece."""
    return _FOLDED in content


def fold(content: RecordDict) -> RecordDict:
    """Return a message in one piece, if it is small and of records as we write them; as it is otherwise."""
    parts: dict[str, bytes] = {}
    for key, record in content.items():
        if isinstance(record, ConfigRecord):
            parts[_CONFIG + key] = record.deflate()
        elif isinstance(record, MetricRecord):
            parts[_METRICS + key] = record.deflate()
        elif isinstance(record, ArrayRecord) and (data := bytes_in(record)) is not None:
            parts[_ARRAYS + key] = data
        else:
            return content
        if sum(map(len, parts.values())) > _MOST:
            return content
    return RecordDict({_FOLDED: ConfigRecord({**parts})})


def unfold(content: RecordDict) -> RecordDict:
    """Return a message as it was before it was folded; one that was not stays as it is."""
    if not is_folded(content):
        return content
    record = content[_FOLDED]
    if len(content) > 1 or not isinstance(record, ConfigRecord):
        raise WireError("it is folded, and then it is not")
    parts = {name: data for name, data in record.items() if isinstance(data, bytes)}
    if len(parts) != len(record) or sum(map(len, parts.values())) > _MOST + BESIDE_ARRAYS:
        raise WireError("it is folded otherwise than agreed: update the older side")
    return RecordDict({name.partition(" ")[2]: _record(name, data) for name, data in parts.items()})


def _record(name: str, data: bytes) -> ArrayRecord | ConfigRecord | MetricRecord:
    if name.startswith(_ARRAYS):
        return as_record(data)
    kinds: dict[str, type[ConfigRecord] | type[MetricRecord]] = {_CONFIG: ConfigRecord, _METRICS: MetricRecord}
    kind = kinds.get(name.partition(" ")[0] + " ")
    if kind is None:
        raise WireError(f"it has a part {plain_text(name)!r}")
    try:
        return kind.inflate(data)
    except Exception as error:
        # Whatever Flower's reader makes of foreign bytes.
        raise WireError(f"its part {plain_text(name)!r} is not readable: {plain_text(error)}") from None
