"""Gated recurrent units: against PyTorch's own, and what encoders of whole sequences read."""

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from weft.networks import GRUFeatures
from weft.networks.gru import bridged, differences, run_units


def units(count=2, rows=3, hidden=4, steps=5):
    """Random gates, weights, biases and starting states."""
    torch.manual_seed(0)
    return (
        torch.randn(steps, count, rows, 3 * hidden, dtype=torch.float64),
        torch.randn(count, 3 * hidden, hidden, dtype=torch.float64),
        torch.randn(count, 3 * hidden, dtype=torch.float64),
        torch.randn(count, rows, hidden, dtype=torch.float64),
    )


def test_several_units_run_as_each_does_alone_cell_by_cell():
    gates, weight, bias, start = units()
    update = torch.rand(5, 2, 3) < 0.7
    found = run_units(gates, update, weight, bias, start)
    for unit in range(2):
        cell = nn.GRUCell(12, 4).double()
        cell.weight_ih.data, cell.bias_ih.data = torch.eye(12).double(), torch.zeros(12).double()
        cell.weight_hh.data, cell.bias_hh.data = weight[unit], bias[unit]
        state = start[unit]
        for t in range(5):
            state = torch.where(update[t, unit, :, None], cell(gates[t, unit], state), state)
            torch.testing.assert_close(found[t, unit], state)


def test_a_state_that_is_not_updated_stays_to_the_bit():
    gates, weight, bias, start = units()
    found = run_units(gates, torch.zeros(5, 2, 3, dtype=torch.bool), weight, bias, start)
    assert torch.equal(found, start.expand_as(found))


def test_gradients_are_those_of_finite_differences():
    gates, weight, bias, start = (part.requires_grad_() for part in units(steps=3))
    update = torch.tensor([[[True, False, True]], [[True, True, True]], [[False, True, True]]])
    assert torch.autograd.gradcheck(
        lambda *parts: run_units(parts[0], update.expand(3, 2, 3), *parts[1:]),
        (gates, weight, bias, start),
    )


@pytest.mark.parametrize("layers", [1, 3])
def test_both_directions_are_those_of_pytorch_on_packed_sequences(layers):
    torch.manual_seed(0)
    encoder = GRUFeatures(2, 4, layers=layers).double()
    lengths = torch.tensor([5, 2, 6])
    seen = (torch.arange(6)[:, None] < lengths)[..., None].expand(-1, -1, 2).double()
    x = torch.cat([seen * torch.randn(6, 3, 2, dtype=torch.float64), seen], -1)
    packed = pack_padded_sequence(x, lengths, enforce_sorted=False)
    wanted, _ = pad_packed_sequence(encoder.gru(packed)[0])
    inside = seen[..., 0].bool()
    torch.testing.assert_close(encoder(x, inside)[..., :8], wanted)
    weights = list(encoder.parameters())
    slopes = torch.randn_like(wanted)
    for ours, theirs in zip(
        torch.autograd.grad((encoder(x, inside)[..., :8] * slopes).sum(), weights),
        torch.autograd.grad((wanted * slopes).sum(), weights),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs)


def test_gaps_are_bridged_by_straight_lines():
    values = torch.tensor([0.0, 1.0, 0.0, 0.0, 4.0, 0.0])[:, None, None]
    seen = torch.tensor([0, 1, 0, 0, 1, 0]).bool()[:, None, None]
    assert bridged(values, seen).flatten().tolist() == [1, 1, 2, 3, 4, 4]
    assert bridged(0 * values, torch.zeros_like(seen)).flatten().tolist() == [0] * 6


def test_differences_are_speed_and_acceleration():
    squares = torch.arange(7.0).square()[:, None, None]
    speed, bend = differences(squares)[2:-2, 0].T
    assert speed.tolist() == [16, 24, 32]  # 2 · 4 t
    assert bend.tolist() == [16, 16, 16]  # 2 · 8


def test_an_encoder_of_differences_tells_motion_from_place():
    """Without its positions, a GRU of differences hears the same of a sequence moved elsewhere."""
    torch.manual_seed(0)
    encoder = GRUFeatures(2, 3, layers=2, differences=True)
    for name, weight in encoder.gru.named_parameters():
        if name.startswith("weight_ih_l0"):
            weight.data[:, :2] = 0
    x, seen = torch.randn(6, 1, 2), torch.ones(6, 1, 2)

    def heard(place):
        return encoder(torch.cat([place, seen], -1), seen[..., 0].bool())[..., :6]

    here = heard(x)
    torch.testing.assert_close(here, heard(x + 5))
    faster = heard(2 * x)
    assert not torch.allclose(here, faster)
