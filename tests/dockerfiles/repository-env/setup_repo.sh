#!/bin/bash
set -euxo pipefail
cd /testbed
git init -q .
git config user.email setup@example.org
git config user.name Setup
echo 'print("hello")' > main.py
git add -A
git commit -q -m 'The state of the task'
git log --format=%s > /tmp/log
