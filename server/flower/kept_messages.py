"""What the SuperLink keeps of messages: counted in bytes, handed out whole and in portions, and cleared away.

Flower keeps whatever a site sends, hands the ServerApp all answers at once, also those that are still on their way, and
never makes its database smaller. It also writes to it at every request, whatever was asked: whose task has died, and
how many bytes have passed. Here the first is looked for once a second, and the second is added up for a while.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from logging import INFO, WARNING
from pathlib import Path
from typing import Any

from flwr.app import Error, Message, Metadata
from flwr.app.message import make_message
from flwr.common.constant import SUPERLINK_NODE_ID, ErrorCode, Status
from flwr.proto.message_pb2 import ObjectTree
from flwr.server.superlink.linkstate.sql_linkstate import SqlLinkState
from flwr.supercore import log
from flwr.supercore.date import now
from flwr.supercore.utils import int64_to_uint64, uint64_to_int64
from sqlalchemy import make_url

from common import riding
from common.config import RoundSettings
from common.wire.records import BESIDE_ARRAYS, MEGABYTE
from server.flower.arrivals import Arrivals
from server.flower.patience import is_wait, seconds_of

# Answers that the ServerApp fetches at once are in its memory together.
MOST_AT_ONCE = 256 * MEGABYTE
_LIMIT = "round.max_message_mb"
_CLEAN_EVERY = 10.0  # seconds
_WORTH_IT = 4 * MEGABYTE  # unused bytes in the database
_PATIENCE = 25.0  # seconds
_BROKE_OFF = "it broke off while it sent its answer"
_TOKENS_EVERY = 1.0  # seconds; a task that is not heard of any more has half a minute
_MOST_UNDER_WAY = 10_000  # messages of which parts are on their way

_ROOT = "SELECT root_object_id AS root FROM object_push_session_roots WHERE session_id = :session"
# The length of a value is in its row's header: the contents are not read.
_TREE = """
    WITH RECURSIVE part(id) AS (
        VALUES (:root) UNION SELECT child_id FROM object_children JOIN part ON parent_id = part.id
    ) """
_PARTS = _TREE + "SELECT object_id, content FROM objects JOIN part ON object_id = part.id"
_BYTES = (
    _TREE
    + """
    SELECT COALESCE(SUM(LENGTH(content)), 0) AS bytes FROM objects JOIN part ON object_id = part.id"""
)
_ANSWER = "SELECT * FROM message_res WHERE message_id = :root"
_WAITING = """
    SELECT reply_to_message_id AS question, message_id AS root FROM message_res
    WHERE delivered_at = '' AND reply_to_message_id IN ({})"""
_UNFINISHED = """
    SELECT session_id AS session, expires_at FROM object_push_session_roots JOIN object_push_sessions USING (session_id)
    WHERE root_object_id = :root AND pending_count > 0"""
_QUESTION = """
    SELECT 1 FROM message_ins WHERE dst_node_id = :node AND delivered_at = '' AND created_at + ttl > :now
    AND NOT EXISTS (
        SELECT 1 FROM object_push_session_roots JOIN object_push_sessions USING (session_id)
        WHERE root_object_id = message_id AND pending_count > 0
    ) LIMIT 1"""
_OFFER = """
    UPDATE message_ins SET delivered_at = '' WHERE message_id = :message AND dst_node_id = :node
    AND NOT EXISTS (SELECT 1 FROM message_res WHERE reply_to_message_id = :message)"""
_RUNS = "SELECT run_id FROM run_objects UNION SELECT run_id FROM message_ins"
_ALL_RUNS = "SELECT run_id FROM run"


class KeptMessages(SqlLinkState):
    """The SuperLink's state; what is here in addition is documented by the module."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.arrivals = Arrivals()
        self._lock = threading.Lock()
        # Session → which parts are still to come, and who is told when all are there.
        self._under_way: OrderedDict[str, tuple[set[str], set[str]]] = OrderedDict()
        # How often each was told of, and how often it had been when it was last waited for.
        self._came: Counter[str] = Counter()
        self._seen: Counter[str] = Counter()
        self._tokens_looked_at = float("-inf")
        # Run → what is still to be added to its account: bytes sent, bytes received, seconds of its ClientApps.
        self._traffic: dict[int, tuple[int, int, float]] = {}

    # --- what arrives -------------------------------------------------------------------------------------------------

    def store_message_and_object_tree(
        self, message: Message, object_tree: ObjectTree, session_id: str
    ) -> tuple[bool, list[str]]:
        """Keep a message and the parts that rode along, and tell those who wait for it once all of it is there."""
        came = riding.unseat(message)
        with self.session():
            stored, missing = super().store_message_and_object_tree(message, object_tree, session_id)
            put = super().store_object
            run = message.metadata.run_id
            missing = [name for name in missing if not (name in came and put(run, session_id, name, came[name]))]
        if stored:
            about = message.metadata
            name = _answers(about.run_id) if about.reply_to_message_id else questions(about.dst_node_id)
            with self._lock:
                parts, names = self._under_way.setdefault(session_id, (set(), set()))
                parts.update(missing)
                names.add(name)
                while len(self._under_way) > _MOST_UNDER_WAY:
                    self._under_way.popitem(last=False)
            self._tell_if_whole(session_id)
        return stored, missing

    def store_object(self, run_id: int, session_id: str, object_id: str, object_content: bytes) -> bool:
        """Keep a part of a message."""
        stored = super().store_object(run_id, session_id, object_id, object_content)
        if stored:
            with self._lock:
                self._under_way.get(session_id, (set[str](), ()))[0].discard(object_id)
            self._tell_if_whole(session_id)
        return stored

    def _tell_if_whole(self, session: str) -> None:
        with self._lock:
            parts, names = self._under_way.get(session, (set(), set()))
            if parts or not names:
                return
            del self._under_way[session]
        for name in names:
            self._tell(name)

    def _tell(self, name: str) -> None:
        with self._lock:
            self._came[name] += 1
        self.arrivals.tell(name)

    def parts_of(self, root: str) -> dict[str, bytes]:
        """Return the parts of a message, if they are small enough to ride with its letter; one not there is empty."""
        if self.bytes_of(root) > riding.MOST:
            return {}
        return {row["object_id"]: row["content"] for row in self.query(_PARTS, {"root": root})}

    def has_question(self, node: int) -> bool:
        """Whether a whole message waits for a site."""
        return bool(self.query(_QUESTION, {"node": uint64_to_int64(node), "now": now().timestamp()}))

    def get_message_ins(self, node_id: int, limit: int | None, *, run_id: int | None = None) -> list[Message]:
        """Hand out questions; where there is none, nothing is written."""
        return super().get_message_ins(node_id, limit, run_id=run_id) if self.has_question(node_id) else []

    def offer_again(self, node: int, message: str) -> None:
        """Let a site have a message that was on its way to it and did not get there."""
        self.query(_OFFER, {"node": uint64_to_int64(node), "message": message})

    def _await_answer(self, run: int, seconds: float) -> None:
        """Wait until an answer has come since this was last waited for."""
        name = _answers(run)
        self.arrivals.wait(name, seconds, lambda: self._came[name] != self._seen[name])
        self._seen[name] = self._came[name]

    # --- what need not be written at every request --------------------------------------------------------------------

    def _cleanup_expired_task_tokens(self) -> None:
        if time.monotonic() - self._tokens_looked_at > _TOKENS_EVERY:
            self._tokens_looked_at = time.monotonic()
            super()._cleanup_expired_task_tokens()

    def store_traffic(self, run_id: int, *, bytes_sent: int, bytes_recv: int) -> None:
        """Note bytes for a run's account."""
        self._note(run_id, bytes_sent, bytes_recv, 0.0)

    def add_clientapp_runtime(self, run_id: int, runtime: float) -> None:
        """Note seconds for a run's account."""
        self._note(run_id, 0, 0, runtime)

    def _note(self, run: int, sent: int, received: int, seconds: float) -> None:
        with self._lock:
            before = self._traffic.get(run, (0, 0, 0.0))
            self._traffic[run] = (before[0] + sent, before[1] + received, before[2] + seconds)

    def _write_accounts(self) -> None:
        with self._lock:
            accounts, self._traffic = self._traffic, {}
        for run, (sent, received, seconds) in accounts.items():
            if sent or received:
                super().store_traffic(run, bytes_sent=sent, bytes_recv=received)
            if seconds:
                super().add_clientapp_runtime(run, seconds)

    # --- what is handed out -------------------------------------------------------------------------------------------

    def limit(self, run: int) -> int | None:
        """Bytes that an answer to this run may have; None: there is no such run."""
        for found in self.get_run_info(run_ids=[run]):
            megabytes = found.override_config.get(_LIMIT)
            return int(megabytes or RoundSettings().max_message_mb) * MEGABYTE + BESIDE_ARRAYS
        return None

    def announced(self, session: str) -> str | None:
        """Return which message a site is sending in this session."""
        rows = self.query(_ROOT, {"session": session})
        return str(rows[0]["root"]) if rows else None

    def bytes_of(self, root: str) -> int:
        """Bytes that are there of a message."""
        return int(self.query(_BYTES, {"root": root})[0]["bytes"])

    def give_up(self, run: int, session: str, root: str, reason: str) -> None:
        """Drop what is there of an answer, and let the ServerApp have the reason in its place."""
        with self._alone(run):
            answers = self.query(_ANSWER, {"root": root})
            self._cleanup_push_session(session, cleanup_messages=True)
            for answer in answers:
                instead = _instead_of(answer, reason)
                if self.store_message_res(instead) is not None:
                    self._store_generated_message(instead)
        self._tell(_answers(run))

    @contextmanager
    def _alone(self, run: int) -> Iterator[None]:
        """A transaction that begins with a write: what it then reads, nobody changes before it ends."""
        with self.session():
            self._lock_run(run)
            yield

    def get_message_res(self, message_ids: set[str], run_id: int) -> list[Message]:
        """Get answers, as Flower does, but those that are whole, and no more than fit into the ServerApp's memory.

        Who asks for `a_wait` gets none, once there may be some.
        """
        if len(message_ids) == 1 and is_wait(*message_ids):
            self._await_answer(run_id, seconds_of(*message_ids))
            return []
        with self._alone(run_id):
            answers = super().get_message_res(message_ids - self._for_later(message_ids, run_id), run_id)
            for answer in answers:
                riding.seat(answer, self.parts_of(answer.metadata.message_id))
            return answers

    def _for_later(self, message_ids: set[str], run: int) -> set[str]:
        later, total = set(), 0
        for answer in self._waiting(message_ids):
            if unfinished := self.query(_UNFINISHED, {"root": answer["root"]}):
                if _time(unfinished[0]["expires_at"]) > now():
                    later.add(answer["question"])
                else:
                    self.give_up(run, unfinished[0]["session"], answer["root"], _BROKE_OFF)
                continue
            size = self.bytes_of(answer["root"])
            if total and total + size > MOST_AT_ONCE:
                later.add(answer["question"])
            else:
                total += size
        return later

    def _waiting(self, message_ids: Iterable[str]) -> list[dict[str, str]]:
        names = {f"id{number}": name for number, name in enumerate(sorted(message_ids))}
        return self.query(_WAITING.format(", ".join(f":{key}" for key in names)), names) if names else []

    def clean(self) -> int:
        """Delete what is left of runs that have ended, and give the space back; return the bytes by which it shrank."""
        self._write_accounts()
        runs = {int64_to_uint64(row["run_id"]) for row in self.query(_RUNS)}
        for run, status in self.get_run_status(runs).items():
            if status.status == Status.FINISHED:
                self.cleanup_run(run)
        # Nobody waits for the database while no run is under way.
        every = {int64_to_uint64(row["run_id"]) for row in self.query(_ALL_RUNS)}
        if any(status.status != Status.FINISHED for status in self.get_run_status(every).values()):
            return 0
        path = make_url(self.database_url).database
        return _shrink(Path(path)) if path and path != ":memory:" else 0


def questions(node: int) -> str:
    """Under which name the arrival of a question to a site is told."""
    return f"questions to {node}"


def _answers(run: int) -> str:
    return f"answers of {run}"


def _instead_of(answer: Mapping[str, Any], reason: str) -> Message:
    """An error in the place of an answer."""
    metadata = Metadata(
        run_id=int64_to_uint64(answer["run_id"]),
        message_id="",
        src_node_id=int64_to_uint64(answer["src_node_id"]),
        dst_node_id=SUPERLINK_NODE_ID,
        reply_to_message_id=answer["reply_to_message_id"],
        group_id=answer["group_id"],
        created_at=answer["created_at"],
        ttl=answer["ttl"],
        message_type=answer["message_type"],
    )
    instead = make_message(metadata=metadata, error=Error(ErrorCode.REPLY_MESSAGE_UNAVAILABLE, reason))
    instead.metadata.__dict__["_message_id"] = instead.object_id
    return instead


def keep_clean(state: KeptMessages) -> None:
    """Clean now, and again and again, in the background."""

    def clean() -> None:
        while True:
            try:
                if shrank := state.clean():
                    log(INFO, "The database is smaller by %.1f MB", shrank / MEGABYTE)
            # Whatever it is: the messages that are under way are worth more.
            except Exception as error:
                log(WARNING, "The database could not be cleaned: %s", error)
            time.sleep(_CLEAN_EVERY)

    threading.Thread(target=clean, daemon=True, name="clean").start()


def _shrink(path: Path) -> int:
    """Give unused space back to the disk; return how many bytes."""
    before = _size(path)
    connection = sqlite3.connect(path, timeout=_PATIENCE, isolation_level=None)
    try:
        (unused,), (page,) = (
            connection.execute(f"PRAGMA {name}").fetchone() for name in ("freelist_count", "page_size")
        )
        if unused * page + _size(_log_of(path)) < _WORTH_IT:
            return 0
        if unused * page >= _WORTH_IT:
            connection.execute("VACUUM")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    finally:
        connection.close()
    return max(before - _size(path), 0)


def _log_of(path: Path) -> Path:
    return path.with_name(path.name + "-wal")


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _time(value: object) -> datetime:
    """A time as the database keeps it, in UTC."""
    found = value if isinstance(value, datetime) else datetime.fromisoformat(str(value))
    return found.replace(tzinfo=now().tzinfo) if found.tzinfo is None else found
