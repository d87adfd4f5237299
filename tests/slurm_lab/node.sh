#!/bin/bash
# Process 1 of a node: NAME, then the cluster's folder. It starts slurmd and reaps what is left to it.
hostname "$1"
mount --bind "$2/etc/hosts" /etc/hosts
mount -t tmpfs tmpfs /dev/shm
slurmd -N "$1"
trap : CHLD
while :; do
    sleep 3600 &
    wait $!
done
