"""Traces of requests, sent to an OpenTelemetry collector. Nothing but `exporter` imports OpenTelemetry's packages."""
