"""Secrets that a log line carries are in no output; what only looks like one stays readable."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ops.model import Finding, Severity
from ops.secrecy import redact

SECRET = {
    "WANDB_API_KEY=0123456789abcdef0123456789abcdef01234567 python train.py": "WANDB_API_KEY=*** python train.py",
    "export HF_TOKEN='hf_abcdEFGHijklMNOPqrst'": "export HF_TOKEN='***'",
    "401 for hf_abcdefghijkl1234, try again": "401 for ***, try again",
    "InvalidAccessKeyId: AKIAIOSFODNN7EXAMPLE": "InvalidAccessKeyId: ***",
    "> Authorization: Bearer abc.def-123456": "> Authorization: ***",
    "{'Authorization': 'Basic dXNlcjpwQHNz'}": "{'Authorization': '***'}",
    "curl -H 'x-api-key: hunter2hunter2'": "curl -H 'x-api-key: ***'",
    "proxy https://user:s3cret@host:8080/p": "proxy https://***@host:8080/p",
    "POST https://hooks.slack.com/services/T00/B00/XXXX": "POST https://hooks.slack.com/services/***",
    "GET /b?X-Amz-Signature=0123456789abcdef&x=1": "GET /b?X-Amz-Signature=***&x=1",
    "train.py --hub-token abcd1234efgh --lr 1e-5": "train.py --hub-token *** --lr 1e-5",
    '{"api_key": "qwertyui", "step": 5}': '{"api_key": "***", "step": 5}',
    "accessToken: abcd1234efgh": "accessToken: ***",
    'DB_PASSWORD="hunter"': 'DB_PASSWORD="***"',
    "-----BEGIN RSA PRIVATE KEY-----MIIEow": "-----BEGIN RSA PRIVATE KEY-----***",
}
HARMLESS = (
    "line 812: per_token_loss: 9.1200 | num_tokens: 4.5e+09 | consumed_tokens: 93.2K | tokens/s: 12,345",
    "KeyError: 'loss'", "pad_token: <pad>, eos_token: </s>", "Unexpected key: model.layers.0.weight",
    "srun: error: Node failure on jean-zay-iam37", "/gpfs/x/tr_190/logs/main_log.txt:812", "max_tokens=100000",
    "NCCL WARN Connect to 10.0.0.1<41231> failed : Connection refused", "basic training example", "auth failed for root",
    "commit 0123456789abcdef0123456789abcdef01234567", "token 50256 out of range",
)  # fmt: skip


@pytest.mark.parametrize(("line", "shown"), SECRET.items())
def test_a_secret_of_a_line_is_masked_and_the_rest_stays(line: str, shown: str) -> None:
    assert redact(line) == shown == redact(shown)


@pytest.mark.parametrize("line", HARMLESS)
def test_what_is_no_secret_stays(line: str) -> None:
    assert redact(line) == line


def test_no_finding_holds_a_secret_of_its_log_line() -> None:
    for line in SECRET:
        finding = Finding("traceback", Severity.CRITICAL, f"it said {line}", (line,))
        assert finding.evidence == (redact(line),) and finding.summary == f"it said {redact(line)}"


def test_no_command_shows_what_a_log_spilled(tmp_path: Path) -> None:
    """A failed node's line, an error that names a token: in every view that tells of them."""
    run = tmp_path / "tr_1"
    (run / "logs").mkdir(parents=True)
    (run / "logs" / "main_log.txt").write_text(
        "iteration:  5/10  50% | per_token_loss: 2.1 | lr: 1.000E-05 |\n"
        "Traceback (most recent call last):\n"
        "RuntimeError: WANDB_API_KEY=s3cretAAAA1111 refused by https://me:s3cretBBBB2222@host, hf_s3cretCCCC3333\n"
        "Jun 1 n7 kernel: NVRM: Xid (PCI:0000:10:1c): 79, HF_TOKEN=hf_s3cretDDDD4444 has fallen off the bus\n"
    )
    env = {**os.environ, "M4OPS_EMBEDDED": str(tmp_path / "slurm"), "HOME": str(tmp_path), "M4OPS_RUN": str(run)}
    log = str(run / "logs" / "main_log.txt")
    commands = (["status"], ["status", "--json"], ["replay", log, "--json"], ["nodes", "--json"],
                ["nodes", "report", "n7"], ["check"])  # fmt: skip
    shown = ""
    for words in commands:
        done = subprocess.run([sys.executable, "-m", "ops.cli", *words], env=env, capture_output=True, text=True)
        shown += done.stdout + done.stderr
        assert "***" in done.stdout, (words, done)
    shown += (run / ".m4ops" / "state" / "memory.json").read_text().split('"episodes"')[1]
    assert "s3cret" not in shown
    assert json.loads((run / ".m4ops" / "state" / "memory.json").read_text())["episodes"]
