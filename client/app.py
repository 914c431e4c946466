"""The ClientApp: translates a message into a request, has it answered, and translates the answer back.

Whatever goes wrong at a site is answered with a refusal, so that the server can name the site and the cause.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from client.answers.final import keep, personalise, take_answer
from client.answers.introduction import hello, introduce
from client.answers.refusal import is_passing, reason_of
from client.answers.round import answer_question, test_round, train_round
from client.fingerprints import FINGERPRINTS
from client.identity import Identity, identify
from client.one_piece import in_one_piece
from client.policy.gate import gate_of
from client.policy.question import Question
from client.policy.rules import Declined
from client.request import Request, data_of, limit_threads
from client.secure.answers import SECURE_ANSWERS, SecureAnswer
from common import wire

app = ClientApp(mods=[in_one_piece])

_log = logging.getLogger("coterie")

Answer = Callable[[Request], RecordDict]
Work = Callable[[wire.Task, Identity], RecordDict]


def reply(message: Message, context: Context, answer: Answer) -> Message:
    """Answer a message of Flower's from the site's data."""

    def work(task: wire.Task, identity: Identity) -> RecordDict:
        limit_threads(task.settings, identity)
        site = data_of(identity, task, task.round_number)
        return answer(Request(message.content, task, identity, site, message.metadata.run_id))

    return admitted(message, context, work)


def admitted(message: Message, context: Context, work: Work) -> Message:
    """Answer a message by some work, if the site's gate lets the question in, and the answer out."""
    identity, gate, question = None, None, None
    try:
        identity = identify(context.node_config, context.node_id)
        gate = gate_of(identity)
        question = Question(
            message.metadata.message_type, wire.unpack_task(message.content), str(message.metadata.run_id)
        )
        content = work(gate.admit(question), identity)
        gate.let_out(question, content)
    except Exception as error:
        # Not left to Flower, whose error reply would carry the text of any exception.
        if isinstance(error, Declined):
            # As the policy has it: nothing went wrong, and where in the code is of no interest.
            _log.warning("declined: %s", error)
        else:
            _log.exception("this request cannot be served")
        reason = reason_of(error, identity)
        content = wire.pack_refusal(reason, passing=is_passing(error, identity))
        if gate is not None:
            gate.note_refusal(question, reason)
    return Message(content, reply_to=message)


def _serve(register: Callable[..., object], answer: Answer) -> None:
    # Looked up when a message comes, so that a test can stand in between.
    register(lambda message, context: reply(message, context, answer))


def _serve_without_data(register: Callable[..., object], answer: SecureAnswer) -> None:
    register(lambda message, context: admitted(message, context, partial(answer, message.content)))


_serve(app.train(), train_round)
_serve(app.evaluate(), test_round)
# The answer to a collaboration, which is tested and kept.
_serve(app.evaluate("collaboration"), take_answer)
_serve(app.query("hello"), hello)
for _kind in FINGERPRINTS:
    _serve(app.query(_kind), partial(introduce, kind=_kind))
_serve(app.query("method"), answer_question)
_serve(app.query("personalise"), personalise)
_serve(app.query("keep"), keep)
for _name, _answer in SECURE_ANSWERS.items():
    _serve_without_data(app.query(_name), _answer)
