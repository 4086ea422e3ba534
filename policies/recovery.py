"""The recovery policy of a run: every number that the supervisor, launch and the training client decide by.

A policy is data: it stands in ``run.json``, is printed in the report, and a typo in it is an error with a suggestion.
"""

import difflib
from typing import Any, Final, Self

from pydantic import Field, ValidationError, model_validator

from rerail.policies.documents import Value
from rerail.policies.errors import UsageError
from rerail.policies.units import duration_s

LONGEST_S: Final = 1e7
"""What is told to pods, as a grace or in their environment, is shorter than this: 115 days."""


class Budgets(Value):
    """How often a run may fail, per cause and per window, before it stops and says why.

    Attributes:
        application: Attempts charged to the user's code.
        hardware: Attempts charged to a GPU or node fault.
        infrastructure: Attempts charged to the cluster: lost nodes, evictions that were no preemption.
        unknown: Attempts without a cause.
        window_s: Only charges younger than this count.
        without_progress: Attempts in a row that committed nothing new; then the run stops.
        identical: Failures with the same error at the same step; then the run stops.
        out_of_memory: The same for ends for lack of memory, which nothing but other resources cures.
    """

    application: int = Field(3, ge=0)
    hardware: int = Field(10, ge=0)
    infrastructure: int = Field(10, ge=0)
    unknown: int = Field(10, ge=0)
    window_s: float = Field(86_400.0, gt=0)
    without_progress: int = Field(3, ge=1)
    identical: int = Field(3, ge=2)
    out_of_memory: int = Field(2, ge=2)


class RecoveryPolicy(Value):
    """Bounds and choices of recovery; all durations in seconds.

    Attributes:
        suspect_margin_s: A snapshot on the faulty device later than the fault's first sign minus this is suspect.
        save_within_s: How long a requested save may take before the gang is ended without it.
        end_grace_s: Between SIGTERM and SIGKILL when the gang may still save; at least the measured time of a save.
        end_grace_untrusted_s: The same when no save is wanted; a commit that is under way may finish in it.
        end_wait_s: After the grace, how long a gang may take to be gone before the next attempt starts all the same.
        hang_after_s: Without a new step for this long, and for ``hang_factor`` median steps, the gang is stuck.
        hang_factor: See ``hang_after_s``.
        node_lost_after_s: Without a new step for this long while a node of the gang does not report, it is lost.
        load_within_s: From the start to the first step: loading, compiling and warm-up.
        phase_within_s: The longest evaluation or save before the gang counts as stuck.
        prepare_s: How long launches may take to end their ranks and be ready for an in-place attempt.
        hold_s: How long launch keeps the pod without orders after its ranks ended.
        in_place: Whether process-scope faults are answered in the same pods.
        settle_s: After an unexplained end, how long evidence is waited for before the scope is decided.
        backoff_s: First back-off after an attempt without progress; doubles up to ``backoff_max_s``.
        capacity_wait_s: How long a run waits for capacity before it stops.
        yielded_wait_s: The same for a run whose gang was taken away to give room: it waits for it as users of a queue
            expect, and holds nothing meanwhile.
        restart_priority_class: PriorityClass of gangs of a cluster after the first; empty leaves that of the first.
        store_wait_s: How long a run waits for an unreachable store before it stops.
        poll_s: How often the supervisor looks.
        max_attempts: Absolute bound on attempts of one run; whoever takes a run over counts anew.
        keep_last: Checkpoints that retention keeps besides those it must keep.
        keep_clean_s: Retention keeps the newest good checkpoint older than this, since detection can be late.
        keep_every_steps: Checkpoints at multiples of this are kept for ever; 0 keeps none by this rule.
    """

    suspect_margin_s: float = Field(60.0, ge=0)
    save_within_s: float = Field(120.0, gt=0)
    end_grace_s: float = Field(30.0, ge=0, lt=LONGEST_S)
    end_grace_untrusted_s: float = Field(5.0, ge=0)
    end_wait_s: float = Field(60.0, gt=0)
    hang_after_s: float = Field(300.0, gt=0)
    hang_factor: float = Field(20.0, ge=1)
    node_lost_after_s: float = Field(15.0, gt=0)
    load_within_s: float = Field(1800.0, gt=0)
    phase_within_s: float = Field(3600.0, gt=0)
    prepare_s: float = Field(10.0, gt=0)
    hold_s: float = Field(120.0, gt=0, lt=LONGEST_S)
    in_place: bool = True
    settle_s: float = Field(1.0, ge=0)
    backoff_s: float = Field(1.0, ge=0)
    backoff_max_s: float = Field(300.0, ge=0)
    capacity_wait_s: float = Field(3600.0, gt=0)
    yielded_wait_s: float = Field(604_800.0, gt=0)
    restart_priority_class: str = ""
    store_wait_s: float = Field(3600.0, gt=0)
    poll_s: float = Field(1.0, gt=0, lt=LONGEST_S)
    max_attempts: int = Field(100, ge=1)
    keep_last: int = Field(3, ge=1)
    keep_clean_s: float = Field(21_600.0, ge=0)
    keep_every_steps: int = Field(0, ge=0)
    budgets: Budgets = Budgets()

    @model_validator(mode="after")
    def _grace_covers(self) -> Self:
        if self.end_grace_untrusted_s > self.end_grace_s:
            raise ValueError(
                f"end_grace_untrusted_s ({self.end_grace_untrusted_s}) is longer than end_grace_s ({self.end_grace_s})"
            )
        return self

    @classmethod
    def from_mapping(cls, given: dict[str, Any], where: str) -> Self:
        """Read a policy that a person wrote.

        Args:
            given: The mapping, for example from YAML.
            where: File or option it came from, for messages.

        Raises:
            UsageError: Names the field, the value and the nearest known name or the allowed range.
        """
        try:
            return cls.model_validate(_in_seconds(given, where))
        except RecursionError:
            raise UsageError(f"{where}: an alias in it holds itself: write the fields out") from None
        except ValidationError as error:
            first = error.errors()[0]
            path = ".".join(str(part) for part in first["loc"])
            if first["type"] == "extra_forbidden":
                fields = Budgets.model_fields if path.startswith("budgets.") else cls.model_fields
                near = difflib.get_close_matches(path.rsplit(".", maxsplit=1)[-1], list(fields), n=1)
                hint = f"; did you mean {near[0]!r}?" if near else f"; known: {', '.join(sorted(fields))}"
                raise UsageError(f"{where}: unknown field {path!r}{hint}") from None
            raise UsageError(f"{where}: field {path!r} = {first['input']!r}: {first['msg']}") from None


def _in_seconds(given: dict[str, Any], where: str, above: str = "") -> dict[str, Any]:
    """Read durations as people write them (``90s``, ``1h30m``) in all fields that carry seconds."""
    return {
        name: _in_seconds(value, where, f"{above}{name}.")
        if isinstance(value, dict)
        else duration_s(str(value), f"{where}: field {above}{name!s}")
        if isinstance(value, str | bool) and str(name).endswith("_s")
        else value
        for name, value in given.items()
    }


DRILL_POLICY = RecoveryPolicy(
    suspect_margin_s=0.5,
    save_within_s=10.0,
    end_grace_s=5.0,
    end_grace_untrusted_s=0.5,
    end_wait_s=10.0,
    hang_after_s=2.5,
    load_within_s=30.0,
    phase_within_s=10.0,
    prepare_s=5.0,
    hold_s=10.0,
    settle_s=0.3,
    backoff_s=0.2,
    backoff_max_s=2.0,
    capacity_wait_s=20.0,
    yielded_wait_s=60.0,
    store_wait_s=30.0,
    poll_s=0.1,
    max_attempts=8,
    keep_last=20,
)
"""Short timers for runs of a minute; printed in every drill's report."""
