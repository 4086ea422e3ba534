"""The sample stream goes on where it was, for every place where it can be cut (case C2-06)."""

import json
from itertools import chain

import numpy as np
import pytest

from rerail.examples.local_gang.data import CONTEXT, WINDOW, Sampler, Text

SAMPLES, BATCH = 41, 4
BATCHES_PER_EPOCH = 11


def sampler(rank: int = 0, world_size: int = 1, seed: int = 5) -> Sampler:
    return Sampler(SAMPLES, BATCH, seed=seed, rank=rank, world_size=world_size)


def stream(source: Sampler, batches: int) -> list[list[int]]:
    return [source.take()[0].tolist() for _ in range(batches)]


@pytest.mark.parametrize("read_ahead", [0, 2])
@pytest.mark.parametrize("cut", range(3 * BATCHES_PER_EPOCH + 1))
def test_stream_is_the_same_for_every_cut(cut: int, read_ahead: int) -> None:
    whole = stream(sampler(), 3 * BATCHES_PER_EPOCH + 5)
    first = sampler()
    begun = stream(first, cut)
    first.upcoming(
        read_ahead
    )  # a loader with workers has drawn ahead, across the epoch's end too, when the state is taken
    saved, epoch = json.loads(json.dumps(first.state_dict())), first.epoch
    second = sampler()
    second.load_state_dict(saved)
    second.epoch = epoch
    assert begun + stream(second, len(whole) - cut) == whole


@pytest.mark.parametrize("cut", [3, BATCHES_PER_EPOCH, BATCHES_PER_EPOCH + 1, 2 * BATCHES_PER_EPOCH])
def test_many_resumes_are_like_none(cut: int) -> None:
    whole, found, saved, epoch = stream(sampler(), 5 * cut), [], sampler().state_dict(), 0
    for _ in range(5):
        again = sampler()
        again.load_state_dict(saved)
        again.epoch = epoch
        found += stream(again, cut)
        saved, epoch = again.state_dict(), again.epoch
    assert found == whole


def test_each_epoch_has_each_sample_once_in_an_order_of_its_own() -> None:
    source = sampler()
    epochs = [list(chain.from_iterable(stream(source, BATCHES_PER_EPOCH))) for _ in range(3)]
    assert [sorted(epoch) for epoch in epochs] == [list(range(SAMPLES))] * 3
    assert epochs[0] != epochs[1] != epochs[2]
    assert (source.epoch, source.offset) == (3, 0)


def test_exact_end_of_an_epoch_is_the_start_of_the_next() -> None:
    source = sampler()
    stream(source, BATCHES_PER_EPOCH)
    assert (source.epoch, source.offset) == (1, 0)


def test_ranks_share_a_batch_without_overlap() -> None:
    alone = sampler()
    ranks = [sampler(rank, 4) for rank in range(4)]
    for _ in range(2 * BATCHES_PER_EPOCH):
        whole, total = alone.take()
        shares = [rank.take() for rank in ranks]
        assert sorted(np.concatenate([share for share, _ in shares]).tolist()) == sorted(whole.tolist())
        assert {count for _, count in shares} == {total}


def test_digest_of_the_stream_tells_a_lost_batch() -> None:
    one, other = sampler(), sampler()
    stream(one, 5)
    stream(other, 4)
    other.offset += BATCH
    assert one.state_dict() != other.state_dict()


def test_position_of_another_stream_is_refused() -> None:
    with pytest.raises(ValueError, match=r"\[41, 4, 6\], this is \[41, 4, 5\]"):
        sampler(seed=5).load_state_dict(sampler(seed=6).state_dict())


def test_text_is_cut_into_windows_that_predict_each_character_once() -> None:
    text = Text.of("the quick brown fox jumps over the lazy dog. " * 20)
    windows = text.windows(np.arange(text.samples))
    assert windows.shape == (text.samples, CONTEXT + WINDOW)
    predicted = windows[:, CONTEXT:].reshape(-1)
    assert predicted.tolist() == text.codes[CONTEXT : CONTEXT + len(predicted)].tolist()


def test_text_of_python_is_english_of_a_useful_size() -> None:
    text = Text.of_python()
    assert text.samples > 5000
    assert len(text.alphabet) < 200
    assert "The following" in "".join(text.alphabet[code] for code in text.codes.tolist())
