"""The demo: a machine without Slurm and a small real training, to try and to test m4ops with."""
