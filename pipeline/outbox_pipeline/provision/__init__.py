"""From a definition to a live pipeline: one module an object, `pipeline` for all of them in order."""

from outbox_pipeline.provision.pipeline import apply, apply_postgres, check, look, plan, postgres_parts

__all__ = ["apply", "apply_postgres", "check", "look", "plan", "postgres_parts"]
