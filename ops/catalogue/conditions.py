"""What the detectors conclude from more than one line: the kinds."""

from __future__ import annotations

from ops.catalogue.kind import Kind
from ops.model import Severity

_CHRONICLES = "huggingface/m4-logs, chronicles of the 80B run"


def _k(name: str, severity: Severity, meaning: str, action: str, runbook: str, source: str, confirm: str) -> Kind:
    return Kind(name, severity, "condition", meaning, action, source, confirm, runbook)


_W, _C, _U = Severity.WARNING, Severity.CRITICAL, Severity.UNKNOWN

KINDS: tuple[Kind, ...] = (
    _k("loss-spike", _W, "the loss jumped; whether it heals shows within 20 logged rows",
       "wait: a spike that rose within a few rows mostly heals", "loss-spikes", _CHRONICLES, "m4ops plot"),
    _k("loss-divergence", _C, "the loss rose and did not come back",
       "rewind to before the rise; if it comes again, with a lower learning rate", "loss-diverges", _CHRONICLES,
       "m4ops plot"),
    _k("loss-nan", _C, "the loss is NaN or infinite", "rewind to before it", "loss-diverges", "arXiv 2205.01068",
       "m4ops plot"),
    _k("grad-norm-spike", _W, "the gradient norm is ten times its usual: often a step or two before the loss jumps",
       "watch the loss; nothing else yet", "loss-spikes", "bigscience train/tr11 chronicles",
       "m4ops plot --field 'grad_norm'"),
    _k("fp16-collapse", _C, "steps are skipped one after the other: the loss scale keeps falling",
       "rewind to before the gradients grew; lower the learning rate", "loss-diverges",
       "bigscience train/tr8 chronicles, experiment 12; arXiv 2210.02414", "the loss scale in the progress lines"),
    _k("lr-mismatch", _C, "the learning rate after a resume is not the one expected there",
       "m4ops verify; rewind and set it again", "lr-mismatch", _CHRONICLES, "m4ops plot --field lr"),
    _k("resume-differs", _C,
       "a resume is not what was promised, or not what its checkpoint says: step, batch size, seed, optimizer, wandb run",
       "hold the run, look at the pointer and at the config of the newest job; rewind when it trained on", "resume-differs",
       _CHRONICLES, "m4ops verify; the newest {job_id}_config.yaml"),
    _k("field-moved", _W, "since a resume a logged field has other values than in the 200 rows before",
       "find out what changed: data, sampler, batch size, config (m4ops diff)", "resume-differs", _CHRONICLES,
       "m4ops plot --field NAME"),
    _k("data-repeated", _W, "the loss is too good since a resume: the data was seen already, its sampler not moved on",
       "look at the sampler's state in resumable_states; rewind if a long stretch was repeated", "resume-differs",
       "huggingface/smollm trainer.py, load_resume_states", "m4ops plot"),
    _k("job-absent", _C, "no job of the run is running or queued", "submit it again", "job-not-in-queue",
       "bigscience train/tr1, cron", "squeue --me"),
    _k("job-ended", _W, "the last job ended badly, and none runs", "read its log's end, then submit it again",
       "job-not-in-queue", "Slurm sacct", "sacct -j JOBID"),
    _k("job-held", _W, "nothing runs, and all that is queued is held", "m4ops release", "job-not-in-queue",
       "Slurm squeue", "squeue --me"),
    _k("job-stuck", _C, "a job of the run waits for what does not come by itself: Slurm's reason says what",
       "m4ops explain REASON", "job-not-in-queue", "slurm.schedmd.com/job_reason_codes.html", "squeue --me"),
    _k("kill-switch-left", _W, "the kill switch is still there: each job will end as it starts", "remove the file",
       "job-not-in-queue", "huggingface/smollm trainer.py", "m4ops status"),
    _k("queue-unknown", _U, "the queue could not be read", "ask again; is the controller up?", "job-not-in-queue",
       "Slurm squeue", "squeue --me"),
    _k("log-stalled", _C, "a job runs, but logs nothing for longer than its own gaps explain",
       "py-spy dump on a node, then m4ops requeue", "log-stalled", "bigscience train/tr11", "m4ops status"),
    _k("log-unknown", _U, "the log could not be read", "check the path and its permissions", "log-stalled",
       "the operating system", "m4ops status"),
    _k("slow-down", _W, "steps take at least 5 % longer than they used to, for good",
       "look for the node that came with the slower job; m4ops exclude NODE, m4ops requeue", "slow-down",
       "bigscience train/tr11 chronicles; arXiv 2205.01068", "m4ops status; m4ops nodes"),
    _k("checkpoint-late", _W, "nothing was saved for twice the run's usual number of steps, or never",
       "m4ops save; look whether the last save is torn, and at the disk", "save-late", "the run's own saving interval",
       "m4ops checkpoints"),
    _k("limit-before-save", _W, "the job's time limit comes before its next save, and it does not save as it ends",
       "m4ops save before the limit; or submit by slurm_templates/train.slurm, which saves before it", "save-late",
       "Slurm squeue; the run's own saving interval", "m4ops status"),
    _k("disk-filling", _W, "the disk has room for few more saves (CRITICAL: for none), in bytes or in inodes",
       "m4ops prune -n shows what can go; else make room", "save-late", "statvfs(3); the size of the last saves",
       "df -h . ; df -i ."),
    _k("evals-late", _W, "the newest evaluation is three of the usual distances behind the newest checkpoint",
       "look whether the evaluation jobs still run", "save-late", "the run's own evaluations", "m4ops evals"),
    _k("pointer-broken", _C, "the next job will not resume: its pointer names no checkpoint",
       "m4ops rewind --to latest", "pointer-broken", "huggingface/smollm trainer.py", "m4ops checkpoints"),
    _k("checkpoint-incomplete", _W, "the checkpoint that the next resume takes is incomplete, or being saved",
       "m4ops rewind --to latest, if it stays", "pointer-broken", "huggingface/smollm trainer.py",
       "m4ops checkpoints"),
    _k("checkpoints-unknown", _U, "the checkpoints could not be read", "check permissions and the file system",
       "pointer-broken", "the operating system", "m4ops checkpoints"),
    _k("save-step-failed", _W, "what on_save declares for a finished checkpoint failed",
       "give the command by hand, mend what it says; it is tried again by itself", "save-step-fails",
       "huggingface/smollm experiments/pretraining/vloom", "m4ops watch-saves -n"),
    _k("saves-waiting", _W, "a finished checkpoint waits for what on_save declares, and nobody began",
       "m4ops cron install", "save-step-fails", "huggingface/smollm experiments/pretraining/vloom",
       "m4ops watch-saves -n"),
    _k("stray-file", _C, "a foreign file in a checkpoint can make a resume lose its state", "move the file away",
       "undo", _CHRONICLES, "m4ops checkpoints"),
)  # fmt: skip
