"""A disk of its own that is as small as a test wants, and can be filled, enlarged and made read-only."""

import subprocess
from pathlib import Path


class SmallDisk:
    """A file system in memory below a folder; mounting takes root, as the tests' machines have it."""

    def __init__(self, folder: Path, kilobytes: int) -> None:
        self.folder = folder
        folder.mkdir()
        _run("mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", str(folder))

    def set_size(self, kilobytes: int) -> None:
        """Make it larger."""
        self._change(f"size={kilobytes}k")

    def set_writable(self, writable: bool) -> None:
        """Allow writing, or not; files that are open for writing must be closed first."""
        self._change("rw" if writable else "ro")

    def fill(self) -> None:
        """Take all the room that is left."""
        with (self.folder / "filling").open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(4096))
            except OSError:
                return

    def unmount(self) -> None:
        """Take it away."""
        _run("umount", "--lazy", str(self.folder))

    def _change(self, option: str) -> None:
        _run("mount", "-o", f"remount,{option}", str(self.folder))


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr.strip()} (mounting needs root)"
