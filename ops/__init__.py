"""m4ops: the control room of a large training on Slurm."""

__version__ = "0.1.0"
