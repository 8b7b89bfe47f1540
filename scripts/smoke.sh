#!/bin/sh
# The smoke run of poprun: the guide's own check, and a short training on eight
# replicas. A few seconds; copy it into your own CI.
set -eu
here=$(dirname "$0")

hello=$(poprun --num-instances 2 --num-replicas 2 --offline-mode=1 echo "Hello world!" 2>&1)
test "$hello" = "Hello world!
Hello world!"
poprun --num-instances 4 --num-replicas 8 python "$here/../examples/train.py"
echo "poprun works here."
