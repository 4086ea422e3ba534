"""Resuming on another layout: which formats another number of ranks can load, and from which store."""

import math
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from rerail.policies.errors import UsageError
from rerail.policies.judging.reading import Answer, Case, listed, need, need_int, sub_cases
from rerail.policies.manifest import Layout
from rerail.policies.resolving import topology_mismatch, topology_options

_RESHARDABLE: Final = (
    "reshardable",
    "torch-dcp",
    "dcp",
    "universal",
    "torch-dist",
    "orbax",
    "tensorstore",
    "replicated",
)
_FIXED: Final = ("not-reshardable", "non-reshardable")
_READ_CACHE: Final = "used only as verified read cache for identical checksums"


def layout_of(document: Mapping[str, Any], *, prefix: str = "", otherwise: Layout | None = None) -> Layout:
    """Read a layout from ``world_size``, ``tp``, ``pp``, ``ep`` and, where given, ``dp``.

    Args:
        document: The document.
        prefix: In front of each key, for example ``new_``.
        otherwise: Where the dimensions come from that the document does not say.

    Raises:
        UsageError: The world size is missing or cannot be divided by tp x pp.
    """
    world = need_int(document, f"{prefix}world_size")
    tp, pp, ep = (
        int(document.get(f"{prefix}{name}") or (getattr(otherwise, name) if otherwise else 1))
        for name in ("tp", "pp", "ep")
    )
    if world < 1 or world % (tp * pp):
        raise UsageError(
            f"{prefix}world_size {world} cannot be divided by tp={tp} x pp={pp}; give a multiple of {tp * pp}"
        )
    dp = int(document.get(f"{prefix}dp") or world // (tp * pp))
    checkpoint_format = str(document.get("format") or "unknown")
    reshardable = is_reshardable(checkpoint_format, said=document.get("reshardable"))
    return Layout(world_size=world, dp=dp, tp=tp, pp=pp, ep=ep, format=checkpoint_format, reshardable=reshardable)


def is_reshardable(checkpoint_format: str, *, said: bool | None = None) -> bool:
    """Whether another layout can load a format. What the manifest says wins; an unknown format is not reshardable."""
    if said is not None:
        return said
    lowered = checkpoint_format.lower().replace("_", "-")
    return lowered not in _FIXED and lowered.startswith(_RESHARDABLE)


def inexactness(saved_world: int, new_world: int) -> list[str]:
    """Why a resume on another number of ranks is not bit for bit the old run; empty where the number is the same."""
    if saved_world == new_world:
        return []
    common = math.gcd(saved_world, new_world)
    reasons = [f"world size {saved_world} -> {new_world}"]
    if new_world > saved_world:
        reasons.append(f"RNG of {rank_range(saved_world, new_world)} derived")
    else:
        reasons.append(f"RNG of {rank_range(new_world, saved_world)} dropped")
    reasons.append(f"global batch changes unless accumulation {new_world // common}x -> {saved_world // common}x")
    return reasons


def rank_range(first: int, end: int) -> str:
    """``ranks 8-15`` for 8 up to, not including, 16; ``rank 8`` for one."""
    return f"rank {first}" if end - first == 1 else f"ranks {first}-{end - 1}"


def mismatch_reason(saved: Layout, new: Layout) -> str | None:
    """Why a checkpoint does not fit a gang as it is, whether or not it could be resharded; None if it fits."""
    return topology_mismatch(saved.model_copy(update={"reshardable": False}), new)


def answer_resume_request(case: Case) -> Answer:
    """Answer a ``resume_request``: explicit wishes, initial weights, or another topology."""
    parts = sub_cases(case)
    if parts is not None:
        return {"results": [_answer_wish(one) for one in parts]}
    if "manifest" not in case:
        return {"result": _answer_wish(case)}
    manifest = need(case, "manifest")
    saved = layout_of(manifest)
    try:
        new = layout_of(case, prefix="new_", otherwise=saved)
    except UsageError as error:
        return {"decision": "blocked", "reason": str(error), "options": list(topology_options(saved))}
    step = manifest.get("step")
    mismatch = mismatch_reason(saved, new)
    if mismatch is None:
        return {"decision": "resume", "step": step, "reshard": False, "resume_report": {"exact": True, "reasons": []}}
    if saved.reshardable:
        reasons = inexactness(saved.world_size, new.world_size) or [mismatch.partition(", format")[0]]
        return {
            "decision": "resume",
            "step": step,
            "reshard": True,
            "resume_report": {"exact": False, "reasons": reasons},
        }
    older = case.get("older") or []
    # An older one that fits is a person's choice: it gives up committed steps, which no rule of ours does by itself.
    fitting = [
        f"explicit resume from step {one['step']} (written by {one['world_size']} ranks)"
        for one in older
        if one.get("world_size") == new.world_size and one.get("valid", True)
    ]
    return {
        "decision": "blocked",
        "reason": mismatch,
        "options": [*topology_options(saved), *fitting],
        "must_not": [*(f"fall back to step {one['step']}" for one in older), "silently drop optimizer state"],
    }


class Wish(NamedTuple):
    """What a run begins from: a step, initial weights, nothing, or an error that says why not."""

    step: int | None
    initial_weights: bool = False
    error: str | None = None


def choose_beginning(explicit_step: int | None, available: Iterable[int], *, initial_weights: bool) -> Wish:
    """Decide what a run begins from.

    An explicit wish fails loudly. Whether a folder exists says nothing: only valid checkpoints count, and initial
    weights are loaded where there is none.

    Args:
        explicit_step: The step that was asked for, or None for the newest.
        available: Steps of valid checkpoints.
        initial_weights: Whether weights to begin from were given.
    """
    have = sorted(set(available))
    if explicit_step is not None and explicit_step not in have:
        return Wish(None, error=f"step {explicit_step} not found (have {listed(have, last=', ') or 'none'})")
    if explicit_step is not None:
        return Wish(explicit_step)
    if have:
        return Wish(have[-1])
    return Wish(0, initial_weights=initial_weights)


def _answer_wish(case: Case) -> str:
    available = [
        one if isinstance(one, int) else int(one["step"])
        for one in case.get("available") or []
        if isinstance(one, int) or one.get("valid", True)
    ]
    wish = choose_beginning(case.get("explicit_step"), available, initial_weights=bool(case.get("initial_weights")))
    if wish.error:
        return f"error: {wish.error}"
    if wish.initial_weights:
        return "load initial weights, step 0"
    return f"resume from step {wish.step}" if available else "fresh start, step 0"


def missing_ranks(copy: Mapping[str, Any], world_size: int) -> list[int]:
    """Ranks whose part of a copy cannot be reached; all of them where the copy itself cannot."""
    reachable = copy.get("reachable") is not False and copy.get("valid") is not False
    present = set(need(copy, "ranks_present")) if reachable else set()
    return [rank for rank in range(world_size) if rank not in present]


def answer_two_stores(case: Case) -> Answer:
    """Answer a ``two_stores``: the newest copy of which all parts can be reached; the shared store wins a tie.

    Raises:
        UsageError: No copy says how many ranks wrote it.
    """
    copies = {name: case[name] for name in ("shared", "local") if case.get(name)}
    worlds = [copy["world_size"] for copy in copies.values() if copy.get("world_size")]
    if not worlds:
        raise UsageError("neither 'shared' nor 'local' has a 'world_size': without it no copy can be called whole")
    whole: list[tuple[int, bool, str]] = []
    rejected: dict[str, str] = {}
    for name, copy in copies.items():
        step = need_int(copy, "step")
        missing = missing_ranks(copy, copy.get("world_size") or worlds[0])
        if missing:
            rejected[name] = f"step {step}: {'rank' if len(missing) == 1 else 'ranks'} {listed(missing)} missing"
        else:
            whole.append((step, name == "shared", name))
    if not whole:
        return {"decision": "blocked", "resolve_step": None, "source": None, "rejected": rejected}
    newest, _, source = max(whole)
    return {
        "decision": "resume",
        "resolve_step": newest,
        "source": source,
        "local_copy": _READ_CACHE if source == "shared" else "every part can be reached",
        "rejected": rejected,
    }
