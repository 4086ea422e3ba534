"""When saves are due, held against a numeric optimum of the published total-time formula."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rerail.policies.cadence import Every, Moment, YoungDaly, daly_s, young_s
from rerail.policies.errors import UsageError

costs = st.floats(0.01, 600)
rates = st.floats(60, 1e6)


def total(tau, cost, mtbf):
    """Daly's expected wall time for one unit of work (without restarts, which only scale it)."""
    return mtbf * math.expm1((tau + cost) / mtbf) / tau


def best(cost, mtbf):
    low, high = 1e-6, 20 * mtbf
    for _ in range(200):
        one, two = low + (high - low) / 3, high - (high - low) / 3
        low, high = (low, two) if total(one, cost, mtbf) < total(two, cost, mtbf) else (one, high)
    return (low + high) / 2


@given(costs, rates)
def test_daly_loses_no_time_against_the_numeric_optimum(cost, mtbf):
    if cost > mtbf / 2:
        return
    optimum = best(cost, mtbf)
    assert total(daly_s(cost, mtbf), cost, mtbf) <= total(optimum, cost, mtbf) * 1.001


@pytest.mark.parametrize(
    ("cost", "rate", "interval"), [(120, 3.09 * 3600, 1556), (10, 3.09 * 3600, 465), (1, 3.09 * 3600, 149)]
)
def test_the_published_numbers_at_the_llama_3_rate(cost, rate, interval):
    assert daly_s(cost, rate) == pytest.approx(interval, rel=0.01)
    assert young_s(cost, rate) == pytest.approx(math.sqrt(2 * cost * rate))


@given(costs, rates)
def test_daly_is_positive_and_grows_with_the_time_between_failures(cost, mtbf):
    assert 0 < daly_s(cost, mtbf) <= daly_s(cost, mtbf * 4) * 1.0001


def test_a_save_that_costs_more_than_the_time_between_failures():
    assert daly_s(100, 10) == 10


@given(st.floats(0, 100), st.floats(0, 1000), st.floats(1, 1e5), st.floats(0.1, 50), st.floats(50, 1000))
def test_clamps_hold_for_any_measurement(cost, save, mtbf, floor, ceiling):
    rule = YoungDaly(mtbf_s=mtbf, floor_s=floor, ceiling_s=ceiling)
    interval = rule.interval_s(Moment(1, 0, cost_s=cost, save_s=save))
    assert floor <= interval <= ceiling
    assert interval >= min(save, ceiling)
    assert rule.due(Moment(1, interval, cost_s=cost, save_s=save))
    assert not rule.due(Moment(1, interval * 0.99, cost_s=cost, save_s=save))


def test_before_any_measurement_the_first_interval_counts():
    rule = YoungDaly(mtbf_s=3600, first_s=30)
    assert not rule.due(Moment(5, 29.9))
    assert rule.due(Moment(5, 30))


@given(st.integers(1, 50), st.integers(0, 500))
def test_steps_are_on_one_grid_whatever_was_restored(steps, step):
    assert Every(steps=steps).due(Moment(step, 0)) == (step > 0 and step % steps == 0)


def test_whichever_comes_first():
    rule = Every(steps=10, seconds=5)
    assert rule.local
    assert not Every(steps=10).local
    assert rule.due(Moment(10, 0))
    assert rule.due(Moment(3, 5))
    assert not rule.due(Moment(3, 4.9))


@pytest.mark.parametrize(
    "make",
    [
        Every,
        lambda: Every(steps=0),
        lambda: Every(seconds=0),
        lambda: Every(seconds=math.nan),
        lambda: YoungDaly(mtbf_s=0),
        lambda: YoungDaly(mtbf_s=math.nan),
        lambda: YoungDaly(mtbf_s=10, floor_s=5, ceiling_s=1),
    ],
)
def test_nonsense_is_refused(make):
    with pytest.raises(UsageError):
        make()
