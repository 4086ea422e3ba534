"""Trains a character language model on any number of ranks, and survives the loss of each: a user's script.

    python -m rerail.examples.local_gang.train --steps 160          # alone, without Rerail
    rerail run --nproc 4 -- python -m rerail.examples.local_gang.train --steps 160

Everything that the next step depends on is handed to the ``Checkpointer``: nothing else makes this script resumable.
"""

import argparse
import random
import time
from collections.abc import Sequence

import numpy as np

from rerail.examples.local_gang import inject
from rerail.examples.local_gang.allreduce import Group
from rerail.examples.local_gang.data import Sampler, Text
from rerail.examples.local_gang.model import Model
from rerail.examples.local_gang.optim import Adam, ClipByLoss, HalfWire, LossScaler, WarmupThenDecay
from rerail.examples.local_gang.trace import Trace
from rerail.plugins.trainer import Checkpointer, Every, RandomState

PRINT_EVERY_STEPS = 20


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(description="Train a character language model on the text of Python's own help.")
    parser.add_argument("--steps", type=int, default=160, help="optimizer steps of the whole run")
    parser.add_argument("--save-every", type=int, default=20, help="steps between checkpoints")
    parser.add_argument("--seed", type=int, default=1, help="of parameters, order of samples and dropout")
    parser.add_argument("--batch", type=int, default=140, help="samples in one step, of all ranks together")
    parser.add_argument("--samples", type=int, default=0, help="use only the first N samples of the text (0: all)")
    parser.add_argument("--step-delay-s", type=float, default=0.0, help="sleep this long in each step")
    parser.add_argument("--async", dest="in_background", action="store_true", help="save in the background")
    return parser.parse_args(argv)


def train(options: argparse.Namespace, group: Group, trace: Trace) -> None:
    """Make all steps that are still to make."""
    text = Text.of_python()
    samples = min(options.samples or text.samples, text.samples)
    model = Model(len(text.alphabet), seed=options.seed)
    optimizer = Adam(model.flat)
    scheduler = WarmupThenDecay(peak=3e-3, warmup=20, horizon=options.steps)
    scaler = LossScaler()
    clip = ClipByLoss()
    wire = HalfWire(model.flat.size)
    generator = np.random.default_rng([options.seed, group.rank])
    random.seed(f"{options.seed}.{group.rank}")  # saved with the rest, so it has to begin the same too
    sampler = Sampler(samples, options.batch, seed=options.seed, rank=group.rank, world_size=group.world_size)

    checkpointer = Checkpointer.from_env(
        group=group,
        shared={
            "model": model,
            "optimizer": optimizer,
            "scheduler": scheduler,
            "scaler": scaler,
            "epoch": (lambda: sampler.epoch, sampler.enter_epoch),
            "user": clip,
        },
        per_rank={"rng": RandomState(generator), "data": sampler, "distributed": wire},
        every=Every(steps=options.save_every),
        total_steps=options.steps,
        asynchronous=options.in_background,
        seed=options.seed,
    )
    step = checkpointer.restore()
    inject.after_restore(group.rank, generator)
    while step < options.steps:
        inject.before_step(step + 1, group.rank)
        ids, total = sampler.take()
        loss, gradient = model.loss_and_gradient(text.windows(ids), generator, total=total)
        scale, rate = scaler.scale, scheduler.rate
        reduced = group.all_reduce(wire.pack(gradient, scale), loss, flag=checkpointer.wish())
        finite = bool(np.isfinite(reduced.total).all())
        if finite:
            wire.settle()
            optimizer.update(clip.clip(reduced.total * np.float32(1 / scale), reduced.number), rate)
            scheduler.advance()
        scaler.update(finite=finite)
        time.sleep(options.step_delay_s)
        step += 1
        trace.step(
            step,
            loss=reduced.number,
            samples=ids,
            epoch=sampler.epoch,
            rate=rate,
            scale=scaler.scale,
            skipped=not finite,
            parameters=model.flat,
        )
        if group.rank == 0 and (step % PRINT_EVERY_STEPS == 0 or step == options.steps):
            print(f"step {step}/{options.steps}  epoch {sampler.epoch}  loss {reduced.number:.4f}", flush=True)  # noqa: T201
        checkpointer.step_done(
            step,
            agreed=reduced.flag,
            epoch=sampler.epoch,
            loss=reduced.number,
            counters={"samples": sampler.epoch * sampler.samples + sampler.offset},
        )
    checkpointer.finish(step)


def main(argv: Sequence[str] | None = None) -> None:
    """Meet the other ranks and train."""
    options = parse(argv)
    with Group.from_env() as group, Trace(group.rank) as trace:
        train(options, group, trace)


if __name__ == "__main__":
    main()
