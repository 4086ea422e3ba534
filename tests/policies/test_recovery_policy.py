"""A policy that a person wrote: durations in words, and errors that name the field, the value and the way out."""

import pytest

from rerail.plugins.checkpoint.s3_transfer import Tuning
from rerail.policies.errors import UsageError
from rerail.policies.recovery import RecoveryPolicy
from rerail.policies.units import duration_s, size_bytes


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("90s", 90), ("1h30m", 5400), ("2d", 172_800), ("0.5s", 0.5)]
)
def test_durations(text, seconds):
    assert duration_s(text, "--deadline") == seconds


@pytest.mark.parametrize("text", ["", "s", "90x", "-5s", "1m2h", "1 h", "nan", "1e3"])
def test_a_wrong_duration_names_the_option_the_value_and_the_forms(text):
    with pytest.raises(UsageError, match=r"--deadline = .* is no duration; write seconds"):
        duration_s(text, "--deadline")


@pytest.mark.parametrize(("text", "size"), [("16MiB", 1 << 24), ("1 GB", 10**9), ("512", 512), ("1.5KiB", 1536)])
def test_sizes(text, size):
    assert size_bytes(text, "part") == size


@pytest.mark.parametrize("text", ["", "MiB", "16 mib", "-1", "0", "0.3B", "1e6"])
def test_a_wrong_size_names_the_option_the_value_and_the_forms(text):
    with pytest.raises(UsageError, match=r"part = "):
        size_bytes(text, "part")


def test_a_policy_may_be_written_in_words():
    policy = RecoveryPolicy.from_mapping({"hold_s": "2m", "budgets": {"window_s": "1d"}}, "p.yaml")
    assert (policy.hold_s, policy.budgets.window_s) == (120.0, 86_400.0)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"hold_seconds": 60}, r"p\.yaml: unknown field 'hold_seconds'; did you mean 'hold_s'"),
        ({"budgets": {"hardwear": 1}}, r"unknown field 'budgets\.hardwear'; did you mean 'hardware'"),
        ({"hold_s": "2x"}, r"field hold_s = '2x' is no duration"),
        ({"budgets": {"window_s": "soon"}}, r"field budgets\.window_s = 'soon'"),
        ({"max_attempts": 0}, r"field 'max_attempts' = 0: .*greater than or equal to 1"),
        ({"in_place": "perhaps"}, r"field 'in_place' = 'perhaps'"),
        ({"hold_s": 20_000_000}, r"field 'hold_s' = 20000000: .*less than 10000000"),
        ({"hold_s": float("inf")}, r"field 'hold_s' = inf: .*less than 10000000"),
        ({"end_grace_s": "20000000"}, r"field 'end_grace_s' = 20000000\.0: .*less than 10000000"),
        ({"poll_s": True}, r"field poll_s = 'True' is no duration"),
        ({"end_grace_s": 1, "end_grace_untrusted_s": 5}, r"end_grace_untrusted_s \(5\.0\) is longer"),
    ],
)
def test_a_typo_in_a_policy_is_told_with_the_way_out(given, said):
    with pytest.raises(UsageError, match=said):
        RecoveryPolicy.from_mapping(given, "p.yaml")


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({"RERAIL_S3_PART_SIZE": "16 megs"}, "RERAIL_S3_PART_SIZE = '16 megs' is no size"),
        ({"RERAIL_S3_PART_SIZE": "1MiB"}, "too small; S3 takes parts from 5MiB on"),
        ({"RERAIL_S3_PARALLEL": "many"}, "RERAIL_S3_PARALLEL = 'many'"),
    ],
)
def test_transfer_settings_of_the_environment_are_checked(environment, said):
    with pytest.raises(UsageError, match=said):
        Tuning.from_environment(environment)
    assert Tuning.from_environment({"RERAIL_S3_PART_SIZE": "32MiB", "RERAIL_S3_PARALLEL": "4"}) == Tuning(32 << 20, 4)
