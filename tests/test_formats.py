"""Progress lines of many frameworks as they stand in public logs, issues and documentation: step, loss, LR, gradient norm."""

import pytest

from ops.logs import parse_sample
from ops.logs.progress import Place, follow
from ops.model import Sample

ROWS = [
    # AI-Hypercomputer/maxtext
    ('maxtext', 'I0317 10:00:17.579063 125344476638336 metric_logger.py:181] completed step: 10, seconds: 0.435, TFLOP/s/device: 236.448, Tokens/s/device: 9423.869, total_weights: 30708, loss: 1.5', (10, 1.5), None, None),
    # facebookresearch/detectron2
    ('detectron2', '[11/24 17:17:38 d2.utils.events]:  eta: 0:03:49  iter: 19  total_loss: 5.922  loss_cls: 1.709  loss_box_reg: 0.001663  loss_mask: 0.6814  loss_rpn_cls: 2.287  loss_rpn_loc: 1.211  time: 0.8241  data_time: 0.8461  lr: 3.9962e-05  max_mem: 1966M', (19, 5.922), 3.9962e-05, None),
    # open-mmlab/mmengine
    ('mmengine iter', '08/12 11:40:22 - mmengine - INFO - Iter(train) [  50/2000]  lr: 4.9841e-05  eta: 0:11:24  time: 0.2934  data_time: 0.0044  memory: 3725  grad_norm: 3.3291  loss: 2.5882  decode.loss_ce: 2.5882  decode.acc_seg: 46.7585', (50, 2.5882), 4.9841e-05, 3.3291),
    # AILab-CVC/YOLO-World issue 190
    ('mmengine epoch', '03/25 23:58:44 - mmengine - INFO - Epoch(train) [100][  50/4309]  base_lr: 2.0000e-03 lr: 5.9600e-05  eta: 12:14:32  time: 0.7842  data_time: 0.0205  memory: 7657  grad_norm: 993.2860  loss: 1111.4113  loss_cls: 399.5985', (430950, 1111.4113), 5.96e-05, 993.286),
    # volcengine/verl docs/start/quickstart.rst
    ('verl', 'step:0 - timing/gen:21.470 - critic/vf_loss:14.947 - critic/grad_norm:1023.278 - critic/lr(1e-4):0.100 - actor/entropy_loss:0.433 - actor/pg_loss:-0.005 - actor/pg_clipfrac:0.000 - actor/grad_norm:1.992 - actor/lr(1e-4):0.010 - critic/score/mean:0.004', (0, -0.005), None, 1.992),
    # verl
    ('verl 2', '(TaskRunner pid=15930) step:1 - global_seqlen/min:255486 - actor/pg_loss:0.25 - actor/kl_loss:0.0 - actor/grad_norm:1.5 - actor/lr:4e-05 - training/global_step:1', (1, 0.25), 4e-05, 1.5),
    # modelscope/ms-swift
    ('swift', "Train:   2%|▏         | 1/60 [00:42<41:47, 42.51s/it]{'loss': '0.3713', 'grad_norm': '0.8901', 'learning_rate': '3.333e-05', 'token_acc': '0.921', 'epoch': '0.08602', 'global_step/max_steps': '1/60', 'elapsed_time': '43s', 'remaining_time': '41m 48s', 'memory(GiB)': '14.3', 'train_speed(s/it)': '42.51'}", (1, 0.3713), 3.333e-05, 0.8901),
    # modelscope/ms-swift examples
    ('swift 2', "{'loss': 2.1327579, 'grad_norm': 1.72890568, 'learning_rate': 8.346e-05, 'token_acc': 0.58396158, 'epoch': 0.32, 'global_step/max_steps': '5/16', 'percentage': '31.25%', 'elapsed_time': '5m 28s', 'remaining_time': '12m 2s', 'memory(GiB)': 24.8, 'train_speed(iter/s)': 0.015218}", (5, 2.1327579), 8.346e-05, 1.72890568),
    # hiyouga/LLaMA-Factory trainer_log.jsonl
    ('llama-factory', '{"current_steps": 10, "total_steps": 93, "loss": 4.169, "lr": 2.25e-06, "epoch": 0.3292181069958848, "percentage": 10.75, "elapsed_time": "0:04:02", "remaining_time": "0:33:29", "throughput": 13174.21, "total_tokens": 3189568}', (10, 4.169), 2.25e-06, None),
    # marin-community/marin
    ('levanter', 'INFO Progress on:train 11.0it/18.0it rate:34.5s/it remaining:04:01 elapsed:17:46 postfix:loss=15.5', (11, 15.5), None, None),
    # Physical-Intelligence/openpi
    ('levanter k', 'Progress on:train 2.60kit/10.0kit rate:1.8s/it remaining:3:40:01 elapsed:1:27:12 postfix:loss=2.5', (2600, 2.5), None, None),
    # Physical-Intelligence/openpi
    ('openpi', 'Step 300: loss=0.0009, grad_norm=0.0334, param_norm=1806.0', (300, 0.0009), None, 0.0334),
    # Physical-Intelligence/openpi
    ('openpi2', 'Step 100: grad_norm=1.1378, loss=0.0648, param_norm=1803.7704', (100, 0.0648), None, 1.1378),
    # deepspeedai/DeepSpeedExamples DeepSpeed-Chat step 1
    ('dschat', 'Time: 2023-12-11 16:39:28, Epoch: 0, Step: 5, Rank: 0, loss = 7.7890625', (5, 7.7890625), None, None),
    # DeepSpeed-Chat step 3
    ('dschat rlhf', 'Epoch: 0 | Step: 8 | PPO Epoch: 1 | Actor Loss: 0.010894775390625 | Critic Loss: 0.0201416015625 | Unsupervised Loss: 0.0', (8, 0.010894775390625), None, None),
    # DeepSpeed-Chat step 3
    ('dschat rlhf old', 'epoch: 0|step: 187|ppo_ep: 1|act_loss: -0.51123046875|cri_loss: -0.176025390625|unsuper_loss: 0.0', (187, -0.51123046875), None, None),
    # shisa-ai/shisa-v2, OpenRLHF train_sft
    ('openrlhf', '14/2826 [17:16<36:13:38, 46.38s/it, gpt_loss=1.06, lr=tensor(5.3821e-07), aux_loss=8.45]', (14, 1.06), 5.3821e-07, None),
    # NVIDIA/Megatron-LM
    ('megatron new', '[default0]: [2026-09-11 12:07:17.375194] iteration        4/ 7629408 | consumed samples:          128 | elapsed time per iteration (ms): 24386.9 | throughput per GPU (TFLOP/s/GPU): 26.8 | learning rate: 1.875000E-04 | global batch size:    32 | lm loss: 1.044366E+01 | loss scale: 1.0 | grad norm: 4.157 | num zeros: 871.0 | params norm: 496.205 | number of skipped iterations:   0 | number of nan iterations:   0 |', (4, 10.44366), 0.0001875, 4.157),
    # k2-fsa/icefall docs
    ('icefall', '2023-05-12 18:05:00,352 INFO [train.py:422] Epoch 0, batch 10, loss[loss=0.4561, over 2828.00 frames. ], tot_loss[loss=0.7076, over 22192.90 frames. ], batch size: 4', (10, 0.4561), None, None),
    # NVIDIA/DeepLearningExamples issue 1107
    ('dllogger', 'DLL 2022-04-05 05:10:36.324733 - Training Epoch: 0 Training Iteration: 651  step_loss : 2.0511345863342285  learning_rate : 2.9369138959931797e-05 ', (651, 2.0511345863342285), 2.9369138959931797e-05, None),
    # the same
    ('dllogger beside a bar', 'Iteration:  23%|███   | 650/2771 [01:23<04:25,  7.98it/s]DLL 2022-04-05 05:10:36.324733 - Training Epoch: 0 Training Iteration: 651  step_loss : 2.0511345863342285  learning_rate : 2.9369138959931797e-05 ', (651, 2.0511345863342285), 2.9369138959931797e-05, None),
    # NVIDIA/dllogger JSONStreamBackend
    ('dllogger json', 'DLLL {"timestamp": "1649135436.324733", "datetime": "2022-04-05 05:10:36.324733", "elapsedtime": "83.1", "type": "LOG", "step": [0, 651], "data": {"step_loss": 2.0511, "learning_rate": 2.9369e-05}}', (651, 2.0511), 2.9369e-05, None),
    # mlcommons/logging
    ('mlperf', ':::MLLOG {"namespace": "", "time_ms": 1775725581676, "event_type": "POINT_IN_TIME", "key": "train_loss", "value": 11.846, "metadata": {"samples_count": 320, "lr": 3.125e-06}}', (320, 11.846), 3.125e-06, None),
    # facebookresearch/fairseq issue 940
    ('fairseq old', '| epoch 001:    450 / 1891 loss=11.521, nll_loss=10.881, ppl=1886.05, wps=52922, ups=0.5, wpb=104928, bsz=5325, num_updates=445, lr=8.90889e-05, gnorm=1.543, clip=0%, oom=0, loss_scale=2.000, wall=882, train_wall=756', (445, 11.521), 8.90889e-05, 1.543),
    # facebookresearch/fairseq issue 301
    ('fairseq older', '| epoch 010  2000 / 8223 loss=1.27 (1.50), wps=962, wpb=908, bsz=32, lr=0.001, clip=100%, gnorm=2.1427', (84230, 1.27), 0.001, 2.1427),
    # PaddlePaddle/PaddleSeg pull 928
    ('paddleseg', '2021-03-30 06:55:57 [INFO]\t[TRAIN] epoch: 1, iter: 20/500, loss: 2.0859, lr: 0.009657, batch_cost: 0.5344, reader_cost: 0.07273, ips: 3.7425 samples/sec | ETA 00:04:16', (20, 2.0859), 0.009657, None),
    # Topdu/OpenOCR issue 9
    ('paddleocr', '[2024/08/06 18:03:31] openrec INFO: epoch: [1/2], global_step: 100, lr: 0.000005, loss: 69.376022, avg_reader_cost: 0.00971 s, avg_batch_cost: 0.18023 s, avg_samples: 64.0, ips: 355.10891 samples/s, eta: 0:32:33', (100, 69.376022), 5e-06, None),
    # PaddlePaddle/PaddleNLP pull 1761
    ('paddlenlp', "{'loss': 0.1856, 'learning_rate': 4.5e-05, 'global_step': 150, 'epoch': 2.0}", (150, 0.1856), 4.5e-05, None),
    # PaddlePaddle/PaddleDetection issue 2800
    ('paddledet', '[04/28 17:21:56] ppdet.engine INFO: Epoch: [21] [120/141] learning_rate: 0.000770 loss_xy: 2.849720 loss_wh: 1.324514 loss_obj: 8.690937 loss_cls: 0.525484 loss: 14.034956 eta: 1:32:21 batch_cost: 0.1700', (3081, 14.034956), 0.00077, None),
    # PaddlePaddle/PaddleSpeech issue 675
    ('paddlespeech', '[INFO 2021/06/19 16:01:34 model.py:61] Train: Rank: 0, epoch: 1, step: 5310, batch : 1559/1876, lr: 0.00000000, data time: 0.000s, train time: 3.019s, batch size: 64, train_loss: 16.030918', (5310, 16.030918), 0.0, None),
    # mertyg/vision-language-models-are-bows issue 27
    ('openclip', '2023-06-29,15:45:36 | INFO | Train Epoch: 0 [  6464/109468 (3%)] Loss: 0.97884 (1.023) Data (t): 0.158 Batch (t): 0.559, 36.0876/s LR: 0.000001 Logit Scale: 99.995 - V4', (6464, 0.97884), 1e-06, None),
    # Alpha-VLLM/LLaMA2-Accessory issue 48
    ('accessory', '[07:15:39.400163] Epoch: [2]  [1480/1504]  lr: 0.000005  closs: 0.8662 (0.8558)  grad_norm: 0.2537 (0.3329)  time: 4.3713  data: 0.0001  max mem: 51710', (4488, 0.8662), 5e-06, 0.2537),
    # pytorch/torchtitan pull 3393
    ('titan new', '[rank0]:[titan] 2026-05-18 16:04:46,338 - root - INFO - step: 14  loss:  3.24405  grad_norm:  0.8319  memory:  9.46GiB(64.99%)  tps: 7,282  tflops: 0.52  mfu: 0.17%', (14, 3.24405), None, 0.8319),
    # pytorch/examples imagenet
    ('imagenet', 'Epoch: [0][  10/5005]\tTime  0.567 ( 1.2)\tData  0.0 (0.3)\tLoss 6.9e+00 (7.0e+00)\tAcc@1   0.00 (0.1)', (10, 6.9), None, None),
    # pytorch/examples mnist
    ('mnist', 'Train Epoch: 1 [640/60000 (1%)]\tLoss: 1.228000', (60640, 1.228), None, None),
    # hongbo-miao/hongbomiao.com pull 37684, TRL
    ('trl ppo', "{'eps': 1, 'objective/kl': 10.507803916931152, 'objective/entropy': 99.79830932617188, 'loss/policy_avg': 0.00090751051902771, 'loss/value_avg': 0.15319222211837769, 'val/clipfrac_avg': 0.0, 'lr': 2.0634920634920634e-06, 'episode': 816, 'epoch': 0.91}", (1, 0.00090751051902771), 2.0634920634920634e-06, None),
    # google/CommonLoopUtils
    ('t5x clu', 'I0709 15:29:52.025554 12803141632 logging_writer.py:48] [100] collection=train accuracy=0.05, cross_ent_loss=3.2, learning_rate=0.01, loss=3.25, loss_per_nontarget=1', (100, 3.25), 0.01, None),
]  # fmt: skip
EVALUATIONS = [
    'DLL 2022-04-05 05:10:36 - Validation Epoch: 0 Validation Iteration: 5  step_loss : 5.5',
    'DLLL {"timestamp": "1649135436.3", "elapsedtime": "83.1", "type": "LOG", "step": [0, 651], "data": {"val_loss": 5.5}}',
    'DLLL {"timestamp": "1649135436.3", "elapsedtime": "83.1", "type": "LOG", "step": [], "data": {"final_loss": 5.5}}',
    ':::MLLOG {"namespace": "", "time_ms": 1775725581676, "event_type": "POINT_IN_TIME", "key": "eval_loss", "value": 5.5, "metadata": {"samples_count": 320}}',
    'Progress on:eval 106it/184it rate:34.5s/it remaining:04:01 elapsed:17:46 postfix:loss=5.5',
    "| epoch 010 | valid on 'valid' subset  1000 / 1311 loss=5.5",
    '08/12 11:40:22 - mmengine - INFO - Iter(val) [  50/200]  eta: 0:11:24  loss: 5.5',
    '08/12 11:40:22 - mmengine - INFO - Epoch(val) [1][  50/200]  loss: 5.5',
    'step:3 - val/reward:0.55',
    'step:10 - val/loss:5.5',
    '{"current_steps": 30, "total_steps": 30, "eval_loss": 5.5, "epoch": 3.0}',
    "{'eval_loss': 0.00052689, 'eval_acc': 1.0, 'epoch': 2.99, 'global_step/max_steps': '222/222'}",
    'Test:  [  0/98]  eta: 0:02:29  loss: 5.5 (5.5)  acc1: 85.9375 (85.9375)  time: 1.5  data: 1.2  max mem: 4',
    'Test: [ 0/98]\tTime  2.0\tLoss 5.5e+00 (5.5e+00)',
    '2023-05-12 18:05:00,691 INFO [train.py:444] Epoch 0, validation loss=5.5, over 1',
    'I0709 15:29:52.0 12803141632 logging_writer.py:48] [100] collection=training_eval/wmt accuracy=0.05, loss=5.5',
    'I0709 15:29:52.0 12803141632 logging_writer.py:48] [100] collection=inference_eval/x loss=5.5',
    'Step 100: val loss 5.5',
    'Step 100 | validation loss: 5.5',
    'Epoch: [0] Total time: 1:52:15',
    'Averaged stats: lr: 0.000005  closs: 5.5 (5.5)',
    '[EVAL] epoch: 1, iter: 20/500, loss: 5.5',
    'Eval Epoch: 1 [640/60000 (1%)]\tLoss: 5.5',
]  # fmt: skip


@pytest.mark.parametrize(("line", "point", "lr", "norm"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS])
def test_a_row_of_a_framework(line: str, point: tuple[int, float], lr: float | None, norm: float | None) -> None:
    sample = parse_sample(line.encode())
    assert sample is not None
    assert (sample.step, sample.loss) == pytest.approx(point)
    assert (sample.lr, sample.grad_norm) == (pytest.approx(lr), pytest.approx(norm))


@pytest.mark.parametrize("line", EVALUATIONS)
def test_an_evaluation_is_no_row(line: str) -> None:
    assert parse_sample(line.encode()) is None


def steps(*lines: str) -> list[int]:
    place = Place()
    found = [follow(line.encode(), place) for line in lines]
    return [row.step for row in found if isinstance(row, Sample)]


def test_a_count_that_begins_anew_with_each_epoch_goes_on() -> None:
    """Where an epoch's length is not told; a count over all epochs stays what it is; another job goes back with its epoch."""
    line = "Epoch: {}, Step: {}, Rank: 0, loss = 2.5"
    assert steps(*(line.format(e, s) for e in (0, 1, 2) for s in (5, 10, 15))) == [5, 10, 15, 20, 25, 30, 35, 40, 45]
    assert steps(*(line.format(e, s) for e, s in ((0, 5), (0, 10), (1, 15), (1, 20), (2, 25)))) == [5, 10, 15, 20, 25]
    assert steps(*(line.format(e, s) for e, s in ((0, 10), (1, 10), (2, 10), (1, 5), (1, 10)))) == [10, 20, 30, 15, 20]


def test_other_ranks_of_deepspeed_chat_are_not_rows() -> None:
    line = "Epoch: 0, Step: 1, Rank: {}, loss = {}"
    assert steps(*(line.format(rank, 2 + rank) for rank in (3, 1, 0, 2))) == [1]


def test_a_row_that_a_rank_of_each_node_prints_counts_once() -> None:
    line = "[rank{}]:[titan] 2026-02-24 19:46:17,508 - root - INFO - step: {:2}  loss:  {:.5f}  grad_norm: 26.6250"
    rows = [line.format(rank, step, 7.62585 - step / 10) for step in (4, 5, 6) for rank in (0, 8, 16, 24)]
    assert steps(*rows) == [4, 5, 6]
    assert steps(line.format(0, 4, 7.1), line.format(8, 4, 7.3)) == [4, 4], "losses of their own"
    m4 = "iteration: 25/100 | elapsed time: 00:0{}:00 | per_token_loss: 2.0 |"
    assert steps(m4.format(5), m4.format(5), m4.format(1)) == [25, 25], "a job that resumed there"


def test_times_that_stand_in_a_row() -> None:
    """Megatron's in front; DLLogger's and MLPerf's among the fields; levanter's since the job began."""
    rows = {name: parse_sample(text.encode()) for name, text, *_ in ROWS}
    found = {name: row for name, row in rows.items() if row}
    assert found["dllogger json"].time == 1649135436.324733
    assert found["mlperf"].time == 1775725581.676
    assert found["megatron new"].time is not None
    assert found["levanter"].elapsed == 17 * 60 + 46 and found["levanter k"].elapsed == 3600 + 27 * 60 + 12
    assert (found["swift"].total, found["swift 2"].total, found["llama-factory"].total) == (60, 16, 93)
