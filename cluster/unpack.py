"""`python -m kinoray.cluster.unpack FROM TO`: put folders that came with a job where they outlive it.

Each folder is named by its content, so one that is there already is the same. Nodes and jobs may do this at once.
"""

import shutil
import sys
import uuid
from pathlib import Path


def unpack(source: Path, target: Path) -> None:
    """Copy the folders of `source` into `target`, each of them whole or not at all."""
    target.mkdir(parents=True, exist_ok=True)
    for folder in sorted(source.iterdir()):
        if (target / folder.name).exists():
            continue
        draft = target / f"{folder.name}.tmp-{uuid.uuid4().hex[:8]}"
        try:
            shutil.copytree(folder, draft)
            draft.rename(target / folder.name)
        except OSError:
            if not (target / folder.name).exists():  # else another job was faster
                raise
        finally:
            shutil.rmtree(draft, ignore_errors=True)


if __name__ == "__main__":
    try:
        unpack(Path(sys.argv[1]), Path(sys.argv[2]))
    except OSError as error:
        sys.exit(f"UsageError: Cannot write {sys.argv[2]}: {error.strerror}. Give --runs a folder of the cluster.")
