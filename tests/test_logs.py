"""What is read from a log, and that nothing in it, or done to it, breaks or repeats the reading."""

import json
import math
import os
import re
import time
import tracemalloc
from pathlib import Path

import pytest

from ops.errors import BadInput
from ops.logs import Cursor, parse_event, parse_sample, read_batches, read_log, read_new, split_branches
from ops.logs.reader import unchanged
from ops.logs.tables import read_table
from ops.model import LogView, Sample, Unknown


def progress(step: int, loss: float | str = 3.39, elapsed: str = "19:29:30") -> str:
    return (
        f"iteration: {step:5d}/500000   0% | elapsed time: {elapsed} | per_token_loss: {loss} | "
        f"lr: 9.942E-06 | num_tokens: 1536772503 | pixel_values_sum: 3.00775E+12 | z_loss: 26.2100 |\n"
    )


def view(path: Path, last_bytes: int | None = None) -> LogView:
    read = read_log(path, last_bytes)
    assert isinstance(read, LogView), read
    return read


def new(path: Path, cursor: Cursor | None) -> tuple[LogView, Cursor]:
    read = read_new(path, cursor)
    assert not isinstance(read, Unknown), read
    return read


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "main_log.txt"


@pytest.mark.parametrize("before", ["", "0: ", "[2024-05-28 10:11:12] ", "3: [2024-05-28 10:11:12] "])
def test_a_progress_line(before: str) -> None:
    sample = parse_sample((before + progress(4875)).encode(), 7, 99)
    assert sample is not None
    assert (sample.step, sample.total, sample.loss, sample.lr) == (4875, 500000, 3.39, 9.942e-06)
    assert (sample.line, sample.offset) == (7, 99)
    assert sample.elapsed == 19 * 3600 + 29 * 60 + 30
    assert sample.fields["pixel_values_sum"] == 3.00775e12
    assert sample.fields["num_tokens"] == 1536772503
    assert (sample.time is None) == ("[" not in before)


@pytest.mark.parametrize(
    ("words", "loss"),
    [
        ("per_token_loss: 3.1 | loss: 9.9", 3.1),
        ("loss: -0.25", -0.25),
        ("lm loss: 5.098124E+00", 5.098124),
        ("per_token_loss: inf", math.inf),
        ("per_token_loss.cm4.v2: 2.0 | per_token_loss: 3.0 |", 3.0),
    ],
)
def test_which_number_is_the_loss(words: str, loss: float) -> None:
    sample = parse_sample(f"iteration:  25/100  25% | {words}".encode())
    assert sample is not None
    assert sample.loss == loss


def test_a_loss_that_is_no_number_is_still_a_sample() -> None:
    sample = parse_sample(progress(25, "nan").encode())
    assert sample is not None
    assert math.isnan(sample.loss)


@pytest.mark.parametrize(
    "line",
    [
        "",
        "iteration: of the loop",
        "iteration:  4875/500000   0% | elapsed time: 19:29:30 | per_token",
        "Validation logs: val_per_token_loss: 3.0179 | val_num_tokens: 4413196 |",
    ],
)
def test_what_is_no_progress(line: str) -> None:
    assert parse_sample(line.encode()) is None


@pytest.mark.parametrize(
    ("clock", "seconds"), [("00:00:05", 5), ("1-00:00:05", 86405), ("1 day, 0:00:05", 86405), ("soon", None)]
)
def test_the_clock(clock: str, seconds: float | None) -> None:
    sample = parse_sample(progress(1, elapsed=clock).encode())
    assert sample is not None
    assert sample.elapsed == seconds


def rows_of(path: Path) -> tuple[Sample, ...]:
    table = read_table(path)
    assert table is not None
    return table.samples


CANCELLED = "slurmstepd: error: *** STEP 19.0 ON n17 CANCELLED AT 2023-03-06T03:17:51"


@pytest.mark.parametrize(
    ("line", "kind", "value"),
    [
        ("** Saving finished at `/runs/tr_1/opt_step-4875` **", "saved", "/runs/tr_1/opt_step-4875"),
        ("** `wandb_run_id`: 3fj2k1ab **", "wandb-id", "3fj2k1ab"),
        ("[2024-05-28 10:11:12] ** `wandb_run_id`: 3fj2k1ab **", "wandb-id", "3fj2k1ab"),
        ("** Kill switch activated (Don't forget to remove …) **", "kill-switch", ""),
        ("** SIGTERM signal received. Please restart training **", "sigterm", ""),
        ("** Training time is over **", "time-over", ""),
        ("** CPU memory is close to explosion. Please restart training **", "memory", ""),
        ("** Maximum number of steps has been reached for this training **", "max-steps", "training"),
        ("** Maximum number of steps has been reached for this run **", "max-steps", "run"),
        ("Validation logs: val_per_token_loss: 3.0179 | val_num_images: 5 |", "validation", "3.0179"),
        ("srun: error: Node failure on jean-zay-iam37", "node-failure", "jean-zay-iam37"),
        ("0: srun: error: Node failure on n2", "node-failure", "n2"),
        (" 50%|█████     | 5/10srun: error: Node failure on n2", "node-failure", "n2"),
        ("srun: error: nid001271: tasks 1-3: Out Of Memory", "task-died", "nid001271"),
        ("srun: error: n3: task 2: Exited with exit code 1", "task-exit", ""),
        (CANCELLED + " DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***", "node-failure-step", ""),
        (CANCELLED + " DUE TO TIME LIMIT ***", "time-limit", "19.0"),
        (CANCELLED.replace("slurmstepd", "slurmstepd-n1") + " DUE TO PREEMPTION ***", "preempted", "19.0"),
        (CANCELLED.replace("STEP 19.0", "JOB 19") + " DUE TO JOB REQUEUE ***", "requeued", "19"),
        (CANCELLED + " ***", "cancelled", "19.0"),
    ],
)
def test_an_event(line: str, kind: str, value: str) -> None:
    event = parse_event((line + "\n").encode(), 3, 40)
    assert event is not None
    assert (event.kind, event.value, event.line, event.offset) == (kind, value, 3, 40)


@pytest.mark.parametrize(
    "line",
    [
        "** Starting validation **",
        'grep "srun: error: Node failure on" main_log.txt',
        "we saw srun: error: Node failure on n2 last week",
        "srun: error: unpack_header: protocol_version 65363 not supported",
        "slurmstepd: error: Failed to send MESSAGE_TASK_EXIT: Connection refused",
        "srun: Job step aborted: Waiting up to 62 seconds for job step to finish.",
    ],
)
def test_what_is_no_event(line: str) -> None:
    assert parse_event(line.encode()) is None


def test_lines_and_offsets_are_those_of_the_file(log: Path) -> None:
    lines = ["hello\n", progress(25), "** `wandb_run_id`: ab **\n", "ende\n", progress(50), "torn iteration"]
    log.write_text("".join(lines))
    read = view(log)
    assert [(s.step, s.line) for s in read.samples] == [(25, 2), (50, 5)]
    assert [(e.kind, e.line) for e in read.events] == [("wandb-id", 3)]
    content = log.read_bytes()
    assert all(content[s.offset :].startswith(b"iteration:") for s in read.samples)
    assert read.size == len(content)


def test_dirty_bytes_are_survived(log: Path) -> None:
    bar = b"".join(b"\r %d%%|\xe2\x96\x88| %d/10" % (n, n) for n in range(10))
    log.write_bytes(
        b"\xff\xfe\x00 no text \x80\n"
        + b"\x1b[32m" + progress(25).encode().rstrip() + b"\x1b[0m\r\n"
        + bar + b"\r" + progress(50).encode().rstrip() + b"\r 100%|\xe2\x96\x88|\n"
        + b"\0" * 5000 + progress(75).encode()
        + b" 30%|###| 3/10" + progress(100).encode()
        + progress(125).encode()[:60] + progress(150).encode()
    )  # fmt: skip
    assert [(s.step, s.line, s.loss) for s in view(log).samples][:4] == [
        (25, 2, 3.39),
        (50, 3, 3.39),
        (75, 4, 3.39),
        (100, 5, 3.39),
    ]


def test_a_line_of_megabytes_and_a_hole_need_little_memory(log: Path) -> None:
    with log.open("wb") as file:
        file.write(progress(25).encode())
        file.write(b"\r 30%|###   | 3/10" * 300_000 + b"\n")
        file.seek(60 << 20, os.SEEK_CUR)
        file.write(progress(50).encode())
    tracemalloc.start()
    try:
        read = view(log)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert [(s.step, s.line) for s in read.samples] == [(25, 1), (50, 3)]
    assert peak < 40 << 20


def test_a_tail_begins_with_a_whole_line_and_knows_its_number(log: Path) -> None:
    log.write_text("".join(progress(step) for step in range(1000)))
    width = len(progress(999))
    cut = view(log, 3 * width + 10)
    assert [(s.step, s.line) for s in cut.samples] == [(997, 998), (998, 999), (999, 1000)]
    exact = view(log, 3 * width)
    assert [s.step for s in exact.samples] == [997, 998, 999]
    assert view(log, 10**9).samples == view(log).samples


def test_the_tail_of_a_huge_log_has_no_line_numbers(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ops.logs.reader.COUNTED", 1000)
    log.write_text("".join(progress(step) for step in range(100)))
    assert [(s.step, s.line) for s in view(log, 300).samples] == [(99, 0)]


TRACE = """Traceback (most recent call last):
  File "train.py", line 3, in <module>
    main()
{}RuntimeError: the tensors do not fit
"""


def test_a_traceback_is_told_by_its_last_line(log: Path) -> None:
    log.write_text("begin\n" + TRACE.format("") + "srun: error: n3: task 2: Exited with exit code 1\n")
    trace, died = view(log).events
    assert (trace.kind, trace.line, trace.value) == ("traceback", 5, "RuntimeError")
    assert trace.text == "RuntimeError: the tensors do not fit"
    assert (died.kind, died.node) == ("task-exit", "n3")


def test_tracebacks_of_two_ranks_are_not_mixed(log: Path) -> None:
    a = [f"0: {line}\n" for line in TRACE.format("").splitlines()]
    b = [f"1: {line}\n" for line in TRACE.format("").replace("RuntimeError", "ValueError").splitlines()]
    log.write_text("".join(x + y for x, y in zip(a, b, strict=True)))
    assert [(e.kind, e.text[:9]) for e in view(log).events] == [
        ("traceback", "0: Runtim"),
        ("traceback", "1: ValueE"),
    ]


def test_a_traceback_still_being_written_is_waited_for(log: Path) -> None:
    text = TRACE.format("")
    log.write_text(progress(25) + text[:60])
    first, cursor = new(log, None)
    assert [s.step for s in first.samples] == [25]
    assert first.events == ()
    with log.open("a") as file:
        file.write(text[60:])
    assert [(e.kind, e.line) for e in new(log, cursor)[0].events] == [("traceback", 5)]


@pytest.mark.parametrize("missing", ["nothing", "folder", "fifo"])
def test_what_cannot_be_read_is_unknown(tmp_path: Path, missing: str) -> None:
    path = tmp_path / "log"
    if missing == "folder":
        path.mkdir()
    if missing == "fifo":
        os.mkfifo(path)
    for read in (read_log(path), read_new(path, None)):
        assert isinstance(read, Unknown)
        assert str(path) in read.reason


def test_reading_on_gives_each_line_once(log: Path) -> None:
    """However the writer's writes and our looks fall, in every place of two lines."""
    content = (progress(25) + "** `wandb_run_id`: ab **\n").encode()
    for cut in range(len(content) + 1):
        log.write_bytes(content[:cut])
        first, cursor = new(log, None)
        with log.open("ab") as file:
            file.write(content[cut:])
        second, _ = new(log, Cursor.from_json(cursor.to_json()))
        assert first.samples + second.samples == view(log).samples
        assert first.events + second.events == view(log).events


def test_the_cursor_counts_lines(log: Path) -> None:
    log.write_text("a\nb\n" + progress(25))
    _, cursor = new(log, None)
    with log.open("a") as file:
        file.write("c\n" + progress(50))
    read, after = new(log, cursor)
    assert [s.line for s in read.samples] == [5]
    assert not after.restarted


def test_a_log_that_was_truncated_or_replaced_is_read_from_its_start(log: Path) -> None:
    log.write_text("of the first job\n" + progress(25) * 3)
    _, cursor = new(log, None)

    log.write_text(progress(50))
    shorter, after = new(log, cursor)
    assert ([s.step for s in shorter.samples], after.restarted) == ([50], True)

    log.write_text("of the second job\n" + "".join(progress(step) for step in range(75, 84)))
    regrown, after = new(log, cursor)
    assert ([s.step for s in regrown.samples], after.restarted) == (list(range(75, 84)), True)

    other = log.with_name("other")
    other.write_text("of the first job\n" + progress(25) * 3 + progress(100))
    other.replace(log)
    replaced, after = new(log, cursor)
    assert (len(replaced.samples), after.restarted) == (2, True)
    assert not new(log, after)[1].restarted


def test_a_hole_after_a_truncation_under_the_writer_is_seen(log: Path) -> None:
    with log.open("wb") as file:
        file.write(progress(25).encode() * 10)
        file.flush()
        _, cursor = new(log, None)
        os.truncate(log, 0)
        file.write(progress(50).encode())
        file.flush()
        read, after = new(log, cursor)
    assert ([s.step for s in read.samples], after.restarted) == ([50], True)


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"device": 1}', "null"])
def test_a_foreign_cursor_is_refused(text: str) -> None:
    with pytest.raises(BadInput):
        Cursor.from_json(text)


def samples(*steps: int) -> tuple[Sample, ...]:
    return tuple(Sample(step, 1.0) for step in steps)


def test_branches_part_where_the_step_goes_back() -> None:
    first, second, third = split_branches(samples(25, 50, 75, 100, 75, 100, 125, 60, 85))
    assert [s.step for s in first.samples] == [25, 50, 75, 100]
    assert [s.step for s in first.alive] == [25, 50]
    assert [s.step for s in first.discarded] == [75, 100]
    assert [s.step for s in second.discarded] == [75, 100, 125]
    assert third.discarded == ()
    assert split_branches(()) == ()


def test_one_line_printed_twice_is_no_branch_but_a_resume_at_it_is() -> None:
    assert len(split_branches(samples(25, 50, 50, 75))) == 1
    before, after = Sample(50, 1.0, elapsed=900.0), Sample(50, 1.1, elapsed=20.0)
    assert [b.kept for b in split_branches((before, after))] == [0, 1]


SAMPLES = [
    ("m4", "iteration:  4875/500000   0% | elapsed time: 19:29:30 | per_token_loss: 3.39 | lr: 9.9E-06 |", (4875, 3.39)),
    ("megatron", "[default7]: iteration    31219/  115311 | consumed samples: 47778736 | lm loss: 5.09E+00 | grad norm: 960.3 |", (31219, 5.09)),
    ("neox", " samples/sec: 51.2 | iteration 310/ 143000 | elapsed time per iteration (ms): 9.5 | lm_loss: 7.08E+00 | loss scale: 16.0 |", (310, 7.08)),
    ("nanotron", "iteration: 91 / 100 | consumed_tokens: 93.2K | grad_norm: 1.4M | lr: 3.3e-05 | lm_loss: 9.2 |", (91, 9.2)),
    ("titan", "\x1b[31mstep: 20  \x1b[32mloss: 11.83506  \x1b[38;2;180;60;0mgrad_norm:  9.6669  tps: 4,376", (20, 11.83506)),
    ("olmo", "[2024-04-17 09:42:26] INFO [olmo.train:816] [step=1,200/739,328]\n    train/CrossEntropyLoss=11.25\n    train/Perplexity=76,631", (1200, 11.25)),
    ("composer", "[batch=2/100]:\n   Train LanguageCrossEntropy: 10.9\n   Train loss/train/total: 10.9", (2, 10.9)),
    ("nanogpt", "iter 100: loss 4.8292, time 460.11ms, mfu 48.10%", (100, 4.8292)),
    ("build", "step     3 | loss: 8.938062 | lr 6.0000e-04 | norm: 1.9169 | dt: 397.21ms", (3, 8.938062)),
    ("llm.c", "s:300 trl:5.9994 lr:0.000129 norm:0.98", (300, 5.9994)),
    ("modded", "step:5/6200 train_loss:7.2838 train_time:80ms step_avg:nanms", (5, 7.2838)),
    ("internevo", "2023-07-07 12:29:09,307 INFO train.py:323 -- tflops=188.8,step=3,loss=11.0995,lr=1e-06,grad_norm=63.5,micro_num=4", (3, 11.0995)),
    ("nemo", "Training epoch 1, iteration 10/999 | lr: 1e-4 | global_step: 29 | reduced_train_loss: 11.03 |", (29, 11.03)),
    ("mlperf", ':::MLLOG {"key": "tracked_stats", "value": {"reduced_train_loss": 2.6857}, "metadata": {"step": 119957}}', (119957, 2.6857)),
    ("lightning", "Epoch 0:   6%|# | 32040/500150 [6:28:43<94:39:17, 1.3it/s, loss=2.6]\rEpoch 0:   6%|# | 32041/500150 [6:28:44<94:39:16, loss=2.61]", (32041, 2.61)),
    ("fairseq", '2022 | INFO | train_inner | {"loss": "9.431", "num_updates": "200", "gnorm": "1.92"}', (200, 9.431)),
    ("trainer", "  5%|5 | 10/200 [00:05<01:40]\r{'loss': 2.98, 'grad_norm': 0.97, 'learning_rate': 4.1e-05, 'epoch': 0.1}", (10, 2.98)),
    ("epochs", "Epoch 11 iteration 0120/0187: training loss nan", (11 * 187 + 120, math.nan)),
    ("step of an epoch", "Epoch [1/10], Step [100/600], Loss: 2.1000", (700, 2.1)),
    ("lightning 2", "Epoch 1:  10%|█  | 10/100 [00:05<00:45,  2.00it/s, v_num=3, train_loss_step=2.300, train_loss_epoch=2.5]", (110, 2.3)),
    ("nemo 1", "Epoch 0: :   1%|▏  | 10/1000 [00:30<50:00, reduced_train_loss=10.90, global_step=9.000, consumed_samples=80.0]", (10, 10.9)),
    ("bar", "training:  10%|#   | 10/100 [00:05<00:45,  2.00s/it, Loss=2.31, lr=1e-4]", (10, 2.31)),
    ("internevo 2", "INFO pipeline.py:681 in record -- tflops=105.8 step=49 loss=0.325 tgs (tokens/gpu/second)=3359.06 lr=1e-05 grad_norm={'0_default': 63.5}", (49, 0.325)),
    ("fairseq simple", "2025 | INFO | train_inner | epoch 002:    100 / 1000 loss=9.431, ppl=690, num_updates=1100, lr=1e-05, gnorm=1.92", (1100, 9.431)),
    ("trl", "{'entropy': 1.2, 'num_tokens': 3.0, 'loss': 2.98, 'grad_norm': 0.97, 'learning_rate': 4.1e-05, 'epoch': 0.1}", (1, 2.98)),
    ("deepspeed", "steps: 200 loss: 5.5508 lm loss: 5.5103 moe loss: 0.0405 iter time (s): 0.936 samples/sec: 136.706", (200, 5.5508)),
    ("torchtune", "1|10|Loss: 2.345:  10%|#   | 10/100 [00:10<01:30,  1.0s/it]", (10, 2.345)),
    ("timm", "Train: 2 [  50/1251 (  4%)]  Loss: 6.94 (6.95)  Time: 0.5s,  512/s  LR: 1.000e-06", (2 * 1251 + 50, 6.94)),
    ("litgpt", "Epoch 1 | iter 40 step 10 | loss train: 10.512, val: n/a | iter time: 500.00 ms (step)", (10, 10.512)),
]  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), [s[1:] for s in SAMPLES], ids=[s[0] for s in SAMPLES])
def test_the_progress_of_a_framework(log: Path, text: str, expected: tuple[int, float]) -> None:
    log.write_text("step 0: no loss here\n" + text + "\n")
    last = view(log).samples[-1]
    assert (last.step, last.loss) == pytest.approx(expected, nan_ok=True)


@pytest.mark.parametrize(
    "line",
    [
        "[rank0]:[titan] 2025-01-01 00:00:00,000 - root - INFO - validate step: 100  loss:  5.5  memory: 48.87GiB(51.44%)",
        "step 250: train loss 2.1, val loss 2.3",
        "step:250/6200 val_loss:4.8 train_time:0ms",
        "step 250 | val loss 5.5",
        "eval metrics after step: 100, loss=5.5, total_weights=9",
        "Validation DataLoader 0:  10%|#   | 1/10 [00:00<00:01, 2it/s, loss=5.5]",
        "Validation:  10%|#   | 1/10 [00:00<00:01, 2it/s, loss=5.5]",
        '{"mode": "val", "step": 100, "loss": 5.5}',
        " validation loss at iteration 1000 on validation set | lm loss value: 4.5E+00 | lm loss PPL: 9.0E+01 | ",
        "{'eval_loss': 5.5, 'eval_runtime': 10.1, 'epoch': 1.0}",
    ],
)
def test_an_evaluation_is_no_row_of_the_training(log: Path, line: str) -> None:
    log.write_text(line + "\nstep: 300  loss: 2.5  grad_norm: 1.5\n")
    assert [(s.step, s.loss) for s in view(log).samples] == [(300, 2.5)]


def test_a_trusted_format_silences_the_bar_beside_it(log: Path) -> None:
    bar = "Epoch 0:   6%|# | 3/50 [6:28:43<94:39:17, loss=2.6]\n"
    log.write_text(bar + progress(25) + bar + progress(50))
    assert [s.step for s in view(log).samples] == [3, 25, 50]


def test_a_record_of_two_lines_may_end_at_the_next_look(log: Path) -> None:
    log.write_text("[batch=7/100]:\n")
    first, cursor = new(log, None)
    assert first.samples == ()
    with log.open("a") as file:
        file.write("   Train loss/train/total: 3.5\n")
    (sample,) = new(log, Cursor.from_json(cursor.to_json()))[0].samples
    assert (sample.step, sample.loss, sample.total) == (7, 3.5, 100)


def test_skipped_steps_have_no_loss_but_are_told(log: Path) -> None:
    log.write_text(
        " iteration 9027/ 159576 | loss scale: 8192.0 | grad norm: 20.7 | number of skipped iterations:   1 |\n"
    )
    (event,) = view(log).events
    assert (event.kind, event.value) == ("skipped-steps", "8192")


def test_a_file_is_read_block_by_block(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ops.logs.reader.BLOCK", 1000)
    log.write_text("".join(progress(step) for step in range(100)))
    batches = list(read_batches(log, None))
    assert len(batches) > 10
    assert [s for view, _ in batches for s in view.samples] == list(view(log).samples)
    assert batches[-1][1].offset == log.stat().st_size


def test_a_pattern_of_the_users_own_is_all_that_counts_as_progress(log: Path) -> None:
    log.write_text(
        "7: [x] Step  1,200/ 5K ::  loss=2.5 lr=3e-5 tok 3.3 mem 5\n"
        + progress(9)
        + "Step 1225/5K :: loss=nan lr=3E-05 and mem 5\n"
        + "Step 1250/5K :: loss=much lr=3E-05 and mem 5\n"
        + "srun: error: Node failure on n7\n"
    )
    said = "Step {step}/{total} :: loss={loss} lr={lr} {} mem"
    read = read_log(log, progress=said)
    assert isinstance(read, LogView)
    first, second = read.samples
    assert (first.step, first.total, first.loss, first.lr, first.line) == (1200, 5000, 2.5, 3e-5, 1)
    assert (second.step, second.line) == (1225, 3)
    assert math.isnan(second.loss)
    assert [(event.kind, event.node, event.line) for event in read.events] == [("node-failure", "n7", 5)]


@pytest.mark.parametrize(
    ("said", "wrong"),
    [
        ("loss: {loss}", "no `{step}`"),
        ("step {step}", "no `{loss}`"),
        ("step {step} {step} loss {loss}", "`{step}` stands in it twice"),
        ("step {step} loss {loss} lr {1r}", "`1r` is no name"),
        ("{step} {loss}", "no fixed text"),
    ],
)
def test_a_pattern_that_cannot_work_is_refused(log: Path, said: str, wrong: str) -> None:
    log.write_text(progress(1))
    with pytest.raises(BadInput, match=re.escape(wrong)):
        read_log(log, progress=said)


def test_json_lines_are_a_log_like_any_other(log: Path) -> None:
    rows = [
        {
            "iteration": "   25/500000   0%",
            "elapsed_time": "00:10:00",
            "set": "train",
            "per_token_loss": 7.5,
            "lr": 1e-5,
        },
        {"current step": 25, "set": "validation", "per_token_loss": 7.7},
        {"iteration": "   50/500000   0%", "set": "train", "per_token_loss": "7.25", "per_token_loss/cm4": 7.0},
    ]
    plain = [{"global_step": 3, "loss": 2.0, "grad_norm": 0.5}, {"loss": 1.0}, {"global_step": 4, "loss": math.nan}]
    for path, data, steps in ((log, rows, [25, 50]), (log.with_suffix(".other"), plain, [3, 4])):
        path.write_text("".join(json.dumps(row) + "\n" for row in data))
        read = view(path)
        table = path.with_suffix(".jsonl")
        table.write_text(path.read_text())
        assert [sample.step for sample in read.samples] == steps
        assert str([(s.step, s.loss, s.lr, s.total, s.grad_norm, s.line) for s in read.samples]) == str(
            [(s.step, s.loss, s.lr, s.total, s.grad_norm, s.line) for s in rows_of(table)]
        )
    assert view(log).samples[1].fields["per_token_loss/cm4"] == 7.0


def test_a_csv_is_followed_as_a_log_is(tmp_path: Path) -> None:
    """As Lightning's CSVLogger writes one: empty cells, rows of a validation, another file once a column is new."""
    log = tmp_path / "metrics.csv"
    rows = [
        "\ufeffepoch,grad_norm,step,train_loss,val_loss,lr\n",
        "0,0.5,49,2.5,,1e-4\n",
        "0,,99,,2.75,\n",
        '0,1e1,149,"nan",,9e-5\n',
    ]
    log.write_text("".join(rows), encoding="utf-8")
    first = read_new(log, None)
    assert not isinstance(first, Unknown)
    assert [(s.step, s.lr, s.grad_norm, s.line) for s in first[0].samples] == [(49, 1e-4, 0.5, 2), (149, 9e-5, 10, 4)]
    assert first[0].samples[0].loss == 2.5
    assert math.isnan(first[0].samples[1].loss)
    with log.open("a") as more:
        more.write("0,,199,2.25,,8e-5\n0,,249,2.0")
    second = read_new(log, first[1])
    assert not isinstance(second, Unknown)
    assert [(s.step, s.loss, s.line) for s in second[0].samples] == [(199, 2.25, 5)]
    log.write_text("epoch,step,tokens,train_loss\n0,49,7,2.5\n0,249,9,2.0\n")
    third = read_new(log, second[1])
    assert not isinstance(third, Unknown)
    assert third[1].restarted
    assert [(s.step, s.fields["tokens"]) for s in third[0].samples] == [(49, 7.0), (249, 9.0)]
    assert [(s.step, s.loss) for s in third[0].samples] == [(s.step, s.loss) for s in rows_of(log)]


def test_the_last_line_of_a_finished_log_needs_no_end(log: Path) -> None:
    log.write_text(progress(25) + progress(50).rstrip())
    assert [s.step for s in view(log).samples] == [25]
    whole = read_log(log, finished=True)
    assert isinstance(whole, LogView)
    assert [(s.step, s.line) for s in whole.samples] == [(25, 1), (50, 2)]
    log.write_text(progress(25) + TRACE.format("").rstrip())
    whole = read_log(log, finished=True)
    assert isinstance(whole, LogView)
    assert [(e.kind, e.line) for e in whole.events] == [("traceback", 5)]


def quiet(log: Path, seconds: float = 120) -> None:
    then = time.time() - seconds
    os.utime(log, (then, then))


def test_a_last_line_without_end_is_read_once_nobody_writes(log: Path) -> None:
    """And once: what the writer adds to it later is no line of its own."""
    for last in (progress(50).rstrip(), "srun: error: Node failure on n42"):
        log.write_text(progress(25) + last)
        read, cursor = new(log, None)
        assert len(read.samples + read.events) == 1
        quiet(log)
        read, cursor = new(log, cursor)
        assert [told.line for told in (*read.samples, *read.events)] == [2]
        assert unchanged(log, cursor)
        with log.open("a") as file:
            file.write("\n" + progress(75))
        read, _ = new(log, Cursor.from_json(cursor.to_json()))
        assert ([(s.step, s.line) for s in read.samples], read.events) == ([(75, 3)], ())


@pytest.mark.parametrize(
    "torn", ["iteration:  4", progress(50)[:88], "some words", "Traceback (most recent call last):\n  File"]
)
def test_a_last_line_that_tells_nothing_yet_is_waited_for(log: Path, torn: str) -> None:
    """A writer's buffer may end anywhere, and for hours: `lr: 9.9` is none if the writer meant `9.9E-06`."""
    log.write_text(progress(25) + torn)
    quiet(log)
    read, cursor = new(log, None)
    assert [s.step for s in read.samples] == [25]
    assert read.events == ()
    assert unchanged(log, cursor), "it is not looked at again and again"
    assert cursor.offset == len(progress(25))


def test_a_bar_is_read_while_its_line_goes_on_for_hours(log: Path) -> None:
    """As tqdm prints it, `\\r` before each state, and a Trainer's line in the middle: whole states, each once."""
    bar = "\rEpoch 0:  10%|# | {}/100000 [00:05<00:45,  2.00it/s, v_num=3, loss={}]"
    cursor, steps = None, []
    for tick in range(3):
        with log.open("a") as file:
            file.write("".join(bar.format(step, 2.5) for step in range(40 * tick, 40 * tick + 40)))
        read, cursor = new(log, cursor)
        steps += [s.step for s in read.samples]
        assert {s.line for s in read.samples} == {1}
    assert steps == list(range(119))
    assert [s.step for s in view(log, 500).samples] == list(range(119))[-5:]
    with log.open("a") as file:
        file.write("\n" + progress(3))
    read, cursor = new(log, cursor)
    assert [(s.step, s.line) for s in read.samples] == [(119, 1), (3, 2)]


def test_a_bar_of_the_last_look_tells_the_step_of_this_ones_line(log: Path) -> None:
    log.write_text("  5%|5 | 10/200 [00:05<01:40]\r")
    _, cursor = new(log, None)
    with log.open("a") as file:
        file.write("{'loss': 2.98, 'grad_norm': 0.97, 'learning_rate': 4.1e-05, 'epoch': 0.1}\n")
    assert [s.step for s in new(log, cursor)[0].samples] == [10]


@pytest.mark.parametrize(
    "head",
    [
        "Date;Step;Loss\n;",
        "Date\tstep\ttrain/loss\n\t",
        '"Date","Step","run-7 - a - train/loss","run-7 - a - train/loss__MIN"\n,',
        "Date,_step,train/loss\n,",
    ],
)
def test_a_csv_may_be_wandbs_or_parted_otherwise(tmp_path: Path, head: str) -> None:
    apart = head[-1]
    number = "2,5" if apart == ";" else "2.5"
    log = tmp_path / "export.csv"
    log.write_text(head[:-1] + apart.join(["", "9", number, ""]) + "\n" + apart.join(["", "10", number, ""]) + "\n")
    assert [(s.step, s.loss, s.line) for s in rows_of(log)] == [(9, 2.5, 2), (10, 2.5, 3)]
    assert [(s.step, s.loss, s.line) for s in view(log).samples] == [(9, 2.5, 2), (10, 2.5, 3)]
