"""Each of the ten parts, left out or one step back at restore: the certificate is refused, and training differs."""

import copy

import pytest

from rerail.plugins.checkpoint.commit import read_manifest
from rerail.plugins.checkpoint.notes import read_certificate
from rerail.plugins.trainer import Checkpointer, Every, Left, Solo
from rerail.policies.errors import IncompleteStateError, UsageError
from rerail.policies.manifest import PARTS

CUT, TOTAL = 10, 18  # the cut is just at an epoch's end (10 batches); steps 9 and 16 are skipped by the scaler


class Tampered:
    """A part that takes something else than what it is given."""

    def __init__(self, inner, instead):
        self._inner, self._instead = inner, instead

    def state_dict(self):
        return self._inner() if callable(self._inner) else self._inner.state_dict()

    def load_state_dict(self, state):
        self._instead(state)


def getter(state):
    return state.state_dict if hasattr(state, "state_dict") else lambda: state


def setter(state):
    def update(new):
        for key, value in copy.deepcopy(new).items():
            if isinstance(value, dict):
                for name, one in value.items():
                    state[key][name][...] = one
            elif hasattr(state[key], "shape"):
                state[key][...] = value
            else:
                state[key] = value

    return state.load_state_dict if hasattr(state, "load_state_dict") else update


def train(toy, run, attempt, stop, *, tamper=None, **options):
    """Train in this process; (steps by number, states of all parts after each step, weights at the end)."""
    training = toy.Training()
    shared, per_rank = training.parts()
    absent = {}
    if tamper:
        part, how, back = tamper
        group = shared if part in shared else per_rank
        state = group[part]
        if how == "left out":
            del group[part]
        elif how == "absent":
            del group[part]
            absent[part] = "left out by the test"
        elif how == "ignored":
            group[part] = Tampered(getter(state), lambda _: None)
        else:
            group[part] = Tampered(getter(state), lambda _: setter(state)(back[part]))
    client = run.client(
        attempt, shared=shared, per_rank=per_rank, absent=absent, every=Every(steps=CUT), total_steps=TOTAL, **options
    )
    step = client.restore()
    steps, states = {}, {}
    while step < stop:
        ids, loss, sent = training.forward()
        gradients, agreed = toy.reduce(Solo(), sent, client.wish())
        training.update(gradients)
        step += 1
        steps[step] = (loss, tuple(ids))
        states[step] = {
            name: copy.deepcopy(getter(state)()) for group in training.parts() for name, state in group.items()
        }
        client.step_done(step, agreed=agreed, loss=loss)
    if step == TOTAL:
        client.finish(step)
    else:
        client._close()
    return steps, states, {name: weight.tobytes() for name, weight in training.weights.items()}, client


class NoRun:
    """Training without Rerail."""

    def client(self, _attempt, **options):
        return Checkpointer(None, None, **options)


@pytest.fixture(scope="module")
def straight(toy):
    """The uninterrupted training, and the state of all parts after each of its steps."""
    return train(toy, NoRun(), 1, TOTAL)


@pytest.fixture
def cut(toy, run, straight):
    """A run that ended after ``CUT`` steps, its second attempt open."""
    run.open(1)
    steps, _, _, _ = train(toy, run, 1, CUT)
    assert steps == {step: straight[0][step] for step in range(1, CUT + 1)}
    run.open(2)
    return run


def test_the_untouched_resume_is_identical_and_certified(toy, cut, straight):
    steps, _, weights, client = train(toy, cut, 2, TOTAL)
    assert steps == {step: straight[0][step] for step in range(CUT + 1, TOTAL + 1)}
    assert weights == straight[2]
    certificate = client.certificate
    assert certificate == read_certificate(cut.run, 2)
    assert (certificate.ok, certificate.exact, certificate.reasons) == (True, True, ())
    (rank,) = certificate.ranks
    assert rank.state_digest == rank.expected_digest == read_manifest(cut.run, 1, CUT).state_digests["0"]
    assert rank.bytes_read == sum(entry.size for entry in read_manifest(cut.run, 1, CUT).files)


def test_every_part_moved_in_the_last_step_before_the_cut(straight):
    from rerail.plugins.trainer.codec import leaf_digests

    for part in PARTS:
        assert leaf_digests(straight[1][CUT][part], part) != leaf_digests(straight[1][CUT - 1][part], part), part


@pytest.mark.parametrize("how", ["one step back", "ignored"])
@pytest.mark.parametrize("part", PARTS)
def test_a_part_that_is_not_what_was_saved_refuses_the_certificate(toy, cut, straight, part, how):
    with pytest.raises(Left) as left:
        train(toy, cut, 2, TOTAL, tamper=(part, how, straight[1][CUT - 1]))
    assert left.value.code == 87
    certificate = read_certificate(cut.run, 2)
    assert not certificate.ok
    assert not certificate.exact
    (problem,) = certificate.ranks[0].problems
    assert problem.startswith(f"{part}: restored, but not what was saved")
    assert certificate.ranks[0].state_digest != certificate.ranks[0].expected_digest
    assert cut.commits() == [(1, CUT)]


@pytest.mark.parametrize("part", [part for part in PARTS if part not in ("step", "epoch", "distributed")])
def test_a_part_that_is_left_out_is_refused_at_construction(toy, cut, part):
    with pytest.raises(IncompleteStateError, match=part):
        train(toy, cut, 2, TOTAL, tamper=(part, "left out", None))


@pytest.mark.parametrize("part", [part for part in PARTS if part != "step"])
def test_a_part_that_is_declared_absent_although_it_was_saved_refuses_the_certificate(toy, cut, part):
    with pytest.raises(Left) as left:
        train(toy, cut, 2, TOTAL, tamper=(part, "absent", None))
    assert left.value.code == 87
    assert part in left.value.reason
    assert not read_certificate(cut.run, 2).ok


def test_the_step_cannot_be_absent(toy, cut):
    with pytest.raises(UsageError, match="'step' cannot be absent"):
        train(toy, cut, 2, TOTAL, tamper=("step", "absent", None))


@pytest.mark.parametrize("part", [part for part in PARTS if part not in ("step", "epoch", "distributed")])
def test_what_lenient_mode_leaves_out_trains_differently_and_the_certificate_says_so(toy, cut, straight, part, caplog):
    steps, _, weights, client = train(toy, cut, 2, TOTAL, tamper=(part, "left out", None), strict=False)
    assert (steps, weights) != ({step: straight[0][step] for step in range(CUT + 1, TOTAL + 1)}, straight[2])
    assert client.certificate.ok
    assert not client.certificate.exact
    assert any(part in reason for reason in client.certificate.reasons)
    assert part in caplog.text
    assert read_manifest(cut.run, 2, TOTAL).parts[part].absent


@pytest.mark.parametrize("how", ["one step back", "ignored"])
@pytest.mark.parametrize("part", PARTS)
def test_without_the_certificate_the_training_would_differ(toy, cut, straight, monkeypatch, *, part, how):
    """The proof of the proof: with verification switched off, the same tampering gives another training."""
    from rerail.plugins.trainer.loading import Loader

    monkeypatch.setattr(Loader, "_verify", lambda *_: None)
    try:
        steps, states, weights, _ = train(toy, cut, 2, TOTAL, tamper=(part, how, straight[1][CUT - 1]))
    except Left as left:
        assert left.code == 87  # noqa: PT017  (the client's own look at the first step)
        return
    expected = {step: straight[0][step] for step in range(CUT + 1, TOTAL + 1)}
    end = {name: repr(state) for name, state in states[TOTAL].items()}
    assert (steps, weights, end) != (
        expected,
        straight[2],
        {name: repr(state) for name, state in straight[1][TOTAL].items()},
    )
