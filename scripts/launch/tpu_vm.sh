#!/usr/bin/env bash
# Runs one specjax command on every host of a TPU VM slice, and shows the output of the first host.
#
#   TPU=my-slice ZONE=us-west4-a scripts/launch/tpu_vm.sh generate --model DIR --mesh model=16 --prompt "def f("
#
# specjax must be installed on every host: "pip install 'specjax[tpu]'" with --worker=all. The model
# must be at the same place on every host, for example in a mounted bucket or as a hub id.
set -euo pipefail
: "${TPU:?name the TPU VM, such as TPU=my-slice}" "${ZONE:?name its zone, such as ZONE=us-west4-a}"

gcloud compute tpus tpu-vm ssh "$TPU" --zone "$ZONE" --worker=all --command "specjax $(printf '%q ' "$@")"
