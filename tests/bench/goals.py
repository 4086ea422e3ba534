"""All measures that results.json may hold: what each one is, what it is held against, and its goal."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Goal:
    """One measure.

    Attributes:
        what: Ours, in words.
        against: The yardstick, in words; empty where the goal is absolute.
        goal: What the median has to keep; None where no goal was set yet.
        better: Which side of it is good.
    """

    what: str
    against: str
    goal: float | None
    better: Literal["lower", "higher"] = "lower"

    def met(self, median: float) -> bool | None:
        """Whether a median keeps the goal; None without one."""
        if self.goal is None:
            return None
        return median <= self.goal if self.better == "lower" else median >= self.goal


_RAW = "write + fsync of the same bytes"
_SAVE = "Save of {} to an acknowledged commit, volume"
_THROUGH_ARGO = "Recovery through the whole workflow, gang of 4, until {}"
_RETRIED = "Argo's retryStrategy over a vcjob"
_RESOLVE = "Requests to resolve among {} checkpoints, S3"

GOALS: dict[str, Goal] = {
    "commit_pv_64m": Goal(_SAVE.format("64 MiB"), _RAW, 1.5),
    "commit_pv_256m": Goal(_SAVE.format("256 MiB"), _RAW, 1.10),
    "commit_pv_1g": Goal(_SAVE.format("1 GiB"), _RAW, 1.10),
    "async_stall": Goal("Training stands still for a background save", "memcpy of the state into touched memory", 1.2),
    "s3_upload_256m": Goal(
        "Upload of 256 MiB to S3, throughput", "boto3 upload_file, same parts and checksums", 1.0, "higher"
    ),
    "s3_upload_1g": Goal(
        "Upload of 1 GiB to S3, throughput", "boto3 upload_file, same parts and checksums", 1.0, "higher"
    ),
    "verified_load": Goal(
        "Load from a volume, cold, every digest compared", "the same files one by one, without digests", 1.15
    ),
    "resolve_requests_10": Goal(_RESOLVE.format("10"), "", 5),
    "resolve_requests_1k": Goal(_RESOLVE.format("1,000"), "", 5),
    "resolve_requests_10k": Goal(_RESOLVE.format("10,000"), "", 5),
    "resolve_requests_100k": Goal(_RESOLVE.format("100,000"), "", 5),
    "resolve_time_10k": Goal("Resolve among 10,000 checkpoints, S3", "one LIST of 1,000 keys", 2.5),
    "resolve_time_100k": Goal("Resolve among 100,000 checkpoints, S3", "one LIST of 1,000 keys", 2.5),
    "lines_per_s": Goal("Kernel lines diagnosed per second, one core", "", 10_000, "higher"),
    "sigterm_to_commit": Goal("SIGTERM in a random phase to the acknowledged commit", "one step + one save", 1.2),
    "eviction_lateness": Goal("Eviction later than the commit or the deadline that it waited for, p95 (s)", "", 0.5),
    "extender_p99": Goal("Extender's answer about 64 pods, p99 (s)", "", 0.05),
    "import_client": Goal("Import of the training client with its S3 store", "import of pydantic and boto3", 1.2),
    "recovery_n4": Goal("Recovery of a gang of 4, moved to other nodes", "Volcano's RestartJob", 0.7),
    "recovery_n64": Goal("Recovery of a gang of 64 on fake nodes, moved", "Volcano's RestartJob", 0.7),
    "inplace_n4": Goal("Recovery of a gang of 4 in its pods", "Volcano's RestartJob", 0.35),
    "api_calls_n4": Goal("API calls per recovery, gang of 4, ours and Volcano's", "", 42),
    "api_calls_n64": Goal("API calls per recovery, gang of 64, ours and Volcano's", "", 222),
    "workflow_recovery_n4": Goal(_THROUGH_ARGO.format("all pods run"), _RETRIED, 0.3),
    "workflow_step_n4": Goal(_THROUGH_ARGO.format("a new step"), _RETRIED, 0.3),
    "workflow_recovery_restartjob_n4": Goal(_THROUGH_ARGO.format("all pods run"), "Volcano's RestartJob", 0.7),
    "workflow_step_restartjob_n4": Goal(_THROUGH_ARGO.format("a new step"), "Volcano's RestartJob", 0.7),
    "workflow_pods_before_gang": Goal("Argo's pods in sequence before the new gang is created", "", 0),
    "workflow_bytes_20": Goal("The Workflow after 20 attempts", "", 300_000),
}
"""In the table's order. Those of 1 GiB and 100,000 checkpoints are taken by `make bench-full` only."""

OPTIONAL = frozenset({"commit_pv_1g", "s3_upload_1g", "resolve_requests_100k", "resolve_time_100k"})
"""Not shown before somebody has taken them."""
