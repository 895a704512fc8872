"""What a power cut may leave on the disk of a process that was watched by power.c.

What was synced is there. Of everything else - bytes of a file since its last sync; new, changed and removed names since
the last sync of their folder - each operation may have reached the disk or not, the last one in part. That is less than
most file systems promise (they keep some order, and a new file's name is synced with it) and more than none does: bytes
come in the order in which they were written, a rename is whole, and a disk that says it synced has done so. Writes
through mapped memory are not seen; nothing that is looked at here writes that way.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from tests.worlds.preload import preload

ROOT = Path(__file__).parents[2]
NEVER = 1 << 60


@dataclass
class Operation:
    """One thing that the process did."""

    kind: str
    offset: int
    data: bytes
    path: str
    node: int = -1
    """The file or folder that it changes; of a name the folder that holds it."""
    child: int = -1
    """What the name stands for."""
    name: str = ""
    old: tuple[int, str] | None = None
    """Folder and name that a rename takes away."""
    safe_at: int = NEVER
    """The sync behind which nothing undoes it."""


@dataclass
class Image:
    """Contents by number: files as bytes, folders as names."""

    files: dict[int, bytearray] = field(default_factory=dict)
    folders: dict[int, dict[str, int]] = field(default_factory=dict)

    def write_to(self, folder: Path, node: int = 0) -> None:
        """Make it real."""
        folder.mkdir()
        for name, child in self.folders[node].items():
            if child in self.folders:
                self.write_to(folder / name, child)
            else:
                (folder / name).write_bytes(self.files.get(child, b""))


class Recording:
    """What a process did below a folder, and every disk that a power cut may leave of it."""

    def __init__(self, root: Path, module: str, *arguments: str, drop: str | None = None) -> None:
        """Run `python -m module root arguments...` to its end; syncs of paths that end with `drop` are not done."""
        self._root = str(root)
        before = root.with_name(root.name + ".before")
        shutil.copytree(root, before)
        log = root.with_name(root.name + ".log")
        env = {**os.environ, "LD_PRELOAD": preload("power"), "POWER_ROOT": self._root, "POWER_LOG": str(log)}
        env |= {"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"} | ({"POWER_DROP": drop} if drop else {})
        subprocess.run([sys.executable, "-m", module, self._root, *arguments], env=env, check=True, cwd=root.parent)
        self.operations = list(_parse(log.read_bytes()))
        self._count = 0
        self._made: list[int] = []
        self._start = Image()
        self._take(before)
        shutil.rmtree(before)
        self._resolve()

    def cuts(self, random: Random, number: int) -> list[int]:
        """Moments worth a look, each as the number of operations before it: around syncs, and some others."""
        syncs = [index for index, operation in enumerate(self.operations) if operation.kind == "S"]
        near = [index + after for index in syncs for after in (0, 1)]
        anywhere = random.sample(range(len(self.operations) + 1), min(number, len(self.operations)))
        return sorted({len(self.operations), *random.sample(near, min(number, len(near))), *anywhere})

    def cuts_after(self, name: str = "acknowledged") -> list[int]:
        """The moments just after something was written to a file of this name."""
        return [i + 1 for i, done in enumerate(self.operations) if done.kind == "W" and done.path.endswith(f"/{name}")]

    def image(self, cut: int, share: float, random: Random) -> Image:
        """The disk after a power cut at that moment, with this share of what was not synced on it."""
        image = Image(
            {node: bytearray(content) for node, content in self._start.files.items()},
            {**{node: {} for node in self._made}, **{n: dict(names) for n, names in self._start.folders.items()}},
        )
        for operation in self.operations[:cut]:
            if operation.safe_at < cut or random.random() < share:
                torn = operation.safe_at >= cut and 0 < share < 1 and random.random() < 0.2
                _apply(image, operation, torn)
        return image

    def acknowledged(self, cut: int, name: str = "acknowledged") -> list[str]:
        """The lines that the process had written to a file of this name before the cut."""
        text = b"".join(op.data for op in self.operations[:cut] if op.kind == "W" and op.path.endswith(f"/{name}"))
        return text.decode().splitlines()

    def _take(self, folder: Path) -> int:
        """A folder as it was before: all of it is on the disk."""
        node = self._new()
        self._start.folders[node] = {}
        for path in sorted(folder.iterdir()):
            if path.is_dir():
                self._start.folders[node][path.name] = self._take(path)
            elif not path.name.endswith("-shm"):
                self._start.folders[node][path.name] = child = self._new()
                self._start.files[child] = bytearray(path.read_bytes())
        return node

    def _new(self) -> int:
        self._count += 1
        return self._count - 1

    def _resolve(self) -> None:
        """Find what each operation is about, and which sync makes it safe."""
        now = {node: dict(names) for node, names in self._start.folders.items()}
        unsafe: dict[int, list[Operation]] = {}
        for index, operation in enumerate(self.operations):
            parts = operation.path.removeprefix(self._root).strip("/").split("/")
            if operation.kind in "WTS":
                operation.node = _walk(now, [part for part in parts if part])
                if operation.kind == "S":
                    for done in unsafe.pop(operation.node, []):
                        done.safe_at = index
                    continue
            else:
                self._resolve_name(now, operation, parts)
            unsafe.setdefault(operation.node, []).append(operation)

    def _resolve_name(self, now: dict[int, dict[str, int]], operation: Operation, parts: list[str]) -> None:
        operation.node, operation.name = _walk(now, parts[:-1]), parts[-1]
        match operation.kind:
            case "C" | "M":
                operation.child = self._new()
                if operation.kind == "M":
                    now[operation.child] = {}
                    self._made.append(operation.child)
            case "R":
                operation.old = (operation.node, operation.name)
                operation.child = now[operation.node].pop(operation.name)
                target = operation.data.decode().removeprefix(self._root).strip("/").split("/")
                operation.node, operation.name = _walk(now, target[:-1]), target[-1]
            case "U":
                now[operation.node].pop(operation.name)
                return
        now[operation.node][operation.name] = operation.child


def _walk(now: dict[int, dict[str, int]], parts: list[str]) -> int:
    node = 0
    for part in parts:
        node = now[node][part]
    return node


def _apply(image: Image, operation: Operation, torn: bool) -> None:
    if operation.kind in "WT":
        content = image.files.setdefault(operation.node, bytearray())
        data = operation.data[: len(operation.data) // 2] if torn else operation.data
        if operation.kind == "T":
            del content[operation.offset :]
        content.extend(bytes(max(0, operation.offset - len(content))))
        content[operation.offset : operation.offset + len(data)] = data
    elif operation.kind in "CMR":
        if operation.old is not None:
            folder, name = operation.old
            image.folders[folder].pop(name, None)
        image.folders[operation.node][operation.name] = operation.child
    elif operation.kind == "U":
        image.folders[operation.node].pop(operation.name, None)


def _parse(log: bytes) -> Iterator[Operation]:
    place = 0
    while place < len(log):
        end = log.index(b"\n", place)
        kind, offset, length, path = log[place:end].decode().split(" ", 3)
        place = end + 1 + int(length)
        yield Operation(kind, int(offset), log[end + 1 : place], path)
