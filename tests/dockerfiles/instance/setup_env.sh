mkdir -p /opt/miniconda3/envs/testbed/bin
printf "python=3.11\n" | tee /opt/miniconda3/envs/testbed/spec > /dev/null
