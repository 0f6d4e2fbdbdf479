"""How text becomes batches: sources and pins, readers, tokenizer, shards, staging, order and loader."""
