"""Private choice of one policy from a public library, by doubly robust scores."""
