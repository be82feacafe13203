#!/bin/bash
wc -l < task-deps/data.csv
