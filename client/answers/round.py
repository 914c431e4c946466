"""A round at a site: test the model that came, which is the result of the last round, then train it."""

from __future__ import annotations

import logging
import math
import time
from dataclasses import replace

import numpy as np
from flwr.app import RecordDict

from client.answers.refusal import is_passing, reason_of
from client.memory import forget_old_runs
from client.request import Request, tested
from client.secure.answers import hiding
from client.shortening import shortening
from client.watching import changed
from common import wire

_log = logging.getLogger("coterie")


def train_round(request: Request) -> RecordDict:
    """Test, if the task says so, and train. Either may fail without the other."""
    content = test_round(request) if request.task.tests else RecordDict()
    try:
        trained = _trained(request)
    except Exception as error:
        if not content:
            raise
        _log.exception("this site cannot train in round %d", request.task.round_number)
        trained = wire.pack_refusal(reason_of(error, request.identity), passing=is_passing(error, request.identity))
    content.update(trained)
    return content


def _trained(request: Request) -> RecordDict:
    start = time.perf_counter()
    task, method = request.task, request.method
    visit = request.visit(method.agreement.down)
    hide, short = hiding(request, visit), shortening(request, visit)
    trained = method.train(visit)
    # Written before the answer goes out: a round that counted must be remembered.
    if trained.memory is not None:
        if not visit.memory:
            forget_old_runs(request.identity)
        request.memory.remember(task.round_number, trained.memory, accepted=task.accepted, checkpoints=task.checkpoints)
    held = None
    if task.held:
        # Copied: what is sent may share its memory with the network, which is about to be another model.
        trained = replace(trained, state={name: array.copy() for name, array in trained.state.items()})
        found = tested(visit.load(method.held(visit, trained)), visit.site, forgiving=False).confusion
        held = int(np.trace(found)), int(found.sum())
    fresh = task.accepted > 0 and ((method.agreement.remembers and not visit.memory) or short.has_forgotten)
    deviation = changed(request)
    leaves = short.of(hide(trained.state, trained.samples))
    # A mean loss under a model made for the purpose is a pixel of one image: what hides updates must not tell it.
    loss = trained.loss if task.terms is None else math.nan
    seconds = time.perf_counter() - start
    return wire.pack_update(
        wire.Update(
            leaves,
            trained.samples,
            loss,
            seconds,
            trained.extras,
            fresh,
            held,
            deviation,
            request.discretion.spending(),
        )
    )


def test_round(request: Request) -> RecordDict:
    """Test the model that came on the site's test split as it was in the round whose result the model is."""
    start = time.perf_counter()
    try:
        method = request.method
        visit = request.in_round(request.task.tests).visit()
        discretion = request.discretion
        found = tested(visit.load(method.served(visit)), visit.site, forgiving=discretion.is_private)
        statistics = discretion.statistics(found)
        common = method.common(visit)
        shared = None
        if common is not None:
            shared = int(np.trace(tested(visit.load(common), visit.site, forgiving=False).confusion))
    except Exception as error:
        _log.exception("this site cannot test the models of round %d", request.task.tests)
        return wire.pack_untested(reason_of(error, request.identity))
    return wire.pack_evaluation(wire.Evaluation(statistics, time.perf_counter() - start, shared=shared))


def answer_question(request: Request) -> RecordDict:
    """Answer what the method asks outside of training."""
    start = time.perf_counter()
    method, asked = request.method, request.task.question
    question = method.agreement.questions.get(asked)
    if question is None:
        raise wire.WireError(f"this site knows no question {wire.plain_text(asked)!r} of {method.agreement.rule}")
    asked_of = request.describable if method.describes else request
    visit = asked_of.visit(question.down, with_model=False)
    return wire.pack_answered(wire.Answered(method.answer(asked, visit), time.perf_counter() - start))
