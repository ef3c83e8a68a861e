"""Plans, the papermill engine, batches and their records."""
