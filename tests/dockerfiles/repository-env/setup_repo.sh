#!/bin/bash
set -euxo pipefail
cd /testbed
export GIT_AUTHOR_DATE=2024-01-01T00:00:00Z GIT_COMMITTER_DATE=2024-01-01T00:00:00Z
git init -q .
git config user.email setup@example.org
git config user.name Setup
echo 'print("hello")' > main.py
git add -A
git commit -q -m 'The state of the task'
git log --format=%s > /tmp/log
