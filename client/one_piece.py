"""A message that came in one piece is taken apart for the app, and answered in one piece."""

from __future__ import annotations

from collections.abc import Callable

from flwr.app import Context, Message

from common import wire


def in_one_piece(message: Message, context: Context, app: Callable[[Message, Context], Message]) -> Message:
    """Stand between Flower and the app, as a mod."""
    if not wire.is_folded(message.content):
        return app(message, context)
    try:
        message.content = wire.unfold(message.content)
    except wire.WireError as error:
        # The app cannot read it, either, and notes in the site's ledger that it was asked.
        app(message, context)
        return Message(wire.fold(wire.pack_refusal(str(error))), reply_to=message)
    answer = app(message, context)
    if answer.has_content():
        answer.content = wire.fold(answer.content)
    return answer
