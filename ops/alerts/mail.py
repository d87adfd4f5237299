"""Messages as mail: one address a sink, the episodes as threads."""

from __future__ import annotations

import email.policy
import os
import shutil
import smtplib
import sys
import tempfile
from email.message import EmailMessage
from email.utils import formatdate

from ops import shell
from ops.alerts import web
from ops.alerts.address import Answered
from ops.alerts.text import subject, text
from ops.alerts.words import Message, ident

LOCAL_SMTP = ("localhost", 25)


def local(address: str, message: Message) -> None:
    """By this host's sendmail, or the SMTP server that listens here. Raises Answered, OSError."""
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/usr/lib"])
    sendmail = shutil.which("sendmail", path=path)
    if sendmail is None:
        try:
            return by_server(LOCAL_SMTP, address, message)
        except ConnectionRefusedError:
            raise OSError("this host has neither sendmail nor a mail server: smtp://SERVER/SOMEONE@HOST") from None
    with tempfile.NamedTemporaryFile(prefix="m4ops-mail-") as file:
        file.write(bytes(_letter(address, message)))
        file.flush()
        answer = shell.run((*_WITH_STDIN, file.name, sendmail, "-i", "-t"), web.TIMEOUT)
    if answer.returncode:
        raise OSError(f"{sendmail} ended with {answer.returncode}: {answer.stderr.strip()[-300:]}")


_WITH_STDIN = (
    sys.executable,
    "-ISc",
    "import os, sys; os.dup2(os.open(sys.argv[1], os.O_RDONLY), 0); os.execv(sys.argv[2], sys.argv[2:])",
)
"""Runs a program with a file as its standard input."""


def by_server(server: tuple[str, int], address: str, message: Message) -> None:
    """By an SMTP server. Raises Answered when it refuses the mail, OSError when it cannot be reached."""
    with smtplib.SMTP(*server, local_hostname=message.host or "localhost", timeout=web.TIMEOUT) as smtp:
        try:
            smtp.send_message(_letter(address, message))
        except (smtplib.SMTPResponseException, smtplib.SMTPRecipientsRefused) as error:
            raise Answered(f"it refused the mail: {error}") from None


def _letter(address: str, message: Message) -> EmailMessage:
    letter = EmailMessage(email.policy.default.clone(max_line_length=998))  # RFC 5322; a folded subject is ugly
    letter["Subject"] = f"[m4ops] {subject(message)}"
    letter["From"] = f"m4ops@{message.host or 'localhost'}"
    letter["To"] = address
    letter["Date"] = formatdate(message.time)
    letter["Message-ID"] = f"<{message.id}@m4ops>"
    first = message.news[0]
    letter["References"] = f"<{ident(first.finding)}.{first.since:.0f}@m4ops>"  # one thread an episode
    letter["Auto-Submitted"] = "auto-generated"
    letter.set_content(text(message), cte="quoted-printable")
    return letter
