"""The store: `<root>/<stage>/<key>/`, complete where it exists; what is being built lies under `.building/`.

An artifact appears by one rename of a private folder whose every file is on the disk and whose manifest was
written last. The private folder survives a crash, so the next builder of the same key goes on from it.
"""

import errno
import uuid
from collections.abc import Callable, Collection, Generator, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from elf.cache.errors import CacheError, Damaged, StoreBusy
from elf.cache.exchange import exchange
from elf.cache.files import (
    fsync_folder,
    fsync_tree,
    make_folder,
    remove_strays,
    remove_tree,
    write_new,
    writing,
)
from elf.cache.lease import TTL, Holder, Lease, OnWait, acquire, holder_of
from elf.cache.manifest import MANIFEST, Fingerprint, Manifest, check_name, read_manifest, short
from elf.cache.records import let_read, sizes
from elf.cache.uses import BUILDING, Place, await_collector, holding, last_use, mark, note_uses

_OCCUPIED = (errno.ENOTEMPTY, errno.EEXIST)


@dataclass(frozen=True, slots=True)
class Artifact:
    """A finished folder and what its manifest says."""

    path: Path
    manifest: Manifest


@dataclass(frozen=True, slots=True)
class Building:
    """A private folder under a lease. `fresh`: nothing to go on from. Pass `fd` to children (`pass_fds`)."""

    path: Path
    fd: int
    fresh: bool


@dataclass(frozen=True, slots=True)
class Replaced:
    """`identical` compares the payloads; None if there was no readable artifact to compare with."""

    artifact: Artifact
    identical: bool | None


class Store:
    """A folder of artifacts; any number of processes and hosts may share it."""

    def __init__(self, root: Path, *, ttl: float = TTL) -> None:
        self.root = root.absolute()
        self._ttl = ttl
        self._leases: dict[Path, Lease] = {}

    def path(self, stage: str, key: Fingerprint) -> Path:
        """Where the artifact lies or would lie."""
        check_name(stage, key)
        return self.root / stage / key

    def find(self, stage: str, key: Fingerprint) -> Artifact | None:
        """The finished artifact, or None. Raises Damaged where something stands that is not one."""
        path = self.path(stage, key)
        try:
            for place in (path.parent, path, path / MANIFEST):
                _refuse_link(place)
            text = (path / MANIFEST).read_bytes()
        except FileNotFoundError:
            if path.is_dir() and any(path.iterdir()):
                raise Damaged(f"{path} holds files but no {MANIFEST}. {_cure(path, stage)}") from None
            return None
        except NotADirectoryError:
            raise Damaged(f"{path} is or lies below a file, not a folder. {_cure(path, stage)}") from None
        except IsADirectoryError:
            raise Damaged(f"{path / MANIFEST} is a folder, not a file. {_cure(path, stage)}") from None
        except OSError as error:
            raise CacheError(
                f"{path / MANIFEST} cannot be read ({error.strerror}). Make the store readable for this user, or name "
                "another with --store."
            ) from error
        manifest = read_manifest(text, (stage, key), where=path / MANIFEST, cure=_cure(path, stage))
        return Artifact(path, manifest)

    def artifacts(
        self, stage: str | None = None, *, on_damaged: Callable[[Damaged], None] | None = None
    ) -> Iterator[Artifact]:
        """Every finished artifact in the order of stage and key; damaged ones go to `on_damaged` or raise."""
        for folder in sorted(self.root.glob(f"{stage or '[a-z]*'}/*")):
            place = folder.parent.name, Fingerprint(folder.name)
            try:
                check_name(*place)
            except CacheError:
                continue  # not a name of ours
            try:
                found = self.find(*place)
            except Damaged as fault:
                if on_damaged is None:
                    raise
                on_damaged(fault)
                continue
            if found is not None:
                yield found

    @contextmanager
    def building(
        self,
        stage: str,
        key: Fingerprint,
        *,
        uses: Collection[Place] = (),
        on_wait: OnWait | None = None,
    ) -> Generator[Building]:
        """The private folder of a key, once nobody else builds it: look with `find` again before building.

        While it is open nobody replaces or collects the artifacts it `uses`.
        """
        place = self._place(stage, key)
        lease = acquire(place, uses=_marks(uses), on_wait=on_wait, ttl=self._ttl)
        with self._holding(lease, place) as building, self._noting(uses):
            yield building

    @contextmanager
    def rebuilding(
        self, stage: str, key: Fingerprint, *, uses: Collection[Place] = ()
    ) -> Generator[Building]:
        """A second private folder for building a finished key anew, to be given to `replace`.

        Raises StoreBusy at once if somebody builds or rebuilds the key, or builds from its artifact.
        """

        def refuse(holder: object) -> None:
            raise StoreBusy(
                f"{stage} {short(key)} is being built by {holder or 'children of a dead process'}, so it is not "
                "replaced now; nothing is lost. Run the same command again when that is done."
            )

        place = self._place(stage, key)
        self._refuse_users(stage, key)
        lease = acquire(place, uses=_marks(uses), on_wait=refuse, ttl=self._ttl)
        with self._holding(lease, place.with_name(f"{key}.again")) as building, self._noting(uses):
            yield building

    def using(self, places: Collection[Place]) -> AbstractContextManager[None]:
        """Read artifacts, finished or still to be built, for as long as it is open: nobody collects them."""
        return holding(self.root, places, ttl=self._ttl)

    def last_use(self, stage: str, key: Fingerprint) -> float:
        """When the artifact was finished or last used, in seconds since the epoch."""
        return last_use(self.root, (stage, key))

    @contextmanager
    def receiving(
        self, stage: str, key: Fingerprint, *, on_wait: OnWait | None = None
    ) -> Generator[Building]:
        """A private folder for an artifact that comes whole from elsewhere, once nobody else builds the key.

        It is another than that of `building`, so that neither goes on from the other's files; its end is `commit`.
        """
        place = self._place(stage, key)
        lease = acquire(place, on_wait=on_wait, ttl=self._ttl)
        with self._holding(lease, place.with_name(f"{key}.pull")) as building:
            yield building

    def commit(self, where: Building | Path, manifest: Manifest) -> Artifact:
        """Publish a private folder. Whoever loses the race gets the winner's artifact and drops his own.

        Raises StoreBusy if the lease was lost, CacheError if folder and manifest differ.
        """
        path = _folder(where)
        final = self.path(*manifest.place)
        winner = self.find(*manifest.place)
        if winner is None:
            try:
                self._seal(path, manifest)
                make_folder(final.parent)
                with writing(final):
                    path.rename(final)
            except (OSError, CacheError):
                winner = self.find(*manifest.place)
                if winner is None:
                    raise
        if winner is not None:
            if self._lease(path).is_held():
                remove_tree(path)
            return winner
        fsync_folder(final.parent)
        fsync_folder(path.parent)
        return Artifact(final, manifest)

    def replace(self, where: Building | Path, manifest: Manifest) -> Replaced:
        """Publish a rebuilt folder in the place of the old one, in one step; readers keep what they map.

        Raises StoreBusy, and keeps both, where somebody builds from the old one.
        """
        path = _folder(where)
        final = self.path(*manifest.place)
        try:
            old = self.find(*manifest.place)
        except Damaged:
            if final.is_symlink():
                raise
            old = None
        if not final.is_dir():
            return Replaced(self.commit(where, manifest), None)
        self._seal(path, manifest)
        self._refuse_users(*manifest.place)
        garbage = path.with_name(f"{manifest.fingerprint}.old-{uuid.uuid4().hex}")
        with writing(final):
            path.rename(garbage)  # once swapped it must not be taken for a half-built folder
            exchange(garbage, final)
        fsync_folder(final.parent)
        remove_tree(garbage)
        identical = None if old is None else old.manifest.content == manifest.content
        return Replaced(Artifact(final, manifest), identical)

    def begun(self, stage: str, key: Fingerprint) -> int:
        """Bytes that lie in the private folder of a key: what a build that is not finished has made so far."""
        place = self._place(stage, key)
        return sum(sizes(place).values()) if place.is_dir() else 0

    def builder_of(self, stage: str, key: Fingerprint) -> str | None:
        """Who builds the key at the moment, in words."""
        holder = holder_of(self._place(stage, key), ttl=self._ttl)
        return None if holder is None else str(holder)

    def users_of(self, stage: str, key: Fingerprint) -> list[Holder]:
        """Whoever builds from the artifact at the moment."""
        holders = (
            holder_of(lease.with_suffix(""), ttl=self._ttl)
            for lease in sorted(self.root.glob(f"{BUILDING}/*/*.lease"))
        )
        return [holder for holder in holders if holder is not None and mark((stage, key)) in holder.uses]

    def _refuse_users(self, stage: str, key: Fingerprint) -> None:
        for holder in self.users_of(stage, key):
            raise StoreBusy(
                f"{stage} {short(key)} is being read by {holder}, so it is not replaced now; nothing is lost. Run the "
                "same command again when that process is done."
            )

    def _place(self, stage: str, key: Fingerprint) -> Path:
        check_name(stage, key)
        return self.root / BUILDING / stage / key

    @contextmanager
    def _noting(self, uses: Collection[Place]) -> Generator[None]:
        """Nothing of `uses` is being collected from here on, and its last use is when this ends."""
        await_collector(self.root, uses, ttl=self._ttl)
        note_uses(self.root, uses)
        try:
            yield
        finally:  # a build that failed is gone on with
            note_uses(self.root, uses)

    @contextmanager
    def _holding(self, lease: Lease, path: Path) -> Generator[Building]:
        self._leases[path] = lease
        try:
            _refuse_link(path)
            for garbage in path.parent.glob(f"{path.name[:64]}.old-*"):
                remove_tree(garbage)
            for draft in path.parent.glob(f"{path.name[:64]}*.manifest-*"):
                draft.unlink(missing_ok=True)
            make_folder(path)
            (path / MANIFEST).unlink(missing_ok=True)  # died between manifest and rename
            remove_strays(path)
            yield Building(path, lease.fd, fresh=not any(path.iterdir()))
        except OSError:
            lease.check()  # once another builder has published the folder, its files are gone from here
            raise
        finally:
            del self._leases[path]
            if not lease.is_held() and (self.root / path.parent.name / path.name[:64] / MANIFEST).exists():
                remove_tree(path)  # what was written after the other's publishing is nobody's
            _remove_if_empty(path)
            lease.release()

    def _lease(self, path: Path) -> Lease:
        if path not in self._leases:
            raise CacheError(
                f"{path} is not a folder that this process is building; give the one it got to build in."
            )
        return self._leases[path]

    def _seal(self, path: Path, manifest: Manifest) -> None:
        """Check that the folder is what the manifest says and ours to publish, and make it last."""
        lease = self._lease(path)
        lease.check()
        owner = f"{manifest.stage} {short(manifest.fingerprint)}"
        if (path.parent.name, path.name[:64]) != manifest.place:
            raise CacheError(f"The manifest of {owner} does not belong to {path}; give each folder its own.")
        wanted = {name: record.bytes for name, record in manifest.every_file.items()}
        found = sizes(path)
        if wanted != found:
            name = min(name for name in wanted.keys() | found.keys() if wanted.get(name) != found.get(name))
            raise CacheError(
                f"{path / name} holds {found.get(name, 'no')} bytes, the manifest of {owner} says "
                f"{wanted.get(name, 'none')}: something wrote to the folder after its files were recorded. "
                "Run the same command again once nothing else writes there."
            )
        text = _checked_text(manifest, owner)
        fsync_tree(path)
        lease.check()
        # A race must not publish a draft; one that a kill leaves is cleared away by its name.
        draft = path.with_name(f"{path.name}.manifest-{uuid.uuid4().hex}")
        with writing(path):
            write_new(draft, text)
            let_read(path, draft.stat().st_mode)
            draft.rename(path / MANIFEST)
        fsync_folder(path)


def _checked_text(manifest: Manifest, owner: str) -> str:
    """Its JSON, once it is sure that `find` will read it."""
    text = manifest.to_json()
    try:
        Manifest.from_json(text)
    except Damaged as fault:
        raise CacheError(
            f"The manifest of {owner} cannot be written: {fault}. This is a fault of the program; please report it."
        ) from fault
    return text


def _refuse_link(path: Path) -> None:
    if path.is_symlink():
        raise Damaged(
            f"{path} is a link; a store holds folders and files only, so that nothing in it lies elsewhere. Remove the "
            "link, and put what it leads to in its place if it belongs there."
        )


def _marks(places: Iterable[Place]) -> list[str]:
    return [mark(place) for place in places]


def _folder(where: Building | Path) -> Path:
    return where.path if isinstance(where, Building) else where.absolute()


def _remove_if_empty(path: Path) -> None:
    try:
        path.rmdir()
    except OSError as error:
        if error.errno not in (*_OCCUPIED, errno.ENOENT):
            raise


def _cure(path: Path, stage: str) -> str:
    return f"Delete {path} or run stage {stage} with --force to build it again."
