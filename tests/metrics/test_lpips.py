"""LPIPS without real weights: mechanics, layouts and absence. Values are in tests/oracles."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from fedseal.core.errors import InputError
from fedseal.metrics import lpips as lpips_module
from fedseal.metrics.lpips import Lpips, load_lpips, why_no_lpips

ALEX = {0: (64, 3, 11), 3: (192, 64, 5), 6: (384, 192, 3), 8: (256, 384, 3), 10: (256, 256, 3)}


def random_alex(seed: int = 0) -> dict[str, torch.Tensor]:
    """Weights with AlexNet's shapes, scaled so that activations keep their size; heads non-negative."""
    generator = torch.Generator().manual_seed(seed)
    state = {}
    for k, (index, (out, into, side)) in enumerate(ALEX.items()):
        scale = (2 / (into * side * side)) ** 0.5
        state[f"features.{index}.weight"] = scale * torch.randn(out, into, side, side, generator=generator)
        state[f"features.{index}.bias"] = 0.1 * torch.randn(out, generator=generator)
        state[f"lin{k}.model.1.weight"] = torch.rand(1, out, 1, 1, generator=generator) / out
    return state


@pytest.fixture(scope="module")
def lpips() -> Lpips:
    return Lpips(random_alex())


def test_distance_axioms(lpips: Lpips):
    a, b = torch.rand(2, 4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    assert lpips(a, a).tolist() == [0, 0, 0, 0]
    torch.testing.assert_close(lpips(a, b), lpips(b, a))
    assert bool((lpips(a, b) > 1e-4).all())


def test_grey_is_rgb_with_equal_channels(lpips: Lpips):
    a, b = torch.rand(2, 3, 1, 32, 32)
    torch.testing.assert_close(lpips(a, b), lpips(a.repeat(1, 3, 1, 1), b.repeat(1, 3, 1, 1)))


def test_chunks_do_not_change_the_result(lpips: Lpips, monkeypatch: pytest.MonkeyPatch):
    a, b = torch.rand(2, 7, 3, 32, 32)
    whole = lpips(a, b)
    seen: list[int] = []
    inner = Lpips._distance
    monkeypatch.setattr(lpips_module, "_CHUNK_PIXELS", 3 * 32 * 32)
    monkeypatch.setattr(Lpips, "_distance", lambda self, x, y: (seen.append(len(x)), inner(self, x, y))[1])
    torch.testing.assert_close(lpips(a, b), whole)
    assert seen == [3, 3, 1]


def test_only_images_too_small_to_run_are_enlarged(lpips: Lpips):
    for size, prepared in (
        ((31, 31), (31, 31)),
        ((32, 48), (32, 48)),
        ((28, 28), (32, 32)),
        ((8, 16), (32, 64)),
    ):
        assert tuple(lpips._prepare(torch.rand(1, 1, *size)).shape[-2:]) == prepared
        assert lpips(torch.rand(1, 1, *size), torch.rand(1, 1, *size)).shape == (1,)
    with pytest.raises(RuntimeError):  # 31 is the true minimum of the network
        lpips._distance(torch.rand(1, 3, 30, 30), torch.rand(1, 3, 30, 30))


def test_no_gradient_is_kept(lpips: Lpips):
    a = torch.rand(1, 3, 32, 32, requires_grad=True)
    assert not lpips(a, torch.rand(1, 3, 32, 32)).requires_grad


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (torch.rand(1, 4, 32, 32), "grey or RGB"),
        (255 * torch.rand(1, 3, 32, 32), r"not in \[0, 1\]"),
        (torch.rand(1, 3, 32, 32) - 1, r"not in \[0, 1\]"),
        (torch.full((1, 3, 32, 32), torch.nan), "NaN"),
    ],
)
def test_wrong_images_are_refused(lpips: Lpips, images: torch.Tensor, message: str):
    with pytest.raises(InputError, match=message):
        lpips(images, images)


def test_both_layouts_load_the_same_metric(tmp_path: Path):
    state = random_alex()
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir()
    two.mkdir()
    features = {n: t for n, t in state.items() if n.startswith("f")}
    heads = {f"alex.{n}": t for n, t in state.items() if n.startswith("lin")}
    save_file(features | heads, one / "lpips_alex.safetensors")
    save_file(features, two / "alexnet_features.safetensors")
    others = {"vgg.lin0.model.1.weight": torch.rand(1, 64, 1, 1)}  # same shape as alex's: must not be taken
    save_file(heads | others, two / "lpips_v0.1_heads.safetensors")
    a, b = torch.rand(2, 2, 3, 32, 32)
    expected = Lpips(state)(a, b)
    for directory in (one, two):
        loaded = load_lpips(directory)
        assert loaded is not None
        assert torch.equal(loaded(a, b), expected)
        assert why_no_lpips(directory) is None
    assert load_lpips(two, "vgg") is None
    assert "vgg16_features.safetensors" in (why_no_lpips(two, "vgg") or "")


def test_absence_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    assert load_lpips(tmp_path) is None
    reason = why_no_lpips(tmp_path)
    assert reason is not None
    assert str(tmp_path) in reason
    assert "fedseal data get lpips" in reason
    save_file({"features.0.bias": torch.zeros(64)}, tmp_path / "alexnet_features.safetensors")
    assert load_lpips(tmp_path) is None  # half a pair is no pair
    monkeypatch.setenv("FEDSEAL_CACHE", str(tmp_path))
    assert load_lpips() is None
    save_file(random_alex(), tmp_path / "lpips_alex.safetensors")
    assert load_lpips() is not None
    assert why_no_lpips() is None


def test_damaged_weights_are_an_error_not_an_absence(tmp_path: Path):
    file = tmp_path / "lpips_alex.safetensors"
    file.write_bytes(b"not safetensors")
    with pytest.raises(InputError, match="cannot be read") as caught:
        load_lpips(tmp_path)
    assert "fedseal data get lpips" in str(caught.value)
    state = random_alex()
    save_file({n: t for n, t in state.items() if n != "lin3.model.1.weight"}, file)
    with pytest.raises(InputError, match=r"'lin3.model.1.weight' is missing"):
        load_lpips(tmp_path)
    save_file(state | {"features.3.bias": torch.zeros(7)}, file)
    with pytest.raises(InputError, match=r"'features.3.bias' has shape \[7\]"):
        load_lpips(tmp_path)
    save_file(state | {"features.3.bias": torch.full((192,), torch.nan)}, file)
    with pytest.raises(InputError, match=r"'features.3.bias' holds 192"):
        load_lpips(tmp_path)


def test_unknown_networks_are_refused(tmp_path: Path):
    for function in (load_lpips, why_no_lpips):
        with pytest.raises(InputError, match="squeeze"):
            function(tmp_path, "squeeze")  # type: ignore[arg-type]
