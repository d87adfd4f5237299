"""NVIDIA's Xid codes that matter to a training, by what they ask for.

Source: docs.nvidia.com/deploy/xid-errors, "Analyzing Xid Errors with the Xid Catalog".
"""

from __future__ import annotations

from ops.catalogue.kind import Kind
from ops.model import Severity

_SOURCE = "docs.nvidia.com/deploy/xid-errors"
_CONFIRM = "dmesg on the node; nvidia-smi -q (ECC, row remapping, retired pages); does the same GPU repeat it?"
_RESTART = "most often the program's own fault: restart; exclude the node when the same GPU repeats it"
_RESET = "drain or exclude the node; its GPU needs a reset"
_NOTHING = "nothing now"

_GROUPS: tuple[tuple[str, Severity, int, str, str], ...] = (
    ("8", Severity.WARNING, 1, "the GPU stopped processing", _RESTART),
    ("13", Severity.WARNING, 1, "graphics engine exception", _RESTART),
    ("31", Severity.WARNING, 1, "GPU memory page fault (MMU)", _RESTART),
    ("32", Severity.WARNING, 1, "invalid or corrupted push buffer", _RESTART),
    ("39 40 41", Severity.WARNING, 1, "copy engine exception", _RESTART),
    ("69", Severity.WARNING, 1, "graphics engine class error", _RESTART),
    ("43", Severity.OK, 0, "the GPU stopped processing for one application", _NOTHING),
    ("45", Severity.OK, 0, "clean-up after another error: that one is the cause", "look for the Xid before it"),
    ("46 62 109 110", Severity.CRITICAL, 3, "the GPU or its micro-controller is stuck, or a security fault", _RESET),
    ("119 120", Severity.CRITICAL, 3, "the GPU's system processor (GSP) does not answer", _RESET),
    ("136 143", Severity.CRITICAL, 3, "the GPU's link or its start-up failed", _RESET),
    ("48", Severity.CRITICAL, 3, "double-bit ECC error", _RESET),
    ("140", Severity.CRITICAL, 3, "ECC error that was not corrected", _RESET),
    ("63", Severity.WARNING, 3, "a GPU memory row was remapped", "have the GPU reset at the next restart"),
    ("64", Severity.CRITICAL, 3, "remapping a GPU memory row FAILED", "exclude the node and report it"),
    ("74", Severity.CRITICAL, 3, "NVLink error", "exclude the node if it repeats; check the links"),
    ("79", Severity.CRITICAL, 3, "the GPU has fallen off the bus", "exclude the node; it needs a reboot"),
    ("92 93", Severity.WARNING, 1, "many single-bit errors, or the InfoROM wears out", "report the GPU to support"),
    ("94", Severity.WARNING, 2, "contained memory error: one program is hit", "restart is enough"),
    ("95", Severity.CRITICAL, 3, "uncontained memory error", _RESET),
    ("121 137 157 160 161", Severity.OK, 0, "event on a chip-to-chip or NVLink connection", _NOTHING),
    ("144 145 146 147 148 149 150", Severity.CRITICAL, 3, "NVLink 5 error", "fatal: drain; else watch"),
    ("154", Severity.WARNING, 2, "the recovery action changed; the line says to what", "do what the line says"),
    ("155 156", Severity.WARNING, 2, "an NVLink or GPU resource was retired", "drain at the next restart"),
    ("158", Severity.CRITICAL, 3, "fatal GPU timeout", _RESET),
)

KINDS: tuple[Kind, ...] = (
    *(
        Kind(
            f"xid-{code}",
            severity,
            "root" if weight > 1 else "symptom" if weight else "info",
            meaning,
            action,
            _SOURCE,
            _CONFIRM,
            "node-failure" if weight > 1 else "",
            weight,
        )
        for codes, severity, weight, meaning, action in _GROUPS
        for code in codes.split()
    ),
    Kind(
        "xid-154-reset",
        Severity.CRITICAL,
        "root",
        "the driver asks for a reset of the GPU or a reboot of its node; the line says which",
        "exclude the node; do what the line says",
        _SOURCE,
        _CONFIRM,
        "node-failure",
        3,
    ),
    Kind(
        "xid",
        Severity.WARNING,
        "symptom",
        "the NVIDIA driver reported an error",
        "look the code up",
        _SOURCE,
        _CONFIRM,
        weight=1,
    ),
)
