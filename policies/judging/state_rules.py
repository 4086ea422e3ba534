"""Exactness of the resumed state: counters, accumulation windows, the stream of samples, random state per rank."""

import functools
import hashlib
import re
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from rerail.policies.errors import UsageError
from rerail.policies.judging.endings import answer_phase_request
from rerail.policies.judging.reading import Answer, Case, listed, need, need_int, number, sub_cases
from rerail.policies.judging.topology import inexactness, is_reshardable, mismatch_reason, rank_range
from rerail.policies.manifest import Layout
from rerail.policies.resolving import topology_options

_WORDS: Final = ("", "", "both", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
_SAME_STREAM: Final = "equal to the uninterrupted stream for every save point"
_PROOF_SEED: Final = 1
_MID_EPOCH = re.compile(r"(mid|middle|inside).*?epoch\s*(\d+)", re.IGNORECASE)
_EPOCH_END = re.compile(r"epoch\s*(\d+)?\s*(end|boundary)|end of epoch\s*(\d+)?", re.IGNORECASE)
_STEP_POINT = re.compile(r"(?:step|batch)\s*(\d+)", re.IGNORECASE)


class Position(NamedTuple):
    """Where training stands: completed optimizer steps, micro-batches consumed for them, and the place in the epoch."""

    optimizer_step: int
    micro_batches: int
    epoch: int
    next_micro_batch: int


def position_of(optimizer_step: int, *, accumulation: int, batches_per_epoch: int | None = None) -> Position:
    """The data position of a number of completed optimizer steps.

    Args:
        optimizer_step: Completed optimizer steps; a window may cross the end of an epoch.
        accumulation: Micro-batches of one optimizer step.
        batches_per_epoch: Micro-batches of one epoch; None where data never ends.
    """
    consumed = optimizer_step * accumulation
    epoch, index = divmod(consumed, batches_per_epoch) if batches_per_epoch else (0, consumed)
    return Position(optimizer_step, consumed, epoch, index)


class WindowChoice(NamedTuple):
    """The two exact ways to save in the middle of an accumulation window; they are one at a boundary."""

    rewind: Position
    finish: Position
    at_boundary: bool


def window_choice(micro_batch: int, *, accumulation: int) -> WindowChoice:
    """What may be saved when a request comes after ``micro_batch`` micro-batches: a boundary, never between two."""
    done, inside = divmod(micro_batch, accumulation)
    return WindowChoice(
        rewind=position_of(done, accumulation=accumulation),
        finish=position_of(done + (inside > 0), accumulation=accumulation),
        at_boundary=inside == 0,
    )


@functools.lru_cache(maxsize=8)
def epoch_order(seed: int, epoch: int, size: int) -> tuple[int, ...]:
    """Order of samples as a function of seed and epoch alone, so that a position is all there is to save."""
    return tuple(sorted(range(size), key=lambda index: hashlib.sha256(f"{seed}.{epoch}.{index}".encode()).digest()))


def batches_from(seed: int, position: int, *, size: int, batch: int, shuffle: bool) -> Iterator[tuple[int, ...]]:
    """Batches from a position (batches consumed since the beginning) on, for ever.

    What workers have drawn ahead is no part of the position: only consumed batches count.
    """
    per_epoch = -(-size // batch)
    while True:
        epoch, index = divmod(position, per_epoch)
        order = epoch_order(seed, epoch, size) if shuffle else range(size)
        yield tuple(order[index * batch : (index + 1) * batch])
        position += 1


def streams_differ(saves: Sequence[int], *, size: int, batch: int, shuffle: bool, workers: int) -> list[int]:
    """Positions of saves after which the resumed stream is not the uninterrupted one; empty is the promise kept.

    Args:
        saves: Batches consumed at each save.
        size: Samples of the data set.
        batch: Samples of a batch; the last batch of an epoch may be smaller.
        shuffle: Whether the order changes with the epoch.
        workers: Batches drawn ahead and lost at the interruption.
    """
    length = max(saves, default=0) + 2 * -(-size // batch)

    def take(position: int, count: int) -> list[tuple[int, ...]]:
        stream = batches_from(_PROOF_SEED, position, size=size, batch=batch, shuffle=shuffle)
        return [next(stream) for _ in range(count)]

    whole = take(0, length)
    return [save for save in saves if take(0, save + workers)[:save] + take(save, length - save) != whole]


def _save_position(point: object, per_epoch: int) -> int:
    """Batches consumed at a save point, from a number or from words such as ``mid epoch 1``."""
    if isinstance(point, int):
        return point
    text = str(point)
    mid, end, step = _MID_EPOCH.search(text), _EPOCH_END.search(text), _STEP_POINT.search(text)
    if mid:
        return int(mid[2]) * per_epoch + per_epoch // 2
    if end:
        return (int(end[1] or end[3] or 0) + 1) * per_epoch
    if step:
        return int(step[1])
    raise UsageError(
        f"save point {text!r} is not understood; use 'mid epoch N', 'exact epoch end' or a number of batches"
    )


def answer_train_trace(case: Case) -> Answer:
    """Answer a ``train_trace`` by what it tells: counters, a window, a batch index, save points or a phase."""
    if case.get("phase_at_request") is not None:
        return answer_phase_request(case)
    if case.get("save_points") is not None:
        return _answer_stream(case)
    if case.get("sigterm_at_micro_batch") is not None:
        return _answer_window(case)
    if case.get("save_after_global_step") is not None:
        return _answer_next(case)
    position = position_of(
        need_int(case, "optimizer_steps"),
        accumulation=int(number(case, "gradient_accumulation", 1)),
        batches_per_epoch=case.get("batches_per_epoch"),
    )
    return {
        "optimizer_step": position.optimizer_step,
        "micro_batches_consumed": position.micro_batches,
        "next_micro_batch_index": position.next_micro_batch,
        "epoch": position.epoch,
    }


def _answer_window(case: Case) -> Answer:
    at = need_int(case, "sigterm_at_micro_batch")
    choice = window_choice(at, accumulation=need_int(case, "gradient_accumulation"))
    result: Answer = {
        "saved_optimizer_step": choice.rewind.optimizer_step,
        "saved_micro_batches": choice.rewind.micro_batches,
    }
    if choice.at_boundary:
        return result
    step, micro = choice.finish.optimizer_step, choice.finish.micro_batches
    return result | {
        "or": f"finish window: optimizer step {step}, micro {micro} if the deadline allows",
        "must_not": f"record micro {at} with gradients lost",
    }


def _answer_next(case: Case) -> Answer:
    following = need_int(case, "batch_idx_done") + 1
    per_epoch = case.get("batches_per_epoch")
    return {
        "first_step_after_resume": need_int(case, "save_after_global_step") + 1,
        "first_batch_idx_after_resume": following % per_epoch if per_epoch else following,
        "duplicated_samples": 0,
        "missing_samples": 0,
    }


def _answer_stream(case: Case) -> Answer:
    size, batch = need_int(case, "dataset"), need_int(case, "batch")
    per_epoch = -(-size // batch)
    saves = {_save_position(point, per_epoch): point for point in need(case, "save_points")}
    workers = case.get("workers") or 0
    broken: set[int] = set()
    for ahead in workers if isinstance(workers, list) else [workers]:
        broken |= set(
            streams_differ(
                list(saves), size=size, batch=batch, shuffle=bool(case.get("shuffle", True)), workers=int(ahead)
            )
        )
    where = listed(saves[save] for save in sorted(broken))
    return {"concatenated_sample_stream": f"differs after {where}" if broken else _SAME_STREAM}


def next_draw(seed: int, rank: int, draws: int) -> str:
    """The next value of a rank's random stream, as a function of what its record holds."""
    return hashlib.sha256(f"{seed}.{rank}.{draws}".encode()).hexdigest()


def answer_distributed(case: Case) -> Answer:
    """Answer a ``distributed``: random state of each rank, in the same world or in another."""
    if case.get("saved_world_size") is not None:
        return _answer_elastic(case)
    world = need_int(case, "world_size")
    draws = {int(rank): int(count) for rank, count in need(case, "rng_draws_before_save").items()}
    lacking = [rank for rank in range(world) if rank not in draws]
    files = "one RNG record per global rank; commit waits for all"
    if lacking:
        return {"decision": "not committed", "reason": f"no RNG record of rank {listed(lacking)}", "files": files}
    distinct = len({next_draw(_PROOF_SEED, rank, draws[rank]) for rank in range(world)}) == world
    many = _WORDS[world] if world < len(_WORDS) else str(world)
    every = many if many == "both" else f"all {many}"
    tail = f", {every} different" if distinct and world > 1 else ""
    return {"next_draw_after_resume": f"equal to the uninterrupted run on each rank{tail}", "files": files}


def _answer_elastic(case: Case) -> Answer:
    saved, new = need_int(case, "saved_world_size"), need_int(case, "new_world_size")
    reshardable = is_reshardable(str(case.get("format", "")), said=case.get("reshardable"))
    if saved != new and not reshardable:
        return {
            "decision": "blocked",
            "reason": mismatch_reason(Layout(world_size=saved), Layout(world_size=new)),
            "options": list(topology_options(Layout(world_size=saved))),
        }
    kept = min(saved, new)
    reasons = inexactness(saved, new)
    result: Answer = {"decision": "resume", _ranks_key(0, kept): "restored"}
    if new > saved:
        result[_ranks_key(saved, new)] = "seeded from (run seed, step, rank)"
    return result | {"resume_report": {"exact": not reasons, "reasons": reasons}}


def _ranks_key(first: int, end: int) -> str:
    return rank_range(first, end).replace(" ", "_").replace("-", "_")


def answer_async_save(case: Case) -> Answer:
    """Answer an ``async_save``: step and counters are those of the snapshot, whatever the live counter says later."""
    results: list[Answer] = []
    for one in sub_cases(case) or [case]:
        step = need_int(one, "scheduled_step")
        failed = one.get("completed") is False or one.get("error") is not None
        committed = one.get("last_committed_step") if failed else step
        results.append({"committed_step": None if failed else step, "metrics_rpo_step": committed})
    return results[0] if case.get("cases") is None else {"results": results}
