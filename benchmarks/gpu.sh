#!/bin/sh
# ELF-B at L = 1024 on one GPU, in under five minutes: the literal and the product's training step. Needs Python with
# torch (2.9 or newer) and this checkout, nothing installed; $OUT, if set, is a folder for gpu.json.
#   benchmarks/gpu.sh
#   PYTHON=/path/to/python OUT=/tmp benchmarks/gpu.sh --rows 32
here=$(dirname "$0")
exec timeout -k 10 300 "${PYTHON:-python3}" "$here/gpu.py" "$@"
