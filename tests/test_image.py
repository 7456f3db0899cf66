"""Images: the supplement's networks, and statistics that only observed frames enter."""

import copy
import logging
import math
import os
import signal

import numpy as np
import pytest
import torch
from torch import nn

import weft
from weft import BFVI, MDMM, Cubature, DataError, Modality, Pixels, Sequences, TrainingConfig
from weft.networks import FilmFeatures, ImageDecoder, ImageFeatures
from weft.objective import Objective, ObjectiveConfig
from weft.training import Trainer

LATENT, SIDE = 3, 8
EXACT = ObjectiveConfig(particles=Cubature(), match_particles=Cubature())
CONFIG = TrainingConfig(epochs=2, batch_size=2, polish=0.5)


def video(channels=1, size=SIDE, **options):
    return Modality("video", (channels, size, size), likelihood=Pixels(), **options)


def declare(**options):
    return [video(**options), Modality("label", categories=["a", "b"])]


def make(**options):
    torch.manual_seed(0)
    return BFVI(declare(**options), LATENT, hidden=4).double()


def films(lengths=(4, 4, 3), seed=0):
    """Random films in which the second frame of each is missing."""
    rng = np.random.default_rng(seed)
    frames = [rng.uniform(size=(steps, 1, SIDE, SIDE)) for steps in lengths]
    for film in frames:
        film[1] = np.nan
    labels = [rng.choice(["a", "b"], steps).astype(object) for steps in lengths]
    return Sequences.from_arrays(
        {"video": frames, "label": labels}, categories={"label": ["a", "b"]}
    )


def statistics(module):
    """Everything normalisation layers remember, copied."""
    return {name: buffer.clone() for name, buffer in module.named_buffers()}


def count(module):
    return sum(parameter.numel() for parameter in module.parameters())


def test_the_weizmann_model_has_exactly_4542503_parameters():
    """Twenty categories in all: ten actions and, though there are nine, ten persons."""
    labels = [Modality("person", categories=10), Modality("action", categories=10)]
    assert count(BFVI([video(3, 64), *labels], latent=256, hidden=256)) == 4_542_503


def test_layers_have_the_supplements_sizes():
    """3 × 3 and 4 × 4 kernels with biases, and two numbers per normalised channel."""
    assert count(ImageFeatures(3, 64)) == (
        (27 * 16 + 16) + (144 * 32 + 32) + (288 * 64 + 64) + 2 * (16 + 32)
    )
    assert count(ImageDecoder(256, 3, 64)) == (
        257 * 4096 + (1024 * 32 + 32) + (512 * 16 + 16) + (256 * 3 + 3) + 2 * (32 + 16)
    )


def test_square_pixels_get_convolutions_and_nothing_else_does():
    module = BFVI([video(3, 28, mask_input=True)], latent=2, hidden=4)
    assert isinstance(module.encoders[0].features, ImageFeatures)
    assert isinstance(module.model.decoders[0], ImageDecoder)
    film = BFVI([video(3, 28, whole=True)], latent=2, hidden=4)
    assert isinstance(film.encoders[0].features, FilmFeatures)
    assert not video().mask_input
    for shape in [(3, 8, 9), (8, 8), (1, 4, 4)]:
        assert not Modality("v", shape, likelihood=Pixels()).is_image
    assert not Modality("v", (3, 8, 8)).is_image


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("size", [5, 8, 28, 30, 64])
def test_images_of_any_size_go_in_and_come_out(size, channels):
    torch.manual_seed(0)
    encoder, decoder = ImageFeatures(channels, size), ImageDecoder(7, channels, size)
    images = torch.rand(2, channels, size, size, requires_grad=True)
    features = encoder(images)
    assert features.shape == (2, 64 * math.ceil(size / 8) ** 2)
    assert decoder(torch.randn(2, 7)).shape == (2, channels * size * size)
    (gradient,) = torch.autograd.grad(features.square().sum(), images)
    assert (gradient != 0).all(), "every pixel is seen"


def test_the_decoder_goes_back_through_the_encoders_sides():
    def sides(layers, images):
        found = []
        for layer in layers:
            images = layer(images)
            if isinstance(layer, nn.BatchNorm2d):
                found.append(images.shape[-1])
        return found

    for size in (8, 28, 29, 30, 64):
        decoder = ImageDecoder(2, 1, size)
        down = sides(ImageFeatures(1, size).layers, torch.zeros(1, 1, size, size))
        up = sides(decoder.layers, decoder.hidden(torch.zeros(1, 2)))
        assert up == down[::-1]


def test_films_are_read_frame_by_frame_and_from_both_ends():
    torch.manual_seed(0)
    encoder = FilmFeatures(1, SIDE, 4).eval()
    frames, seen = torch.rand(5, 2, 1, SIDE, SIDE), torch.ones(5, 2, 1, SIDE, SIDE)
    seen[3, 0] = 0
    inside = torch.ones(5, 2, dtype=torch.bool)

    def read(frames, seen=seen):
        return encoder(torch.cat([frames * seen, seen], 2), inside)

    before = read(frames)
    single = before[..., -64:]
    torch.testing.assert_close(single[1], encoder.frames(frames[1]))
    assert (single[3, 0] == 0).all()
    changed = frames.clone()
    changed[2, 0] = 1 - changed[2, 0]
    moved = (read(changed) != before).any(-1)
    assert moved[:, 0].all(), "every step hears of it"
    assert not moved[:, 1].any(), "and no other film"
    alone = (read(changed)[..., -64:] != single).any(-1)
    assert alone.nonzero().tolist() == [[2, 0]]
    changed = frames.clone()
    changed[3, 0] = 0.5
    assert torch.equal(read(changed), before), "a missing frame is not seen"


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: ImageFeatures(1, 4), "at least 5 × 5 pixels"),
        (lambda: ImageDecoder(2, 0, 8), "at least one channel"),
        (lambda: BFVI([video(decoder=ImageDecoder(5, 1, 8))], 4, 2), "decoder of modality 'video'"),
    ],
)
def test_impossible_images_are_refused(build, message):
    with pytest.raises(ValueError, match=message):
        build()


def test_brightness_lies_between_0_and_1():
    with pytest.raises(DataError, match=r"holds 255 at .* needs a number from 0 to 1"):
        make().batch(Sequences.from_arrays({"video": np.full((1, 2, 1, SIDE, SIDE), 255.0)}))


@pytest.fixture
def same_noise(monkeypatch):
    """Give a step the same random numbers however long its batch is."""
    bank = torch.randn(
        (2, 9, 3, 3, LATENT), generator=torch.Generator().manual_seed(0), dtype=torch.float64
    )
    monkeypatch.setattr(torch, "randn", lambda shape, **_: bank[tuple(slice(n) for n in shape)])


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.usefixtures("same_noise")
def test_unobserved_and_padded_frames_change_nothing(training, whole):
    """Three empty frames after one film, and so padding after the others."""
    short = films()
    long = Sequences.concatenate([short[0], short[1].extend(after=3), short[2]])

    def run(data):
        module = make(whole=whole).train(training)
        batch = module.batch(data)
        factors = module.encode(batch)
        loss = Objective(module, EXACT)(batch, torch.Generator())
        torch.autograd.backward(loss.total * data.rows)
        decoder = module.model.decoders[0]
        return factors, loss, statistics(module), [p.grad for p in decoder.parameters()]

    (mine, loss, learned, gradients), (theirs, padded, relearned, regradients) = map(
        run, (short, long)
    )
    torch.testing.assert_close(mine.precision, theirs.precision[:, : short.lengths.max()])
    assert (theirs.precision[:, short.lengths.max() :] == 0).all()
    for name, term in loss.terms.items():
        steps = (1, 1) if name == "match" else (short.rows, long.rows)
        torch.testing.assert_close(term * steps[0], padded.terms[name] * steps[1])
    torch.testing.assert_close(learned, relearned)
    torch.testing.assert_close(gradients, regradients)
    fresh = statistics(make(whole=whole))
    assert training != all(torch.equal(learned[name], fresh[name]) for name in fresh)


@pytest.mark.parametrize("whole", [True, False])
def test_one_observed_frame_trains_and_none_leaves_no_trace(whole):
    module = make(whole=whole)
    data = films((3,))
    objective = Objective(module, EXACT)
    single = data.delete({"video": data.step_of_row > 0})
    loss = objective(module.batch(single), torch.Generator().manual_seed(0))
    torch.autograd.backward(loss.total)
    assert all(p.grad.isfinite().all() for p in module.parameters() if p.grad is not None)

    before = statistics(module)
    loss = objective(module.batch(data.hide("video")), torch.Generator().manual_seed(0))
    assert loss.total.isfinite()
    assert loss.terms["nll/smooth/video"] == 0
    for name, buffer in statistics(module).items():
        if not name.endswith("num_batches_tracked"):
            assert torch.equal(buffer, before[name])


@pytest.fixture(scope="module")
def fitted():
    model = MDMM(declare(), LATENT, hidden=4)
    return model.fit(films(), validation=films(seed=1), training=CONFIG, progress=False)


def test_a_fitted_model_predicts_brightness(fitted):
    data = films()
    assert all(math.isfinite(epoch.loss) for epoch in fitted.history)
    filled = fitted.impute(data, samples=5)
    for before, after in zip(data.arrays("video"), filled.arrays("video"), strict=True):
        assert ((after >= 0) & (after <= 1)).all()
        np.testing.assert_array_equal(after[0], before[0])
    assert fitted.forecast(data, 2, samples=5)["video"].mean.shape == (3, 2, 1, SIDE, SIDE)
    assert math.isfinite(fitted.score(data, samples=5))


def test_inference_leaves_no_trace_and_does_not_see_its_neighbours(fitted):
    data = films()
    before = statistics(fitted.module)
    assert not MDMM(declare(), LATENT, hidden=4).module.training
    assert not any(part.training for part in fitted.module.modules())
    together = fitted.filter(data, samples=5).posterior.mean
    alone = fitted.filter(data[2], samples=5).posterior.mean
    np.testing.assert_allclose(together[2:, :3], alone, rtol=1e-4, atol=1e-5)
    fitted.score(data, samples=5)
    for name, buffer in statistics(fitted.module).items():
        assert torch.equal(buffer, before[name])


def test_a_loaded_model_predicts_the_same_to_the_bit(fitted, tmp_path):
    fitted.save(tmp_path / "film.weft")
    twin = weft.load(tmp_path / "film.weft")
    mine, theirs = fitted.module.state_dict(), twin.module.state_dict()
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)
    assert not twin.module.training
    ahead, again = (m.forecast(films(), 2, samples=5)["video"].mean for m in (fitted, twin))
    np.testing.assert_array_equal(ahead, again)
    twin.save(tmp_path / "again.weft")
    assert (tmp_path / "again.weft").read_bytes() == (tmp_path / "film.weft").read_bytes()


def trainer(directory=None, watch=None):
    return Trainer(
        make().float(), films(), objective=EXACT, config=CONFIG, directory=directory, watch=watch
    )


def test_statistics_are_resumed_to_the_bit(tmp_path):
    whole = trainer()
    whole.run()

    def interrupt(share, loss):
        os.kill(os.getpid(), signal.SIGINT)

    stopped = trainer(tmp_path, interrupt)
    with pytest.raises(KeyboardInterrupt):
        stopped.run()
    assert not stopped.module.training
    resumed = trainer(tmp_path)
    resumed.run(resume=True)
    for name, tensor in whole.module.state_dict().items():
        assert torch.equal(tensor, resumed.module.state_dict()[name]), name


def test_a_failed_step_leaves_no_trace_in_the_statistics(caplog):
    failing = trainer()
    failing.module.train()
    before = statistics(failing.module)
    with torch.no_grad():
        failing.module.model.decoders[0].hidden.bias[0] = math.inf
    with caplog.at_level(logging.WARNING, "weft"):
        failing.progress.position = 1  # the state kept is that of the epoch's start
        failing._step()
    assert "Back to the last good state" in caplog.text
    for name, buffer in statistics(failing.module).items():
        assert torch.equal(buffer, before[name])


def test_a_decoder_starts_at_the_mean_of_what_was_observed():
    frames = np.zeros((2, 3, 2, 8, 8))
    frames[:, :, 0, :2] = 1.0  # a quarter of the first channel is lit, nothing of the second
    frames[0, 1] = np.nan
    train = Sequences.from_arrays({"video": frames})
    module = BFVI([video(channels=2)], 4, 2)
    before = copy.deepcopy(module.model.decoders[0].state_dict())
    module.model.start(train.columns)
    after = module.model.decoders[0].state_dict()
    changed = [name for name in after if not torch.equal(before[name], after[name])]
    assert len(changed) == 1
    pixels = 5 * 8 * 8
    means = torch.tensor([(pixels / 4 + 0.5) / (pixels + 1), 0.5 / (pixels + 1)])
    torch.testing.assert_close(torch.sigmoid(after[changed[0]]), means)


def test_a_decoder_of_ones_own_starts_as_it_is():
    own = ImageDecoder(4, 1, 8)
    module = BFVI([video(decoder=own)], 4, 2)
    before = copy.deepcopy(own.state_dict())
    module.model.start(Sequences.from_arrays({"video": np.zeros((1, 2, 1, 8, 8))}).columns)
    after = own.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in after)
