"""Write events, provision the pipeline, watch it, relay, and recover."""
