#!/bin/bash
set -euxo pipefail
python3 -m venv --without-pip /opt/venv
