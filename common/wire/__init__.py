"""Flower records ↔ typed values, checked on arrival. The only room that knows record keys.

Whatever arrives is foreign: its version, types, shapes, ranges, finiteness and size are checked before anything is
computed with it, and `WireError` says in words what was wrong, so that the sender can be named and left out.
"""

from __future__ import annotations

from common.site_card import SiteCard
from common.wire.folding import fold, is_folded, unfold
from common.wire.introduction import Introduction, pack_introduction, unpack_introduction
from common.wire.letters import (
    LETTERS,
    Lettered,
    Letters,
    pack_lettered,
    pack_letters,
    told_alike,
    unpack_lettered,
    unpack_letters,
)
from common.wire.precision import FULL, lengthen, shorten
from common.wire.records import VERSION, Refusal, WireError, pack_arrays, plain_text, size, unpack_arrays
from common.wire.reply import (
    KEPT,
    Answered,
    Evaluation,
    Update,
    pack_answered,
    pack_evaluation,
    pack_kept,
    pack_refusal,
    pack_untested,
    pack_update,
    unpack_answered,
    unpack_evaluation,
    unpack_kept,
    unpack_update,
)
from common.wire.task import Task, pack_extras, pack_task, unpack_extras, unpack_model, unpack_task

__all__ = [
    "FULL", "KEPT", "LETTERS", "VERSION", "Answered", "Evaluation", "Introduction", "Lettered", "Letters",
    "Refusal", "SiteCard", "Task", "Update", "WireError", "fold", "is_folded", "lengthen", "pack_answered",
    "pack_arrays", "pack_evaluation", "pack_extras", "pack_introduction", "pack_kept", "pack_lettered",
    "pack_letters", "pack_refusal", "pack_task", "pack_untested", "pack_update", "plain_text", "shorten", "size",
    "told_alike", "unfold", "unpack_answered", "unpack_arrays", "unpack_evaluation", "unpack_extras",
    "unpack_introduction", "unpack_kept", "unpack_lettered", "unpack_letters", "unpack_model", "unpack_task",
    "unpack_update",
]  # fmt: skip
