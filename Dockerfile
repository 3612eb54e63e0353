# fedseal with Flower, for sites and servers: docker build -t fedseal .
# What runs in it is chosen by the command: fedseal, fedseal-supernode, flower-supernode, flower-superlink, flwr.
FROM python:3.11-slim AS build
WORKDIR /build
COPY pyproject.toml README.md LICENSE ./
COPY src ./src
RUN python -m pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:3.11-slim
# The CPU build of PyTorch; for a GPU build with --build-arg PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cu130
ARG PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu
COPY constraints.txt /wheels/constraints.txt
COPY --from=build /wheels /wheels
RUN python -m venv /opt/fedseal
RUN /opt/fedseal/bin/python -m pip install --no-cache-dir --disable-pip-version-check -c /wheels/constraints.txt "fedseal[flower,dp] @ file://$(ls /wheels/fedseal-*.whl)"
RUN /opt/fedseal/bin/fedseal --version && /opt/fedseal/bin/flower-supernode --version
RUN mkdir -p /var/lib/fedseal /etc/fedseal && chown 10001:10001 /var/lib/fedseal
ENV PATH=/opt/fedseal/bin:$PATH \
    FEDSEAL_LEDGER=/var/lib/fedseal/ledger.sqlite \
    FEDSEAL_LOG_FORMAT=json \
    FLWR_HOME=/var/lib/fedseal/flwr \
    FLWR_TELEMETRY_ENABLED=0 \
    FLWR_DISABLE_UPDATE_CHECK=1 \
    FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1 \
    OMP_NUM_THREADS=1 \
    PYTHONUNBUFFERED=1
USER 10001:10001
WORKDIR /var/lib/fedseal
VOLUME /var/lib/fedseal
ENTRYPOINT []
CMD ["fedseal", "--help"]
