# outboxctl and the examples. Two stages: what builds does not stay.
FROM python:3.13-slim AS build
WORKDIR /build
RUN python -m venv --without-pip /opt/outbox
# Dependencies first: they change less often than the code and stay in the layer cache.
COPY pyproject.toml constraints.txt ./
RUN python -c 'import tomllib; project = tomllib.load(open("pyproject.toml", "rb"))["project"]; print(*project["dependencies"], *project["optional-dependencies"]["binary"], sep="\n")' > requirements.txt \
    && pip --python /opt/outbox/bin/python install --no-cache-dir --constraint constraints.txt --requirement requirements.txt
COPY README.md LICENSE ./
COPY connectors connectors
COPY pipeline pipeline
COPY consumers consumers
RUN pip --python /opt/outbox/bin/python install --no-cache-dir --no-deps .

FROM python:3.13-slim
RUN useradd --uid 10001 --user-group --no-create-home --home-dir /app outbox
COPY --from=build /opt/outbox /opt/outbox
COPY examples /app/examples
COPY connectors/outbox.yaml /app/connectors/outbox.yaml
ENV PATH=/opt/outbox/bin:$PATH PYTHONUNBUFFERED=1 OUTBOX_FILE=/app/connectors/outbox.yaml
WORKDIR /app
# A number, so that an orchestrator can see that this is not root.
USER 10001
CMD ["outboxctl", "--help"]
