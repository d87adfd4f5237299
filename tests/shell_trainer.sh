#!/usr/bin/env bash
# A training in shell: m4's files, log lines and switches, and nothing learnt. SAVE_DIR says where.
# A step takes 0.1 s; --nodes or --ntasks of srun may be many: the first task alone writes.
set -euo pipefail
ended="$SAVE_DIR/logs/ended-$SLURM_JOB_ID-${SLURM_RESTART_COUNT:-0}"
if [ "${SLURM_PROCID:-0}" != 0 ]; then
    until [ -e "$ended" ]; do sleep 0.1; done
    exit
fi
trap 'touch "$ended"' EXIT

save() {
    local to="$SAVE_DIR/opt_step-$step" from
    from=$(cat "$SAVE_DIR/latest_opt_step_dir" 2>/dev/null || true)
    mkdir -p "$to/unwrapped_model"
    if [ -d "$from/accelerator_state" ]; then cp -r "$from/accelerator_state" "$to/"; else
        mkdir -p "$to/accelerator_state"
        touch "$to"/accelerator_state/{custom_checkpoint_0.pkl,model.safetensors,optimizer.bin}
    fi
    cat > "$to/resume_run_infos.json" <<J
{"train_logs": {}, "wandb_run_id": "shell$SLURM_JOB_ID", "seed": 1, "resume_opt_step": $step, "resume_epoch": 0, "gbs_running": {"global_batch_size_current": 1, "global_seen_samples": $step, "next_goal_samples": 1, "grad_acc_size_current": 1}}
J
    touch "$to/finished-saving"
    printf %s "$to" > "$SAVE_DIR/latest_opt_step_dir"
    echo "** Saving finished at \`$to\` **"
}

step=0
if compgen -G "$SAVE_DIR/opt_step-*" > /dev/null; then
    from=$(cat "$SAVE_DIR/latest_opt_step_dir")
    [ -d "$from" ] || { echo "latest_opt_step_dir names no directory: $from"; exit 1; }
    step=${from##*opt_step-}
    echo "Resuming from $from"
fi
if [ -e "$SAVE_DIR/kill" ]; then
    echo "** Kill switch activated. Exiting the training before it even starts. **"
    exit
fi
while ((step < ${STEPS:-9000})); do
    sleep 0.1
    step=$((step + 1))
    echo "iteration: $step/9000   0% | elapsed time: 00:00:0$((step % 10)) | per_token_loss: 2.5000 | lr: 1.000E-05 | num_opt_steps: $step | "
    if [ -e "$SAVE_DIR/save" ]; then rm "$SAVE_DIR/save"; save; fi
    if [ -e "$SAVE_DIR/kill" ]; then
        echo "** Kill switch activated (Don't forget to remove $SAVE_DIR/kill) **"
        save
        exit
    fi
done
