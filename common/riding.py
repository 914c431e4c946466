"""Small parts of a message that ride along with its letter, in the place of a request for each.

Flower sends a message as a letter that names its parts; then each part is asked for, or sent, by itself. A letter has
room for a content that Flower leaves empty. What rides there is taken out at the other end, before anybody looks: a
part is the same however it came, and is checked and counted by the same code. Who does not know of it asks for the
parts, or is sent them, as ever. Imports Flower only when it is called, as the start of a SuperNode does.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flwr.app import Message

MOST = 3_000_000  # bytes of all parts that ride with one letter
_RIDERS = "riders"


def gather(parts: Mapping[str, Any]) -> dict[str, bytes]:
    """Return parts as they are written, none if they are too many: a large message is not written twice."""
    written: dict[str, bytes] = {}
    room = MOST
    for name, part in parts.items():
        written[name] = part.deflate()
        room -= len(written[name])
        if room < 0:
            return {}
    return written


def fits(parts: Mapping[str, bytes]) -> bool:
    """Whether parts are there, all of them, and few enough to ride."""
    return bool(parts) and all(parts.values()) and sum(map(len, parts.values())) <= MOST


def seat(message: Message, parts: Mapping[str, bytes]) -> None:
    """Put parts into a letter, if it has room for them."""
    from flwr.app import ConfigRecord, RecordDict

    if message.has_content():
        message.content = RecordDict({_RIDERS: ConfigRecord({**parts})} if fits(parts) else {})


def unseat(message: Message) -> dict[str, bytes]:
    """Take out what rides in a letter."""
    from flwr.app import ConfigRecord, RecordDict

    if not message.has_content() or not message.content:
        return {}
    record = message.content.get(_RIDERS)
    message.content = RecordDict()
    if not isinstance(record, ConfigRecord):
        return {}
    return {name: part for name, part in record.items() if isinstance(part, bytes)}


# The same with letters as they are written; what they are of, Flower alone knows.


def write(letter: Any, parts: Mapping[str, bytes]) -> None:
    """Put parts into a letter, if it has room for them."""
    if fits(parts) and letter.HasField("content"):
        record = letter.content.items.add(key=_RIDERS).config_record
        for name, part in parts.items():
            record.items.add(key=name).value.bytes = part


def read(letter: Any) -> dict[str, bytes]:
    """Take out what rides in a letter."""
    found = {
        part.key: part.value.bytes
        for record in letter.content.items
        if record.key == _RIDERS
        for part in record.config_record.items
    }
    if letter.HasField("content"):
        letter.content.Clear()
    return found


class Carriage:
    """A client of Flower's Runtime API whose letters carry `parts`, and from which those that came are taken.

    All else it is asked for it leaves to the client that it stands before.
    """

    def __init__(self, client: Any, parts: Mapping[str, bytes] | None = None) -> None:
        self._client = client
        self._came: dict[str, bytes] = {}
        self.parts = parts or {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def PushMessages(self, request: Any) -> Any:
        """Send letters."""
        for letter in request.messages_list:
            write(letter, self.parts)
        return self._client.PushMessages(request)

    def PullMessages(self, request: Any) -> Any:
        """Fetch letters."""
        response = self._client.PullMessages(request)
        # What was not asked for meanwhile is of letters that are done with.
        self._came = {name: part for letter in response.messages_list for name, part in read(letter).items()}
        return response

    def PullObject(self, request: Any) -> Any:
        """Fetch a part, unless it is here already."""
        part = self._came.pop(request.object_id, None)
        if part is None:
            return self._client.PullObject(request)
        return SimpleNamespace(object_found=True, object_available=True, object_content=part)
