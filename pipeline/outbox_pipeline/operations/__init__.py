"""Work on a live pipeline: audit, prune, replay, recover, switch publishers, and regular maintenance."""
