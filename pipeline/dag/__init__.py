"""The durable DAG: steps, a pure plan, leases and receipts in storage, a runner. Knows nothing of models or text."""
