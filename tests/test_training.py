"""Training resumes to the same numbers, survives failures, and says what broke."""

import json
import logging
import math
import os
import signal
from dataclasses import replace

import pytest
import torch
from torch import nn

from tests.verbs import declare, random_data
from weft import BFVI, Cubature, FileError, Modality, Sequences, TrainingConfig, TrainingError
from weft.corruption import delete_steps
from weft.monitoring import METRICS, interruptible, progress_bar
from weft.objective import ObjectiveConfig
from weft.training import CHECKPOINT, Trainer

FAST = ObjectiveConfig(particles=Cubature())
CONFIG = TrainingConfig(epochs=3, batch_size=2, anneal=0.5)
DATA = random_data(0, lengths=(5, 3, 6, 4, 5), missing=0.3)
VALID = random_data(1, lengths=(4, 4), missing=0.3)


def make(directory=None, config=CONFIG, seed=0, modalities=None, data=DATA, **options):
    torch.manual_seed(seed)
    module = BFVI(modalities or declare(), latent=2, hidden=4)
    data = data.conform(module.model.fields)
    return Trainer(
        module, data, objective=FAST, config=config, seed=seed, directory=directory, **options
    )


def weights(trainer):
    return {name: tensor.clone() for name, tensor in trainer.module.state_dict().items()}


def assert_same_weights(x, y):
    assert x.keys() == y.keys()
    for name in x:
        assert torch.equal(x[name], y[name]), name


def test_the_same_seed_gives_the_same_weights():
    first, second, other = make(), make(), make(seed=1)
    assert first.run() == second.run()
    other.run()
    assert_same_weights(weights(first), weights(second))
    assert not torch.equal(first.module.model.prior_mean, other.module.model.prior_mean)


def test_the_mean_of_the_last_states_is_taken():
    """Those after the last two of three epochs; a run without averaging goes through the same."""
    states = []

    class Watched(Trainer):
        def _finish_epoch(self):
            record = super()._finish_epoch()
            states.append(weights(self))
            return record

    plain = make()
    Watched(plain.module, plain.whole, objective=FAST, config=CONFIG).run()
    averaged = make(config=replace(CONFIG, average=0.5))
    averaged.run()
    for name, tensor in weights(averaged).items():
        torch.testing.assert_close(tensor, (states[1][name] + states[2][name]) / 2)


def test_validation_decides_between_the_mean_and_the_best_state():
    best = make(validation=VALID)
    lowest = min(epoch.validation for epoch in best.run())
    averaged = make(validation=VALID, config=replace(CONFIG, average=0.7))
    averaged.run()
    mean = make(validation=VALID)
    mean.module.load_state_dict(averaged.mean)
    wanted = averaged.mean if mean._validate() < lowest else weights(best)
    assert_same_weights(weights(averaged), wanted)
    averaged.progress.best = -math.inf  # no mean is better than that
    averaged._settle()
    assert_same_weights(weights(averaged), weights(best))


@pytest.mark.parametrize("average", [0.0, 0.7])
@pytest.mark.parametrize("step", [1, 3, 4, 6, 8])
def test_an_interrupted_run_resumes_to_the_same_numbers(tmp_path, step, average):
    """Ctrl-C after any step saves; the resumed run equals the uninterrupted one to the bit."""
    config = replace(CONFIG, average=average)
    whole = make(validation=VALID, config=config)
    history = whole.run()

    calls = []

    def interrupt(share, loss):
        calls.append(share)
        if len(calls) == step:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        make(tmp_path, config, validation=VALID, watch=interrupt).run()
    assert len(calls) == step
    resumed = make(tmp_path, config, validation=VALID)
    assert resumed.run(resume=True) == history
    assert_same_weights(weights(resumed), weights(whole))
    lines = [json.loads(line) for line in (tmp_path / METRICS).read_text().splitlines()]
    assert [line["epoch"] for line in lines] == [1, 2, 3]


def test_a_second_interrupt_acts_at_once():
    with interruptible() as interrupted:
        os.kill(os.getpid(), signal.SIGINT)
        assert interrupted()
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_resuming_a_finished_run_changes_nothing(tmp_path):
    first = make(tmp_path, validation=VALID)
    history = first.run()
    again = make(tmp_path, validation=VALID)
    assert again.run(resume=True) == history
    assert_same_weights(weights(first), weights(again))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"config": TrainingConfig(epochs=4, batch_size=2, anneal=0.5)}, "epochs 3, .* has 4"),
        ({"seed": 5}, "seed 0"),
        ({"data": DATA[:3]}, "data Sequences"),
    ],
)
def test_a_checkpoint_of_another_run_is_refused(tmp_path, change, message):
    make(tmp_path).run()
    with pytest.raises(FileError, match=message):
        make(tmp_path, **change).run(resume=True)


def test_resuming_needs_a_directory_and_a_checkpoint(tmp_path):
    with pytest.raises(ValueError, match="from which directory"):
        make().run(resume=True)
    with pytest.raises(FileNotFoundError, match="no file"):
        make(tmp_path).run(resume=True)


def test_a_truncated_checkpoint_is_refused(tmp_path):
    make(tmp_path).run()
    file = tmp_path / CHECKPOINT
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(FileError, match="truncated"):
        make(tmp_path).run(resume=True)


class Faulty(nn.Module):
    """A decoder that gives NaN at chosen calls."""

    def __init__(self, when):
        super().__init__()
        self.net = nn.Linear(2, 2)
        self.when = when
        self.calls = 0

    def forward(self, z):
        self.calls += 1
        raw = self.net(z)
        return raw * math.nan if self.when(self.calls) else raw


def with_faulty_decoder(when):
    return [Modality("scalar"), Modality("bad", decoder=Faulty(when))]


PAIR = Sequences.from_arrays(
    {"scalar": DATA.arrays("scalar"), "bad": random_data(9, (5, 3, 6, 4, 5)).arrays("scalar")}
)


def test_a_passing_failure_is_survived_at_a_smaller_rate(caplog):
    """The probe at construction is call 1; every step decodes once."""
    trainer = make(modalities=with_faulty_decoder(lambda call: call == 4), data=PAIR)
    with caplog.at_level(logging.WARNING, "weft"):
        history = trainer.run()
    (record,) = caplog.records
    assert "the loss is not finite in nll/filter/bad" in record.getMessage()
    assert [epoch.failures for epoch in history] == [1, 0, 0]
    whole = make(modalities=with_faulty_decoder(lambda call: False), data=PAIR).run()
    shares = [mine.rate / theirs.rate for mine, theirs in zip(history, whole, strict=True)]
    assert shares == [0.5, 0.5, 1.0]
    assert all(math.isfinite(epoch.loss) for epoch in history)
    for tensor in weights(trainer).values():
        assert tensor.isfinite().all()


def test_repeated_failure_names_the_term_and_keeps_the_last_good_state():
    config = TrainingConfig(epochs=9, batch_size=2)
    trainer = make(modalities=with_faulty_decoder(lambda call: call > 5), data=PAIR, config=config)
    with pytest.raises(TrainingError, match=r"nll/filter/bad.*failure 11 without a good epoch"):
        trainer.run()
    for tensor in weights(trainer).values():
        assert tensor.isfinite().all()


def test_a_bad_gradient_is_traced_to_its_modality(caplog):
    trainer = make(modalities=with_faulty_decoder(lambda call: False), data=PAIR)
    decoder = trainer.module.model.decoders[1].net.weight
    calls: list[int] = []

    def poison(gradient):
        calls.append(1)
        return gradient * math.nan if len(calls) == 5 else gradient

    decoder.register_hook(poison)
    trainer.config = TrainingConfig(epochs=3, batch_size=2, most_failures=0)
    with pytest.raises(TrainingError, match=r"gradient is not finite in the decoder of .*'bad'"):
        trainer.run()


def test_a_gradient_whose_square_overflows_is_clipped_like_any_other():
    trainer = make(config=TrainingConfig(epochs=1, batch_size=2))
    bias = trainer.module.model.decoders[0].output.bias
    before = bias.detach().clone()
    bias.register_hook(lambda gradient: gradient * 1e30)
    (epoch,) = trainer.run()
    assert epoch.failures == 0
    assert bias.isfinite().all()
    assert not torch.equal(bias, before)


def test_a_loss_far_above_the_first_counts_as_failure(caplog):
    trainer = make(config=TrainingConfig(epochs=4, batch_size=2, learning_rate=0.01))

    def sabotage(share, loss):
        if trainer.progress.step == 4:
            with torch.no_grad():
                trainer.module.model.decoders[0].output.bias[0] = 1e4

    trainer.watch = sabotage
    with caplog.at_level(logging.WARNING, "weft"):
        history = trainer.run()
    assert "the loss rose to" in caplog.text
    assert history[-1].loss < history[0].loss + 5


@pytest.mark.parametrize("lasts", [False, True])
def test_one_strange_batch_is_learned_from_and_two_in_a_row_are_undone(caplog, lasts):
    """At the first step of an epoch, whose state is not kept as a good one then."""
    trainer = make(config=TrainingConfig(epochs=4, batch_size=2))
    first, bias = 2 * trainer.plan[0], trainer.module.model.decoders[0].output.bias

    def disturb(share, loss):
        with torch.no_grad():
            if trainer.progress.step == first:
                bias[0] += 1e4
            elif trainer.progress.step == first + 1 and not lasts:
                bias[0] -= 1e4

    trainer.watch = disturb
    with caplog.at_level(logging.INFO, "weft"):
        history = trainer.run()
    assert "by itself" in caplog.text
    assert ("Back to the last good state" in caplog.text) == lasts
    assert [epoch.failures for epoch in history] == [0, 0, int(lasts), 0]
    assert bias[0].abs() < 10


def test_a_slow_collapse_is_undone(caplog):
    """A loss that creeps up over epochs never fails a step, but the state before is restored."""
    config = TrainingConfig(epochs=8, batch_size=2, anneal=0, polish=0, burst=0)
    trainer = make(config=config)
    bias = trainer.module.model.decoders[0].output.bias

    def sabotage(share, loss):
        if 9 <= trainer.progress.step < 15:  # the fourth and fifth epoch of three steps
            with torch.no_grad():
                bias[0] += 0.6 * (trainer.progress.step - 8)

    trainer.watch = sabotage
    with caplog.at_level(logging.WARNING, "weft"):
        history = trainer.run()
    losses = [epoch.loss for epoch in history]
    assert "the epoch's median loss is" in caplog.text
    assert max(losses) > 4 * losses[2] > 0
    assert losses[-1] < losses[2] + 0.5
    assert bias[0] < 1


def test_the_best_state_is_restored():
    losses: list[float] = []
    states = []
    trainer = make(validation=VALID, config=TrainingConfig(epochs=6, batch_size=2, anneal=0.1))

    def watch(share, loss):
        if len(trainer.progress.history) > len(losses):
            losses.append(trainer.progress.history[-1]["validation"])
            states.append(weights(trainer))

    trainer.watch = watch
    trainer.run()
    best = min(range(6), key=lambda i: losses[i])
    assert_same_weights(weights(trainer), states[best])
    assert trainer._validate() == losses[best]


def test_training_stops_when_validation_does():
    config = TrainingConfig(
        epochs=50, batch_size=5, learning_rate=0.5, anneal=0.0, patience=2, warmup=0.0
    )
    trainer = make(validation=VALID, config=config)
    history = trainer.run()
    assert len(history) < 50
    best = min(range(len(history)), key=lambda i: history[i].validation)
    assert len(history) == best + 1 + 2


def test_validation_hides_steps_and_works_on_incomplete_data():
    trainer = make(validation=VALID)
    assert math.isfinite(trainer._validate())
    assert trainer._validate() == trainer._validate()
    sparse = make(validation=delete_steps(VALID, 0.9, torch.Generator().manual_seed(0)))
    assert math.isfinite(sparse._validate())


def test_long_sequences_are_cut_into_segments():
    config = TrainingConfig(epochs=4, batch_size=2, segment=2, segment_until=0.75, polish=0.0)
    assert make(config=TrainingConfig(epochs=4, batch_size=2, segment=2, polish=0.25)).plan == (
        make(config=config).plan
    )
    trainer = make(config=config)
    assert trainer.pieces.lengths.max() == 2
    assert trainer.pieces.rows == DATA.rows
    per_epoch = -(-len(trainer.pieces) // 2)
    assert trainer.plan == [per_epoch] * 3 + [3]
    assert [epoch.step for epoch in trainer.run()] == [per_epoch * i for i in (1, 2, 3)] + [
        per_epoch * 3 + 3
    ]


def test_polishing_scores_only_what_it_gives():
    trainer = make(config=TrainingConfig(epochs=2, polish=0.5))
    inputs, target = trainer._pose(DATA, torch.Generator().manual_seed(0))
    assert target is DATA
    assert inputs.observed_fraction("scalar") <= DATA.observed_fraction("scalar")
    trainer.progress.epoch = 1
    inputs, target = trainer._pose(DATA, torch.Generator().manual_seed(0))
    assert inputs is target
    assert target.observed_fraction("scalar") < DATA.observed_fraction("scalar")


def test_the_target_stays_complete_when_inputs_are_deleted():
    """With everything deleted from the input, the data are still scored."""
    trainer = make(config=TrainingConfig(epochs=1, batch_size=5, burst=1.0, polish=0.0))
    (epoch,) = trainer.run()
    assert all(value > 0 for name, value in epoch.terms.items() if name.startswith("nll/"))


def test_dropped_entries_are_scored_but_not_given():
    config = TrainingConfig(epochs=1, batch_size=5, burst=0.0, drop=0.5, polish=0.0)
    inputs, target = make(config=config)._pose(DATA, torch.Generator().manual_seed(0))
    assert target is DATA
    for name in DATA.names:
        share = inputs.observed_fraction(name) / DATA.observed_fraction(name)
        assert share == pytest.approx(0.5, abs=0.2)


def test_withheld_modalities_are_scored_but_not_given():
    trainer = make(
        config=TrainingConfig(epochs=1, batch_size=5, burst=0.0, withhold=1.0, polish=0.0)
    )
    inputs, target = trainer._pose(DATA, torch.Generator().manual_seed(0))
    assert target is DATA
    left = [
        sum(bool(inputs[[i]].observed_fraction(name)) for name in DATA.names)
        for i in range(len(DATA))
    ]
    assert left == [1] * len(DATA)


def test_schedules():
    config = TrainingConfig(
        epochs=10,
        learning_rate=1.0,
        warmup=0.1,
        final_rate=0.1,
        anneal=0.5,
        filter_until=0.8,
        polish=0.1,
    )
    rates = [config.rate(step, 100) for step in range(100)]
    assert rates[0] == pytest.approx(0.1, rel=0.01)
    assert max(rates) == pytest.approx(1.0, abs=0.03)
    assert rates[-1] == pytest.approx(0.1, abs=0.01)
    assert rates[10:] == sorted(rates[10:], reverse=True)
    assert [config.temperature(e).beta for e in (0, 2.5, 5, 9)] == [0.0, 0.5, 1.0, 1.0]
    assert [config.temperature(e).filter_scale for e in (0, 4, 8, 9)] == [1.0, 0.5, 0.0, 0.0]
    assert [TrainingConfig(epochs=10).temperature(e).filter_scale for e in (5.9, 6)] == [1.0, 0.0]
    assert TrainingConfig(anneal=0.0).temperature(0).beta == 1.0


def test_metrics_go_to_tensorboard_where_it_is_installed(tmp_path, monkeypatch):
    """A stand-in writer receives every number of every epoch."""
    import importlib.util
    import sys
    import types

    written: list[object] = []

    class Writer:
        def __init__(self, directory):
            assert directory == str(tmp_path)

        def add_scalar(self, name, value, step):
            written.append((name, step))

        def close(self):
            written.append("closed")

    board = types.ModuleType("torch.utils.tensorboard")
    monkeypatch.setattr(board, "SummaryWriter", Writer, raising=False)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", board)
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: object() if name == "tensorboard" else found(name)
    )
    make(tmp_path).run()
    assert ("loss", 3) in written
    assert ("terms/kl/smooth", 9) in written
    assert written[-1] == "closed"


def test_batches_are_augmented_before_all_else():
    name = DATA.names[0]
    plain, same = make(), make(augment=lambda data, generator: data)
    hidden = make(augment=lambda data, generator: data.hide(name))
    without = make(data=DATA.hide(name))
    for trainer in (plain, same, hidden, without):
        trainer.run()
    assert_same_weights(weights(plain), weights(same))
    assert_same_weights(weights(hidden), weights(without))


def test_every_step_is_augmented_by_a_generator_of_its_own():
    drawn = []

    def draw(data, generator):
        drawn.append(float(torch.rand((), generator=generator)))
        return data

    trainer = make(augment=draw)
    trainer.run()
    assert len(set(drawn)) == trainer.steps


def test_corruption_takes_from_what_is_given_and_leaves_what_is_scored():
    name = DATA.names[0]
    trainer = make(corrupt=lambda data, generator: data.hide(name))
    given, scored = trainer._pose(DATA, torch.Generator().manual_seed(0))
    assert scored is DATA
    assert not given.columns[name].observed.any()
    plain, same = make(), make(corrupt=lambda data, generator: data)
    plain.run()
    same.run()
    assert_same_weights(weights(plain), weights(same))


def test_polishing_and_validation_are_not_corrupted():
    seen = []

    def watch(data, generator):
        seen.append(float(torch.rand((), generator=generator)))
        return data

    config = TrainingConfig(epochs=4, batch_size=2, polish=0.5)
    trainer = make(corrupt=watch, config=config, validation=DATA)
    trainer.run()
    assert len(seen) == len(set(seen)) == sum(trainer.plan[:2])


def test_progress_is_lines_where_there_is_no_terminal(capsys):
    with progress_bar("fit", shown=True) as update:
        for step in range(1, 41):
            update(step / 40, f"step {step}")
    found = capsys.readouterr()
    assert not found.out
    lines = found.err.splitlines()
    assert lines[0] == "fit 10 %: step 4"
    assert lines[-1] == "fit 100 %: step 40"
    assert len(lines) == 10
    with progress_bar("fit", shown=False) as update:
        update(1.0, "done")
    assert not capsys.readouterr().err


@pytest.mark.parametrize(("count", "size"), [(1, 4), (12, 4), (60, 10), (600, 100), (10_000, 100)])
def test_batches_suit_the_number_of_sequences(count, size):
    assert TrainingConfig().batch(count) == size
    assert TrainingConfig(batch_size=7).batch(count) == 7
