"""Each part of the optimizer's side, and what leaving it out would change."""

import numpy as np
import pytest

from rerail.examples.local_gang.model import Model, dropout
from rerail.examples.local_gang.optim import Adam, ClipByLoss, HalfWire, LossScaler, WarmupThenDecay
from rerail.plugins.trainer.rng import RandomState


def test_scale_doubles_after_good_steps_and_halves_on_overflow() -> None:
    scaler = LossScaler(scale=1024.0, every=3)
    seen = []
    for finite in (True, True, True, True, False, True, True, False):
        scaler.update(finite=finite)
        seen.append((scaler.scale, scaler.good))
    assert seen == [(1024, 1), (1024, 2), (2048, 0), (2048, 1), (1024, 0), (1024, 1), (1024, 2), (512, 0)]


def test_scale_goes_on_in_the_middle_of_its_count() -> None:
    one, other = LossScaler(every=3), LossScaler(every=3)
    one.update(finite=True)
    one.update(finite=True)
    other.load_state_dict(one.state_dict())
    other.update(finite=True)
    assert other.scale == 2 * one.scale


def test_overflow_is_seen_and_leaves_the_debt_as_it_was() -> None:
    wire = HalfWire(3)
    gradient = np.array([1.2345e-3, 0.12345, -0.34567], dtype=np.float32)
    wire.pack(gradient, 1000.0)
    wire.settle()
    owed = wire.owed.copy()
    assert np.any(owed)
    assert not np.isfinite(wire.pack(gradient, 1e6)).all()
    assert wire.owed.tobytes() == owed.tobytes()


def test_rounding_error_comes_back_in_the_next_step() -> None:
    wire = HalfWire(1)
    gradient = np.array([1 + 2**-12], dtype=np.float32)
    sent = np.zeros(1, dtype=np.float64)
    for _ in range(64):
        sent += wire.pack(gradient, 1.0)
        wire.settle()
    assert sent[0] == pytest.approx(64 * float(gradient[0]), abs=2**-10)


def test_rate_warms_up_then_decays_in_updates() -> None:
    schedule = WarmupThenDecay(peak=1.0, warmup=4, horizon=14)
    rates = []
    for _ in range(15):
        rates.append(schedule.rate)
        schedule.advance()
    assert rates[:5] == [0.25, 0.5, 0.75, 1.0, 1.0]
    assert rates[4:] == sorted(rates[4:], reverse=True)
    assert rates[-1] == pytest.approx(0.1)


def test_clip_follows_the_loss() -> None:
    gradient = np.full(4, 10.0, dtype=np.float32)
    clip = ClipByLoss(share=0.5, memory=0.5)
    assert np.linalg.norm(clip.clip(gradient, 4.0)) == pytest.approx(2.0)
    assert np.linalg.norm(clip.clip(gradient, 2.0)) == pytest.approx(1.5)


def test_every_rank_goes_on_in_its_own_random_stream_whatever_it_had_drawn() -> None:  # case C2-07
    generators = [np.random.default_rng([1, rank]) for rank in range(4)]
    for rank, generator in enumerate(generators):
        generator.random(10 + rank)
    saved = [RandomState(generator, python=False).state_dict() for generator in generators]
    expected = [dropout(generator, (3, 5)).tobytes() for generator in generators]
    assert len(set(expected)) == 4
    for rank, state in enumerate(saved):
        again = np.random.default_rng(99)
        RandomState(again, python=False).load_state_dict(state)
        assert dropout(again, (3, 5)).tobytes() == expected[rank]


def test_gradient_is_the_slope_of_the_loss() -> None:
    model = Model(7, seed=3)
    windows = np.random.default_rng(0).integers(0, 7, (2, 72))

    def loss() -> float:
        return model.loss_and_gradient(windows, np.random.default_rng(1), total=2)[0]

    _, gradient = model.loss_and_gradient(windows, np.random.default_rng(1), total=2)
    direction = np.random.default_rng(1).standard_normal(model.flat.size).astype(np.float32)
    start, nudge = model.flat.copy(), np.float32(2e-4)
    model.flat[...] = start + nudge * direction
    above = loss()
    model.flat[...] = start - nudge * direction
    assert (above - loss()) / (2 * float(nudge)) == pytest.approx(float(gradient @ direction), rel=0.02)


def test_a_rank_without_samples_adds_nothing() -> None:
    model, generator = Model(7, seed=3), np.random.default_rng(1)
    loss, gradient = model.loss_and_gradient(np.zeros((0, 72), dtype=np.int64), generator, total=1)
    assert loss == 0.0
    assert not gradient.any()


def test_saved_parts_restore_to_the_same_bits() -> None:
    model, other = Model(7, seed=3), Model(7, seed=4)
    first, second = Adam(model.flat), Adam(other.flat)
    gradient = np.random.default_rng(2).standard_normal(model.flat.size).astype(np.float32)
    first.update(gradient, 1e-3)
    other.load_state_dict(model.state_dict())
    second.load_state_dict(first.state_dict())
    first.update(gradient, 1e-3)
    second.update(gradient, 1e-3)
    assert model.flat.tobytes() == other.flat.tobytes()
