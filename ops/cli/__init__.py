"""The command line. This module holds the list of commands and nothing that is slow to import.

A command's module is imported when the command is run, so that `m4ops --help` costs what click costs.
"""

from __future__ import annotations

import gc
import sys

gc.set_threshold(50_000)  # see `main`; click's own import is a third of a command

import click  # noqa: E402

COMMANDS: dict[str, dict[str, tuple[str, str]]] = {
    "Look": {
        "status": ("look", "One screen: jobs, progress, checkpoints, pointer, what is wrong."),
        "watch": ("live", "The status screen and the loss curve, live."),
        "check": ("check", "For cron: exit 0, 1, 2 or 3; new findings go to the sinks, known ones are quiet."),
        "ack": (
            "ack",
            "Take a trouble: it is neither repeated nor escalated for a while; alone: what is open, and who has it.",
        ),
        "checkpoints": ("look", "Every checkpoint: complete or not, age, wandb id, what does not belong."),
        "inspect": ("checkpoint", "What one checkpoint holds: LR, step, scheduler, optimizer, ranks, dtypes, sizes."),
        "verify-checkpoint": ("checkpoint", "Is a checkpoint whole: files, ranks, agreement; --deep: every byte."),
        "evals": ("look", "Scores by step; torn and foreign lines by number."),
        "nodes": ("nodes", "Failures of each node over the run's life; a report for the admins."),
        "history": ("look", "Every change made by m4ops: what, who, when, undone or not."),
        "diff": ("launch", "What changed between two starts: environment, config, commit, nodes, packages and more."),
        "plot": ("look", "The loss in the terminal, discarded branches shown as such."),
        "explain": (
            "explain",
            "What a finding or a reason of Slurm's means, how to make sure, what to do, and who says so.",
        ),
        "replay": ("replay", "Run the detectors over a finished log, CSV, JSONL or trainer_state.json."),
    },
    "Change": {
        "submit": ("launch", "Submit the run's job, once; what is submitted is kept."),
        "rewind": ("change", "Resume from an earlier checkpoint, with all that belongs to it."),
        "scale-lr": ("change", "Multiply the learning rate that the next resume starts with."),
        "set-lr": ("change", "Set the learning rate that the next resume starts with."),
        "shift-schedule": ("change", "Let the LR schedule go on from another step."),
        "reset-optimizer": ("change", "Start the next resume with fresh optimizer moments."),
        "reset-wandb": ("change", "Give the next resume a wandb run of its own."),
        "trim-evals": ("change", "Roll the evaluations back; the whole file stays as a numbered archive."),
        "prune": ("prune", "Move checkpoints that no rule keeps to the trash; undo brings them back."),
        "hold": ("jobs", "Keep queued tasks from starting; prints the note for the planning channel."),
        "release": ("jobs", "Let held tasks start."),
        "requeue": ("jobs", "Put the running task back into the queue."),
        "cancel": ("jobs", "End the run's jobs for good, running ones without a save."),
        "exclude": ("jobs", "Keep the run away from failing nodes, now and at the next submit."),
        "stop": ("jobs", "Save and end the running task by the kill switch; queued tasks stay held."),
        "save": ("jobs", "Have the running trainer save now, and wait for it."),
        "request": ("request", "Ask for a stop, hold, release or save of somebody else's run; alone: what was asked."),
    },
    "Keep": {
        "apply": ("keep", "Apply a plan that --out wrote, or finish an unfinished change."),
        "undo": ("keep", "Take a change back, to the byte."),
        "verify": ("keep", "Did the resume do what the plan promised? yes, no, or not yet."),
        "extract": ("heavy", "Write a checkpoint's weights as safetensors, at the speed of the disk."),
        "push": ("transfer", "Send checkpoints to an S3 store, whole or not at all, verified."),
        "pull": ("transfer", "Bring a checkpoint back from the store, to the byte."),
        "watch-saves": (
            "saves",
            "Do with finished checkpoints what on_save declares: verify, extract, push, evals, prune.",
        ),
        "cron": ("cron", "Let cron run m4ops check: install, remove, status."),
        "demo": ("keep", "A real small training: launched, diverging, caught, rewound, recovered."),
    },
}


class Lazy(click.Group):
    """A group that knows its commands by name and imports one only to run it."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for section in COMMANDS.values() for name in section]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        from importlib import import_module

        for section in COMMANDS.values():
            if cmd_name in section:
                module = import_module(f"ops.cli.{section[cmd_name][0]}")
                command: click.Command = getattr(module, cmd_name.replace("-", "_"))
                return command
        return None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, section in COMMANDS.items():
            with formatter.section(title):
                formatter.write_dl([(name, about) for name, (_, about) in section.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0] if args else ""
        if name and not name.startswith("-") and self.get_command(ctx, name) is None:
            import difflib

            near = difflib.get_close_matches(name, self.list_commands(ctx), n=2)
            ctx.fail(
                f"no command `{name}`."
                + (f" Did you mean {' or '.join(near)}?" if near else " m4ops --help lists them.")
            )
        return super().resolve_command(ctx, args)


@click.command(cls=Lazy, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.option("--run", "run", metavar="DIR|NAME", help="The run: its SAVE_DIR, or its name under M4OPS_ROOTS.")
@click.version_option(package_name="m4ops", message="m4ops %(version)s")
@click.pass_context
def cli(ctx: click.Context, run: str | None) -> None:
    """The control room of a large training on Slurm.

    The run is found from the current folder upwards, by --run, or by M4OPS_RUN. Look commands never change anything;
    every change shows its plan and asks first (-n stops there, -y does not ask), and can be undone.
    """
    ctx.obj = run


def main() -> None:
    """Run the command line; an OpsError becomes its three parts on stderr and its exit code.

    A command is at work for a tenth of a second, and what it makes it needs to its end: looking for garbage at every
    700th object, and once more in all of it at the exit, was a sixth of that (bench/startup.py).
    """
    from ops.errors import OpsError

    try:
        cli(prog_name="m4ops")
    except OpsError as error:
        click.echo(f"m4ops: {error}", err=True)
        sys.exit(error.exit_code)
    finally:
        gc.freeze()
