"""Files that travel with m4ops: the Slurm job templates and the runbook pages."""

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def resource(folder: str, name: str = "") -> Path:
    """Path of ``name`` in ``slurm_templates`` or ``runbooks`` (or of the folder itself).

    An installed wheel holds both under ``ops/_data``, a source tree beside the package. The path is not
    checked for existence.
    """
    packed = _PACKAGE / "_data" / folder
    return (packed if packed.is_dir() else _PACKAGE.parent / folder) / name
