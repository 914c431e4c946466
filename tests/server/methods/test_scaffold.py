"""SCAFFOLD: the spec's vector and invariants, the named defects of public versions, lost replies, resuming."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from flwr.app import Message
from hypothesis import given
from hypothesis import strategies as st

from common import wire
from common.methods.scaffold import VARIATE
from common.state import State
from server.app import conduct
from server.history.events import MemoryLost, RoundFinished, SiteLeftOut
from server.listeners import run_listeners
from tests.support.loopback import LoopbackGrid
from tests.support.quadratic import NAME, point, train_site
from tests.support.rules import Reply, Sites, close_round, rule_of
from tests.support.runs import MakeConfig, Record, failed, made, on, run, run_to_disk

TARGETS = {"1": 1.0, "2": -3.0, "3": 5.0}
EQUAL = {"1": 10, "2": 10, "3": 10}


class Federation:
    """Sites with one parameter each, under the real halves of SCAFFOLD."""

    def __init__(self, sizes: dict[str, int], **settings: object) -> None:
        self.sizes = sizes
        self.settings = settings
        self.rule = rule_of("scaffold", sizes, **settings)
        self.x = 0.0
        self.variates: dict[str, State] = {}

    def round(self, sites: str, steps: int = 2, lost: str = "") -> dict[str, float]:
        """One round of these sites; the replies of those in `lost` never arrive. Returns the sites' models."""
        down = self.rule.beside(0, {0: point(self.x)})
        replies, remembered = {}, {}
        for site in sites:
            trained = train_site(
                "scaffold",
                self.x,
                TARGETS[site],
                steps=steps,
                extras=down,
                memory=self.variates.get(site),
                **self.settings,
            )
            if site not in lost:
                replies[site] = Reply(trained.state, self.sizes[site], trained.extras)
                remembered[site] = trained.memory or {}
        if replies:
            self.x = float(close_round(self.rule, point(self.x), replies)[NAME][0])
        # A site whose reply was lost goes on from what it remembered before.
        self.variates |= remembered
        return {site: float(reply.after[NAME][0]) for site, reply in replies.items()}

    def own(self, site: str) -> float:
        return float(self.variates[site][NAME][0]) if site in self.variates else 0.0

    @property
    def common(self) -> float:
        return float(self.rule.beside(0, {0: point(self.x)})[VARIATE][NAME][0])


def test_vector_b() -> None:
    federation = Federation(EQUAL)
    ends = federation.round("12")
    assert ends == {"1": pytest.approx(0.19), "2": pytest.approx(-0.57)}
    assert (federation.own("1"), federation.own("2")) == (pytest.approx(-0.95), pytest.approx(2.85))
    assert (federation.x, federation.common) == (pytest.approx(-0.19), pytest.approx(0.6333333))
    ends = federation.round("13")
    assert ends == {"1": pytest.approx(-0.2647333), "3": pytest.approx(0.6757667)}
    assert (federation.own("1"), federation.own("3")) == (pytest.approx(-1.2096667), pytest.approx(-4.9621667))
    assert (federation.x, federation.common) == (pytest.approx(0.2055167), pytest.approx(-1.1072778))


def test_with_momentum_a_variate_is_the_weighted_mean_of_the_gradients() -> None:
    trained = train_site(
        "scaffold", 0.0, 1.0, steps=3, extras={VARIATE: point(0.4)}, memory=point(-0.2), train__momentum=0.9
    )
    assert trained.memory is not None
    assert trained.memory[NAME][0] == pytest.approx(-0.9664884)


@given(
    st.lists(st.tuples(st.sets(st.sampled_from("123"), min_size=1), st.sets(st.sampled_from("123"))), max_size=6),
    st.tuples(st.integers(1, 50), st.integers(1, 50), st.integers(1, 50)),
    st.sampled_from([0.0, 0.9]),
)
def test_the_common_variate_is_always_the_mean_of_the_sites(
    rounds: list[tuple[set[str], set[str]]], sizes: tuple[int, int, int], momentum: float
) -> None:
    """c = Σ (n_i / n) c_i, after any rounds, whoever takes part and whatever is lost. PACFL's c is N / |S| times that,
    FL-bench never stores c_i, and PFLlib divides by those who were planned."""
    federation = Federation(dict(zip("123", sizes, strict=True)), train__momentum=momentum)
    for drawn, lost in rounds:
        federation.round("".join(sorted(drawn)), lost="".join(lost))
    mean = np.average([federation.own(site) for site in "123"], weights=sizes)
    assert federation.common == pytest.approx(mean, abs=1e-6)


def test_data_that_change_leave_the_mean_a_mean() -> None:
    """A site that trains on more samples than it was met with weighs in the model, not in what is remembered."""
    federation = Federation({"1": 10, "2": 30, "3": 20})
    federation.round("123")
    federation.sizes = {"1": 25, "2": 30, "3": 20}
    federation.rule.federation.declared["1"] = 25  # type: ignore[attr-defined]
    federation.round("12")
    mean = np.average([federation.own(site) for site in "123"], weights=[10, 30, 20])
    assert federation.common == pytest.approx(mean, abs=1e-6)


def test_at_the_optimum_nobody_moves() -> None:
    federation = Federation(EQUAL)
    federation.x = best = float(np.mean(list(TARGETS.values())))
    federation.variates = {site: point(best - target) for site, target in TARGETS.items()}
    federation.round("123", steps=5)
    assert federation.x == pytest.approx(best)


def test_a_newcomer_scales_the_variate() -> None:
    federation = Federation({"1": 10, "2": 30})
    federation.round("12")
    before = federation.common
    federation.rule.federation.declared["3"] = 40  # type: ignore[attr-defined]
    assert federation.common == pytest.approx(before / 2)
    assert federation.common == pytest.approx(before / 2), "and only once"


def test_the_servers_rate() -> None:
    slow, fast = Federation(EQUAL, scaffold__rate=0.5), Federation(EQUAL)
    slow.round("123")
    fast.round("123")
    assert slow.x == pytest.approx(fast.x / 2)


def test_buffers_have_no_variate_and_are_averaged_as_they_are() -> None:
    """PACFL gives every entry of the state a variate."""
    before = point(0.0) | {"body.running_var": np.ones(1, np.float32), "body.num_batches_tracked": np.array(1)}
    rule = rule_of("scaffold", {"1": 1, "2": 1}, scaffold__rate=0.5)
    assert set(rule.beside(0, {0: before})[VARIATE]) == {NAME}
    replies = {
        site: Reply(before | {"body.running_var": np.full(1, value, np.float32)}, 1, {VARIATE: point(0.0)})
        for site, value in (("1", 2.0), ("2", 4.0))
    }
    assert close_round(rule, before, replies)["body.running_var"] == pytest.approx(3.0)


def test_what_the_server_remembers_survives_a_restart() -> None:
    federation = Federation(EQUAL)
    federation.round("12")
    again = rule_of("scaffold", EQUAL)
    again.restore(federation.rule.state())
    np.testing.assert_array_equal(again.beside(0, {0: point(0)})[VARIATE][NAME], [federation.common])
    assert isinstance(again.federation, Sites)


def figures(record: Record) -> list[tuple[float, float]]:
    return [(event.overall.accuracy, event.overall.loss) for event in record.of(RoundFinished)]


def test_the_first_round_is_fedavg_and_the_second_is_not(small_config: MakeConfig) -> None:
    """Flower's baseline starts with the weights in the place of the variates."""
    ours, grid = run(small_config(method="scaffold"))
    theirs, _ = run(small_config(method="fedavg"))
    assert not ours.of(SiteLeftOut)
    assert not ours.of(MemoryLost)
    assert figures(ours)[0] == figures(theirs)[0]
    assert figures(ours)[1] != figures(theirs)[1]
    down = [message for message in grid.pushed if message.metadata.message_type == "train"]
    assert all(f"extra {VARIATE}" in message.content for message in down)


def test_a_lost_reply_leaves_no_trace_in_what_the_site_remembers(small_config: MakeConfig) -> None:
    """A site that trained in a round that did not count goes on as if it had not."""
    config = small_config(method="scaffold", rounds=3)

    def lose(request: Message, reply: Message) -> Message | None:
        return failed(request, reply) if wire.unpack_task(request.content).round_number == 2 else reply

    record, grid = run(config, fault=on("train", 0, lose))
    asked = [m for m in grid.pushed if m.metadata.message_type == "train" and m.metadata.dst_node_id == 100]
    assert [wire.unpack_task(message.content).accepted for message in asked] == [0, 1, 1]
    assert not record.of(MemoryLost)


def test_a_bad_variate_is_refused_by_name(small_config: MakeConfig) -> None:
    def spoil(request: Message, reply: Message) -> Message:
        arrays = wire.unpack_arrays(reply.content[f"extra {VARIATE}"])
        name = next(iter(arrays))
        reply.content[f"extra {VARIATE}"] = wire.pack_arrays(arrays | {name: arrays[name] * np.float32("nan")})
        return reply

    record, _ = run(small_config(method="scaffold", rounds=1), fault=on("train", 0, spoil))
    assert "variate" in record.reasons["train", "000"]
    assert "not finite" in record.reasons["train", "000"]


@pytest.mark.parametrize("every", [1, 5])
def test_a_resumed_run_ends_in_the_same_bits(small_config: MakeConfig, tmp_path: Path, every: int) -> None:
    settings = {"method": "scaffold", "rounds": 7, "train__fraction": 0.5, "checkpoint": every}
    whole = run_to_disk(small_config(**settings), tmp_path / "whole")

    class Stop(Exception):
        pass

    def stop(index: int, request: Message, reply: Message) -> Message:
        if request.metadata.message_type == "train" and wire.unpack_task(request.content).round_number == 7:
            raise Stop
        return reply

    out = made(tmp_path / "broken")
    config = small_config(**settings)
    with pytest.raises(Stop):
        conduct(LoopbackGrid(config.sites, fault=stop), config, run_listeners(out), directory=out)
    config = small_config(**settings, resume="auto", out=str(out))
    conduct(LoopbackGrid(config.sites), config, run_listeners(out), directory=out)
    assert (out / "metrics.csv").read_bytes() == (whole / "metrics.csv").read_bytes()


def test_a_site_that_has_forgotten_says_so(small_config: MakeConfig, tmp_path: Path) -> None:
    config = small_config(method="scaffold", rounds=2)
    out = made(tmp_path / "run")
    record = Record()

    def forget(index: int, request: Message, reply: Message) -> Message:
        if index == 3 and request.metadata.message_type == "train":
            for path in (out / "memory" / "003").iterdir():
                path.unlink()
        return reply

    conduct(LoopbackGrid(config.sites, fault=forget), config, [record], directory=out)
    assert [(event.round_number, event.site) for event in record.of(MemoryLost)] == [(2, "003")]
