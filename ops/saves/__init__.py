"""What happens with a finished checkpoint: verified, extracted, pushed, evaluated, pruned; each once, in that order.

`declared` reads what m4ops.toml says, `ledger` remembers what was tried, `serve` does what is due, `evaluations` hands jobs
to Slurm, `findings` says what failed.
"""
