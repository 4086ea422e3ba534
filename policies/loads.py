"""Three kinds of load, never one policy: what happens first when the ground under a workload fails. Pure."""

from typing import Literal

from rerail.policies.documents import Value
from rerail.policies.faults import Diagnosis

Load = Literal["training", "inference", "short-job"]
Move = Literal["restart", "evict-one", "evict-gang", "none"]


class LoadPlan(Value):
    """What a fault means for one kind of load.

    Attributes:
        mark: Fence the node or device before anything else, so that nothing new lands there.
        save_first: Ask for a checkpoint and wait for it, or the deadline, before anything is ended.
        move: ``restart``: the same place; ``evict-one``: this replica now; ``evict-gang``: all members as one.
        go_on_from: Where the work goes on.
        why: One sentence for people.
    """

    mark: bool
    save_first: bool
    move: Move
    go_on_from: Literal["checkpoint", "beginning", "next-request"]
    why: str


def plan_for(load: Load, found: Diagnosis) -> LoadPlan:
    """Decide for one kind of load.

    Inference holds no state worth a wait: traffic goes elsewhere at once. Training leaves together and resumes
    together, after a save if the device can be trusted with one. A short job costs less to run again than to save.
    """
    mark = found.quarantine != "none"
    stays = found.scope == "process" or found.action == "none"
    if load == "inference":
        move: Move = "none" if found.action == "none" else "restart" if stays else "evict-one"
        why = "a new replica elsewhere serves at once; nothing is worth waiting for"
        return LoadPlan(mark=mark, save_first=False, move=move, go_on_from="next-request", why=why)
    if load == "short-job":
        move = "none" if found.action == "none" else "restart" if stays else "evict-one"
        why = "running it again costs less than a checkpoint"
        return LoadPlan(mark=mark, save_first=False, move=move, go_on_from="beginning", why=why)
    if found.action == "none":
        why = "nothing is wrong with what training stands on"
        return LoadPlan(mark=mark, save_first=False, move="none", go_on_from="checkpoint", why=why)
    if stays:
        why = "the process alone failed: the same pods resume from the newest commit"
        return LoadPlan(mark=mark, save_first=False, move="restart", go_on_from="checkpoint", why=why)
    save = not found.suspects
    why = (
        "all ranks save at one step, leave together and resume together elsewhere"
        if save
        else "the device is not trusted with a save: all ranks leave together and resume from a commit before the fault"
    )
    return LoadPlan(mark=mark, save_first=save, move="evict-gang", go_on_from="checkpoint", why=why)
