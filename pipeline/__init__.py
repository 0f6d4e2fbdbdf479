"""How work becomes durable (`pipeline.dag`) and how text becomes batches (`pipeline.data`)."""
