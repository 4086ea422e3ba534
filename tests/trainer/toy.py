"""A small real training on the public client, as a script: dropout, Adam, a loss scaler, shuffled data, all ten parts.

Run as one rank of a gang by the tests, with TOY_* variables to steer it; loaded as a module where one process is
enough.
"""

import json
import os
import sys
import time
from pathlib import Path

import numpy as np

from rerail.plugins.checkpoint.posix import PosixStore
from rerail.plugins.trainer import (
    Checkpointer,
    Every,
    KeyValueAgreement,
    KeyValueClient,
    KeyValueGroup,
    KeyValueServer,
    RandomState,
    Solo,
)

SAMPLES, FEATURES, HIDDEN, BATCH = 41, 6, 16, 4
BATCHES_PER_EPOCH = SAMPLES // BATCH


class Data:
    """Samples in an order that is a function of (seed, epoch), plus a position."""

    def __init__(self, seed=11):
        generator = np.random.default_rng(seed)
        self.x = generator.normal(size=(SAMPLES, FEATURES))
        self.y = np.sin(self.x.sum(axis=1, keepdims=True))
        self.seed = seed
        self.epoch, self.position = 0, 0

    def take(self):
        order = np.random.default_rng([self.seed, self.epoch]).permutation(SAMPLES)
        ids = order[self.position * BATCH : (self.position + 1) * BATCH]
        self.position += 1
        if self.position == BATCHES_PER_EPOCH:
            self.epoch, self.position = self.epoch + 1, 0
        return ids

    def state_dict(self):
        return {"position": self.position, "order_epoch": self.epoch, "seed": self.seed}

    def load_state_dict(self, state):
        self.position, self.epoch, self.seed = state["position"], state["order_epoch"], state["seed"]


class Training:
    """The whole state of one rank, and one step of it."""

    def __init__(self, rank=0, world_size=1):
        generator = np.random.default_rng(3)
        self.rank, self.world_size = rank, world_size
        self.weights = {
            "w1": generator.normal(size=(FEATURES, HIDDEN)) * 0.4,
            "w2": generator.normal(size=(HIDDEN, 1)) * 0.4,
        }
        self.adam = {
            "m": {k: np.zeros_like(v) for k, v in self.weights.items()},
            "v": {k: np.zeros_like(v) for k, v in self.weights.items()},
            "t": 0,
        }
        self.schedule = {"rate": 0.0, "done": 0}
        self.scaler = {"scale": 2.0**10, "good": 0, "skipped": 0}
        self.counter = {"step": 0}
        self.epoch = {"epoch": 0}
        self.residual = {k: np.zeros_like(v) for k, v in self.weights.items()}  # error feedback of a lossy all-reduce
        self.noise = {"level": 1.0}
        self.generator = np.random.default_rng([5, rank])
        self.data = Data()

    def parts(self):
        shared = {
            "model": self.weights,
            "optimizer": self.adam,
            "scheduler": self.schedule,
            "scaler": self.scaler,
            "step": self.counter,
            "epoch": self.epoch,
            "user": self.noise,
        }
        per_rank = {"rng": RandomState(self.generator, python=False), "data": self.data, "distributed": self.residual}
        return shared, per_rank

    def forward(self):
        ids = self.data.take()
        x, y = self.data.x[ids], self.data.y[ids]
        # Ranks draw different amounts, so that a mix-up of their random state shows.
        self.generator.random(self.rank)
        mask = self.generator.random((len(ids), HIDDEN)) > 0.2
        hidden = np.tanh(x @ self.weights["w1"]) * mask
        error = (
            hidden @ self.weights["w2"]
            - y
            + self.noise["level"] * 0.01 * (1 + self.epoch["epoch"]) * self.generator.normal()
        )
        scale = self.scaler["scale"]
        back = (2 * error / len(ids)) * scale
        gradients = {"w2": hidden.T @ back}
        gradients["w1"] = x.T @ ((back @ self.weights["w2"].T) * mask * (1 - hidden**2))
        sent = {}
        for name, gradient in gradients.items():
            whole = gradient + self.residual[name]
            sent[name] = whole.astype(np.float32).astype(np.float64)
            self.residual[name][...] = whole - sent[name]
        return ids, float((error**2).mean()), sent

    def update(self, gradients):
        step = self.counter["step"] = self.counter["step"] + 1
        self.epoch["epoch"] = self.data.epoch
        self.noise["level"] *= 0.97
        if step % 7 == 2:  # an overflow: the scaler skips the step
            self.scaler["scale"] /= 2
            self.scaler["good"] = 0
            self.scaler["skipped"] += 1
            return
        self.scaler["good"] += 1
        if self.scaler["good"] == 3:
            self.scaler["scale"] *= 2
            self.scaler["good"] = 0
        self.schedule["done"] += 1
        self.schedule["rate"] = 0.02 * min(1.0, self.schedule["done"] / 8)
        self.adam["t"] += 1
        for name, weight in self.weights.items():
            gradient = gradients[name] / (2.0**10) / self.world_size
            m, v = self.adam["m"][name], self.adam["v"][name]
            m[...] = 0.9 * m + 0.1 * gradient
            v[...] = 0.99 * v + 0.01 * gradient**2
            weight[...] -= (
                self.schedule["rate"]
                * (m / (1 - 0.9 ** self.adam["t"]))
                / (np.sqrt(v / (1 - 0.99 ** self.adam["t"])) + 1e-8)
            )


def reduce(group, gradients, flag):
    """Sum in the order of ranks, and the maximum of the flags, in one exchange."""
    names = sorted(gradients)
    payload = np.array([flag], np.float64).tobytes() + b"".join(gradients[name].tobytes() for name in names)
    answers = group.all_gather(payload)
    total = {name: np.zeros_like(gradients[name]) for name in names}
    for answer in answers:
        at = 8
        for name in names:
            size = gradients[name].nbytes
            total[name] += np.frombuffer(answer[at : at + size]).reshape(gradients[name].shape)
            at += size
    return total, int(max(np.frombuffer(answer[:8])[0] for answer in answers))


def hold_uploads():
    """Uploads of the first save after a step wait for a file: a store that is slow exactly when a test wants it."""
    upload = PosixStore.upload

    def held(self, key, buffers, *, size):
        step = key.split("/")[1].split(".")[1]
        if int(step) > int(os.environ["TOY_HOLD_AFTER"]):
            held = Path(os.environ["TOY_HELD"])
            if not held.exists():
                held.with_suffix(".new").write_text(step)
                held.with_suffix(".new").rename(held)
            while not Path(os.environ["TOY_RELEASE"]).exists():
                time.sleep(0.01)
        return upload(self, key, buffers, size=size)

    PosixStore.upload = held


def serve(port):
    """The port was free when it was chosen; who took it since may give it back."""
    end = time.monotonic() + 30
    while True:
        try:
            return KeyValueServer(port=port)
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.05)


def main():
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    total = int(os.environ.get("TOY_TOTAL", "30"))
    if "TOY_HOLD_AFTER" in os.environ:
        hold_uploads()
    if world == 1:
        train(rank, world, total, Solo(), None)
        return
    port = int(os.environ["MASTER_PORT"])
    server = serve(port) if rank == 0 else None
    store = KeyValueClient("127.0.0.1", port, timeout_s=120)
    agreement = KeyValueAgreement(store, rank=rank) if os.environ.get("TOY_AGREE") == "kv" else None
    with KeyValueGroup(store, rank=rank, world_size=world, linger_s=45) as group:
        train(rank, world, total, group, agreement)
    if server:
        server.close()


def train(rank, world, total, group, agreement):
    training = Training(rank, world)
    shared, per_rank = training.parts()
    every = os.environ.get("TOY_EVERY")
    checkpointer = Checkpointer.from_env(
        group=group,
        agreement=agreement,
        shared=shared,
        per_rank=per_rank,
        every=Every(steps=int(every)) if every else None,
        total_steps=total,
        asynchronous=os.environ.get("TOY_ASYNC") == "1",
    )
    log = Path(os.environ["TOY_LOG"]).open("a", buffering=1)  # noqa: SIM115  (open as long as the process)
    step = checkpointer.restore()
    while step < total:
        if os.environ.get("TOY_RAISE") == f"{rank}.{step}":
            raise ValueError("the toy was told to break")
        ids, loss, sent = training.forward()
        total_gradients, agreed = reduce(group, sent, checkpointer.wish())
        training.update(total_gradients)
        step += 1
        log.write(json.dumps({"step": step, "loss": loss.hex(), "ids": [int(one) for one in ids]}) + "\n")
        checkpointer.step_done(step, agreed=None if agreement else agreed, loss=loss)
        if os.environ.get("TOY_EVALUATE") == str(step):
            with checkpointer.phase("evaluation"):
                log.write(json.dumps({"evaluating": step}) + "\n")
                while not Path(os.environ["TOY_RELEASE"]).exists():
                    time.sleep(0.01)
        time.sleep(float(os.environ.get("TOY_PACE_S", "0")))
    checkpointer.finish(step)
    log.write(json.dumps({"end": {name: value.tobytes().hex() for name, value in training.weights.items()}}) + "\n")


if __name__ == "__main__":
    sys.exit(main())
