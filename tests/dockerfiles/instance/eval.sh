#!/bin/bash
set -uxo pipefail
cd /testbed
git status
