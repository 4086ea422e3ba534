"""A fault that comes back on one device is cured more strongly each time, and never for ever."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rerail.policies.offenders import Offence, OffenderPolicy, cure, escalated, offences, why_not_released

DAY_S = 86_400.0
GPU = "0000:3b:00"


def history(*days: float, device: str = GPU) -> list[Offence]:
    return [Offence(incident=f"i{day}", device=device, reason="gpu_memory_ecc", at_s=day * DAY_S) for day in days]


@pytest.mark.parametrize(
    ("before", "step"), [([], "reset"), ([1], "reboot"), ([1, 2], "replace-and-ask"), ([1, 2, 3], "replace-and-ask")]
)
def test_reset_then_reboot_then_replace_and_ask(before, step):
    assert cure(history(*before), GPU, "new", now_s=4 * DAY_S) == step


def test_the_incident_at_hand_is_counted_once_whether_it_is_noted_already_or_not():
    noted = history(1, 2)
    assert cure(noted, GPU, "i2", now_s=3 * DAY_S) == "reboot"
    assert cure([*noted, *noted], GPU, "i2", now_s=3 * DAY_S) == "reboot"


def test_other_devices_and_old_faults_do_not_count():
    assert cure(history(1, 2, device="0000:86:00"), GPU, "new", now_s=3 * DAY_S) == "reset"
    assert cure(history(1, 2), GPU, "new", now_s=100 * DAY_S) == "reset"
    assert cure(history(1, 2), GPU, "new", now_s=100 * DAY_S, policy=OffenderPolicy(window_s=200 * DAY_S)) != "reset"


@pytest.mark.parametrize(
    ("action", "step", "done"),
    [
        ("reset_gpu", "reset", "reset_gpu"),
        ("restart_app", "reset", "restart_app"),
        ("reset_gpu", "reboot", "reboot_node"),
        ("power_cycle_node", "reboot", "power_cycle_node"),
        ("reset_gpu", "replace-and-ask", "replace_node"),
        ("contact_support", "replace-and-ask", "contact_support"),
    ],
)
def test_the_stronger_of_diagnosis_and_step_is_done(action, step, done):
    assert escalated(action, step) == done


def test_a_machine_releases_twice_and_then_asks():
    assert why_not_released(history(1, 2), now_s=3 * DAY_S) == ""
    why = why_not_released(history(1, 2, 3), now_s=3 * DAY_S)
    assert "3 faults of GPU 0000:3b:00" in why
    assert "i1, i2, i3" in why
    assert "replace it" in why
    assert "the node itself" in why_not_released(history(1, 2, 3, device=""), now_s=3 * DAY_S)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 90), st.sampled_from([GPU, "0000:86:00", ""])), max_size=12))
def test_the_cure_never_gets_weaker_by_another_offence(drawn):
    noted = [Offence(incident=f"{n}", device=device, at_s=day * DAY_S) for n, (day, device) in enumerate(drawn)]
    steps = ["reset", "reboot", "replace-and-ask"]
    now_s = 91 * DAY_S
    found = [steps.index(cure(noted[:count], GPU, "new", now_s=now_s)) for count in range(len(noted) + 1)]
    assert found == sorted(found)
    counted = offences(noted, GPU, now_s=now_s, policy=OffenderPolicy())
    assert found[-1] == min(2, len(counted))
