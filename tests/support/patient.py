"""A method whose run stays on until what a test waits for is there, however late it comes."""

from pathlib import Path

from kinoray.runs.method_source import methods_folder

CODE = """
import pathlib, time
FOLDER = pathlib.Path({folder!r})
class Method(Method):
    def end_task(self, task):
        ends = time.monotonic() + 600
        while task.index and not all([*FOLDER.rglob(name)] for name in {names!r}) and time.monotonic() < ends:
            time.sleep(0.05)
        return super().end_task(task)
"""


def patient(method: str, file: Path, folder: Path, *names: str) -> str:
    """Write a method that ends its second task once files of these names are below a folder; the file, for `run`."""
    source = (methods_folder() / f"{method}.py").read_text(encoding="utf-8")
    file.write_text(source + CODE.format(folder=str(folder), names=names), encoding="utf-8")
    return str(file)
