"""Where tasks run: in this process, or in a pool of worker processes. Engines know nothing of audits."""
